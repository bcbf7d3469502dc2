//! `broca._broca`: the private native module below the Python package.
//!
//! It converts and decides nothing. Every class is frozen and every call is short, so the interpreter lock stays
//! held and no runtime or thread exists here. A call fills a [`Batch`] under the
//! engine's lock and makes Python objects afterwards: no Python code ever runs while that lock is held.
//!
//! * `engine`: one engine, with its inputs, effects and steps.
//! * `event`, `delta`: the steps that come by the thousand, decoded when they are read.
//! * `json`, `text`: JSON and strings as Python objects.
//! * `content`: images, files and results of MCP servers as content blocks.
//! * `chat`: a provider's answer, for tests.
//! * `fault`: errors as the classes of `broca.errors`, panics included.

mod chat;
mod content;
mod delta;
mod engine;
mod event;
mod fault;
mod json;
mod text;

use broca_bridge::{Batch, layout};
use fault::guarded;
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A row of the table of errors: number, kind, class, number of the parent, what a retry would do.
type Row = (i32, &'static str, &'static str, Option<i32>, &'static str);

/// Every row of the table of errors, in its order.
#[pyfunction]
fn error_table() -> Vec<Row> {
    let rows = broca_bridge::errors::table();
    rows.map(|row| (row.code, row.kind, row.class, row.parent, row.retry)).collect()
}

/// The kinds of records: number, name, names of the fields.
#[pyfunction]
fn layout_table() -> Vec<(u32, &'static str, Vec<&'static str>)> {
    let row = |kind: &layout::Kind| {
        (kind.number, kind.name, kind.fields.iter().map(|field| field.name).collect())
    };
    layout::KINDS.iter().map(row).collect()
}

/// One JSON value as Python objects; see [`json::decode`].
#[pyfunction]
fn decode_json<'py>(text: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    let py = text.py();
    guarded(py, || {
        let text = text.to_cow()?;
        json::decode(py, &text)
    })
}

/// The interpreter that loaded the module first, told by its `sys`.
static INTERPRETER: AtomicUsize = AtomicUsize::new(0);

/// What is kept between calls (classes, strings) belongs to one interpreter; a second one must not see it.
fn refuse_other_interpreters(py: Python<'_>) -> PyResult<()> {
    let this = py.import("sys")?.as_ptr() as usize;
    match INTERPRETER.compare_exchange(0, this, Ordering::SeqCst, Ordering::SeqCst) {
        Err(first) if first != this => Err(PyImportError::new_err(
            "broca cannot be used in a sub-interpreter: import it in the main interpreter, or use a process of its own",
        )),
        _ => Ok(()),
    }
}

/// The module.
#[pymodule(gil_used = false)]
mod _broca {
    #[pymodule_export]
    use super::chat::ChatStream;
    #[pymodule_export]
    use super::content::{image_at, mcp_answer, media_block};
    #[pymodule_export]
    use super::delta::TextDelta;
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::event::{Event, events_of};
    #[pymodule_export]
    use super::{decode_json, error_table, layout_table};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        refuse_other_interpreters(module.py())?;
        module.add("LAYOUT_VERSION", Batch::VERSION)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
