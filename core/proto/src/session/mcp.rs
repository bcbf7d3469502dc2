//! Results of MCP servers' tools as results of a driver's: one mapping for every language.
//!
//! | content of the result | becomes |
//! |---|---|
//! | `text` | text |
//! | `image` | an image |
//! | `resource` with text | a document of text, titled by its address |
//! | `resource` with bytes | an image or a document |
//! | `resource_link` | a line of text |
//! | `audio`, anything else | a word that says what was left out |
//! | nothing, beside `structuredContent` | that JSON, as text |

use super::content::{Block, Content};
use super::media;
use crate::{Error, ErrorKind, Json};

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpAnswer {
    /// The tool's result: a JSON string where there is text only, else content blocks.
    Complete(Json),
    /// The tool failed; the model reads this text.
    Fail(String),
}

impl McpAnswer {
    /// Reads the result of `tools/call`.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] for what is no such result, with nothing of what it says.
    pub fn read(result: &Json) -> Result<Self, Error> {
        let failed = result.member("isError").is_some_and(|flag| flag.as_str() == "true");
        let structured = result.member("structuredContent").filter(|value| !value.is_null());
        let content = match result.member("content") {
            Some(content) => content.elements(),
            None => structured.as_ref().map(|_| Vec::new()),
        };
        let Some(elements) = content else {
            let message = "the MCP server's answer is no result of a tool: it has no content";
            return Err(Error::new(ErrorKind::Malformed, message));
        };
        let blocks: Vec<Block> = elements.iter().map(block).collect();
        let content = match structured {
            Some(structured) if blocks.is_empty() => Json::string(structured.as_str()),
            _ if blocks.iter().all(|block| block.text().is_some()) => {
                Json::string(&Content::Blocks(blocks).text())
            }
            _ => Content::Blocks(blocks).to_json(),
        };
        if !failed {
            return Ok(Self::Complete(content));
        }
        let words = Content::read(&media::left_out(&content).unwrap_or(content)).text();
        let silent = words.trim().is_empty();
        Ok(Self::Fail(if silent {
            "the tool failed and did not say why".to_owned()
        } else {
            words
        }))
    }
}

fn block(element: &Json) -> Block {
    let text = |object: &Json, name: &str| object.member(name).and_then(|value| value.to_text());
    let kind = text(element, "type").unwrap_or_default();
    let known = match kind.as_str() {
        "text" => text(element, "text").map(Block::of_text),
        "image" => {
            text(element, "data").zip(text(element, "mimeType")).map(|(data, media_type)| {
                media::block("image", None, &media::encoded_source(&media_type, &data))
            })
        }
        "resource" => element.member("resource").and_then(|resource| {
            let title = text(&resource, "uri");
            if let Some(words) = text(&resource, "text") {
                let source = Json::object([
                    ("type", &Json::string("text")),
                    ("media_type", &Json::string("text/plain")),
                    ("data", &Json::string(&words)),
                ]);
                return Some(media::block("document", title.as_deref(), &source));
            }
            let data = text(&resource, "blob")?;
            let media_type = text(&resource, "mimeType")
                .unwrap_or_else(|| "application/octet-stream".to_owned());
            let source = media::encoded_source(&media_type, &data);
            if media_type.starts_with("image/") {
                return Some(media::block("image", None, &source));
            }
            Some(media::block("document", title.as_deref(), &source))
        }),
        "resource_link" => text(element, "uri").map(|uri| {
            let name = text(element, "title").or_else(|| text(element, "name"));
            Block::of_text(name.map_or_else(|| uri.clone(), |name| format!("{name}: {uri}")))
        }),
        _ => None,
    };
    known.unwrap_or_else(|| {
        let mut words = format!("[{kind} left out: it cannot be shown to the model");
        if let Some(media_type) = text(element, "mimeType") {
            words.push_str(", ");
            words.push_str(&media_type);
        }
        words.push(']');
        Block::of_text(words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> McpAnswer {
        McpAnswer::read(&Json::parse(text.to_owned()).unwrap()).unwrap()
    }

    fn complete(text: &str) -> String {
        match read(text) {
            McpAnswer::Complete(content) => content.as_str().to_owned(),
            McpAnswer::Fail(words) => panic!("it failed: {words}"),
        }
    }

    #[test]
    fn text_is_joined_and_nothing_else_is_added() {
        let two = r#"{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#;
        assert_eq!(complete(two), r#""a\nb""#);
        assert_eq!(complete(r#"{"content":[]}"#), r#""""#);
    }

    #[test]
    fn structured_content_speaks_where_there_is_no_text() {
        let alone = r#"{"content":[],"structuredContent":{"n":9007199254740993}}"#;
        assert_eq!(complete(alone), r#""{\"n\":9007199254740993}""#);
        let both = r#"{"content":[{"type":"text","text":"n is 1"}],"structuredContent":{"n":1}}"#;
        assert_eq!(complete(both), r#""n is 1""#);
        assert_eq!(complete(r#"{"structuredContent":[1]}"#), r#""[1]""#);
    }

    #[test]
    fn images_and_resources_become_blocks() {
        let all = r#"{"content":[{"type":"text","text":"see"},{"type":"image","data":"AAAA","mimeType":"image/png"},{"type":"resource","resource":{"uri":"file:///n","text":"words"}},{"type":"resource","resource":{"uri":"file:///p","blob":"BBBB","mimeType":"application/pdf"}},{"type":"resource","resource":{"uri":"x","blob":"CCCC","mimeType":"image/gif"}},{"type":"resource_link","uri":"https://h","name":"home"},{"type":"audio","data":"DDDD","mimeType":"audio/wav"}]}"#;
        assert_eq!(
            complete(all),
            concat!(
                r#"[{"type":"text","text":"see"},"#,
                r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},"#,
                r#"{"type":"document","title":"file:///n","source":{"type":"text","media_type":"text/plain","data":"words"}},"#,
                r#"{"type":"document","title":"file:///p","source":{"type":"base64","media_type":"application/pdf","data":"BBBB"}},"#,
                r#"{"type":"image","source":{"type":"base64","media_type":"image/gif","data":"CCCC"}},"#,
                r#"{"type":"text","text":"home: https://h"},"#,
                r#"{"type":"text","text":"[audio left out: it cannot be shown to the model, audio/wav]"}]"#,
            )
        );
    }

    #[test]
    fn a_failed_tool_says_why_in_words() {
        let failed = r#"{"isError":true,"content":[{"type":"text","text":"no"},{"type":"image","data":"AAAA","mimeType":"image/png"}]}"#;
        let words = "no\n[image left out: the session takes text only, image/png, 3 bytes]";
        assert_eq!(read(failed), McpAnswer::Fail(words.to_owned()));
        let silent = read(r#"{"isError":true,"content":[]}"#);
        assert_eq!(silent, McpAnswer::Fail("the tool failed and did not say why".to_owned()));
    }

    #[test]
    fn what_is_no_result_is_an_error_without_its_words() {
        for text in [r#"{"hunter2":1}"#, r#"{"content":"hunter2"}"#, "5"] {
            let error = McpAnswer::read(&Json::parse(text.to_owned()).unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed);
            assert!(!error.message().contains("hunter2"), "{}", error.message());
        }
    }
}
