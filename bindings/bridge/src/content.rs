//! Content blocks for a language: images and files made of bytes, and what MCP servers answer.

use broca_proto::session::mcp::McpAnswer;
use broca_proto::session::media;
use broca_proto::{Error, Json};

/// What the bytes are to become, and what is known about them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Described<'a> {
    /// A file; otherwise an image.
    pub is_file: bool,
    /// The media type; without it the bytes and the name are looked at.
    pub media_type: Option<&'a str>,
    /// The name of the file that they come from.
    pub name: Option<&'a str>,
    /// The title of a file; without it the last part of its name.
    pub title: Option<&'a str>,
}

/// The block of an image or a file, as JSON.
///
/// # Errors
/// [`InvalidArgument`](broca_proto::ErrorKind::InvalidArgument) when nobody can tell what the bytes are, or they are not what is said.
pub fn block(bytes: &[u8], described: Described<'_>) -> Result<Json, Error> {
    let Described { is_file, media_type, name, title } = described;
    let block = if is_file {
        media::document(bytes, media_type, name, title)
    } else {
        media::image(bytes, media_type, name)
    };
    block.map(|block| block.json().clone())
}

/// The block of an image that is somewhere else, as JSON.
///
/// # Errors
/// [`InvalidArgument`](broca_proto::ErrorKind::InvalidArgument) for what is no address of an image.
pub fn image_at(url: &str) -> Result<Json, Error> {
    media::image_at(url).map(|block| block.json().clone())
}

/// The answer to a tool call, in the words of [`command::answer`](crate::command::answer), that the result of an MCP server's tool
/// stands for.
///
/// # Errors
/// [`Malformed`](broca_proto::ErrorKind::Malformed) for what is no such result.
pub fn of_mcp(result: &[u8]) -> Result<(&'static str, String), Error> {
    let json = Json::parse(result.to_vec()).unwrap_or_else(|_| Json::null());
    Ok(match McpAnswer::read(&json)? {
        McpAnswer::Complete(content) => ("complete", content.as_str().to_owned()),
        McpAnswer::Fail(words) => ("fail", words),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_mcp_server_says_is_an_answer() {
        let said = of_mcp(br#"{"content":[{"type":"text","text":"a"}]}"#).unwrap();
        assert_eq!(said, ("complete", "\"a\"".to_owned()));
        let failed = of_mcp(br#"{"content":[{"type":"text","text":"a"}],"isError":true}"#).unwrap();
        assert_eq!(failed, ("fail", "a".to_owned()));
        assert!(of_mcp(b"{").is_err());
    }

    #[test]
    fn a_file_and_an_image_are_told_apart() {
        let named = Described { name: Some("a.txt"), ..Described::default() };
        assert!(block(b"words", named).is_err());
        let file = block(b"words", Described { is_file: true, ..named }).unwrap();
        assert!(file.as_str().contains(r#""title":"a.txt""#), "{file:?}");
        assert!(image_at("https://h/x").unwrap().as_str().contains("https://h/x"));
    }
}
