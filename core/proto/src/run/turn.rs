//! One turn as a machine: model rounds, tool calls, pauses and ends (session service §6.3, §6.4, §9.1).
//!
//! The shell takes effects with [`Turn::poll_effect`] and carries each out before it takes the
//! next. After [`Effect::CallModel`], [`Effect::Ask`] and [`Effect::CallTool`] there is nothing to take until the
//! outcome is handed in. Events are in the order of the log; an effect's events are to be on disk
//! before they are shown and before the next effect is carried out.

use super::depth;
use super::gate::Entry;
use super::log::{Audience, LogEvent, boolean, call_payload, client_result, for_provider};
use super::merge::{MergeError, Merged, Pause, merge, settle};
use super::toolbox::{Route, Toolbox};
use crate::Json;
use crate::session::approval::Question;
use crate::session::content::{Block, BlockKind, Message, ToolUse};
use crate::session::event::EventType;
use crate::session::generation::{Generation, ToolChoice};
use crate::session::ids::KeyId;
use crate::session::payload::TokenUsage;
use crate::session::rpc::{RpcFailure, code};
use crate::session::tool::ToolDeclaration;
use std::collections::HashSet;
use std::sync::Arc;

mod attempt;
mod consent;
mod effect;
mod exchange;

use attempt::Attempt;
pub use effect::{
    ConsentTerms, Effect, ModelCall, ModelFailure, ModelReply, Outcome, Provider, Rejected,
    RetryPolicy, ToolOutcome, ToolRun, TurnStart,
};
use exchange::Exchange;

/// What the assistant says when the turn could not be carried through.
pub const UNAVAILABLE: &str = "The provider is currently unavailable.";

/// How many model rounds one call may take unless the operator says otherwise.
pub const DEFAULT_MAX_ROUNDS: u32 = 8;

/// One call of `session.sendMessage`, from its message to its answer.
#[derive(Debug)]
pub struct Turn {
    actor: KeyId,
    toolbox: Toolbox,
    tools: Arc<[ToolDeclaration]>,
    tools_json: Json,
    providers: Vec<Provider>,
    max_rounds: u32,
    keep_open: Option<RetryPolicy>,
    /// What the messages of this turn said about the generation, and what holds.
    said: Generation,
    generation: Generation,
    consent: ConsentTerms,
    round: u32,
    messages: Arc<Vec<Message>>,
    tail: Vec<Json>,
    usage: Option<TokenUsage>,
    pending: Vec<LogEvent>,
    next: Option<Effect>,
    doing: Doing,
}

#[derive(Debug)]
enum Doing {
    Model(Attempt),
    /// Until the attempt is made.
    Waiting(Attempt),
    Tools(Exchange),
    /// Until somebody consents to the call at work, or does not.
    Asking(Exchange, Question),
    Over,
}

impl Turn {
    /// Starts a turn, or refuses the message.
    ///
    /// # Errors
    /// [`Rejected`] when the message does not fit the paused turn, or brings results for none.
    pub fn start(start: TurnStart) -> Result<Self, Box<Rejected>> {
        let TurnStart { actor, entry, paused, message, history, toolbox, providers, .. } = start;
        let TurnStart { max_rounds, keep_open, consent, .. } = start;
        let continued = paused.as_ref().filter(|_| is_continuation(&entry, &message));
        let (said, generation) = match continued {
            Some(pause) => {
                let said = start.generation.over(&pause.generation);
                let generation = said.over(&start.session_generation).settled();
                (said, generation.with_calls_made())
            }
            None => {
                let generation = start.generation.over(&start.session_generation).settled();
                (start.generation, generation)
            }
        };
        if let Some(fault) = fault_of_choice(&generation, &toolbox) {
            let failure = invalid(fault);
            return Err(Box::new(Rejected { failure, events: Vec::new(), ends_session: false }));
        }
        let merged = merge(message, paused.as_ref(), &entry)
            .map_err(|error| Box::new(rejected(&actor, &error, keep_open.is_some())))?;
        let pending = opening_events(&actor, &merged);
        let mut messages: Vec<Message> = history.into_iter().map(for_provider).collect();
        messages.push(for_provider(merged.message));
        let mut turn = Self {
            tools: toolbox.advertised().into(),
            tools_json: toolbox.to_json(),
            actor,
            toolbox,
            providers: Vec::new(),
            max_rounds,
            keep_open,
            said,
            generation,
            consent,
            round: 0,
            messages: Arc::new(messages),
            tail: Vec::new(),
            usage: Some(TokenUsage::default()),
            pending,
            next: None,
            doing: Doing::Over,
        };
        match providers {
            Ok(chain) if !chain.is_empty() => {
                turn.providers = chain;
                turn.begin_round();
            }
            Ok(_) => turn.fail_config("the profile names no provider that is configured"),
            Err(detail) => turn.fail_config(&detail),
        }
        Ok(turn)
    }

    /// What to do next; nothing while an outcome is awaited and after the end.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if let Some(Effect::Ask { events, .. }) = &mut self.next {
            *events = std::mem::take(&mut self.pending);
            return self.next.take();
        }
        if !self.pending.is_empty() {
            return Some(Effect::Log(std::mem::take(&mut self.pending)));
        }
        self.next.take()
    }

    /// Whether the turn has come to its pause or end.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.doing, Doing::Over)
    }

    /// The tokens of all answers of this call together; nothing when one of them came without numbers.
    #[must_use]
    pub const fn usage(&self) -> Option<TokenUsage> {
        self.usage
    }

    /// The model has answered. Ignored when no model was asked.
    pub fn handle_model_reply(&mut self, reply: ModelReply) {
        let Doing::Model(attempt) = self.doing else { return };
        if let Some(error) = fault_of_calls(&reply.content).or_else(|| fault_of_depth(&reply)) {
            let body = Some(reply.body.as_str().to_owned());
            // The next answer may be a better one.
            let failure = ModelFailure { status: Some(200), body, ..ModelFailure::passing(error) };
            self.handle_model_failure(failure);
            return;
        }
        self.usage = sum(self.usage, reply.usage);
        let usage = reply.usage.and_then(|u| Json::encode(&u).ok()).unwrap_or_default();
        self.log_response(attempt, |common| {
            let members = [("body", &reply.body), ("ok", &boolean(true))];
            let rest = [("status", &Json::integer(200)), ("usage", &usage)];
            Json::object(common.iter().map(|(k, v)| (*k, v)).chain(members).chain(rest))
        });
        let calls: Vec<(ToolUse, Route)> = reply
            .content
            .iter()
            .filter_map(Block::tool_use)
            .map(|call| (call.clone(), self.toolbox.route(&call.name)))
            .collect();
        if calls.is_empty() {
            let message = Message::assistant(reply.content);
            self.log(EventType::ServerMessageSend, message.to_json());
            self.finish(Ok(message), Outcome::Completed);
            return;
        }
        for (call, route) in &calls {
            self.log(EventType::ToolCall, call_payload(call, route));
        }
        let blocks = reply.content;
        self.run_tools(Exchange { blocks, calls, results: Vec::new(), at: 0 });
    }

    /// The owner cancels the turn (feature `cancel`): what was begun is logged as ended, and
    /// [`Effect::Finish`] follows. The shell stops the model or tool that is at work. Says whether the turn was
    /// still going on.
    pub fn handle_cancel(&mut self) -> bool {
        match std::mem::replace(&mut self.doing, Doing::Over) {
            Doing::Over => return false,
            Doing::Model(attempt) => {
                let failure = ModelFailure::lasting("the turn was cancelled");
                self.log_failed_response(attempt, &failure);
            }
            Doing::Waiting(_) => {}
            Doing::Tools(exchange) => {
                self.log_cancelled_request(&exchange);
                self.log_cancelled_calls(&exchange);
            }
            Doing::Asking(exchange, question) => {
                self.log_withdrawn(&question);
                self.log_cancelled_calls(&exchange);
            }
        }
        self.pending.push(LogEvent::turn_cancelled(&self.actor, "running"));
        self.finish(Err(turn_cancelled()), Outcome::Cancelled);
        true
    }

    fn finish(&mut self, answer: Result<Message, RpcFailure>, outcome: Outcome) {
        let events = std::mem::take(&mut self.pending);
        let ends_session = outcome.ends_session() && self.keep_open.is_none();
        self.doing = Doing::Over;
        self.next = Some(Effect::Finish { events, answer, outcome, ends_session });
    }

    /// Ends a turn that could not be carried through. Plain callers are told in the assistant's name, those that asked
    /// for `keep-open` by the failure.
    fn fail(&mut self, failure: RpcFailure, outcome: Outcome) {
        let answer = match self.keep_open {
            Some(_) => Err(failure),
            None => Ok(Message::assistant(vec![Block::of_text(UNAVAILABLE)])),
        };
        self.finish(answer, outcome);
    }

    fn fail_config(&mut self, detail: &str) {
        self.log_error("provider_config", &[("detail", Json::string(detail))]);
        let words = format!("providers failed: {detail}");
        self.fail(RpcFailure::new(code::PROVIDERS_FAILED, words), Outcome::ProviderConfig);
    }

    fn log(&mut self, event_type: EventType, payload: Json) {
        self.pending.push(LogEvent::new(event_type, self.actor.clone(), payload));
    }

    fn log_error(&mut self, reason: &str, members: &[(&str, Json)]) {
        self.pending.push(LogEvent::error(self.actor.clone(), reason, members));
    }
}

/// Ends a paused turn of its owner without another model round: the results given, synthetic ones
/// for the other calls, in one message (feature `cancel`).
///
/// # Errors
/// `-32602` when a result belongs to no open call or comes twice; the turn stays paused.
pub fn cancel_paused(pause: &Pause, results: Vec<Block>) -> Result<Vec<LogEvent>, RpcFailure> {
    if !results.iter().all(|block| depth::fits(block.json(), depth::MAX_LEVELS - 1)) {
        return Err(invalid(depth::too_deep("\"results\"")));
    }
    let merged = settle(pause, results).map_err(|error| invalid(error.to_string()))?;
    let mut events = opening_events(&pause.owner, &merged);
    events.push(LogEvent::turn_cancelled(&pause.owner, "paused"));
    Ok(events)
}

/// The answer to the `session.sendMessage` that was cancelled.
#[must_use]
pub fn turn_cancelled() -> RpcFailure {
    RpcFailure::new(code::TURN_CANCELLED, "turn cancelled")
}

/// What is logged before a turn: the message, and the results in it that no event shows yet.
fn opening_events(actor: &KeyId, merged: &Merged) -> Vec<LogEvent> {
    let event = |event_type, payload| {
        LogEvent::new(event_type, actor.clone(), payload).shown_to(Audience::AllButCallerStream)
    };
    let message = event(EventType::ClientMessageSend, merged.message.to_json());
    let results = merged.client_results.iter().map(|result| {
        event(EventType::ToolResult, client_result(&result.tool_use_id, &result.content))
    });
    std::iter::once(message).chain(results).collect()
}

fn rejected(actor: &KeyId, error: &MergeError, keep_open: bool) -> Rejected {
    let ends_session = error.ends_session() && !keep_open;
    let events = if ends_session {
        let members = [("detail", Json::string(&error.to_string()))];
        let event = LogEvent::error(actor.clone(), "tool_result_merge_invalid", &members);
        vec![event.shown_to(Audience::Watchers)]
    } else {
        Vec::new()
    };
    Rejected { failure: error.to_failure(), events, ends_session }
}

/// Whether a message goes on with the turn that it takes up, rather than giving it up for something new.
fn is_continuation(entry: &Entry, message: &Message) -> bool {
    *entry == Entry::Resumed && message.content.has_tool_results()
}

/// Why a choice of tools cannot be made, if it cannot.
fn fault_of_choice(generation: &Generation, toolbox: &Toolbox) -> Option<String> {
    let tools = toolbox.advertised();
    match generation.options().tool_choice? {
        ToolChoice::Any if tools.is_empty() => {
            Some("\"options.tool_choice\" asks for a tool, and this turn has none".to_owned())
        }
        ToolChoice::Tool(name) if !tools.iter().any(|tool| tool.name == name) => {
            Some(format!("\"options.tool_choice\" names {name:?}, which is no tool of this turn"))
        }
        _ => None,
    }
}

fn invalid(why: String) -> RpcFailure {
    RpcFailure::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}

/// Why the tool calls of a response cannot be run, if they cannot.
fn fault_of_calls(content: &[Block]) -> Option<String> {
    let mut seen = HashSet::new();
    content.iter().find_map(|block| match block.kind() {
        BlockKind::ToolUse(call) if !seen.insert(call.id.as_str()) => {
            Some(format!("duplicate tool_use id \"{}\" in one response", call.id))
        }
        BlockKind::Unknown { block_type } if block_type == "tool_use" => {
            Some("a tool_use block without a string \"id\" or \"name\"".to_owned())
        }
        _ => None,
    })
}

/// Why an answer could not be shown again, if it could not.
fn fault_of_depth(reply: &ModelReply) -> Option<String> {
    let fits = depth::fits(&reply.body, depth::MAX_LEVELS)
        && reply.content.iter().all(|b| depth::fits(b.json(), depth::MAX_LEVELS - 1));
    (!fits).then(|| depth::too_deep("the model's answer"))
}

fn sum(so_far: Option<TokenUsage>, more: Option<TokenUsage>) -> Option<TokenUsage> {
    let (so_far, more) = (so_far?, more?);
    Some(TokenUsage {
        input_tokens: so_far.input_tokens.saturating_add(more.input_tokens),
        output_tokens: so_far.output_tokens.saturating_add(more.output_tokens),
    })
}

#[cfg(test)]
mod tests;
