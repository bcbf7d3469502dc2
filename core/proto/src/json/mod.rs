//! JSON as text: kept exactly as it came, decoded when somebody asks.
//!
//! Integers above 2^53, the spelling of numbers and members nobody knows survive untouched, because
//! they are never turned into anything else (design §7).

pub(crate) mod scan;
pub(crate) mod surrogates;

use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use thiserror::Error;

/// Why text is not the JSON that was asked for. Never holds the text itself.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason} at byte {at}")]
pub struct JsonError {
    /// Where, counted in bytes from the start of the text.
    pub at: usize,
    /// What was wrong there.
    pub reason: String,
}

/// One JSON value as text: valid UTF-8, valid JSON, cheap to clone.
///
/// `==` compares the text, so `1.0` and `1` differ.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Json(Bytes);

impl Json {
    /// The value `null`.
    #[must_use]
    pub const fn null() -> Self {
        Self(Bytes::from_static(b"null"))
    }

    /// The object without members.
    #[must_use]
    pub const fn empty_object() -> Self {
        Self(Bytes::from_static(b"{}"))
    }

    /// Checks that `text` is one JSON value (nesting at most 128) and keeps it without the blanks around it.
    ///
    /// # Errors
    /// [`JsonError`] with the place of the first fault.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, JsonError> {
        let bytes: Bytes = text.into();
        if let Err(e) = std::str::from_utf8(&bytes) {
            return Err(JsonError { at: e.valid_up_to(), reason: "not UTF-8".to_owned() });
        }
        let start = scan::blanks(&bytes, 0);
        let end = scan::value(&bytes, start)?;
        let rest = scan::blanks(&bytes, end);
        if rest != bytes.len() {
            return Err(JsonError { at: rest, reason: "something follows the value".to_owned() });
        }
        Ok(Self(bytes.slice(start..end)))
    }

    /// Writes any serializable value as JSON text.
    ///
    /// # Errors
    /// When the value cannot be written as JSON, such as a map whose keys are not strings.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, JsonError> {
        match serde_json::to_vec(value) {
            Ok(text) => Ok(Self(text.into())),
            Err(e) => Err(JsonError { at: 0, reason: e.to_string() }),
        }
    }

    /// A JSON string holding `text`.
    #[must_use]
    pub fn string(text: &str) -> Self {
        let mut out = String::with_capacity(text.len() + 2);
        write_string(&mut out, text);
        Self(out.into())
    }

    /// A JSON integer.
    #[must_use]
    pub fn integer(number: i64) -> Self {
        Self(number.to_string().into())
    }

    /// The slice `text[start..end]` of a line that a scan has already proved to be one value.
    pub(crate) fn of_scanned(text: &Bytes, start: usize, end: usize) -> Self {
        Self(text.slice(start..end))
    }

    /// Takes over text that this crate has just written.
    pub(crate) fn of_written(text: String) -> Self {
        Self(text.into())
    }

    /// The value with halves of surrogate pairs replaced by U+FFFD; nothing when there are none.
    pub(crate) fn without_halves(&self) -> Option<Self> {
        match surrogates::without_halves(self.as_str()) {
            Cow::Borrowed(_) => None,
            Cow::Owned(text) => Some(Self::of_written(text)),
        }
    }

    /// The text, exactly as it came.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("null")
    }

    /// The text as bytes, without a check.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text as shared bytes.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// Decodes the value into a type. Only here a lone surrogate, a number out of range or a member of the wrong
    /// type is refused.
    ///
    /// # Errors
    /// [`JsonError`] with the place; the text is not repeated in it.
    pub fn decode<'a, T: Deserialize<'a>>(&'a self) -> Result<T, JsonError> {
        serde_json::from_slice(&self.0)
            .map_err(|e| JsonError { at: e.column(), reason: describe(&e) })
    }

    /// Whether the value is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.0.first() == Some(&b'{')
    }

    /// Whether the value is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.0.as_ref() == b"null"
    }

    /// The value as text when it is a string that can be decoded.
    #[must_use]
    pub fn to_text(&self) -> Option<String> {
        if self.0.first() == Some(&b'"') { self.decode().ok() } else { None }
    }

    /// The member `name` of an object; the last one when it is repeated.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<Self> {
        let mut found = None;
        for member in scan::members(&self.0, 0)? {
            let member = member.ok()?;
            if member.key(&self.0) == name {
                found = Some(Self(self.0.slice(member.value.0..member.value.1)));
            }
        }
        found
    }

    /// The elements of an array, or nothing when the value is no array.
    #[must_use]
    pub fn elements(&self) -> Option<Vec<Self>> {
        let mut out = Vec::new();
        for element in scan::elements(&self.0, 0)? {
            let (start, end) = element.ok()?;
            out.push(Self(self.0.slice(start..end)));
        }
        Some(out)
    }

    /// The members of an object in their order, keys decoded, or nothing when the value is no object.
    #[must_use]
    pub fn members(&self) -> Option<Vec<(String, Self)>> {
        let mut out = Vec::new();
        for member in scan::members(&self.0, 0)? {
            let member = member.ok()?;
            let value = Self(self.0.slice(member.value.0..member.value.1));
            out.push((member.key(&self.0).into_owned(), value));
        }
        Some(out)
    }

    /// The same object with the member `name` set to `value`, as its last member; everything else keeps its text.
    /// A value that is no object is returned as it is.
    #[must_use]
    pub fn with_member(&self, name: &str, value: &Self) -> Self {
        let Some(members) = self.members() else { return self.clone() };
        let kept = members.iter().filter(|(key, _)| key != name).map(|(k, v)| (k.as_str(), v));
        Self::object(kept.chain([(name, value)]))
    }

    /// The same object without the member `name`. A value that is no object is returned as it is.
    #[must_use]
    pub fn without_member(&self, name: &str) -> Self {
        match self.members() {
            Some(members) if members.iter().any(|(key, _)| key == name) => Self::object(
                members.iter().filter(|(k, _)| k != name).map(|(k, v)| (k.as_str(), v)),
            ),
            _ => self.clone(),
        }
    }

    /// An object of these members, in this order.
    #[must_use]
    pub fn object<'a>(members: impl IntoIterator<Item = (&'a str, &'a Self)>) -> Self {
        let mut out = String::from("{");
        for (i, (key, value)) in members.into_iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            write_string(&mut out, key);
            out.push(':');
            out.push_str(value.as_str());
        }
        out.push('}');
        Self(out.into())
    }

    /// An array of these elements.
    #[must_use]
    pub fn array<'a>(elements: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut out = String::from("[");
        for (i, element) in elements.into_iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            out.push_str(element.as_str());
        }
        out.push(']');
        Self(out.into())
    }
}

/// Writes an array element by element.
#[derive(Default)]
pub struct ArrayWriter(Vec<u8>);

impl ArrayWriter {
    /// Adds an element.
    pub fn push(&mut self, element: &Json) {
        self.0.push(if self.0.is_empty() { b'[' } else { b',' });
        self.0.extend_from_slice(element.as_bytes());
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Forgets every element and keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The array.
    #[must_use]
    pub fn finish(mut self) -> Json {
        if self.0.is_empty() {
            self.0.push(b'[');
        }
        self.0.push(b']');
        Json(self.0.into())
    }
}

/// Appends `text` to `out` as a JSON string.
pub fn write_string(out: &mut String, text: &str) {
    out.push('"');
    let mut from = 0;
    for (i, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0..=0x1f => {
                out.push_str(&text[from..i]);
                out.push_str("\\u00");
                out.push(char::from(b'0' + (byte >> 4)));
                out.push(char::from(b"0123456789abcdef"[usize::from(byte & 0xf)]));
                from = i + 1;
                continue;
            }
            _ => continue,
        };
        out.push_str(&text[from..i]);
        out.push_str(escape);
        from = i + 1;
    }
    out.push_str(&text[from..]);
    out.push('"');
}

/// What serde_json found wrong, without repeating values of the text.
fn describe(e: &serde_json::Error) -> String {
    match e.classify() {
        serde_json::error::Category::Syntax => "not valid JSON".to_owned(),
        serde_json::error::Category::Eof => "the JSON breaks off".to_owned(),
        serde_json::error::Category::Io => "cannot be read".to_owned(),
        serde_json::error::Category::Data => {
            let text = e.to_string();
            // serde's own words quote names of members and types; a quoted string value is cut out.
            match text.find("string \"") {
                Some(i) => format!("{}a string of another kind", &text[..i]),
                None => text,
            }
        }
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json({} bytes)", self.0.len())
    }
}

impl Default for Json {
    fn default() -> Self {
        Self::null()
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue =
            serde_json::from_str(self.as_str()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let text: Box<str> = raw.into();
        if text.is_empty() {
            return Err(D::Error::custom("no value"));
        }
        Ok(Self(String::from(text).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn text_is_kept_exactly() {
        let text = r#"{"row":9007199254740993,"u":18446744073709551615,"sci":1e3,"f":0.10}"#;
        assert_eq!(json(text).as_str(), text);
        assert_eq!(json(text).member("sci").unwrap().as_str(), "1e3");
    }

    #[test]
    fn a_member_can_be_set_and_taken_away_without_touching_the_others() {
        let before = json(r#"{"a": 1.0, "dispatch":"x","b":[1 , 2]}"#);
        assert_eq!(
            before.with_member("dispatch", &Json::string("client")).as_str(),
            r#"{"a":1.0,"b":[1 , 2],"dispatch":"client"}"#
        );
        assert_eq!(before.without_member("dispatch").as_str(), r#"{"a":1.0,"b":[1 , 2]}"#);
        assert_eq!(before.without_member("none").as_str(), before.as_str());
    }

    #[test]
    fn errors_and_debug_output_do_not_repeat_the_text() {
        let secret = json(r#"{"role":"hunter2-secret"}"#);
        assert!(!format!("{secret:?}").contains("hunter2"));
        #[derive(Deserialize, Debug)]
        struct Wants {
            #[serde(rename = "role")]
            _role: u64,
        }
        let error = secret.decode::<Wants>().unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    proptest! {
        #[test]
        fn written_strings_are_read_back_by_serde(text in any::<String>()) {
            let written = Json::string(&text);
            let read: String = serde_json::from_str(written.as_str()).unwrap();
            prop_assert_eq!(read, text);
        }
    }
}
