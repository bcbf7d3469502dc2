//! How deep what comes in may nest, so that everything the service writes about it can be read again.
//!
//! JSON of more than 128 levels is refused by every reader (this crate's too), and what a client sends is written
//! further inside than it came: most deeply in `result.events[].payload.messages[].content`. Content that
//! nests deeper than [`MAX_LEVELS`] is refused where it comes in; otherwise it could never be shown.

use crate::Json;

/// The levels that content, a list of tools or a model's answer may have.
pub const MAX_LEVELS: usize = 128 - 7;

/// Whether `json` nests at most `levels` deep; a number or a string has no level.
#[must_use]
pub fn fits(json: &Json, levels: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json.as_bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                if depth > levels {
                    return false;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    true
}

/// What is said of something that nests too deep.
#[must_use]
pub fn too_deep(what: &str) -> String {
    format!("{what} nests deeper than {MAX_LEVELS} levels")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_count_only_outside_of_strings() {
        for (text, levels) in [
            ("1", 0),
            (r#""[[[""#, 0),
            (r#""\"[[""#, 0),
            ("[]", 1),
            (r#"{"[":[{"a":"]"}],"b":[]}"#, 3),
            (r#"["\\",[1]]"#, 2),
        ] {
            let json = Json::parse(text).unwrap();
            assert!(fits(&json, levels), "{text}");
            assert!(levels == 0 || !fits(&json, levels - 1), "{text}");
        }
    }
}
