//! Content blocks: images and files made of bytes, and what MCP servers answer.

use crate::fault::{guarded, raised};
use broca_bridge::content::{self, Described};
use pyo3::prelude::*;

/// The block of an image, or of a file, as JSON.
#[pyfunction]
#[pyo3(signature = (data, is_file, media_type = None, name = None, title = None))]
pub(crate) fn media_block(
    py: Python<'_>,
    data: &[u8],
    is_file: bool,
    media_type: Option<&str>,
    name: Option<&str>,
    title: Option<&str>,
) -> PyResult<String> {
    guarded(py, || {
        let block = content::block(data, Described { is_file, media_type, name, title });
        Ok(block.map_err(|error| raised(py, &error))?.as_str().to_owned())
    })
}

/// The block of an image that is somewhere else, as JSON.
#[pyfunction]
pub(crate) fn image_at(py: Python<'_>, url: &str) -> PyResult<String> {
    guarded(py, || {
        Ok(content::image_at(url).map_err(|error| raised(py, &error))?.as_str().to_owned())
    })
}

/// The word and the value of the answer that an MCP server's result stands for.
#[pyfunction]
pub(crate) fn mcp_answer(py: Python<'_>, result: &str) -> PyResult<(&'static str, String)> {
    guarded(py, || content::of_mcp(result.as_bytes()).map_err(|error| raised(py, &error)))
}
