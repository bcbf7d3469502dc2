//! Errors as the classes of `broca.errors`, and panics as one of them.

use broca_bridge::errors::of_panic;
use broca_bridge::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `broca.errors._of`: makes an error of a row.
static OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The Python exception of an error.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let of = OF.get_or_try_init(py, || -> PyResult<Py<PyAny>> {
            Ok(py.import("broca.errors")?.getattr("_of")?.unbind())
        })?;
        let details = error.details().map(|details| String::from_utf8_lossy(details.as_bytes()));
        let words = (error.code(), error.message(), error.retry().as_str(), details);
        Ok(PyErr::from_value(of.bind(py).call1(words)?))
    };
    made().unwrap_or_else(|fault| fault)
}

/// `malformed`, for a value of the service that typed access cannot show.
pub(crate) fn malformed(py: Python<'_>, message: &str) -> PyErr {
    raised(py, &Error::new(ErrorKind::Malformed, message))
}

/// Does the work of an exported function. A panic becomes an exception that `except Exception` catches.
pub(crate) fn guarded<R>(py: Python<'_>, work: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome,
        Err(payload) => Err(raised(py, &of_panic(&*payload))),
    }
}
