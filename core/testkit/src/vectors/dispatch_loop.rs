//! Kind `dispatch_loop`: the tool calls of a paused turn, through the engine and on a virtual clock.
//!
//! The case is played on a plain service and on one that has `session.cancel`. Beside the engine runs
//! the state machine of the calls with the same inputs: it tells what became of each call, which the
//! wire does not show.

mod expected;
mod play;

use super::Case;
use super::approval::{Approval, rules};
use super::fields::{Fields, short};
use super::surface::Surface;
use broca::Json;
use broca::proto::session::content::{Dispatch, Message, Role, ToolUse};
use broca::proto::session::narrow::NarrowRules;
use broca::proto::session::tool::Tool;
use serde_json::Value;
use std::collections::BTreeMap;

/// What a case feeds.
struct Feed {
    tools: BTreeMap<String, Behaviour>,
    declared: Vec<Tool>,
    assistant: Message,
    approvals: BTreeMap<String, Approval>,
    cancel_after_ms: Option<u64>,
    turn_timeout_ms: Option<u64>,
    concurrent: Option<usize>,
}

/// How a handler behaves.
#[derive(Debug, Clone)]
struct Behaviour {
    gives: Gives,
    after_ms: u64,
    starts_after: Option<String>,
}

/// What a handler comes to.
#[derive(Debug, Clone)]
enum Gives {
    Returns(Json),
    Throws(String),
    Echo,
}

/// A service to play a case on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    WithCancel,
}

/// Plays a case; gives what was wrong.
pub(super) fn play(case: &Case, surface: &mut impl Surface) -> Result<Vec<String>, String> {
    let feed = Feed::read(case)?;
    for one_read in [true, false] {
        let mut run =
            |kind| play::run(&feed, surface, kind, one_read, next_text(&case.expect, kind));
        let (plain, with_cancel) = (run(Kind::Plain)?, run(Kind::WithCancel)?);
        let mut faults = Vec::new();
        expected::check(&case.expect, &feed, &plain, &with_cancel, &mut faults)?;
        if !faults.is_empty() {
            let way = if one_read { "answers in one read" } else { "answers byte by byte" };
            faults.insert(0, way.to_owned());
            return Ok(faults);
        }
    }
    Ok(Vec::new())
}

/// What the application says after the turn: the case's words for it.
fn next_text(expect: &Value, kind: Kind) -> &str {
    let service = match kind {
        Kind::Plain => "plain_service",
        Kind::WithCancel => "service_with_cancel",
    };
    let text = expect.get(service).and_then(|s| s.get("next_send_text")).and_then(Value::as_str);
    text.unwrap_or("go on")
}

impl Feed {
    fn read(case: &Case) -> Result<Self, String> {
        let mut fields = Fields::of(&case.feed, "feed")?;
        let mut tools = BTreeMap::new();
        let mut options = BTreeMap::new();
        let mut members = Fields::of(fields.need("tools")?, "tools")?;
        for name in members.rest() {
            let (behaviour, tool) = read_tool(name, members.need(name)?)?;
            tools.insert(name.to_owned(), behaviour);
            options.insert(name.to_owned(), tool);
        }
        fields.need("assistant")?;
        let content = case.feed_text.member("assistant").unwrap_or_default();
        let text = Json::object([("role", &Json::string("assistant")), ("content", &content)]);
        let assistant =
            Message::read(&text, Role::Assistant).map_err(|e| format!("assistant: {e}"))?;
        if assistant.tool_uses().next().is_none() {
            return Err(format!(
                "assistant has no tool_use blocks: {}",
                short(fields.need("assistant")?)
            ));
        }
        let mut approvals = BTreeMap::new();
        if let Some(members) = fields.take("approvals") {
            let mut members = Fields::of(members, "approvals")?;
            for id in members.rest() {
                approvals.insert(id.to_owned(), Approval::read(members.need(id)?)?);
            }
        }
        let mut narrowing: BTreeMap<String, NarrowRules> = BTreeMap::new();
        if let Some(members) = fields.take("narrowing") {
            let mut members = Fields::of(members, "narrowing")?;
            for tool in members.rest() {
                narrowing.insert(tool.to_owned(), rules(members.need(tool)?)?);
            }
        }
        let schema = match fields.take("input_schema") {
            Some(schema) => Json::encode(schema).map_err(|e| e.to_string())?,
            None => Json::empty_object(),
        };
        let cancel_after_ms = fields.number("cancel_after_ms")?;
        let turn_timeout_ms = fields.number("turn_timeout_ms")?;
        let concurrent = fields.number("max_concurrent")?.and_then(|n| usize::try_from(n).ok());
        fields.finish()?;
        if let Some(name) =
            approvals.keys().find(|id| !assistant.tool_uses().any(|(_, c)| c.id == **id))
        {
            return Err(format!("approvals: \"{name}\" is no call of the case"));
        }
        let mut feed = Self {
            tools,
            declared: Vec::new(),
            assistant,
            approvals,
            cancel_after_ms,
            turn_timeout_ms,
            concurrent,
        };
        feed.declared = feed.declare(&schema, &narrowing, &options)?;
        Ok(feed)
    }

    /// The tools as an application with these handlers would declare them: one whose calls are asked about needs
    /// approval, and two of which one starts after the other are sequential if they are called in that order.
    fn declare(
        &self,
        schema: &Json,
        narrowing: &BTreeMap<String, NarrowRules>,
        options: &BTreeMap<String, Options>,
    ) -> Result<Vec<Tool>, String> {
        let waits_by_order = |later: &str, earlier: &str| {
            let at = |name: &str| {
                let calls = self.client_calls().enumerate().filter(|(_, c)| c.name == name);
                calls.map(|(i, _)| i).collect::<Vec<_>>()
            };
            at(later).first() > at(earlier).last()
        };
        // The sequential pairs: where the later tool is called first, its handler waits on its own.
        let pairs: Vec<(&str, &str)> = self
            .tools
            .iter()
            .filter_map(|(name, b)| Some((name.as_str(), b.starts_after.as_deref()?)))
            .filter(|(later, earlier)| waits_by_order(later, earlier))
            .collect();
        let in_pair = |name: &str| pairs.iter().any(|(a, b)| *a == name || *b == name);
        if let Some(name) = narrowing.keys().find(|name| !self.tools.contains_key(*name)) {
            return Err(format!("narrowing: there is no tool \"{name}\""));
        }
        let earlier = self.tools.values().filter_map(|b| b.starts_after.as_ref());
        for name in earlier {
            if !self.tools.contains_key(name) || !self.client_calls().any(|c| c.name == *name) {
                return Err(format!("starts_after: \"{name}\" is never called"));
            }
        }
        let asked = |name: &str| {
            self.assistant
                .tool_uses()
                .any(|(_, call)| call.name == name && self.approvals.contains_key(&call.id))
        };
        let declared = self.tools.keys().map(|name| {
            let mut tool = Tool::new(name, "", schema.clone());
            let options = options.get(name).cloned().unwrap_or_default();
            tool.sequential = options.sequential || in_pair(name);
            tool.timeout_ms = options.timeout_ms;
            tool.approval = options.approval || asked(name);
            tool.narrow = narrowing.get(name).cloned().unwrap_or_default();
            tool
        });
        Ok(declared.collect())
    }

    /// The calls that the client must answer, in order.
    fn client_calls(&self) -> impl Iterator<Item = &ToolUse> {
        self.assistant.tool_uses().map(|(_, call)| call).filter(|call| match &call.dispatch {
            Some(dispatch) => *dispatch == Dispatch::Client,
            None => self.tools.contains_key(&call.name),
        })
    }
}

/// What a tool declares beside its handler.
#[derive(Debug, Clone, Default)]
struct Options {
    sequential: bool,
    timeout_ms: Option<u64>,
    approval: bool,
}

fn read_tool(name: &str, value: &Value) -> Result<(Behaviour, Options), String> {
    let mut fields = Fields::of(value, format!("tool {name}"))?;
    let throws = fields.maybe_text("throws")?;
    let returns = fields.take("returns");
    let echo = fields.truth("echo_input")? == Some(true);
    let gives = match (throws, returns, echo) {
        (Some(message), None, false) => Gives::Throws(message),
        (None, Some(value), false) => Gives::Returns(returned(value)?),
        (None, None, true) => Gives::Echo,
        _ => {
            return Err(format!(
                "tool {name} must return, throw or echo its input, and only one of them"
            ));
        }
    };
    let behaviour = Behaviour {
        gives,
        after_ms: fields.number("after_ms")?.unwrap_or(0),
        starts_after: fields.maybe_text("starts_after")?,
    };
    let options = Options {
        sequential: fields.truth("sequential")?.unwrap_or(false),
        timeout_ms: fields.number("timeout_ms")?,
        approval: fields.truth("approval")?.unwrap_or(false),
    };
    fields.finish()?;
    Ok((behaviour, options))
}

/// What a handler returns goes out as text or as blocks; any other value as its JSON text.
fn returned(value: &Value) -> Result<Json, String> {
    match value {
        Value::String(_) | Value::Array(_) => Json::encode(value).map_err(|e| e.to_string()),
        other => Ok(Json::string(&other.to_string())),
    }
}
