//! Events: a place in a batch, decoded when it is read.

use crate::fault::{guarded, malformed, raised};
use crate::json::decode;
use crate::text::repeated;
use broca_bridge::layout::event;
use broca_bridge::{Batch, Handle};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyType};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Something the session logged.
///
/// Its id is the cursor after it. What it says lies in the batch it came with, which lives as long as any event of
/// it; a copy (`copy.deepcopy`) stands alone. `payload` is decoded at each access.
#[pyclass(frozen, module = "broca")]
pub(crate) struct Event {
    batch: Arc<Batch>,
    at: usize,
}

impl Event {
    /// The event whose record begins at this word of the batch.
    pub(crate) fn new(batch: &Arc<Batch>, at: usize) -> Self {
        Self { batch: Arc::clone(batch), at }
    }

    fn text(&self, py: Python<'_>, field: usize) -> PyResult<&str> {
        let text = self.batch.record(self.at).and_then(|record| record.text(field));
        text.ok_or_else(|| malformed(py, "the event does not say this"))
    }

    /// As `text`; whoever makes a string of it looks at every byte anyway.
    fn bytes(&self, py: Python<'_>, field: usize) -> PyResult<&[u8]> {
        let bytes = self.batch.record(self.at).and_then(|record| record.bytes(field));
        bytes.ok_or_else(|| malformed(py, "the event does not say this"))
    }

    fn raw(&self) -> &[u8] {
        let record = self.batch.record(self.at);
        record.and_then(|record| record.bytes(event::raw)).unwrap_or_default()
    }

    fn fresh<'py>(&self, py: Python<'py>, field: usize) -> PyResult<Bound<'py, PyString>> {
        guarded(py, || PyString::from_bytes(py, self.bytes(py, field)?))
    }

    fn repeated<'py>(&self, py: Python<'py>, field: usize) -> PyResult<Bound<'py, PyString>> {
        guarded(py, || Ok(repeated(py, self.text(py, field)?)))
    }
}

#[pymethods]
impl Event {
    /// An event from its JSON, as `event.json` gives it.
    #[new]
    fn parse(json: &Bound<'_, PyString>) -> PyResult<Self> {
        let py = json.py();
        guarded(py, || {
            let mut array = Vec::from("[");
            array.extend_from_slice(json.to_cow()?.as_bytes());
            array.push(b']');
            let mut batch = Batch::new();
            Handle::events_of(&array, &mut batch).map_err(|error| raised(py, &error))?;
            if batch.len() == 1 {
                Ok(Self { batch: Arc::new(batch), at: 0 })
            } else {
                Err(malformed(py, "the JSON is not that of one event"))
            }
        })
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str) {
        ("type", "payload")
    }

    /// The event's id: the cursor just after it.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        self.fresh(py, event::id)
    }

    /// The type, such as `server.message.send`; types of a newer service come too.
    #[getter]
    fn r#type<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        self.repeated(py, event::event_type)
    }

    /// The session it belongs to.
    #[getter]
    fn session_id<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        self.repeated(py, event::session_id)
    }

    /// The id of the client key that caused it; `None` when the service did.
    #[getter]
    fn client_key_id<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        guarded(py, || {
            let record = self.batch.record(self.at);
            let text = record.and_then(|record| record.text(event::client_key_id));
            Ok(text.map(|text| repeated(py, text)))
        })
    }

    /// When it was logged: UTC, ISO 8601 with milliseconds and `Z`.
    #[getter]
    fn created_at<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        self.fresh(py, event::created_at)
    }

    /// What the event says, decoded at each access.
    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        guarded(py, || decode(py, self.text(py, event::payload)?))
    }

    /// The payload as JSON text, exactly as it came.
    #[getter]
    fn payload_json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        self.fresh(py, event::payload)
    }

    /// The whole event as JSON text, exactly as it came.
    #[getter]
    fn json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        self.fresh(py, event::raw)
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        guarded(py, || match other.cast::<Self>() {
            Ok(other) => {
                let equal = self.raw() == other.get().raw();
                Ok(equal.into_pyobject(py)?.to_owned().into_any().unbind())
            }
            Err(_) => Ok(py.NotImplemented()),
        })
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<u64> {
        guarded(py, || {
            let mut hasher = DefaultHasher::new();
            self.raw().hash(&mut hasher);
            Ok(hasher.finish())
        })
    }

    /// Without the payload: it may be large, and may be nobody else's business.
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        guarded(py, || {
            let (kind, id) = (self.text(py, event::event_type)?, self.text(py, event::id)?);
            Ok(format!("Event({kind}, {id})"))
        })
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyString>,))> {
        Ok((py.get_type::<Self>(), (self.json(py)?,)))
    }

    /// Everything it says, as one dictionary.
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(py, || Ok(decode(py, self.text(py, event::raw)?)?.cast_into::<PyDict>()?))
    }
}

/// The events of a JSON array; elements that are no events are left out.
#[pyfunction]
pub(crate) fn events_of<'py>(json: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyList>> {
    let py = json.py();
    guarded(py, || {
        let mut batch = Batch::new();
        Handle::events_of(json.to_cow()?.as_bytes(), &mut batch)
            .map_err(|error| raised(py, &error))?;
        let batch = Arc::new(batch);
        let list = PyList::empty(py);
        for record in batch.records() {
            list.append(Event::new(&batch, record.at()))?;
        }
        Ok(list)
    })
}
