//! Objects of a case, read so that no member is overlooked.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The members of one object; those that were never asked for are a fault in the end.
#[derive(Debug)]
pub struct Fields<'a> {
    place: String,
    members: &'a Map<String, Value>,
    left: BTreeSet<&'a str>,
}

impl<'a> Fields<'a> {
    /// The members of `value`, called `place` in messages.
    ///
    /// # Errors
    /// When it is no object.
    pub fn of(value: &'a Value, place: impl Into<String>) -> Result<Self, String> {
        let place = place.into();
        match value {
            Value::Object(members) => {
                let left = members.keys().map(String::as_str).collect();
                Ok(Self { place, members, left })
            }
            other => Err(format!("{place} must be an object, it is {}", short(other))),
        }
    }

    /// A member that may be absent.
    pub fn take(&mut self, name: &str) -> Option<&'a Value> {
        self.left.remove(name);
        self.members.get(name)
    }

    /// A member that must be there.
    ///
    /// # Errors
    /// When it is not.
    pub fn need(&mut self, name: &str) -> Result<&'a Value, String> {
        self.take(name).ok_or_else(|| format!("{} has no member \"{name}\"", self.place))
    }

    /// A string that must be there.
    ///
    /// # Errors
    /// When it is not, or is something else.
    pub fn text(&mut self, name: &str) -> Result<String, String> {
        let place = self.place.clone();
        text(self.need(name)?).map_err(|fault| format!("{place}: \"{name}\" {fault}"))
    }

    /// A string that may be absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn maybe_text(&mut self, name: &str) -> Result<Option<String>, String> {
        if self.members.contains_key(name) { self.text(name).map(Some) } else { Ok(None) }
    }

    /// A whole number that may be absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn number(&mut self, name: &str) -> Result<Option<u64>, String> {
        let fault = format!("{}: \"{name}\" must be a whole number", self.place);
        match self.take(name) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or(fault),
        }
    }

    /// A truth value that may be absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn truth(&mut self, name: &str) -> Result<Option<bool>, String> {
        let fault = format!("{}: \"{name}\" must be true or false", self.place);
        match self.take(name) {
            None => Ok(None),
            Some(value) => value.as_bool().map(Some).ok_or(fault),
        }
    }

    /// A list that may be absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn list(&mut self, name: &str) -> Result<Option<&'a [Value]>, String> {
        let fault = format!("{}: \"{name}\" must be a list", self.place);
        match self.take(name) {
            None => Ok(None),
            Some(value) => value.as_array().map(|list| Some(list.as_slice())).ok_or(fault),
        }
    }

    /// The members that nobody asked for yet.
    #[must_use]
    pub fn rest(&self) -> Vec<&'a str> {
        self.left.iter().copied().collect()
    }

    /// Says that everything was asked for.
    ///
    /// # Errors
    /// When members are left that this player does not know.
    pub fn finish(self) -> Result<(), String> {
        if self.left.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = self.left.into_iter().collect();
        Err(format!("{} has members unknown to this player: {}", self.place, names.join(", ")))
    }
}

/// A string.
pub(super) fn text(value: &Value) -> Result<String, String> {
    value
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("must be a string, it is {}", short(value)))
}

/// Strings.
pub(super) fn texts(values: &[Value]) -> Result<Vec<String>, String> {
    values.iter().map(text).collect()
}

/// A value for a message: its JSON, cut.
pub(super) fn short(value: &Value) -> String {
    cut(&value.to_string())
}

/// A text for a message, cut after 160 characters.
pub(super) fn cut(text: &str) -> String {
    let kept: String = text.chars().take(160).collect();
    if kept.len() < text.len() { format!("{kept}…") } else { kept }
}

/// Notes a fault unless `came` is what was expected.
pub(super) fn same<T: PartialEq + std::fmt::Debug>(
    faults: &mut Vec<String>,
    what: &str,
    expected: &T,
    came: &T,
) {
    if expected != came {
        let (expected, came) = (cut(&format!("{expected:?}")), cut(&format!("{came:?}")));
        faults.push(format!("{what}: expected {expected}, came {came}"));
    }
}

/// Whether every member of `part` stands in `whole` with the same value; `null` in `part` also stands for absent.
pub(super) fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().all(|(name, value)| {
            whole.get(name).map_or_else(|| value.is_null(), |found| holds(found, value))
        }),
        _ => whole == part,
    }
}
