//! Images and files: in messages, and as what tools give.
//!
//! ```no_run
//! # async fn example(session: broca::Session) -> Result<(), Box<dyn std::error::Error>> {
//! use broca::media;
//! use broca::proto::session::content::Block;
//!
//! let message = vec![Block::of_text("What is this?"), media::open_image("cat.png")?];
//! let reply = session.ask(message).await?;
//! # Ok(()) }
//! ```
//!
//! They reach the model where the session takes them (feature `blocks`). Elsewhere a message with one is refused before anything
//! leaves, and words stand for it in a tool's result.

use crate::steps::IntoMessage;
use crate::tools::{Handler, Tool, ToolContext, arguments};
use broca_proto::session::content::{Block, Content, Message};
use broca_proto::{Error, Json};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

pub use broca_proto::session::media::{document, image, image_at};

/// The image in this file, which is read at once.
///
/// # Errors
/// When the file cannot be read, and what [`image`] says of its bytes.
pub fn open_image(path: impl AsRef<Path>) -> io::Result<Block> {
    let path = path.as_ref();
    image(&fs::read(path)?, None, Some(&path.to_string_lossy())).map_err(unfit)
}

/// This file, which is read at once; its title is its name.
///
/// # Errors
/// When the file cannot be read, and what [`document`] says of its bytes.
pub fn open_document(path: impl AsRef<Path>) -> io::Result<Block> {
    let path = path.as_ref();
    document(&fs::read(path)?, None, Some(&path.to_string_lossy()), None).map_err(unfit)
}

fn unfit(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl IntoMessage for Vec<Block> {
    fn into_message(self) -> Message {
        Message::user_blocks(self)
    }
}

impl IntoMessage for Block {
    fn into_message(self) -> Message {
        Message::user_blocks(vec![self])
    }
}

/// Tools that give content blocks.
impl Tool {
    /// As [`Tool::function`], with content blocks as the result: images and files beside text.
    pub fn content<A, E, F, R>(
        name: impl Into<String>,
        description: impl Into<String>,
        run: F,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        E: Display,
        F: Fn(A, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Vec<Block>, E>> + Send + 'static,
    {
        let handler = move |input: Json, context: ToolContext| -> crate::tools::Running {
            match arguments(&input) {
                Ok(arguments) => {
                    let running = run(arguments, context);
                    Box::pin(async move { given(running.await) })
                }
                Err(fault) => Box::pin(std::future::ready(Err(fault))),
            }
        };
        Self::typed::<A>(name, description, Handler::Async(Arc::new(handler)))
    }

    /// As [`Tool::blocking`], with content blocks as the result.
    pub fn blocking_content<A, E, F>(
        name: impl Into<String>,
        description: impl Into<String>,
        run: F,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        E: Display,
        F: Fn(A, ToolContext) -> Result<Vec<Block>, E> + Send + Sync + 'static,
    {
        let handler = move |input: Json, context| given(run(arguments(&input)?, context));
        Self::typed::<A>(name, description, Handler::Blocking(Arc::new(handler)))
    }
}

fn given<E: Display>(result: Result<Vec<Block>, E>) -> Result<Json, String> {
    match result {
        Ok(blocks) => Ok(Content::Blocks(blocks).to_json()),
        Err(fault) => Err(fault.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_its_bytes_and_its_name_say() {
        let folder = std::env::temp_dir().join(format!("broca-media-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("notes.md");
        fs::write(&path, "# Notes").unwrap();
        let block = open_document(&path).unwrap();
        assert!(block.json().as_str().contains(r#""title":"notes.md""#), "{block:?}");
        assert_eq!(open_image(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(open_image(folder.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn blocks_are_a_message_and_a_result() {
        let block = image(b"GIF89a", None, None).unwrap();
        let message = vec![Block::of_text("see"), block.clone()].into_message();
        assert_eq!(message.content.blocks().len(), 2);
        assert_eq!(block.clone().into_message().content.blocks().len(), 1);
        let result = given::<String>(Ok(vec![block])).unwrap();
        assert!(result.as_str().starts_with(r#"[{"type":"image""#), "{result:?}");
        assert_eq!(given(Err("no")).unwrap_err(), "no");
    }
}
