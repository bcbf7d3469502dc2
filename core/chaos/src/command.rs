//! The proxy as lines of JSON: one command, one answer.
//!
//! A command is an object with an `id` that the answer repeats, and one of these members:
//!
//! | member | what it does | answer |
//! |---|---|---|
//! | `next` with knobs, `count` (1) | plans knobs for the next connections or responses | |
//! | `all` with knobs | sets knobs for all that have none planned | |
//! | `reset`, `cut` : true | ends the connections that are open, with a reset or in order | `connections` |
//! | `stall`: true | silences the connections that are open | `connections` |
//! | `listen`: true or false | gives the port up, so that connections are refused, or listens again | |
//! | `heal`: true | forgets every plan, lets what is silent go on and listens | |
//! | `target`: `"IP:PORT"` | sends new connections elsewhere | |
//! | `status`: true | nothing | `connections`, `open`, `planned`, `bytes` |
//!
//! An answer is `{"id", "ok": true, …}` or `{"id", "error": "sentence"}`. The knobs of [`Fault`] concern
//! connections, those of [`ResponseFault`] responses; a command may hold both kinds, and each counts for itself.

use crate::fault::{Fault, ResponseFault};
use crate::proxy::ChaosProxy;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::time::Duration;

/// The most connections or responses that one command plans for.
const MAX_COUNT: u64 = 100_000;

/// The longest delay, in milliseconds.
const MAX_DELAY_MS: u64 = 3_600_000;

const COMMANDS: &str = "next, all, reset, cut, stall, listen, heal, target or status";

/// What goes wrong, as it is written in a command.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Knobs {
    pass: Option<Pass>,
    drop: Option<Drop>,
    delay_ms: Option<u64>,
    delay_up_ms: Option<u64>,
    delay_down_ms: Option<u64>,
    piece_bytes: Option<usize>,
    repeat: bool,
    behind: bool,
    cut_after_bytes: Option<u64>,
    cut_after_lines: Option<u64>,
    stall_after_bytes: Option<u64>,
    stall_after_lines: Option<u64>,
    duplicate_line: Option<u64>,
    buffer: bool,
    reset: bool,
    request: Option<String>,
}

/// What shall come through unharmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Pass {
    Connection,
    Response,
}

/// How a connection is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Drop {
    Close,
    Reset,
}

/// Carries out one line and returns the line that answers it, without a line end.
#[must_use]
pub fn answer(proxy: &ChaosProxy, line: &str) -> String {
    let parsed = serde_json::from_str::<Map<String, Value>>(line);
    let (id, outcome) = match parsed {
        Ok(mut command) => {
            let id = command.remove("id").unwrap_or(Value::Null);
            (id, carry_out(proxy, command))
        }
        Err(e) => (Value::Null, Err(format!("the line is no JSON object: {e}"))),
    };
    let mut answer = Map::new();
    answer.insert("id".to_owned(), id);
    match outcome {
        Ok(facts) => {
            answer.insert("ok".to_owned(), Value::Bool(true));
            answer.extend(facts);
        }
        Err(error) => {
            answer.insert("error".to_owned(), Value::String(error));
        }
    }
    Value::Object(answer).to_string()
}

fn carry_out(
    proxy: &ChaosProxy,
    mut command: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let count = command.remove("count");
    let mut members = command.into_iter();
    let (Some((name, value)), None) = (members.next(), members.next()) else {
        return Err(format!("a command has an id and one of {COMMANDS}"));
    };
    if count.is_some() && name != "next" {
        return Err("count belongs to next".to_owned());
    }
    let mut facts = Map::new();
    let mut tell = |name: &str, number: u64| {
        facts.insert(name.to_owned(), number.into());
    };
    match name.as_str() {
        "next" => {
            let count = match count {
                Some(count) => read::<u64>("count", count)?,
                None => 1,
            };
            if !(1..=MAX_COUNT).contains(&count) {
                return Err(format!("count must be from 1 to {MAX_COUNT}"));
            }
            let (connection, response) = read::<Knobs>(&name, value)?.faults()?;
            for _ in 0..count {
                connection.iter().for_each(|fault| proxy.plan(fault.clone()));
                response.iter().for_each(|fault| proxy.plan_response(fault.clone()));
            }
        }
        "all" => {
            let (connection, response) = read::<Knobs>(&name, value)?.faults()?;
            connection.into_iter().for_each(|fault| proxy.always(fault));
            response.into_iter().for_each(|fault| proxy.always_response(fault));
        }
        "listen" => {
            let listening = read(&name, value)?;
            proxy.set_listening(listening).map_err(not_listening)?;
        }
        "target" => {
            let text: String = read(&name, value)?;
            let target: SocketAddr =
                text.parse().map_err(|_| "target must be an IP address and a port".to_owned())?;
            proxy.retarget(target);
        }
        "reset" | "cut" | "stall" | "heal" | "status" => {
            if value != Value::Bool(true) {
                return Err(format!("{name} must be true"));
            }
            match name.as_str() {
                "reset" => tell("connections", proxy.reset_all() as u64),
                "cut" => tell("connections", proxy.cut_all() as u64),
                "stall" => tell("connections", proxy.stall_all() as u64),
                "heal" => proxy.heal().map_err(not_listening)?,
                _ => {
                    tell("connections", proxy.connections());
                    tell("open", proxy.open() as u64);
                    tell("planned", proxy.planned() as u64);
                    tell("bytes", proxy.bytes());
                }
            }
        }
        other => return Err(format!("there is no command {}; there are {COMMANDS}", json!(other))),
    }
    Ok(facts)
}

fn not_listening(error: std::io::Error) -> String {
    format!("the port cannot be opened again: {error}")
}

fn read<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|e| format!("{name}: {e}"))
}

impl Knobs {
    /// The fault for connections and that for responses, where there are knobs for one.
    fn faults(self) -> Result<(Option<Fault>, Option<ResponseFault>), String> {
        for (name, delay) in [
            ("delay_ms", self.delay_ms),
            ("delay_up_ms", self.delay_up_ms),
            ("delay_down_ms", self.delay_down_ms),
        ] {
            if delay.is_some_and(|ms| ms > MAX_DELAY_MS) {
                return Err(format!("{name} must be at most {MAX_DELAY_MS}"));
            }
        }
        if self.duplicate_line == Some(0) || self.piece_bytes == Some(0) {
            return Err("duplicate_line and piece_bytes are counted from 1".to_owned());
        }
        let is_cut = self.cut_after_bytes.is_some() || self.cut_after_lines.is_some();
        if self.reset && !is_cut {
            return Err("reset belongs to cut_after_bytes or cut_after_lines".to_owned());
        }
        let millis =
            |own: Option<u64>| Duration::from_millis(own.or(self.delay_ms).unwrap_or_default());
        let fault = Fault {
            refuse: self.drop.is_some(),
            reset: self.drop == Some(Drop::Reset),
            delay: millis(self.delay_down_ms),
            delay_up: millis(self.delay_up_ms),
            piece: self.piece_bytes.unwrap_or_default(),
            repeat: self.repeat,
            behind: self.behind,
            ..Fault::default()
        };
        let response = ResponseFault {
            cut_after_bytes: self.cut_after_bytes,
            cut_after_lines: self.cut_after_lines,
            stall_after_bytes: self.stall_after_bytes,
            stall_after_lines: self.stall_after_lines,
            duplicate_line: self.duplicate_line,
            buffer: self.buffer,
            reset: self.reset,
            request: self.request,
        };
        let has_delay = self.delay_ms.or(self.delay_up_ms).or(self.delay_down_ms).is_some();
        let is_connection = self.pass == Some(Pass::Connection)
            || self.drop.is_some()
            || has_delay
            || self.repeat
            || self.behind
            || self.piece_bytes.is_some();
        let is_response = self.pass == Some(Pass::Response) || !response.is_none();
        if response.request.is_some() && !is_response {
            return Err("request belongs to a knob for responses".to_owned());
        }
        if !is_connection && !is_response {
            return Err("there is no knob; one that does nothing is pass".to_owned());
        }
        Ok((is_connection.then_some(fault), is_response.then_some(response)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy() -> ChaosProxy {
        ChaosProxy::start(SocketAddr::from(([127, 0, 0, 1], 9))).unwrap()
    }

    fn asked(proxy: &ChaosProxy, line: &str) -> Value {
        serde_json::from_str(&answer(proxy, line)).unwrap()
    }

    #[test]
    fn each_command_is_answered_with_its_id() {
        let proxy = proxy();
        for (line, planned) in [
            (r#"{"id":1,"next":{"cut_after_lines":3}}"#, 1),
            (r#"{"id":"two","next":{"drop":"reset","duplicate_line":1},"count":2}"#, 5),
            (r#"{"id":null,"next":{"pass":"response"}}"#, 6),
            (r#"{"id":4,"all":{"delay_ms":5,"delay_up_ms":0}}"#, 6),
            (r#"{"id":5,"target":"127.0.0.1:10"}"#, 6),
            (r#"{"id":6,"next":{"buffer":true,"request":"x"}}"#, 7),
            (r#"{"id":6,"next":{"repeat":true}}"#, 8),
            (r#"{"id":6,"next":{"behind":true}}"#, 9),
            (r#"{"id":7,"listen":false}"#, 9),
            (r#"{"id":8,"heal":true}"#, 0),
        ] {
            let answer = asked(&proxy, line);
            let id = serde_json::from_str::<Value>(line).unwrap()["id"].clone();
            assert_eq!(answer, json!({"id": id, "ok": true}), "{line}");
            assert_eq!(proxy.planned(), planned, "{line}");
        }
        let status = asked(&proxy, r#"{"status":true}"#);
        assert_eq!(
            status,
            json!({"id": null, "ok": true, "connections": 0, "open": 0, "planned": 0, "bytes": 0})
        );
        assert_eq!(asked(&proxy, r#"{"id":8,"reset":true}"#)["connections"], 0);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_sentence_and_plans_nothing() {
        let proxy = proxy();
        for (line, part) in [
            ("nonsense", "no JSON object"),
            ("[1]", "no JSON object"),
            (r#"{"id":1}"#, "one of next"),
            (r#"{"id":1,"reset":true,"heal":true}"#, "one of next"),
            (r#"{"id":1,"reset":1}"#, "reset must be true"),
            (r#"{"id":1,"explode":true}"#, r#"no command "explode""#),
            (r#"{"id":1,"next":{}}"#, "no knob"),
            (r#"{"id":1,"next":{"cut_after_line":1}}"#, "cut_after_line"),
            (r#"{"id":1,"next":{"cut_after_lines":-1}}"#, "next: "),
            (r#"{"id":1,"next":{"duplicate_line":0}}"#, "counted from 1"),
            (r#"{"id":1,"next":{"drop":"reset"},"count":0}"#, "count must be"),
            (r#"{"id":1,"next":{"drop":"gently"}}"#, "gently"),
            (r#"{"id":1,"next":{"drop":"close","reset":true}}"#, "reset belongs to"),
            (r#"{"id":1,"next":{"drop":"close","request":"x"}}"#, "request belongs to"),
            (r#"{"id":1,"all":{"delay_ms":3600001}}"#, "at most"),
            (r#"{"id":1,"all":{"delay_ms":1},"count":2}"#, "count belongs to next"),
            (r#"{"id":1,"target":"localhost:1"}"#, "IP address"),
        ] {
            let answer = asked(&proxy, line);
            let error = answer["error"].as_str().unwrap();
            assert!(error.contains(part) && answer.get("ok").is_none(), "{line}: {error}");
        }
        assert_eq!(proxy.planned(), 0);
    }
}
