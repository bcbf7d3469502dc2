//! The answer of a Chat Completions server, read piece by piece: for tests that play a provider.

use crate::fault::guarded;
use broca_bridge::ChatStream as Stream;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Reads one answer of a provider that came with this HTTP status.
#[pyclass(frozen, module = "broca.testing")]
pub(crate) struct ChatStream(Mutex<Stream>);

impl ChatStream {
    fn with<R>(&self, py: Python<'_>, work: impl FnOnce(&mut Stream) -> R) -> PyResult<R> {
        guarded(py, || Ok(work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))))
    }
}

#[pymethods]
impl ChatStream {
    #[new]
    #[pyo3(signature = (status = 200))]
    fn make(status: u16) -> Self {
        Self(Mutex::new(Stream::new(status)))
    }

    /// The next bytes of the body.
    fn data(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        self.with(py, |stream| stream.data(data))
    }

    /// The body ended cleanly.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Stream::end)
    }

    /// The connection broke.
    fn broken(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Stream::broken)
    }

    /// What came since the last call: JSON with ``units``, ``warnings`` and ``usage``.
    fn take(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, Stream::take)
    }
}
