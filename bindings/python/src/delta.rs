//! Pieces of the answer's text.

use crate::fault::guarded;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

/// A piece of the answer as it is produced: lossy by contract, the assembled message comes whole.
#[pyclass(frozen, module = "broca")]
pub(crate) struct TextDelta {
    delta: Py<PyString>,
    message_id: Py<PyString>,
}

impl TextDelta {
    pub(crate) fn of(delta: Bound<'_, PyString>, message_id: Bound<'_, PyString>) -> Self {
        Self { delta: delta.unbind(), message_id: message_id.unbind() }
    }
}

#[pymethods]
impl TextDelta {
    #[new]
    #[pyo3(signature = (delta, message_id = None))]
    fn make(
        py: Python<'_>,
        delta: Bound<'_, PyString>,
        message_id: Option<Bound<'_, PyString>>,
    ) -> Self {
        Self::of(delta, message_id.unwrap_or_else(|| PyString::new(py, "")))
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str) {
        ("delta", "message_id")
    }

    /// The piece itself.
    #[getter]
    fn delta(&self, py: Python<'_>) -> Py<PyString> {
        self.delta.clone_ref(py)
    }

    /// The message that it becomes part of.
    #[getter]
    fn message_id(&self, py: Python<'_>) -> Py<PyString> {
        self.message_id.clone_ref(py)
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        guarded(py, || match other.cast::<Self>() {
            Ok(other) => {
                let other = other.get();
                let equal = self.delta.bind(py).as_any().eq(&other.delta)?
                    && self.message_id.bind(py).as_any().eq(&other.message_id)?;
                Ok(equal.into_pyobject(py)?.to_owned().into_any().unbind())
            }
            Err(_) => Ok(py.NotImplemented()),
        })
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        guarded(py, || (&self.delta, &self.message_id).into_pyobject(py)?.hash())
    }

    /// Its size and not its text.
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        guarded(py, || {
            let id = self.message_id.bind(py).to_cow()?;
            Ok(format!("TextDelta({} characters of {id})", self.delta.bind(py).len()?))
        })
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> (Bound<'py, PyType>, (Py<PyString>, Py<PyString>)) {
        (py.get_type::<Self>(), (self.delta.clone_ref(py), self.message_id.clone_ref(py)))
    }
}
