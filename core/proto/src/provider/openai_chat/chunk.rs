//! One `chat.completion.chunk`, or a whole `chat.completion`, read with patience: a member of an
//! unexpected type counts as absent.

use crate::Json;
use crate::json::surrogates::without_halves;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

type Raw<'a> = Option<&'a RawValue>;

#[derive(Debug, Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) model: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) choices: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) usage: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) error: Raw<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(borrow, default)]
    pub(super) index: Raw<'a>,
    /// `message` is what an answer that is not streamed has in its place.
    #[serde(borrow, default, alias = "message")]
    pub(super) delta: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Raw<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CallPiece<'a> {
    #[serde(borrow, default)]
    pub(super) index: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) id: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) function: Raw<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct FunctionPiece<'a> {
    #[serde(borrow, default)]
    pub(super) name: Raw<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Raw<'a>,
}

/// Text that was in a chunk.
#[derive(Debug, Default)]
pub(super) struct Text<'a> {
    pub(super) text: Cow<'a, str>,
    /// Escapes of lone surrogates stood in it and were replaced.
    pub(super) replaced: bool,
}

/// A value as `T`, or nothing when it is absent or of another shape.
pub(super) fn read<'a, T: Deserialize<'a>>(raw: Raw<'a>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// A string, with lone surrogates replaced; nothing when the value is no string.
pub(super) fn text(raw: Raw<'_>) -> Option<Text<'_>> {
    let raw = raw?.get();
    if !raw.starts_with('"') {
        return None;
    }
    if !raw.contains('\\') {
        return Some(Text { text: Cow::Borrowed(raw.trim_matches('"')), replaced: false });
    }
    match serde_json::from_str::<String>(raw) {
        Ok(text) => Some(Text { text: Cow::Owned(text), replaced: false }),
        Err(_) => {
            let text = serde_json::from_str::<String>(&without_halves(raw)).ok()?;
            Some(Text { text: Cow::Owned(text), replaced: true })
        }
    }
}

/// Usage in our terms: `Err` when it is there but cannot be used.
pub(super) fn usage(raw: &RawValue) -> Result<super::Usage, ()> {
    let json = Json::parse(raw.get().to_owned()).map_err(drop)?;
    let number = |of: Option<&Json>, name: &str| {
        of.and_then(|of| of.member(name)).and_then(|n| n.decode::<u64>().ok())
    };
    let prompt = number(Some(&json), "prompt_tokens").ok_or(())?;
    let output = number(Some(&json), "completion_tokens").ok_or(())?;
    let of_prompt = json.member("prompt_tokens_details");
    let of_completion = json.member("completion_tokens_details");
    // The details are parts of the totals; what a confused server counts beyond them is cut.
    let cached_input = number(of_prompt.as_ref(), "cached_tokens").unwrap_or(0).min(prompt);
    let cache_write =
        number(of_prompt.as_ref(), "cache_write_tokens").unwrap_or(0).min(prompt - cached_input);
    let reasoning = number(of_completion.as_ref(), "reasoning_tokens").unwrap_or(0).min(output);
    let input = prompt - cached_input - cache_write;
    Ok(super::Usage { input, cached_input, cache_write, output, reasoning })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_are_replaced_and_pairs_are_kept() {
        let decode = |raw: &str| {
            let raw = serde_json::from_str::<&RawValue>(raw).unwrap();
            let text = text(Some(raw)).unwrap();
            (text.text.into_owned(), text.replaced)
        };
        assert_eq!(decode(r#""a\ud83d\ude00b""#), ("a\u{1f600}b".to_owned(), false));
        assert_eq!(decode(r#""a\ud83d""#), ("a\u{fffd}".to_owned(), true));
        assert_eq!(
            decode(r#""\ud83d\ud83d\ude00\\ud83dé""#),
            ("\u{fffd}\u{1f600}\\ud83dé".to_owned(), true)
        );
        assert_eq!(decode(r#""plain \"q\"""#), ("plain \"q\"".to_owned(), false));
        assert_eq!(decode(r#""plain""#), ("plain".to_owned(), false));
    }

    #[test]
    fn the_parts_of_the_prompt_do_not_overlap() {
        let raw = r#"{"prompt_tokens":20,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":5,"cache_write_tokens":3},"completion_tokens_details":{"reasoning_tokens":4}}"#;
        let raw = serde_json::from_str::<&RawValue>(raw).unwrap();
        let usage = usage(raw).unwrap();
        assert_eq!((usage.input, usage.cached_input, usage.cache_write), (12, 5, 3));
        assert_eq!((usage.output, usage.reasoning, usage.fill_tokens()), (9, 4, 20));
    }
}
