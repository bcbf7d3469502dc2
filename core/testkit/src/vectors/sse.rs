//! Kind `sse`: a vendor's response body, through the reader that the service uses for it.

use super::feed::{Connection, Cut};
use super::fields::{Fields, cut, same, short, text, texts};
use super::service::equals;
use super::surface::{ChatCame, Surface};
use super::{Case, Played};
use broca::Json;
use broca::proto::provider::unit::{AssistantMessage, ProviderError, ToolCall, Unit, Usage};
use serde_json::Value;

/// Plays a case, or says that its vendor's reader is not built.
pub(super) fn play(case: &Case, surface: &mut impl Surface) -> Played {
    let provider = case.feed.get("provider").and_then(Value::as_str).unwrap_or_default();
    if matches!(provider, "anthropic" | "openai_responses") {
        return Played::NotBuilt(format!("there is no reader for {provider} yet"));
    }
    Played::Done(play_chat(case, surface).unwrap_or_else(|fault| vec![fault]))
}

fn play_chat(case: &Case, surface: &mut impl Surface) -> Result<Vec<String>, String> {
    let mut fields = Fields::of(&case.feed, "feed")?;
    let provider = fields.text("provider")?;
    if provider != "openai_chat" {
        return Err(format!("provider \"{provider}\" is not known to this player"));
    }
    let status = fields.number("status")?.unwrap_or(200);
    let status = u16::try_from(status).map_err(|_| "status is no HTTP status".to_owned())?;
    let body = Connection::read(&mut fields, false)?;
    fields.finish()?;
    let mut first: Option<ChatCame> = None;
    for cut_in in Cut::ALL {
        let came = surface.chat(status, &body.pieces(cut_in), body.end)?;
        let mut faults = Vec::new();
        check(&case.expect, &came, &mut faults)?;
        if !faults.is_empty() {
            faults.insert(0, cut_in.name().to_owned());
            return Ok(faults);
        }
        match &first {
            Some(before) if *before != came => {
                let way = cut_in.name();
                return Ok(vec![format!("{way}: the units differ from those as given")]);
            }
            _ => first = Some(came),
        }
    }
    Ok(Vec::new())
}

fn check(expect: &Value, came: &ChatCame, faults: &mut Vec<String>) -> Result<(), String> {
    let mut fields = Fields::of(expect, "expect")?;
    let message = came.units.iter().find_map(|unit| match unit {
        Unit::AssistantMessage(message) => Some(message),
        _ => None,
    });
    if let Some(units) = fields.list("units")? {
        if units.len() != came.units.len() {
            let shown: Vec<String> = came.units.iter().map(describe).collect();
            let shown = cut(&shown.join(", "));
            faults.push(format!(
                "units: expected {}, came {}: {shown}",
                units.len(),
                came.units.len()
            ));
        }
        for (i, (expected, unit)) in units.iter().zip(&came.units).enumerate() {
            check_unit(&format!("unit {}", i + 1), expected, unit, faults)?;
        }
    }
    match fields.take("assistant_message") {
        None => {}
        Some(Value::Null) if message.is_none() => {}
        Some(expected) => match message {
            Some(message) => check_message("assistant_message", expected, message, faults)?,
            None => faults.push("assistant_message: none came".to_owned()),
        },
    }
    let calls = message.map_or(&[][..], |message| message.tool_calls.as_slice());
    if let Some(count) = fields.number("tool_calls_run")? {
        same(faults, "tool_calls_run", &count, &(calls.len() as u64));
    }
    if let Some(expected) = fields.list("tool_calls")? {
        check_calls("tool_calls", expected, calls, faults)?;
    }
    if let Some(usage) = fields.take("usage") {
        check_usage(usage, came.usage, faults)?;
    }
    if let Some(count) = fields.number("warnings")? {
        same(faults, "warnings", &count, &came.warnings.iter().map(|w| w.times).sum());
    }
    fields.finish()
}

fn check_unit(
    what: &str,
    expected: &Value,
    unit: &Unit,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let differs = |faults: &mut Vec<String>| {
        faults.push(format!("{what}: expected {}, came {}", short(expected), describe(unit)));
    };
    if let Some(word) = expected.as_str() {
        if describe(unit).split([' ', ':']).next() != Some(word) {
            differs(faults);
        }
        return Ok(());
    }
    let mut fields = Fields::of(expected, what)?;
    let names = fields.rest();
    let [name] = names.as_slice() else {
        return Err(format!("{what}: a unit is a word or an object of one member"));
    };
    let stated = fields.need(name)?;
    match (*name, unit) {
        ("text_delta", Unit::TextDelta(delta))
        | ("reasoning_delta", Unit::ReasoningDelta(delta)) => {
            same(faults, what, &text(stated)?, delta);
        }
        ("tool_input_delta", Unit::ToolInputDelta { delta, .. }) => {
            same(faults, what, &text(stated)?, delta);
        }
        ("assistant_message", Unit::AssistantMessage(message)) => {
            check_message(what, stated, message, faults)?;
        }
        ("step_finished", Unit::StepFinished { reason_raw, usage }) => {
            let mut stated = Fields::of(stated, what)?;
            if let Some(reason) = stated.maybe_text("reason_raw")? {
                same(faults, &format!("{what}: reason_raw"), &reason, reason_raw);
            }
            if let Some(expected) = stated.take("usage") {
                check_usage(expected, *usage, faults)?;
            }
            stated.finish()?;
        }
        ("error", Unit::Error(error)) => check_error(what, stated, error, faults)?,
        (
            "stream_start" | "text_delta" | "reasoning_delta" | "tool_input_delta"
            | "assistant_message" | "step_finished" | "error",
            _,
        ) => differs(faults),
        (other, _) => return Err(format!("{what}: unit \"{other}\" is not known to this player")),
    }
    Ok(())
}

fn check_message(
    what: &str,
    expected: &Value,
    message: &AssistantMessage,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    if let Value::String(text) = expected {
        same(faults, what, text, &message.text);
        return Ok(());
    }
    if expected.is_null() {
        faults.push(format!("{what}: expected none, came one"));
        return Ok(());
    }
    let mut fields = Fields::of(expected, what)?;
    for (name, came) in [("text", &message.text), ("reasoning", &message.reasoning)] {
        if let Some(expected) = fields.maybe_text(name)? {
            same(faults, &format!("{what}: {name}"), &expected, came);
        }
    }
    if let Some(calls) = fields.list("tool_calls")? {
        check_calls(what, calls, &message.tool_calls, faults)?;
    }
    if let Some(count) = fields.number("invalid_calls")? {
        same(
            faults,
            &format!("{what}: invalid_calls"),
            &count,
            &(message.invalid_calls.len() as u64),
        );
    }
    fields.finish()
}

fn check_calls(
    what: &str,
    expected: &[Value],
    calls: &[ToolCall],
    faults: &mut Vec<String>,
) -> Result<(), String> {
    if expected.len() != calls.len() {
        faults.push(format!("{what}: expected {} calls, came {}", expected.len(), calls.len()));
    }
    for (i, (expected, call)) in expected.iter().zip(calls).enumerate() {
        let what = format!("{what}: call {}", i + 1);
        let mut fields = Fields::of(expected, &what)?;
        for (name, came) in [("id", &call.id), ("name", &call.name)] {
            if let Some(expected) = fields.maybe_text(name)? {
                same(faults, &format!("{what}: {name}"), &expected, came);
            }
        }
        if let Some(input) = fields.take("input") {
            equals(&format!("{what}: input"), input, &call.input, faults);
        }
        if let Some(text) = fields.maybe_text("input_text")? {
            same(
                faults,
                &format!("{what}: input_text"),
                &text.as_str(),
                &Json::as_str(&call.input),
            );
        }
        fields.finish()?;
    }
    Ok(())
}

fn check_error(
    what: &str,
    expected: &Value,
    error: &ProviderError,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let mut fields = Fields::of(expected, what)?;
    let class = error.class.as_str().to_owned();
    if let Some(any) = fields.list("class_any_of")? {
        let any = texts(any)?;
        if !any.contains(&class) {
            faults.push(format!("{what}: class_any_of: expected one of {any:?}, came {class}"));
        }
    }
    if let Some(expected) = fields.maybe_text("class")? {
        same(faults, &format!("{what}: class"), &expected, &class);
    }
    if let Some(expected) = fields.truth("retryable")? {
        same(faults, &format!("{what}: retryable"), &expected, &error.retryable);
    }
    for (name, came) in [("type", &error.kind), ("code", &error.code)] {
        if let Some(expected) = fields.take(name) {
            let expected = expected.as_str().map(str::to_owned);
            same(faults, &format!("{what}: {name}"), &expected, came);
        }
    }
    if let Some(message) = fields.maybe_text("message")? {
        same(faults, &format!("{what}: message"), &message, &error.message);
    }
    fields.finish()
}

fn check_usage(
    expected: &Value,
    usage: Option<Usage>,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let Some(usage) = usage else {
        if !expected.is_null() {
            faults.push("usage: none came".to_owned());
        }
        return Ok(());
    };
    let mut fields = Fields::of(expected, "usage")?;
    for (name, came) in [
        ("input", usage.input),
        ("cached_input", usage.cached_input),
        ("cache_write", usage.cache_write),
        ("output", usage.output),
        ("reasoning", usage.reasoning),
        ("fill_tokens", usage.fill_tokens()),
    ] {
        if let Some(expected) = fields.number(name)? {
            same(faults, &format!("usage: {name}"), &expected, &came);
        }
    }
    fields.finish()
}

/// A unit in words; begins with the word that cases use for it.
fn describe(unit: &Unit) -> String {
    match unit {
        Unit::StreamStart { .. } => "stream_start".to_owned(),
        Unit::TextDelta(text) => format!("text_delta: {text:?}"),
        Unit::ReasoningDelta(text) => format!("reasoning_delta: {text:?}"),
        Unit::ToolInputDelta { delta, .. } => format!("tool_input_delta: {delta:?}"),
        Unit::AssistantMessage(message) => format!("assistant_message: {:?}", message.text),
        Unit::StepFinished { reason_raw, .. } => format!("step_finished: {reason_raw:?}"),
        Unit::Error(error) => format!("error: {} ({error})", error.class.as_str()),
        other => format!("{other:?}"),
    }
}
