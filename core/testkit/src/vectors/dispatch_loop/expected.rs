//! What a `dispatch_loop` case states, compared with what came.

use super::super::fields::{Fields, cut, same, short, text, texts};
use super::super::outcome::{self, Ending};
use super::super::service::equals;
use super::play::Came;
use super::{Feed, Kind};
use broca::Json;
use broca::proto::session::content::{Block, Message, ToolResult};
use serde_json::Value;

/// Compares everything that the case names; without a word about the kind of service it is the plain one.
pub(super) fn check(
    expect: &Value,
    feed: &Feed,
    plain: &Came,
    with_cancel: &Came,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let mut fields = Fields::of(expect, "expect")?;
    let went_out = answered(plain);
    if let Some(expected) = fields.list("tool_results_in_order")? {
        let sent = plain.blocks_sent("session.sendMessage");
        match sent.first() {
            Some(blocks) => {
                check_results("tool_results_in_order", expected, blocks, plain, faults)?
            }
            None => faults.push("tool_results_in_order: no continuation was sent".to_owned()),
        }
    }
    if let Some(expected) = fields.list("results_kept_in_order")? {
        let kept = kept(plain);
        check_results("results_kept_in_order", expected, &kept, plain, faults)?;
    }
    if let Some(runs) = fields.take("handler_runs") {
        let mut runs = Fields::of(runs, "handler_runs")?;
        for id in runs.rest() {
            known_call(feed, id)?;
            let expected = runs.number(id)?.unwrap_or(0);
            for (came, kind) in [(plain, Kind::Plain), (with_cancel, Kind::WithCancel)] {
                let times = came.runs.get(id).copied().unwrap_or(0);
                same(faults, &format!("handler_runs.{id} ({kind:?})"), &expected, &times);
            }
        }
    }
    if let Some(inputs) = fields.take("handler_input") {
        let mut inputs = Fields::of(inputs, "handler_input")?;
        for id in inputs.rest() {
            known_call(feed, id)?;
            let expected = inputs.need(id)?;
            match plain.inputs.get(id) {
                Some(came) => equals(&format!("handler_input.{id}"), expected, came, faults),
                None => faults.push(format!("handler_input.{id}: its handler never ran")),
            }
        }
    }
    if let Some(ids) = fields.list("not_answered")? {
        for id in texts(ids)? {
            known_call(feed, &id)?;
            let answered = went_out.iter().any(|r| r.tool_use_id == id);
            if answered || plain.runs.contains_key(&id) {
                faults.push(format!("not_answered: {id} was run or answered"));
            }
        }
    }
    if let Some(expected) = fields.truth("one_continuation")? {
        let sent = plain.blocks_sent("session.sendMessage").len();
        same(faults, "one_continuation", &expected, &(sent == 1));
    }
    if let Some(expected) = fields.truth("loop_continues")? {
        let replied = matches!(plain.ending, Some((Ending::Replied(_), _)));
        same(faults, "loop_continues", &expected, &replied);
    }
    if let Some(expected) = fields.truth("every_call_answered")? {
        let ids: Vec<&str> = feed.client_calls().map(|call| call.id.as_str()).collect();
        for (came, kind) in [(plain, Kind::Plain), (with_cancel, Kind::WithCancel)] {
            let results = answered(came);
            let got: Vec<&str> = results.iter().map(|r| r.tool_use_id.as_str()).collect();
            same(faults, &format!("every_call_answered ({kind:?})"), &expected, &(got == ids));
        }
    }
    if let Some(bound) = fields.number("cancel_settles_within_ms")? {
        for (came, kind) in [(plain, Kind::Plain), (with_cancel, Kind::WithCancel)] {
            match (&came.cancelled_at, &came.ending) {
                (Some(from), Some((_, at))) if at.since(*from) <= bound => {}
                (Some(from), Some((_, at))) => faults.push(format!(
                    "cancel_settles_within_ms ({kind:?}): expected {bound}, came {}",
                    at.since(*from)
                )),
                _ => faults.push(format!("cancel_settles_within_ms ({kind:?}): it never settled")),
            }
        }
    }
    for (name, came) in [("plain_service", plain), ("service_with_cancel", with_cancel)] {
        if let Some(expected) = fields.take(name) {
            check_service(name, expected, came, faults)?;
        }
    }
    if let Some(expected) = fields.take("outcome") {
        let open = Ending::Open;
        let ending = plain.ending.as_ref().map_or(&open, |(ending, _)| ending);
        let resent = plain.blocks_sent("session.sendMessage").len();
        outcome::check(expected, ending, resent, faults)?;
    }
    for id in fields.rest() {
        if feed.assistant.tool_uses().any(|(_, call)| call.id == id) {
            check_call(id, fields.need(id)?, plain, faults)?;
        }
    }
    fields.finish()
}

/// What is stated about one call.
fn check_call(
    id: &str,
    expected: &Value,
    came: &Came,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let mut fields = Fields::of(expected, id)?;
    let results = answered(came);
    let result = results.iter().find(|result| result.tool_use_id == id);
    let said = result.map(content_text).unwrap_or_default();
    if let Some(reason) = fields.maybe_text("denied_reason")? {
        let ran = came.runs.contains_key(id);
        let last_word = said.rsplit(": ").next().unwrap_or_default();
        if ran || last_word != reason {
            let said = cut(&said);
            faults
                .push(format!("{id}: denied_reason: expected {reason}, came {said:?}, ran: {ran}"));
        }
    }
    if let Some(expected) = fields.truth("result_is_error")? {
        let came = result.map(|r| r.is_error == Some(true));
        same(faults, &format!("{id}: result_is_error"), &Some(expected), &came);
    }
    check_result_fields(id, &mut fields, result, came, faults)?;
    fields.finish()
}

/// What goes out on a cancel, and what leads the next message.
fn check_service(
    name: &str,
    expected: &Value,
    came: &Came,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let mut fields = Fields::of(expected, name)?;
    let on_cancel = came.on_cancel();
    if let Some(count) = fields.number("requests_on_cancel")? {
        same(faults, &format!("{name}: requests_on_cancel"), &count, &(on_cancel.len() as u64));
    }
    if let Some(method) = fields.maybe_text("method")? {
        let methods: Vec<&str> = on_cancel.iter().map(|(method, _)| *method).collect();
        if methods.is_empty() || methods.iter().any(|came| *came != method) {
            faults.push(format!("{name}: method: expected {method}, came {methods:?}"));
        }
    }
    if let Some(ids) = fields.list("results_sent")? {
        let sent = came.blocks_sent("session.cancel").concat();
        same(faults, &format!("{name}: results_sent"), &texts(ids)?, &names(&sent));
    }
    let next = came.next.as_ref();
    if let Some(expected) = fields.maybe_text("next_send_text")? {
        let came = next.map(Message::text);
        same(faults, &format!("{name}: next_send_text"), &Some(expected), &came);
    }
    if let Some(expected) = fields.list("next_send_content")? {
        let came = next.map(|message| match message.content.blocks() {
            [] => vec!["text".to_owned()],
            blocks => names(blocks),
        });
        same(faults, &format!("{name}: next_send_content"), &Some(texts(expected)?), &came);
    }
    fields.finish()
}

fn check_results(
    what: &str,
    expected: &[Value],
    blocks: &[Block],
    came: &Came,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    if blocks.len() != expected.len() {
        let came = names(blocks).join(", ");
        faults.push(format!(
            "{what}: expected {} blocks, came {}: {came}",
            expected.len(),
            blocks.len()
        ));
    }
    for (i, (expected, block)) in expected.iter().zip(blocks).enumerate() {
        let what = format!("{what} {}", i + 1);
        let mut fields = Fields::of(expected, &what)?;
        let Some(result) = block.tool_result() else {
            faults.push(format!("{what}: expected {}, came no tool_result", short(expected)));
            continue;
        };
        let id = fields.text("tool_use_id")?;
        same(faults, &format!("{what}: tool_use_id"), &id, &result.tool_use_id);
        if expected.get("content").is_some() && expected.get("is_error").is_none() {
            same(faults, &format!("{what}: is_error"), &false, &(result.is_error == Some(true)));
        }
        check_result_fields(&what, &mut fields, Some(result), came, faults)?;
        fields.finish()?;
    }
    Ok(())
}

/// `content`, `content_contains`, `is_error` and `state` of one result.
fn check_result_fields(
    what: &str,
    fields: &mut Fields<'_>,
    result: Option<&ToolResult>,
    came: &Came,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let none = Json::null();
    if let Some(content) = fields.take("content") {
        let sent = result.map_or(&none, |result| &result.content);
        equals(&format!("{what}: content"), content, sent, faults);
    }
    if let Some(part) = fields.take("content_contains") {
        let part = text(part).map_err(|e| format!("{what}: content_contains {e}"))?;
        let said = result.map(content_text).unwrap_or_default();
        if !said.contains(&part) {
            faults.push(format!("{what}: content_contains: {part:?} is not in {:?}", cut(&said)));
        }
    }
    if let Some(expected) = fields.truth("is_error")? {
        let is_error = result.map(|r| r.is_error == Some(true));
        same(faults, &format!("{what}: is_error"), &Some(expected), &is_error);
    }
    if let Some(state) = fields.maybe_text("state")? {
        let id = result.map(|r| r.tool_use_id.as_str()).unwrap_or_default();
        let became = came.states.get(id).map_or("none", |state| state.as_str());
        same(faults, &format!("{what}: state"), &state.as_str(), &became);
    }
    Ok(())
}

fn known_call(feed: &Feed, id: &str) -> Result<(), String> {
    match feed.assistant.tool_uses().any(|(_, call)| call.id == id) {
        true => Ok(()),
        false => Err(format!("\"{id}\" is no call of the case")),
    }
}

/// What the driver holds after the turn: the blocks that lead its next message.
fn kept(came: &Came) -> Vec<Block> {
    let blocks = came.next.as_ref().map(|m| m.content.blocks().to_vec()).unwrap_or_default();
    blocks.into_iter().filter(|block| block.tool_result().is_some()).collect()
}

/// Every result that went out, in order: with a continuation, with a cancel, or before the next message.
fn answered(came: &Came) -> Vec<ToolResult> {
    let sent = came.blocks_sent("session.sendMessage").concat();
    let cancelled = came.blocks_sent("session.cancel").concat();
    let all = sent.into_iter().chain(cancelled).chain(kept(came));
    all.filter_map(|block| block.tool_result().cloned()).collect()
}

/// Blocks by the id they answer, or by their type.
fn names(blocks: &[Block]) -> Vec<String> {
    let name = |block: &Block| match block.tool_result() {
        Some(result) => result.tool_use_id.clone(),
        None => block.json().member("type").and_then(|t| t.to_text()).unwrap_or_default(),
    };
    blocks.iter().map(name).collect()
}

fn content_text(result: &ToolResult) -> String {
    result.content.to_text().unwrap_or_else(|| result.content.as_str().to_owned())
}
