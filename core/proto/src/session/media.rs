//! Images and files as content blocks (feature `blocks`): how bytes become one, and what stands in its place for a
//! service that takes none.
//!
//! | block | source |
//! |---|---|
//! | `image` | `base64` with its media type, or `url` |
//! | `document` | `text` where the file is text, else `base64` with its media type; a `title` |

use super::content::{Block, BlockKind, Content};
use crate::base64;
use crate::{Error, ErrorKind, Json};

/// A block of an image. Its media type is what the caller says, else what the bytes begin with, else what the ending
/// of `name` means.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] when there are no bytes, or they are no image as far as anybody can tell.
pub fn image(bytes: &[u8], media_type: Option<&str>, name: Option<&str>) -> Result<Block, Error> {
    let media_type = media_type_of("image", bytes, media_type, name)?;
    if !media_type.starts_with("image/") {
        return invalid(format!("an image cannot be {media_type}: send it as a file"));
    }
    let source = base64_source(&media_type, bytes);
    Ok(block("image", None, &source))
}

/// A block of an image that the model's provider fetches by itself.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for what is no `http`, `https` or `data` address.
pub fn image_at(url: &str) -> Result<Block, Error> {
    let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
    if !matches!(scheme.as_str(), "http" | "https" | "data") {
        return invalid("the address of an image begins with https://".to_owned());
    }
    let source = Json::object([("type", &Json::string("url")), ("url", &Json::string(url))]);
    Ok(block("image", None, &source))
}

/// A block of a file. Its media type is found as that of an [`image`]; text goes as text. Without a title it is the last
/// part of `name`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] when there are no bytes, nobody can tell what they are, or text is not UTF-8.
pub fn document(
    bytes: &[u8],
    media_type: Option<&str>,
    name: Option<&str>,
    title: Option<&str>,
) -> Result<Block, Error> {
    let media_type = media_type_of("file", bytes, media_type, name)?;
    let source = if is_text(&media_type) {
        let Ok(words) = std::str::from_utf8(bytes) else {
            return invalid(format!(
                "a file of {media_type} is sent as UTF-8, and this one is not"
            ));
        };
        Json::object([
            ("type", &Json::string("text")),
            ("media_type", &Json::string("text/plain")),
            ("data", &Json::string(words)),
        ])
    } else {
        base64_source(&media_type, bytes)
    };
    Ok(block("document", title.or_else(|| name.map(file_name)), &source))
}

/// Whether content holds an image or a file, in results of tools too.
#[must_use]
pub fn is_in(content: &Content) -> bool {
    content.blocks().iter().any(|block| match block.kind() {
        BlockKind::ToolResult(result) => is_in(&Content::read(&result.content)),
        _ => is_media(block),
    })
}

/// The content of a tool's result for a service that takes no images and files: files of text as text, and a word in the
/// place of everything else. Nothing when it holds none.
#[must_use]
pub fn left_out(content: &Json) -> Option<Json> {
    if content.as_bytes().first() == Some(&b'"') {
        return None;
    }
    let content = Content::read(content);
    if !content.blocks().iter().any(is_media) {
        return None;
    }
    let plain = content
        .blocks()
        .iter()
        .map(|block| if is_media(block) { Block::of_text(in_words(block)) } else { block.clone() });
    Some(Content::Blocks(plain.collect()).to_json())
}

fn is_media(block: &Block) -> bool {
    let BlockKind::Unknown { block_type } = block.kind() else { return false };
    matches!(block_type.as_str(), "image" | "document")
}

fn in_words(block: &Block) -> String {
    let text = |object: &Json, name: &str| object.member(name).and_then(|value| value.to_text());
    let json = block.json();
    let what = text(json, "type").unwrap_or_default();
    let title = text(json, "title");
    // MCP servers write the data of an image beside its type.
    let source = json.member("source").unwrap_or_else(|| json.clone());
    if text(&source, "type").as_deref() == Some("text")
        && let Some(words) = text(&source, "data")
    {
        return title.map(|title| format!("{title}:\n{words}")).unwrap_or(words);
    }
    let mut words = format!("[{what} left out: the session takes text only");
    let media_type = text(&source, "media_type").or_else(|| text(&source, "mimeType"));
    let size = text(&source, "data").map(|data| format!("{} bytes", data.len() / 4 * 3));
    for part in [title, media_type, size, text(&source, "url")].into_iter().flatten() {
        words.push_str(", ");
        words.push_str(&part);
    }
    words.push(']');
    words
}

pub(super) fn block(block_type: &str, title: Option<&str>, source: &Json) -> Block {
    let kind = Json::string(block_type);
    let title = title.map(Json::string);
    let members = [("type", &kind)].into_iter().chain(title.iter().map(|title| ("title", title)));
    Block::read(Json::object(members.chain([("source", source)])))
}

/// The source of bytes that travel in the block.
fn base64_source(media_type: &str, bytes: &[u8]) -> Json {
    encoded_source(media_type, &base64::encode(bytes))
}

/// The same of bytes that are encoded already.
pub(super) fn encoded_source(media_type: &str, data: &str) -> Json {
    Json::object([
        ("type", &Json::string("base64")),
        ("media_type", &Json::string(media_type)),
        ("data", &Json::string(data)),
    ])
}

/// Whether a file of this type is text.
fn is_text(media_type: &str) -> bool {
    let kind = media_type.split(';').next().unwrap_or_default().trim();
    kind.starts_with("text/")
        || kind.ends_with("+json")
        || kind.ends_with("+xml") && kind != "image/svg+xml"
        || matches!(
            kind,
            "application/json" | "application/xml" | "application/yaml" | "application/toml"
        )
}

fn media_type_of(
    what: &str,
    bytes: &[u8],
    given: Option<&str>,
    name: Option<&str>,
) -> Result<String, Error> {
    if bytes.is_empty() {
        return invalid(format!("the {what} has no bytes"));
    }
    if let Some(given) = given {
        let (kind, rest) = given.split_once('/').unwrap_or_default();
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| (32..127).contains(&b));
        if !is_word(kind) || !is_word(rest) {
            return invalid("a media type is written like image/png".to_owned());
        }
        return Ok(given.to_ascii_lowercase());
    }
    let known = by_bytes(bytes).or_else(|| by_name(name?));
    let plain = || {
        let is_plain = what == "file" && !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok();
        is_plain.then_some("text/plain")
    };
    match known.or_else(plain) {
        Some(known) => Ok(known.to_owned()),
        None => invalid(format!("nothing tells the media type of this {what}: give it")),
    }
}

/// What the first bytes say.
fn by_bytes(bytes: &[u8]) -> Option<&'static str> {
    const MARKS: [(&[u8], &str); 8] = [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"II*\0", "image/tiff"),
        (b"MM\0*", "image/tiff"),
        (b"BM", "image/bmp"),
        (b"%PDF-", "application/pdf"),
    ];
    match (bytes.get(..4), bytes.get(8..12)) {
        (Some(b"RIFF"), Some(b"WEBP")) => return Some("image/webp"),
        _ if bytes.get(4..12) == Some(b"ftypavif") => return Some("image/avif"),
        _ if bytes.get(4..12) == Some(b"ftypheic") => return Some("image/heic"),
        _ => {}
    }
    let found = MARKS.iter().find(|(mark, _)| bytes.starts_with(mark))?;
    // Two letters alone are how texts begin, too.
    (found.0 != b"BM" || std::str::from_utf8(bytes).is_err()).then_some(found.1)
}

/// What the ending of a name says.
fn by_name(name: &str) -> Option<&'static str> {
    let (_, ending) = file_name(name).rsplit_once('.')?;
    Some(match ending.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "bmp" => "image/bmp",
        "tif" | "tiff" => "image/tiff",
        "avif" => "image/avif",
        "heic" => "image/heic",
        "pdf" => "application/pdf",
        "json" => "application/json",
        "xml" => "application/xml",
        "yaml" | "yml" => "application/yaml",
        "toml" => "application/toml",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "md" | "markdown" => "text/markdown",
        "txt" | "log" => "text/plain",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        _ => return None,
    })
}

/// The last part of a path, of either family.
fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

fn invalid<T>(message: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0";

    fn json(block: Result<Block, Error>) -> String {
        block.unwrap().json().as_str().to_owned()
    }

    #[test]
    fn an_image_is_what_its_bytes_say_whatever_its_name() {
        let block = json(image(PNG, None, Some("cat.jpg")));
        assert_eq!(
            block,
            r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgoA"}}"#
        );
        let webp = json(image(b"RIFF\0\0\0\0WEBPVP8 ", None, None));
        assert!(webp.contains("image/webp"), "{webp}");
        let named = json(image(b"<svg/>", None, Some("a/b.SVG")));
        assert!(named.contains("image/svg+xml"), "{named}");
        let told = json(image(b"?", Some("image/X-odd"), None));
        assert!(told.contains("image/x-odd"), "{told}");
        assert_eq!(
            json(image_at("https://h/x.png")),
            r#"{"type":"image","source":{"type":"url","url":"https://h/x.png"}}"#
        );
    }

    #[test]
    fn text_travels_as_text_and_everything_else_as_bytes() {
        assert_eq!(
            json(document(b"a,b", None, Some("/tmp/t.csv"), None)),
            r#"{"type":"document","title":"t.csv","source":{"type":"text","media_type":"text/plain","data":"a,b"}}"#
        );
        assert_eq!(
            json(document(b"%PDF-1", None, Some("c:\\x\\t.pdf"), Some("Terms"))),
            r#"{"type":"document","title":"Terms","source":{"type":"base64","media_type":"application/pdf","data":"JVBERi0x"}}"#
        );
        let plain = json(document(b"BM is how this begins", None, None, None));
        assert!(plain.contains(r#""type":"text","media_type""#), "{plain}");
    }

    #[test]
    fn what_nobody_can_tell_is_refused_with_the_cure() {
        for (refused, part) in [
            (image(b"", None, None), "no bytes"),
            (image(b"words", None, None), "give it"),
            (image(b"%PDF-1", None, None), "as a file"),
            (image(b"x", Some("png"), None), "like image/png"),
            (image_at("file:///etc/passwd"), "https://"),
            (document(b"\xff\x00", None, None, None), "give it"),
            (document(b"\xff", Some("text/plain"), None, None), "UTF-8"),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains(part), "{}", error.message());
        }
    }

    #[test]
    fn images_are_found_in_results_of_tools_too() {
        let content = |text: &str| Content::read(&Json::parse(text.to_owned()).unwrap());
        let result = r#"[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","data":"AA==","mimeType":"image/png"}]}]"#;
        assert!(is_in(&content(result)));
        assert!(is_in(&content(r#"[{"type":"document","source":{}}]"#)));
        assert!(!is_in(&content(r#"[{"type":"text","text":"a"},{"type":"hologram"}]"#)));
        assert!(!is_in(&content(r#""words""#)));
    }

    #[test]
    fn nothing_is_left_out_in_silence() {
        let content = r#"[{"type":"text","text":"see"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAAAAAA"}},{"type":"document","title":"n","source":{"type":"text","media_type":"text/plain","data":"words"}},{"type":"hologram"}]"#;
        let plain = left_out(&Json::parse(content.to_owned()).unwrap()).unwrap();
        assert_eq!(
            plain.as_str(),
            r#"[{"type":"text","text":"see"},{"type":"text","text":"[image left out: the session takes text only, image/png, 6 bytes]"},{"type":"text","text":"n:\nwords"},{"type":"hologram"}]"#
        );
        assert_eq!(left_out(&Json::string("words")), None);
        assert_eq!(left_out(&plain), None);
    }
}
