//! A strict JSON scanner over bytes: finds where values begin and end, builds nothing.
//!
//! The envelope of every line is read with it, so that a payload nobody looks at costs one pass and
//! no allocation. It accepts exactly what RFC 8259 does (serde_json is the oracle in the tests),
//! except that escapes of lone surrogates pass: they are refused by typed access, not here. The
//! text must already be known to be UTF-8.

use super::JsonError;
use std::borrow::Cow;

/// Nesting deeper than this is refused.
pub(crate) const MAX_DEPTH: u32 = 128;

/// A member of an object: where its key (inside the quotes) and its value lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) key: (usize, usize),
    pub(crate) key_escaped: bool,
    pub(crate) value: (usize, usize),
}

impl Member {
    /// The key's bytes, decoded; nearly always a slice of the text.
    #[inline]
    pub(crate) fn key_bytes<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        if self.key_escaped {
            return Cow::Owned(self.key(text).into_owned().into_bytes());
        }
        Cow::Borrowed(&text[self.key.0..self.key.1])
    }

    /// The decoded key.
    pub(crate) fn key<'a>(&self, text: &'a [u8]) -> Cow<'a, str> {
        string_at(text, self.key, self.key_escaped)
    }
}

/// The text between quotes at `span`, decoded.
pub(crate) fn string_at(text: &[u8], span: (usize, usize), escaped: bool) -> Cow<'_, str> {
    if escaped {
        let quoted = &text[span.0 - 1..span.1 + 1];
        return serde_json::from_slice::<String>(quoted).map_or(Cow::Borrowed(""), Cow::Owned);
    }
    Cow::Borrowed(std::str::from_utf8(&text[span.0..span.1]).unwrap_or_default())
}

/// Walks the members of the object that starts at `at` (blanks allowed before it); `None` when
/// there is no object.
pub(crate) fn members(text: &[u8], at: usize) -> Option<Members<'_>> {
    let at = blanks(text, at);
    (text.get(at) == Some(&b'{')).then(|| Members { text, at: at + 1, state: State::First })
}

/// Walks the elements of the array that starts at `at`; `None` when there is no array.
pub(crate) fn elements(text: &[u8], at: usize) -> Option<Elements<'_>> {
    let at = blanks(text, at);
    (text.get(at) == Some(&b'[')).then(|| Elements { text, at: at + 1, state: State::First })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    First,
    Next,
    Done,
}

/// Iterator over the members of one object.
#[derive(Debug)]
pub(crate) struct Members<'a> {
    text: &'a [u8],
    at: usize,
    state: State,
}

/// What a visitor of a member says about its value.
pub(crate) enum Visit {
    /// Skip the value.
    Skip,
    /// The visitor has scanned the value itself; it ends here.
    Until(usize),
}

impl Members<'_> {
    /// Where the object ended, once every member was walked.
    pub(crate) fn end(&self) -> usize {
        self.at
    }

    /// The key of the next member and where its value starts; the value is scanned by `visit`.
    ///
    /// `visit` gets the key's span, whether it holds escapes, and the start of the value.
    #[inline]
    pub(crate) fn step(
        &mut self,
        visit: impl FnOnce((usize, usize), bool, usize) -> Result<Visit, JsonError>,
    ) -> Result<Option<Member>, JsonError> {
        if self.state == State::Done {
            return Ok(None);
        }
        let mut i = blanks(self.text, self.at);
        match (self.text.get(i), self.state) {
            (Some(b'}'), _) => {
                self.state = State::Done;
                self.at = i + 1;
                return Ok(None);
            }
            (Some(b','), State::Next) => i = blanks(self.text, i + 1),
            (_, State::First) => {}
            _ => return Err(fault(i, "expected a comma or the end of an object")),
        }
        if self.text.get(i) != Some(&b'"') {
            return Err(fault(i, "expected a member name"));
        }
        let (key_end, key_escaped) = string(self.text, i + 1)?;
        let key = (i + 1, key_end - 1);
        i = blanks(self.text, key_end);
        if self.text.get(i) != Some(&b':') {
            return Err(fault(i, "expected a colon"));
        }
        let start = blanks(self.text, i + 1);
        let end = match visit(key, key_escaped, start)? {
            Visit::Skip => value(self.text, start)?,
            Visit::Until(end) => end,
        };
        self.at = end;
        self.state = State::Next;
        Ok(Some(Member { key, key_escaped, value: (start, end) }))
    }
}

impl Iterator for Members<'_> {
    type Item = Result<Member, JsonError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step(|_, _, _| Ok(Visit::Skip)).transpose();
        if matches!(step, Some(Err(_))) {
            self.state = State::Done;
        }
        step
    }
}

/// Iterator over the spans of the elements of one array.
#[derive(Debug)]
pub(crate) struct Elements<'a> {
    text: &'a [u8],
    at: usize,
    state: State,
}

impl Elements<'_> {
    fn step(&mut self) -> Result<Option<(usize, usize)>, JsonError> {
        if self.state == State::Done {
            return Ok(None);
        }
        let mut i = blanks(self.text, self.at);
        match (self.text.get(i), self.state) {
            (Some(b']'), _) => {
                self.state = State::Done;
                self.at = i + 1;
                return Ok(None);
            }
            (Some(b','), State::Next) => i = blanks(self.text, i + 1),
            (_, State::First) => {}
            _ => return Err(fault(i, "expected a comma or the end of an array")),
        }
        let end = value(self.text, i)?;
        self.at = end;
        self.state = State::Next;
        Ok(Some((i, end)))
    }
}

impl Iterator for Elements<'_> {
    type Item = Result<(usize, usize), JsonError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step().transpose();
        if matches!(step, Some(Err(_))) {
            self.state = State::Done;
        }
        step
    }
}

/// The first position at or after `i` that is not a blank.
#[inline]
pub(crate) fn blanks(text: &[u8], mut i: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = text.get(i) {
        i += 1;
    }
    i
}

/// Scans the value that starts at `i` and returns where it ends. Nesting is counted in a bit set,
/// one bit a level, so that nothing recurses.
pub(crate) fn value(text: &[u8], mut i: usize) -> Result<usize, JsonError> {
    let mut depth = 0_u32;
    let mut objects = 0_u128; // bit 0: is the innermost open container an object?
    loop {
        // One value starts at `i`.
        match text.get(i) {
            Some(b'"') => i = string(text, i + 1)?.0,
            Some(open @ (b'{' | b'[')) => {
                let is_object = *open == b'{';
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(fault(i, "nested deeper than 128 levels"));
                }
                objects = (objects << 1) | u128::from(is_object);
                let next = blanks(text, i + 1);
                match text.get(next) {
                    Some(b'}') if is_object => {}
                    Some(b']') if !is_object => {}
                    _ if is_object => {
                        i = name(text, next)?;
                        continue;
                    }
                    _ => {
                        i = next;
                        continue;
                    }
                }
                i = next + 1;
                depth -= 1;
                objects >>= 1;
            }
            Some(b'-' | b'0'..=b'9') => i = number(text, i)?,
            Some(b't') => i = literal(text, i, b"true")?,
            Some(b'f') => i = literal(text, i, b"false")?,
            Some(b'n') => i = literal(text, i, b"null")?,
            Some(_) => return Err(fault(i, "expected a value")),
            None => return Err(fault(i, "the JSON breaks off")),
        }
        // One value ended at `i`: close what ends here, or go on to the next value.
        loop {
            if depth == 0 {
                return Ok(i);
            }
            let is_object = objects & 1 == 1;
            i = blanks(text, i);
            match text.get(i) {
                Some(b',') => {
                    i = blanks(text, i + 1);
                    if is_object {
                        i = name(text, i)?;
                    }
                    break;
                }
                Some(b'}') if is_object => {}
                Some(b']') if !is_object => {}
                Some(_) => return Err(fault(i, "expected a comma or a closing bracket")),
                None => return Err(fault(i, "the JSON breaks off")),
            }
            i += 1;
            depth -= 1;
            objects >>= 1;
        }
    }
}

/// Scans a member name and its colon at `i`; returns where the value starts.
fn name(text: &[u8], i: usize) -> Result<usize, JsonError> {
    if text.get(i) != Some(&b'"') {
        return Err(fault(i, "expected a member name"));
    }
    let (end, _) = string(text, i + 1)?;
    let colon = blanks(text, end);
    if text.get(colon) != Some(&b':') {
        return Err(fault(colon, "expected a colon"));
    }
    Ok(blanks(text, colon + 1))
}

/// Scans a string whose opening quote is at `i - 1`: where it ends after its closing quote, and
/// whether it holds escapes.
#[inline]
pub(crate) fn string(text: &[u8], mut i: usize) -> Result<(usize, bool), JsonError> {
    let mut escaped = false;
    loop {
        while let Some(word) = text.get(i..).and_then(|rest| rest.first_chunk::<8>()) {
            let stops = stop_bytes(u64::from_le_bytes(*word));
            if stops == 0 {
                i += 8;
                continue;
            }
            i += (stops.trailing_zeros() / 8) as usize;
            break;
        }
        match text.get(i) {
            Some(b'"') => return Ok((i + 1, escaped)),
            Some(b'\\') => {
                escaped = true;
                i = escape(text, i)?;
            }
            Some(0..=0x1f) => return Err(fault(i, "a control character in a string")),
            Some(_) => i += 1,
            None => return Err(fault(i, "the JSON breaks off")),
        }
    }
}

/// The high bit of every byte in `word` that is a quote, a backslash or below a blank. Only the
/// lowest bit set is exact, which is all that is used.
#[inline]
const fn stop_bytes(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let quote = word ^ (ONES * 0x22);
    let slash = word ^ (ONES * 0x5c);
    let quotes = quote.wrapping_sub(ONES) & !quote;
    let slashes = slash.wrapping_sub(ONES) & !slash;
    let controls = word.wrapping_sub(ONES * 0x20) & !word;
    (quotes | slashes | controls) & HIGH
}

fn escape(text: &[u8], i: usize) -> Result<usize, JsonError> {
    match text.get(i + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(i + 2),
        Some(b'u') => match text.get(i + 2..i + 6) {
            Some(hex) if hex.iter().all(u8::is_ascii_hexdigit) => Ok(i + 6),
            Some(_) => Err(fault(i, "a bad \\u escape")),
            None => Err(fault(text.len(), "the JSON breaks off")),
        },
        Some(_) => Err(fault(i, "an unknown escape")),
        None => Err(fault(i + 1, "the JSON breaks off")),
    }
}

fn number(text: &[u8], mut i: usize) -> Result<usize, JsonError> {
    if text.get(i) == Some(&b'-') {
        i += 1;
    }
    i = match text.get(i) {
        Some(b'0') => i + 1,
        Some(b'1'..=b'9') => digits(text, i)?,
        _ => return Err(fault(i, "a bad number")),
    };
    if text.get(i) == Some(&b'.') {
        i = digits(text, i + 1)?;
    }
    if let Some(b'e' | b'E') = text.get(i) {
        i += 1;
        if let Some(b'+' | b'-') = text.get(i) {
            i += 1;
        }
        i = digits(text, i)?;
    }
    Ok(i)
}

fn digits(text: &[u8], i: usize) -> Result<usize, JsonError> {
    let mut end = i;
    while let Some(b'0'..=b'9') = text.get(end) {
        end += 1;
    }
    if end == i { Err(fault(i, "a bad number")) } else { Ok(end) }
}

fn literal(text: &[u8], i: usize, word: &[u8]) -> Result<usize, JsonError> {
    if text[i..].starts_with(word) { Ok(i + word.len()) } else { Err(fault(i, "expected a value")) }
}

#[cold]
fn fault(at: usize, reason: &str) -> JsonError {
    JsonError { at, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    fn ours(text: &str) -> bool {
        super::super::Json::parse(text.to_owned()).is_ok()
    }

    fn oracle(text: &str) -> bool {
        serde_json::from_str::<&RawValue>(text).is_ok()
    }

    #[test]
    fn it_accepts_and_refuses_what_serde_json_does() {
        let cases = [
            "",
            " ",
            "1",
            "-0",
            "01",
            "1.",
            ".5",
            "1e5",
            "1E+5",
            "1e",
            "-",
            "--1",
            "true",
            "tru",
            "nul",
            "null",
            "\"a\"",
            "\"a",
            "\"\\u12g4\"",
            "\"\\u1234\"",
            "\"\\x\"",
            "[",
            "[]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{,}",
            "{a:1}",
            "{\"a\":1 \"b\":2}",
            "[}",
            "{]",
            "[[[]]]",
            "{\"a\":{\"b\":[1,{\"c\":null}]}}",
            "1 1",
            "\"\t\"",
            "\"\u{7f}\"",
            "\"é\"",
            "[1,2,3]",
            " [ 1 , 2 ] ",
            "{\"a\" : 1}",
            "nan",
            "Infinity",
            "\"\\",
            "\"\\u",
            "\"\\u12",
            "[\"abcdefghijklmnop\\n\"]",
            "\u{feff}1",
            "1,",
            "//x",
        ];
        for case in cases {
            assert_eq!(ours(case), oracle(case), "{case:?}");
        }
    }

    #[test]
    fn nesting_is_bounded_at_128_levels() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(ours(&nested(128)));
        assert!(!ours(&nested(129)));
        let objects = |n: usize| format!("{}1{}", "{\"a\":".repeat(n), "}".repeat(n));
        assert!(ours(&objects(128)));
        assert!(!ours(&objects(129)));
    }

    fn value_text() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            any::<bool>().prop_map(|b| b.to_string()),
            any::<i64>().prop_map(|n| n.to_string()),
            any::<f32>().prop_filter("finite", |f| f.is_finite()).prop_map(|f| f.to_string()),
            any::<String>().prop_map(|s| serde_json::to_string(&s).unwrap()),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6)
                    .prop_map(|v| format!("[ {} ]", v.join(" ,"))),
                prop::collection::vec((any::<String>(), inner), 0..6).prop_map(|v| {
                    let m: Vec<_> = v
                        .iter()
                        .map(|(k, v)| format!("{} : {v}", serde_json::to_string(k).unwrap()))
                        .collect();
                    format!("{{{}}}", m.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_is_accepted(text in value_text()) {
            prop_assert!(ours(&text));
        }

        #[test]
        fn a_damaged_value_is_judged_like_serde_json_judges_it(
            text in value_text(), at in any::<prop::sample::Index>(), byte in 0x20_u8..0x7f, cut in any::<bool>()
        ) {
            let mut bytes = text.into_bytes();
            let i = at.index(bytes.len());
            if cut { bytes.truncate(i) } else if bytes[i].is_ascii() { bytes[i] = byte }
            if let Ok(text) = String::from_utf8(bytes) {
                prop_assert_eq!(ours(&text), oracle(&text), "{}", text);
            }
        }

        #[test]
        fn any_text_is_judged_like_serde_json_judges_it(text in "[\\[\\]{}:,\"0-9eE.+\\-a-z \\\\u]{0,24}") {
            prop_assert_eq!(ours(&text), oracle(&text), "{}", text);
        }
    }
}
