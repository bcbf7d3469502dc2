//! The bridge beside a child, with the same inputs: whatever the child says, field by field, is what the bridge says.
//!
//! What a case states is judged elsewhere. This finds what no case states: the link of a delta, the key of a call,
//! an effect that came too late.

use crate::subject::{SEED, Taken, Value, WALL_MS, command_json, options_json};
use broca::engine::{Command, Config, OpId, Trace};
use broca::{Error, Json, Time};
use broca_bridge::{Batch, Handle};

#[derive(Debug)]
pub(super) struct Twin {
    handle: Handle,
    batch: Batch,
}

impl Twin {
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        let handle = Handle::new(options_json(config).as_bytes(), SEED, WALL_MS)?;
        Ok(Self { handle, batch: Batch::new() })
    }

    /// Gives it an input that has no answer of its own.
    pub(super) fn give(&self, give: impl FnOnce(&Handle) -> Result<(), Error>) {
        // A fault of the bridge shows in what it says next.
        drop(give(&self.handle));
    }

    /// Compares what a command came to.
    pub(super) fn command(
        &self,
        command: &Command,
        trace: &Trace,
        now: Time,
        came: &Result<OpId, Error>,
    ) -> Result<(), String> {
        let json = command_json(command)?;
        let own = self.handle.command(json.as_bytes(), trace.clone(), now).map(OpId);
        same_outcome("a command", &own, came)
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Compares effects; both sides have taken all that wait.
    pub(super) fn effects(&mut self, came: &[Taken]) -> Result<(), String> {
        self.batch.clear();
        self.handle.effects(&mut self.batch).map_err(|e| e.to_string())?;
        compare(&Taken::all_of(&self.batch)?, came)
    }

    /// Compares steps, taken with the same bound.
    pub(super) fn steps(
        &mut self,
        op: OpId,
        max_bytes: usize,
        came: &[Taken],
    ) -> Result<(), String> {
        self.batch.clear();
        self.handle.steps(op.0, max_bytes, &mut self.batch).map_err(|e| e.to_string())?;
        compare(&Taken::all_of(&self.batch)?, came)
    }
}

/// Compares how a call ended.
pub(super) fn same_outcome<T: PartialEq + std::fmt::Debug>(
    what: &str,
    own: &Result<T, Error>,
    came: &Result<T, Error>,
) -> Result<(), String> {
    let same = match (own, came) {
        (Ok(own), Ok(came)) => own == came,
        (Err(own), Err(came)) => {
            (own.kind(), own.message(), own.retry()) == (came.kind(), came.message(), came.retry())
        }
        _ => false,
    };
    if same { Ok(()) } else { Err(format!("{what}: the bridge says {own:?}, the child {came:?}")) }
}

fn compare(own: &[Taken], came: &[Taken]) -> Result<(), String> {
    let kinds =
        |all: &[Taken]| all.iter().map(|one| one.kind.clone()).collect::<Vec<_>>().join(", ");
    if own.len() != came.len() || own.iter().zip(came).any(|(a, b)| a.kind != b.kind) {
        return Err(format!("the bridge says [{}], the child [{}]", kinds(own), kinds(came)));
    }
    for (own, came) in own.iter().zip(came) {
        for (name, value) in &own.fields {
            let is_reset = own.fields.get("delta_kind") == Some(&Some(Value::Number(3)));
            let said = came.fields.get(name);
            // What a reset belongs to is of no use, and not every package says it.
            if !(said.is_some_and(|said| same(value, said)) || is_reset && name == "link") {
                return Err(format!("{}.{name} is not what the bridge says", own.kind));
            }
        }
    }
    Ok(())
}

/// Equal, or the same JSON: packages may have decoded it and written it again.
fn same(own: &Option<Value>, came: &Option<Value>) -> bool {
    let json = |value: &Value| match value {
        Value::Bytes(bytes) => Json::parse(bytes.clone()).ok()?.decode::<serde_json::Value>().ok(),
        Value::Number(_) => None,
    };
    match (own, came) {
        (Some(own), Some(came)) => {
            own == came || json(own).is_some_and(|value| json(came) == Some(value))
        }
        (own, came) => own == came,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn delta(kind: i128, link: &str) -> Taken {
        let bytes = |text: &str| Some(Value::Bytes(Bytes::copy_from_slice(text.as_bytes())));
        let fields = [
            ("delta_kind", Some(Value::Number(kind))),
            ("link", bytes(link)),
            ("text", bytes("{\"a\": 1}")),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value));
        Taken { kind: "delta".to_owned(), fields: fields.into() }
    }

    #[test]
    fn every_field_counts_but_not_the_spelling_of_json() {
        let own = delta(0, "msg_1");
        assert_eq!(compare(std::slice::from_ref(&own), &[delta(0, "msg_1")]), Ok(()));
        let other = compare(std::slice::from_ref(&own), &[delta(0, "msg_2")]).unwrap_err();
        assert_eq!(other, "delta.link is not what the bridge says");
        assert!(compare(std::slice::from_ref(&own), &[]).is_err());
        let mut respelt = delta(0, "msg_1");
        let text = Some(Value::Bytes(Bytes::from_static(b"{\"a\":1}")));
        respelt.fields.insert("text".to_owned(), text);
        assert_eq!(compare(std::slice::from_ref(&own), &[respelt.clone()]), Ok(()));
        respelt.fields.remove("text");
        assert!(compare(&[own], &[respelt]).is_err());
        assert_eq!(compare(&[delta(3, "a")], &[delta(3, "b")]), Ok(()));
    }
}
