//! An engine as a Python object: inputs in, tuples and steps out.

use crate::delta::TextDelta;
use crate::event::Event;
use crate::fault::{guarded, raised};
use crate::text::repeated;
use broca_bridge::layout::{
    self, FieldType, delta, event, failed, gap, notification, status, tool_settled, warning,
};
use broca_bridge::{Accepted, Batch, Error, ErrorKind, Handle, Record, Time, Trace, command};
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyString, PyTuple};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// What is to be done now, in order: effects and log records, as tuples of the kind's number and the fields. None when
/// there is nothing.
type Effects<'py> = Option<Bound<'py, PyList>>;

/// The whole client of one session, without sockets and clock. Times are milliseconds of a monotonic clock.
///
/// What the thread that owns the sockets gives, gives the effects that wait after it: `command`, what the network and the clock
/// say, and `steps`. An answer and a cancellation may come from any other, and leave them for `effects`.
#[pyclass(frozen, module = "broca._broca")]
pub(crate) struct Engine {
    handle: Handle,
    /// The memory of the last batch of effects. Never waited for.
    spare: Mutex<Batch>,
}

impl Engine {
    /// Gives the engine an input, and takes the effects.
    fn input<'py>(
        &self,
        py: Python<'py>,
        give: impl FnOnce(&Handle) -> Result<(), Error>,
    ) -> PyResult<Effects<'py>> {
        guarded(py, || {
            give(&self.handle).map_err(|error| raised(py, &error))?;
            self.taken(py)
        })
    }

    /// Takes every effect and log record that waits.
    fn taken<'py>(&self, py: Python<'py>) -> PyResult<Effects<'py>> {
        let mut batch = match self.spare.try_lock() {
            Ok(mut spare) => std::mem::take(&mut *spare),
            Err(_) => Batch::new(),
        };
        batch.clear();
        self.handle.effects(&mut batch).map_err(|error| raised(py, &error))?;
        if self.handle.has_logs() {
            self.handle.logs(&mut batch).map_err(|error| raised(py, &error))?;
        }
        let effects = if batch.is_empty() {
            None
        } else {
            let all: PyResult<Vec<_>> = batch.records().map(|record| tuple(py, &record)).collect();
            Some(PyList::new(py, all?)?)
        };
        if let Ok(mut spare) = self.spare.try_lock() {
            *spare = batch;
        }
        Ok(effects)
    }
}

#[pymethods]
impl Engine {
    /// An engine with these options (JSON), random bits, and milliseconds since 1970.
    #[new]
    fn new(py: Python<'_>, options: &str, seed: u64, wall_ms: u64) -> PyResult<Self> {
        guarded(py, || {
            let handle = Handle::new(options.as_bytes(), seed, wall_ms)
                .map_err(|error| raised(py, &error))?;
            Ok(Self { handle, spare: Mutex::new(Batch::new()) })
        })
    }

    /// Begins the operation that the JSON describes; gives its number, and the effects.
    #[pyo3(signature = (command, now, traceparent = None, tracestate = None))]
    fn command<'py>(
        &self,
        py: Python<'py>,
        command: &str,
        now: u64,
        traceparent: Option<String>,
        tracestate: Option<String>,
    ) -> PyResult<(u64, Effects<'py>)> {
        guarded(py, || {
            let trace = Trace { traceparent, tracestate };
            let op = self
                .handle
                .command(command.as_bytes(), trace, Time::from_millis(now))
                .map_err(|error| raised(py, &error))?;
            Ok((op, self.taken(py)?))
        })
    }

    /// Ends an operation early; it still finishes. From any thread.
    fn cancel(&self, py: Python<'_>, op: u64, now: u64) -> PyResult<()> {
        guarded(py, || {
            self.handle.cancel(op, Time::from_millis(now)).map_err(|error| raised(py, &error))
        })
    }

    /// Answers a tool call, an approval or a hook; false when it came too late. From any thread: the one that owns the
    /// sockets says so, and gets the effects as well.
    #[pyo3(signature = (call, word, value, now, traceparent = None, tracestate = None, owner = false))]
    #[allow(clippy::too_many_arguments, reason = "the words of one answer")]
    fn answer<'py>(
        &self,
        py: Python<'py>,
        call: u64,
        word: &str,
        value: Option<&str>,
        now: u64,
        traceparent: Option<String>,
        tracestate: Option<String>,
        owner: bool,
    ) -> PyResult<(bool, Effects<'py>)> {
        guarded(py, || {
            let trace = (traceparent.is_some() || tracestate.is_some())
                .then_some(Trace { traceparent, tracestate });
            let accepted = command::answer(word, value.map(str::as_bytes), trace)
                .and_then(|answer| self.handle.answer(call, answer, Time::from_millis(now)))
                .map_err(|error| raised(py, &error))?;
            let effects = if owner { self.taken(py)? } else { None };
            Ok((accepted != Accepted::TooLate, effects))
        })
    }

    /// Whether a turn that another program has left waits to be taken up.
    fn pending(&self, py: Python<'_>) -> PyResult<bool> {
        guarded(py, || self.handle.is_pending().map_err(|error| raised(py, &error)))
    }

    /// What the session's turns have spent so far: rounds, tokens read, tokens written, calls of tools.
    fn spent(&self, py: Python<'_>) -> PyResult<(u32, u64, u64, u32)> {
        guarded(py, || {
            let spent = self.handle.spent().map_err(|error| raised(py, &error))?;
            Ok((spent.rounds, spent.input_tokens, spent.output_tokens, spent.tool_calls))
        })
    }

    /// A name was resolved to these addresses, or was not, and why. Addresses that say more than an address are left out.
    fn resolved<'py>(
        &self,
        py: Python<'py>,
        req: u64,
        addresses: Option<Vec<String>>,
        why: Option<String>,
        now: u64,
    ) -> PyResult<Effects<'py>> {
        self.input(py, |handle| {
            let answer = match addresses {
                Some(all) => Ok(all.iter().filter_map(|a| a.parse::<IpAddr>().ok()).collect()),
                None => Err(why.unwrap_or_else(|| "the name could not be resolved".to_owned())),
            };
            handle.resolved(req, answer, Time::from_millis(now))
        })
    }

    /// A connection is open, TLS included when it was asked for.
    fn connected<'py>(&self, py: Python<'py>, conn: u64, now: u64) -> PyResult<Effects<'py>> {
        self.input(py, |handle| handle.connected(conn, Time::from_millis(now)))
    }

    /// TLS was started inside a tunnel.
    fn tls_started<'py>(&self, py: Python<'py>, conn: u64, now: u64) -> PyResult<Effects<'py>> {
        self.input(py, |handle| handle.tls_started(conn, Time::from_millis(now)))
    }

    /// The first `size` bytes of the buffer came; they are copied. A bytearray or bytes is read where it lies.
    fn data<'py>(
        &self,
        py: Python<'py>,
        conn: u64,
        buffer: &Bound<'_, PyAny>,
        size: usize,
        now: u64,
    ) -> PyResult<Effects<'py>> {
        let now = Time::from_millis(now);
        if let Ok(array) = buffer.cast::<PyByteArray>() {
            return self.input(py, |handle| {
                with_critical_section(array.as_any(), || {
                    // SAFETY: while the slice lives no Python code runs (the engine calls nobody), so nobody resizes
                    // or frees the array; without the interpreter lock its critical section keeps others away.
                    let bytes = unsafe { array.as_bytes() };
                    handle.data(conn, front(bytes, size)?, now)
                })
            });
        }
        if let Ok(bytes) = buffer.cast::<PyBytes>() {
            return self.input(py, |handle| handle.data(conn, front(bytes.as_bytes(), size)?, now));
        }
        // Any other buffer: its bytes are taken out first.
        let copy = PyByteArray::from(buffer)?.to_vec();
        self.input(py, |handle| handle.data(conn, front(&copy, size)?, now))
    }

    /// The socket took this many of the bytes that were to be written.
    fn written<'py>(
        &self,
        py: Python<'py>,
        conn: u64,
        size: usize,
        now: u64,
    ) -> PyResult<Effects<'py>> {
        self.input(py, |handle| handle.written(conn, size, Time::from_millis(now)))
    }

    /// A connection is gone, or could not be made.
    fn closed<'py>(
        &self,
        py: Python<'py>,
        conn: u64,
        why: &str,
        now: u64,
    ) -> PyResult<Effects<'py>> {
        self.input(py, |handle| {
            handle.closed(conn, command::close_reason(why)?, Time::from_millis(now))
        })
    }

    /// The timer has gone off; too early or too often does no harm.
    fn timeout<'py>(&self, py: Python<'py>, now: u64) -> PyResult<Effects<'py>> {
        self.input(py, |handle| handle.timeout(Time::from_millis(now)))
    }

    /// The wall clock, in milliseconds since 1970.
    fn wall<'py>(&self, py: Python<'py>, ms: u64) -> PyResult<Effects<'py>> {
        self.input(py, |handle| handle.wall(ms))
    }

    /// The effects that wait: after an answer or a cancellation.
    fn effects<'py>(&self, py: Python<'py>) -> PyResult<Effects<'py>> {
        guarded(py, || self.taken(py))
    }

    /// Steps of an operation, about `max_bytes` of them but at least one if any waits; whether it is over; where tuples
    /// stand among the steps, for most batches have none; and the effects. Nobody looks at the steps when `quiet`: then
    /// those that neither ask for anything nor end the operation are left out.
    fn steps<'py>(
        &self,
        py: Python<'py>,
        op: u64,
        max_bytes: usize,
        quiet: bool,
    ) -> PyResult<(Bound<'py, PyList>, bool, Vec<usize>, Effects<'py>)> {
        guarded(py, || {
            let mut batch = Batch::new();
            let over =
                self.handle.steps(op, max_bytes, &mut batch).map_err(|error| raised(py, &error))?;
            let mut items = Vec::with_capacity(batch.len());
            let mut tuples = Vec::new();
            let batch = Arc::new(batch);
            for record in batch.records() {
                match record.kind() {
                    kind if quiet && only_tells(kind) => {}
                    event::NUMBER => {
                        items.push(Bound::new(py, Event::new(&batch, record.at()))?.into_any())
                    }
                    delta::NUMBER if record.word(delta::delta_kind) == 0 => {
                        let text = PyString::new(py, record.text(delta::text).unwrap_or_default());
                        let link = repeated(py, record.text(delta::link).unwrap_or_default());
                        items.push(Bound::new(py, TextDelta::of(text, link))?.into_any());
                    }
                    _ => {
                        tuples.push(items.len());
                        items.push(tuple(py, &record)?.into_any());
                    }
                }
            }
            Ok((PyList::new(py, items)?, over, tuples, self.taken(py)?))
        })
    }

    fn __repr__(&self) -> &'static str {
        "Engine()"
    }

    /// Panics inside the engine.
    #[cfg(feature = "testing")]
    fn test_panic(&self, py: Python<'_>) -> PyResult<()> {
        guarded(py, || self.handle.test_panic().map_err(|error| raised(py, &error)))
    }

    /// Raises the error of this number.
    #[cfg(feature = "testing")]
    fn test_throw(&self, py: Python<'_>, code: i32) -> PyResult<()> {
        guarded(py, || self.handle.test_throw(code).map_err(|error| raised(py, &error)))
    }

    /// Panics in the module itself, outside of the engine.
    #[cfg(feature = "testing")]
    fn test_panic_outside(&self, py: Python<'_>) -> PyResult<()> {
        #[allow(clippy::panic, reason = "this is what the function is for")]
        guarded(py, || panic!("a test asked for it"))
    }
}

/// Whether steps of this kind are for whoever looks at them and nobody else.
fn only_tells(kind: u32) -> bool {
    matches!(
        kind,
        event::NUMBER
            | notification::NUMBER
            | delta::NUMBER
            | gap::NUMBER
            | tool_settled::NUMBER
            | status::NUMBER
            | warning::NUMBER
    )
}

/// A record as a tuple: the kind's number, then every field in order.
fn tuple<'py>(py: Python<'py>, record: &Record<'_>) -> PyResult<Bound<'py, PyTuple>> {
    let fields = layout::kind(record.kind()).map(|kind| kind.fields).unwrap_or_default();
    let mut items = Vec::with_capacity(1 + fields.len());
    items.push(record.kind().into_pyobject(py)?.into_any());
    for field in fields {
        items.push(match field.field_type {
            FieldType::Text | FieldType::Json => match record.text(field.at) {
                Some(text) => PyString::new(py, text).into_any(),
                None => py.None().into_bound(py),
            },
            FieldType::Bytes => {
                PyBytes::new(py, record.bytes(field.at).unwrap_or_default()).into_any()
            }
            FieldType::Number => record.number(field.at).into_pyobject(py)?.into_any(),
            FieldType::Word if record.kind() == failed::NUMBER => {
                record.word(field.at).cast_signed().into_pyobject(py)?.into_any()
            }
            FieldType::Word => record.word(field.at).into_pyobject(py)?.into_any(),
        });
    }
    PyTuple::new(py, items)
}

fn front(bytes: &[u8], size: usize) -> Result<&[u8], Error> {
    bytes.get(..size).ok_or_else(|| {
        let message = format!("the buffer holds {} bytes, not {size}", bytes.len());
        Error::new(ErrorKind::InvalidArgument, message)
    })
}
