//! Halves of surrogate pairs: JSON can write them as escapes, but they stand for no character, and many readers refuse the whole
//! text for one.

use std::borrow::Cow;

/// JSON text with every `\uD800`–`\uDFFF` escape that has no partner replaced by `\ufffd`; borrowed when there is none.
pub(crate) fn without_halves(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = memchr::memchr(b'\\', text.get(at..).unwrap_or_default().as_bytes()) {
        at += found;
        at += match (unit(text, at), unit(text, at + 6)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (Some(0xD800..=0xDFFF), _) => {
                out.push_str(text.get(copied..at).unwrap_or_default());
                out.push_str("\\ufffd");
                copied = at + 6;
                6
            }
            (Some(_), _) => 6,
            // Any other escape is passed whole, so that `\\u` is not taken for one.
            (None, _) => 2,
        };
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

/// The unit of the `\uXXXX` escape at `at`.
fn unit(text: &str, at: usize) -> Option<u32> {
    u32::from_str_radix(text.get(at..at + 6)?.strip_prefix("\\u")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn halves_are_replaced_and_everything_else_stays() {
        for (text, expected) in [
            (r#"{"a":"x\ud83d","b":["\uDE00y"]}"#, r#"{"a":"x\ufffd","b":["\ufffdy"]}"#),
            (r#""\ud83d\ud83d\ude00é\u00e9\ud83d""#, r#""\ufffd\ud83d\ude00é\u00e9\ufffd""#),
        ] {
            assert_eq!(without_halves(text), expected);
        }
        for text in ["", "1", r#""\\ud83d \" \ud83d\ude00""#, "\\", "\\u", "\"\\ud83"] {
            assert!(matches!(without_halves(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_comes_out_can_be_read(inside in r#"(\\(u(d83[de]|de00|00e9)|\\|n)|[aé😀u])*"#) {
            let text = format!("\"{inside}\"");
            let whole = without_halves(&text);
            prop_assert!(serde_json::from_str::<String>(&whole).is_ok());
            prop_assert_eq!(&without_halves(&whole), &whole);
            if let Ok(read) = serde_json::from_str::<String>(&text) {
                prop_assert_eq!(serde_json::from_str::<String>(&whole).unwrap(), read);
            }
        }
    }
}
