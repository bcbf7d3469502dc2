//! Content blocks: images and files made of bytes, and what MCP servers answer.

use crate::fault::guard;
use broca_bridge::content::{self, Described};
use napi::bindgen_prelude::{Array, Env, Uint8ArraySlice};
use napi_derive::napi;

/// The block of an image, or of a file, as JSON.
///
/// # Errors
/// `invalid_argument` when nobody can tell what the bytes are.
#[napi(catch_unwind)]
pub fn media_block(
    env: &Env,
    bytes: Uint8ArraySlice<'_>,
    is_file: bool,
    media_type: Option<String>,
    name: Option<String>,
    title: Option<String>,
) -> napi::Result<String> {
    guard(env, || {
        let described = Described {
            is_file,
            media_type: media_type.as_deref(),
            name: name.as_deref(),
            title: title.as_deref(),
        };
        let block = content::block(&bytes, described)?;
        Ok(block.as_str().to_owned())
    })
}

/// The block of an image that is somewhere else, as JSON.
///
/// # Errors
/// `invalid_argument` for what is no address of an image.
#[napi(catch_unwind)]
pub fn image_at(env: &Env, url: String) -> napi::Result<String> {
    guard(env, || {
        let block = content::image_at(&url)?;
        Ok(block.as_str().to_owned())
    })
}

/// The word and the value of the answer that an MCP server's result stands for.
///
/// # Errors
/// `malformed` for what is no such result.
#[napi(catch_unwind)]
pub fn mcp_answer(env: &Env, result: String) -> napi::Result<Array<'_>> {
    guard(env, || {
        let (word, value) = content::of_mcp(result.as_bytes())?;
        let mut answer = env.create_array(2)?;
        answer.set(0, word)?;
        answer.set(1, value)?;
        Ok(answer)
    })
}
