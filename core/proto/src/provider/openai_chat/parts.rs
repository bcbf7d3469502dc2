//! Images and files on their way to a Chat Completions server (feature `blocks`).
//!
//! Blocks are `{"type":"image","source":{"type":"base64","media_type","data"}}` or with a source `{"type":"url","url"}`,
//! and `document` likewise, also with a source `{"type":"text","data"}`. What MCP servers send (`{"type":"image","data",
//! "mimeType"}`) is understood too.

use crate::Json;
use crate::session::content::{Block, BlockKind, Content};

/// The name of a file that has none.
const NAMELESS: &str = "document";

/// A user's words, images and files as the server's parts, in their order, the images in results of tools first: a result itself
/// can be nothing but text. Nothing when there are only words.
pub(super) fn parts(blocks: &[Block]) -> Option<Json> {
    let results: Vec<Json> = blocks.iter().flat_map(result_parts).collect();
    let own: Vec<Json> = blocks.iter().filter_map(own_part).collect();
    let has_media = !results.is_empty() || blocks.iter().any(|block| media_part(block).is_some());
    has_media.then(|| Json::array(results.iter().chain(&own)))
}

/// Whether a result of a tool holds what [`parts`] shows beside it.
pub(super) fn has_media(content: &Json) -> bool {
    Content::read(content).blocks().iter().any(|block| media_part(block).is_some())
}

fn own_part(block: &Block) -> Option<Json> {
    block.text().filter(|text| !text.is_empty()).map(text_part).or_else(|| media_part(block))
}

/// The images and files in a tool's result, after a word that says whose they are.
fn result_parts(block: &Block) -> Vec<Json> {
    let Some(result) = block.tool_result() else { return Vec::new() };
    let content = Content::read(&result.content);
    let media: Vec<Json> = content.blocks().iter().filter_map(media_part).collect();
    if media.is_empty() {
        return media;
    }
    let whose = text_part(&format!("Content of the result of tool call {}:", result.tool_use_id));
    std::iter::once(whose).chain(media).collect()
}

fn media_part(block: &Block) -> Option<Json> {
    let BlockKind::Unknown { block_type } = block.kind() else { return None };
    match block_type.as_str() {
        "image" => {
            let url = Json::object([("url", &Json::string(&image_url(block.json())?))]);
            Some(Json::object([("type", &Json::string("image_url")), ("image_url", &url)]))
        }
        "document" => file_part(block.json()),
        _ => None,
    }
}

fn image_url(block: &Json) -> Option<String> {
    match block.member("source") {
        Some(source) => match text(&source, "type")?.as_str() {
            "base64" => data_url(&text(&source, "media_type")?, &text(&source, "data")?),
            "url" => text(&source, "url"),
            _ => None,
        },
        None => data_url(&text(block, "mimeType")?, &text(block, "data")?),
    }
}

fn file_part(block: &Json) -> Option<Json> {
    let source = block.member("source")?;
    let title = text(block, "title");
    match text(&source, "type")?.as_str() {
        "text" => {
            let words = text(&source, "data")?;
            let titled = title.map(|title| format!("{title}:\n{words}"));
            Some(text_part(&titled.unwrap_or(words)))
        }
        "base64" => {
            let data = data_url(&text(&source, "media_type")?, &text(&source, "data")?)?;
            let file = Json::object([
                ("filename", &Json::string(title.as_deref().unwrap_or(NAMELESS))),
                ("file_data", &Json::string(&data)),
            ]);
            Some(Json::object([("type", &Json::string("file")), ("file", &file)]))
        }
        _ => None,
    }
}

fn data_url(media_type: &str, data: &str) -> Option<String> {
    (!media_type.is_empty()).then(|| format!("data:{media_type};base64,{data}"))
}

fn text_part(text: &str) -> Json {
    Json::object([("type", &Json::string("text")), ("text", &Json::string(text))])
}

fn text(object: &Json, name: &str) -> Option<String> {
    object.member(name)?.to_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &str) -> Vec<Block> {
        let all = Json::parse(text.to_owned()).unwrap().elements().unwrap();
        all.into_iter().map(Block::read).collect()
    }

    #[test]
    fn images_and_files_keep_their_place_among_the_words() {
        let said = blocks(
            r#"[{"type":"text","text":"what is"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}},{"type":"image","source":{"type":"url","url":"https://h/x.png"}},{"type":"document","title":"a.pdf","source":{"type":"base64","media_type":"application/pdf","data":"BB=="}},{"type":"document","source":{"type":"text","media_type":"text/plain","data":"words"}},{"type":"text","text":"this?"}]"#,
        );
        assert_eq!(
            parts(&said).unwrap().as_str(),
            concat!(
                r#"[{"type":"text","text":"what is"},"#,
                r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}},"#,
                r#"{"type":"image_url","image_url":{"url":"https://h/x.png"}},"#,
                r#"{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,BB=="}},"#,
                r#"{"type":"text","text":"words"},{"type":"text","text":"this?"}]"#
            )
        );
    }

    #[test]
    fn images_in_results_follow_with_a_word_that_says_whose_they_are() {
        let said = blocks(
            r#"[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"seen"},{"type":"image","data":"AA==","mimeType":"image/gif"}]},{"type":"tool_result","tool_use_id":"c2","content":"plain"}]"#,
        );
        assert_eq!(
            parts(&said).unwrap().as_str(),
            concat!(
                r#"[{"type":"text","text":"Content of the result of tool call c1:"},"#,
                r#"{"type":"image_url","image_url":{"url":"data:image/gif;base64,AA=="}}]"#
            )
        );
    }

    #[test]
    fn what_cannot_be_shown_is_left_out() {
        for said in [
            r#"[{"type":"text","text":"x"}]"#,
            r#"[{"type":"image"}]"#,
            r#"[{"type":"image","source":{"type":"file","file_id":"f"}}]"#,
            r#"[{"type":"image","source":{"type":"base64","media_type":"","data":"x"}}]"#,
            r#"[{"type":"audio","source":{"type":"url","url":"u"}}]"#,
            r#"[{"type":"thinking","thinking":"hm"}]"#,
        ] {
            assert_eq!(parts(&blocks(said)), None, "{said}");
        }
    }
}
