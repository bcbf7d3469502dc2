//! What an `rpc_stream` case states, compared with what came.

use super::super::feed::unhex;
use super::super::fields::{Fields, cut, holds, same, short, text, texts};
use super::super::outcome;
use super::super::service::{equals, value};
use super::{Feed, Observed, Seen};
use broca::Json;
use broca::engine::{DeltaKind, Lost};
use broca::proto::session::event::Event;
use serde_json::{Value, json};
use std::collections::HashSet;

/// The names of items that are pieces for the screen: of any kind, or of one.
const DELTAS: [&str; 4] = ["delta", "text_delta", "reasoning_delta", "tool_input_delta"];

/// The names of items that say that something was lost: anything, or pieces for the screen.
const GAPS: [&str; 2] = ["gap", "display_gap"];

/// Compares everything that the case names.
pub(super) fn check(
    expect: &Value,
    feed: &Feed,
    came: &Observed,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let mut fields = Fields::of(expect, "expect")?;
    if let Some(items) = fields.list("items")? {
        check_items(items, feed, came, faults)?;
    }
    if let Some(expected) = fields.take("outcome") {
        outcome::check(expected, came.ending(), came.resent, faults)?;
    }
    if let Some(count) = fields.number("warnings")? {
        same(faults, "warnings", &count, &(came.warnings.len() as u64));
    }
    let classes: Vec<&str> = came.warnings.iter().map(|w| w.class.as_str()).collect();
    if let Some(class) = fields.maybe_text("warning_class")?
        && (classes.is_empty() || classes.iter().any(|came| *came != class))
    {
        faults.push(format!("warning_class: expected {class}, came {classes:?}"));
    }
    if let Some(expected) = fields.list("warning_classes")? {
        let expected = texts(expected)?;
        same(faults, "warning_classes", &expected.iter().map(String::as_str).collect(), &classes);
    }
    if let Some(bytes) = fields.number("bytes_sent_in_reply")? {
        same(faults, "bytes_sent_in_reply", &bytes, &(came.bytes_after_request as u64));
    }
    if let Some(count) = fields.number("duplicates_delivered")? {
        let mut ids = HashSet::new();
        let again = |seen: &&Seen| matches!(seen, Seen::Event(e) if !ids.insert(e.id().to_owned()));
        let again = came.seen.iter().filter(again).count();
        same(faults, "duplicates_delivered", &count, &(again as u64));
    }
    if let Some(next) = fields.take("next_request") {
        check_next(next, came, faults)?;
    }
    if let Some(then) = fields.maybe_text("then")? {
        check_then(&then, came, faults)?;
    }
    if let Some(hex) = fields.maybe_text("tool_input_text_hex")? {
        let expected =
            String::from_utf8(unhex(&hex)?).map_err(|_| "tool_input_text_hex: not UTF-8")?;
        match came.calls.first() {
            Some((_, input)) => {
                same(faults, "tool_input_text_hex", &expected.as_str(), &input.as_str());
            }
            None => faults.push("tool_input_text_hex: no tool call came".to_owned()),
        }
    }
    if let Some(strings) = fields.take("decimal_strings") {
        check_decimals(strings, came, faults)?;
    }
    check_params(feed, came, faults)?;
    fields.finish()
}

/// What each connect of the client had to say.
fn check_params(feed: &Feed, came: &Observed, faults: &mut Vec<String>) -> Result<(), String> {
    for (i, connection) in feed.connections.iter().enumerate() {
        let Some(expected) = &connection.expect_params else { continue };
        let what = format!("expect_params of connection {}", i + 1);
        match came.params.get(i) {
            None => faults.push(format!("{what}: the client never made it")),
            Some(params) if holds(&value(params)?, expected) => {}
            Some(params) => {
                let came = cut(params.as_str());
                faults.push(format!("{what}: expected {}, came {came}", short(expected)));
            }
        }
    }
    Ok(())
}

/// The first request after the scripted ones.
fn check_next(next: &Value, came: &Observed, faults: &mut Vec<String>) -> Result<(), String> {
    let mut fields = Fields::of(next, "next_request")?;
    let method = fields.maybe_text("method")?;
    let params = fields.take("params");
    fields.finish()?;
    let Some((came_method, came_params)) = came.later.first() else {
        faults.push(format!("next_request: expected {}, came none", short(next)));
        return Ok(());
    };
    if let Some(method) = method {
        same(faults, "next_request.method", &method, came_method);
    }
    if let Some(params) = params
        && !holds(&value(came_params)?, params)
    {
        let came = cut(came_params.as_str());
        faults.push(format!("next_request.params: expected {}, came {came}", short(params)));
    }
    Ok(())
}

/// The one thing that a case may demand afterwards. The log holds an event that the lagging reader
/// did not get; reconciled means that the application has it, once.
fn check_then(then: &str, came: &Observed, faults: &mut Vec<String>) -> Result<(), String> {
    if then != "reconcile through GET events" {
        return Err(format!("then: \"{then}\" is not known to this player"));
    }
    if came.missed != 1 {
        let times = came.missed;
        faults.push(format!("then: the event that was missed came {times} times, not once"));
    }
    Ok(())
}

fn check_decimals(
    expected: &Value,
    came: &Observed,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let mut fields = Fields::of(expected, "decimal_strings")?;
    for name in fields.rest() {
        let expected =
            text(fields.need(name)?).map_err(|e| format!("decimal_strings: {name} {e}"))?;
        let found = came.calls.first().and_then(|(_, input)| input.member(name));
        let found = found.as_ref().map_or("nothing", Json::as_str);
        same(faults, &format!("decimal_strings.{name}"), &expected.as_str(), &found);
    }
    Ok(())
}

fn check_items(
    expected: &[Value],
    feed: &Feed,
    came: &Observed,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    // Pieces for the screen and gaps are compared where a case speaks of them.
    let names = |names: &[&str]| expected.iter().any(|item| has_one(item, names));
    let (deltas, gaps) = (names(&DELTAS), names(&GAPS));
    let compared = |seen: &&Seen| match seen {
        Seen::Delta(_) => deltas,
        Seen::Gap(_) => gaps,
        _ => true,
    };
    let seen: Vec<&Seen> = came.seen.iter().filter(compared).collect();
    if seen.len() != expected.len() {
        let shown: Vec<String> = seen.iter().map(|seen| describe(seen)).collect();
        let shown = cut(&shown.join(", "));
        let wanted = expected.len();
        faults.push(format!("items: expected {wanted}, came {}: {shown}", seen.len()));
    }
    for (i, (expected, seen)) in expected.iter().zip(seen).enumerate() {
        check_item(&format!("item {}", i + 1), expected, seen, feed, faults)?;
    }
    Ok(())
}

fn check_item(
    what: &str,
    expected: &Value,
    seen: &Seen,
    feed: &Feed,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let mut fields = Fields::of(expected, what)?;
    let raw_kept = fields.truth("raw_kept")?;
    let keeps = |kept: bool, faults: &mut Vec<String>| {
        if let Some(expected) = raw_kept {
            same(faults, &format!("{what}: raw_kept"), &expected, &kept);
        }
    };
    match seen {
        Seen::Event(event) if has_one(expected, &["event", "unknown_event"]) => {
            check_event(what, &mut fields, event, faults)?;
            let params = feed.lines.iter().filter_map(|line| line.member("params"));
            keeps(params.into_iter().any(|params| params == event.json()), faults);
        }
        Seen::Notification { method, raw } if has_one(expected, &["unknown_notification"]) => {
            let expected = fields.text("unknown_notification")?;
            same(faults, what, &expected, method);
            if let Some(params) = fields.take("params") {
                let came = raw.member("params").unwrap_or_default();
                equals(&format!("{what}: params"), params, &came, faults);
            }
            keeps(feed.lines.contains(raw), faults);
        }
        Seen::Delta(delta) if has_one(expected, &DELTAS) => {
            let kind = match delta.kind {
                DeltaKind::Text => "text_delta",
                DeltaKind::Reasoning => "reasoning_delta",
                DeltaKind::ToolInput => "tool_input_delta",
                _ => "display_reset",
            };
            for name in DELTAS {
                let Some(text) = fields.maybe_text(name)? else { continue };
                let came = if name == "delta" { name } else { kind };
                same(faults, what, &(name, text.as_str()), &(came, delta.text.as_str()));
            }
        }
        Seen::Gap(lost) if has_one(expected, &GAPS) => {
            let came = match lost {
                Lost::Line { bytes, limit } => json!({"bytes": bytes, "limit": limit}),
                Lost::Deltas(dropped) => json!({"dropped": dropped}),
                Lost::Cursor(cursor) => json!({"cursor": cursor.to_string()}),
                _ => Value::Null,
            };
            for name in GAPS {
                let Some(expected) = fields.take(name) else { continue };
                let kind = name == "gap" || matches!(lost, Lost::Deltas(_));
                if !kind || (*expected != Value::Bool(true) && !holds(&came, expected)) {
                    let (expected, came) = (short(expected), short(&came));
                    faults.push(format!("{what}: expected a {name} {expected}, came {came}"));
                }
            }
        }
        other => {
            let came = describe(other);
            faults.push(format!("{what}: expected {}, came {came}", short(expected)));
            return Ok(());
        }
    }
    fields.finish()
}

fn check_event(
    what: &str,
    fields: &mut Fields<'_>,
    event: &Event,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    for name in ["event", "id"] {
        if let Some(id) = fields.maybe_text(name)? {
            same(faults, &format!("{what}: {name}"), &id.as_str(), &event.id());
        }
    }
    if let Some(name) = fields.maybe_text("unknown_event")? {
        same(faults, &format!("{what}: unknown_event"), &name.as_str(), &event.type_name());
        if event.event_type().is_known() {
            faults.push(format!("{what}: {name} is typed as a known event"));
        }
    }
    if let Some(name) = fields.maybe_text("event_type")? {
        same(faults, &format!("{what}: event_type"), &name.as_str(), &event.type_name());
    }
    if let Some(payload) = fields.take("payload") {
        equals(&format!("{what}: payload"), payload, &event.payload(), faults);
    }
    if let Some(length) = fields.number("payload_content_len")? {
        let content = event.payload().member("content").and_then(|c| c.to_text());
        let content = content.unwrap_or_default();
        // Bytes of UTF-8 or characters: only content of other than ASCII makes a difference.
        let lengths = [content.len() as u64, content.chars().count() as u64];
        if !lengths.contains(&length) {
            faults
                .push(format!("{what}: payload_content_len: expected {length}, came {lengths:?}"));
        }
    }
    Ok(())
}

fn has_one(value: &Value, names: &[&str]) -> bool {
    names.iter().any(|name| value.get(name).is_some())
}

fn describe(seen: &Seen) -> String {
    match seen {
        Seen::Event(event) => format!("event {} ({})", event.id(), event.type_name()),
        Seen::Notification { method, .. } => format!("notification {method}"),
        Seen::Delta(delta) => format!("{:?} delta {:?}", delta.kind, delta.text),
        Seen::Gap(lost) => format!("gap {lost:?}"),
    }
}
