//! Content with images and files: put together here, and sent as a message or given as a tool's result.

use crate::boundary::{call, given, given_mut, output, value};
use crate::cast;
use crate::failure::Failure;
use crate::status::Status;
use crate::text::{Bytes, Text};
use broca_bridge::Error;
use broca_bridge::content::{self, Described};
use broca_proto::Json;
use broca_proto::session::content::Block;
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// Content blocks in their order: texts, images and files.
#[derive(Default)]
pub struct Content {
    blocks: Vec<Json>,
    text: Text,
}

impl Content {
    fn add(&mut self, block: Json) {
        self.blocks.push(block);
        self.text.set(Json::array(&self.blocks).as_bytes());
    }
}

/// Adds what bytes become.
///
/// # Safety
/// As for [`cast::bytes`], for each pair of arguments.
unsafe fn add(
    content: Option<&mut Content>,
    is_file: bool,
    bytes: (*const c_char, usize),
    media_type: (*const c_char, usize),
    name: (*const c_char, usize),
) -> Result<(), Error> {
    let content = given_mut("content", content)?;
    // SAFETY: the caller's promise is the same.
    let bytes = unsafe { cast::bytes("bytes", bytes.0, bytes.1) }?;
    // SAFETY: the same of `media_type`.
    let media_type = unsafe { cast::text("media_type", media_type.0, media_type.1) }?;
    // SAFETY: the same of `name`.
    let name = unsafe { cast::text("name", name.0, name.1) }?;
    let described = Described {
        is_file,
        media_type: (!media_type.is_empty()).then_some(media_type),
        name: (!name.is_empty()).then_some(name),
        title: None,
    };
    content.add(content::block(bytes, described)?);
    Ok(())
}

/// Makes content without anything in it.
///
/// Ownership: returns `content` owned: free it with `broca_content_free`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_content_new(
    content: Option<&mut MaybeUninit<Option<Box<Content>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        *output("content", content)? = Some(Box::default());
        Ok(())
    })
}

/// Adds a text.
///
/// Ownership: changes `content`; copies `text`.
/// Threads: any, but not while another uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_content_add_text(
    content: Option<&mut Content>,
    text: *const c_char,
    text_len: usize,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        // SAFETY: the header says what `text` and `text_len` are.
        let text = unsafe { cast::text("text", text, text_len) }?;
        given_mut("content", content)?.add(Block::of_text(text).json().clone());
        Ok(())
    })
}

/// Adds an image. Its media type is `media_type`, such as `image/png`; empty, it is what the bytes show, else what the ending of
/// `name` means, which may be empty, too. Where neither tells it is an error.
///
/// Ownership: changes `content`; copies the rest.
/// Threads: any, but not while another uses it.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "texts with their lengths")]
pub unsafe extern "C" fn broca_content_add_image(
    content: Option<&mut Content>,
    bytes: *const c_char,
    bytes_len: usize,
    media_type: *const c_char,
    media_type_len: usize,
    name: *const c_char,
    name_len: usize,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    let (media_type, name) = ((media_type, media_type_len), (name, name_len));
    // SAFETY: the header says what the texts and their lengths are.
    call(err, || unsafe { add(content, false, (bytes, bytes_len), media_type, name) })
}

/// Adds an image that the model's provider fetches by itself from this address.
///
/// Ownership: changes `content`; copies `url`.
/// Threads: any, but not while another uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_content_add_image_url(
    content: Option<&mut Content>,
    url: *const c_char,
    url_len: usize,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        // SAFETY: the header says what `url` and `url_len` are.
        let url = unsafe { cast::text("url", url, url_len) }?;
        given_mut("content", content)?.add(content::image_at(url)?);
        Ok(())
    })
}

/// Adds a file; its title is the last part of `name`, if it has one. Text travels as text. The media type is found as that of an
/// image.
///
/// Ownership: changes `content`; copies the rest.
/// Threads: any, but not while another uses it.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "texts with their lengths")]
pub unsafe extern "C" fn broca_content_add_file(
    content: Option<&mut Content>,
    bytes: *const c_char,
    bytes_len: usize,
    media_type: *const c_char,
    media_type_len: usize,
    name: *const c_char,
    name_len: usize,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    let (media_type, name) = ((media_type, media_type_len), (name, name_len));
    // SAFETY: the header says what the texts and their lengths are.
    call(err, || unsafe { add(content, true, (bytes, bytes_len), media_type, name) })
}

/// The content as JSON, for `broca_session_send_message` and `broca_call_complete`. Nothing before something was added.
///
/// Ownership: returns borrowed from `content` until it is changed or freed.
/// Threads: any, but not while another changes it.
#[unsafe(no_mangle)]
pub extern "C" fn broca_content_json(content: Option<&Content>) -> Bytes {
    value(|| given("content", content).map(|content| content.text.bytes()).unwrap_or_default())
}

/// Frees content. NULL is fine.
///
/// Ownership: takes `content`.
/// Threads: any, but not while another uses it.
#[unsafe(no_mangle)]
pub extern "C" fn broca_content_free(content: Option<Box<Content>>) {
    value(|| drop(content));
}
