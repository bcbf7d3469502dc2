//! One turn as a machine: model rounds, tool calls, pauses and ends (session service §6.3, §6.4, §9.1).
//!
//! The shell takes effects with [`Turn::poll_effect`] and carries each out before it takes the
//! next. After [`Effect::CallModel`] and [`Effect::CallTool`] there is nothing to take until the
//! outcome is handed in. Events are in the order of the log; an effect's events are to be on disk
//! before they are shown and before the next effect is carried out.

use super::depth;
use super::log::{
    Audience, Elided, LogEvent, boolean, call_payload, client_result, for_provider, mcp_request,
    mcp_response, server_result, text_content,
};
use super::merge::{CANCELLED, MergeError, Merged, Pause, merge, settle};
use super::toolbox::{Route, Toolbox};
use crate::Json;
use crate::session::content::{Block, BlockKind, Message, ToolResult, ToolUse};
use crate::session::event::EventType;
use crate::session::ids::KeyId;
use crate::session::payload::TokenUsage;
use crate::session::rpc::{RpcFailure, code};
use crate::session::tool::ToolDeclaration;
use std::collections::HashSet;
use std::sync::Arc;

mod effect;

pub use effect::{
    Effect, ModelCall, ModelFailure, ModelReply, Outcome, Provider, Rejected, ToolOutcome, ToolRun,
    TurnStart,
};

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
    Model { attempt: usize },
    Tools(Exchange),
    Over,
}

/// The calls of one response, and what has come of them.
#[derive(Debug, Default)]
struct Exchange {
    blocks: Vec<Block>,
    calls: Vec<(ToolUse, Route)>,
    results: Vec<Block>,
    /// The call that runs, an index into `calls`; those before it are answered or the client's.
    at: usize,
}

impl Turn {
    /// Starts a turn, or refuses the message.
    ///
    /// # Errors
    /// [`Rejected`] when the message does not fit the paused turn, or brings results for none.
    pub fn start(start: TurnStart) -> Result<Self, Box<Rejected>> {
        let TurnStart { actor, entry, paused, message, history, toolbox, providers, max_rounds } =
            start;
        let merged = merge(message, paused.as_ref(), &entry)
            .map_err(|error| Box::new(rejected(&actor, &error)))?;
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
        let Doing::Model { attempt } = self.doing else { return };
        if let Some(error) = fault_of_calls(&reply.content).or_else(|| fault_of_depth(&reply)) {
            let body = Some(reply.body.as_str().to_owned());
            self.handle_model_failure(ModelFailure { status: Some(200), error, body });
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

    /// The attempt failed. Ignored when no model was asked.
    pub fn handle_model_failure(&mut self, failure: ModelFailure) {
        let Doing::Model { attempt } = self.doing else { return };
        self.log_failed_response(attempt, &failure);
        if attempt == 0 {
            let provider = self.providers.first().map_or("", |p| p.provider.as_str());
            let members =
                [("detail", Json::string(&failure.error)), ("provider", Json::string(provider))];
            self.log_error("provider_call_failed", &members);
        }
        if attempt + 1 < self.providers.len() {
            self.call_model(attempt + 1);
        } else {
            self.log_error("all_providers_failed", &[("attempts", count(self.providers.len()))]);
            self.finish(Ok(unavailable()), Outcome::ProvidersFailed);
        }
    }

    /// The server-side tool has come to an end. Ignored when none was called.
    pub fn handle_tool_outcome(&mut self, outcome: ToolOutcome) {
        let Doing::Tools(exchange) = &mut self.doing else { return };
        let mut exchange = std::mem::take(exchange);
        let outcome = match outcome {
            ToolOutcome::Answered(result) if !depth::fits(&result, depth::MAX_LEVELS - 2) => {
                ToolOutcome::Failed(depth::too_deep("the tool's result"))
            }
            outcome => outcome,
        };
        self.answer_mcp(&mut exchange, &outcome);
        self.run_tools(exchange);
    }

    /// The owner cancels the turn (feature `cancel`): what was begun is logged as ended, and
    /// [`Effect::Finish`] follows. The shell stops the model or tool that is at work. Says whether the turn was
    /// still going on.
    pub fn handle_cancel(&mut self) -> bool {
        match std::mem::replace(&mut self.doing, Doing::Over) {
            Doing::Over => return false,
            Doing::Model { attempt } => {
                let error = "the turn was cancelled".to_owned();
                let failure = ModelFailure { status: None, error, body: None };
                self.log_failed_response(attempt, &failure);
            }
            Doing::Tools(exchange) => self.log_cancelled_calls(&exchange),
        }
        self.pending.push(LogEvent::turn_cancelled(&self.actor, "running"));
        self.finish(Err(turn_cancelled()), Outcome::Cancelled);
        true
    }

    fn begin_round(&mut self) {
        if self.round >= self.max_rounds {
            let limit = Json::integer(i64::from(self.max_rounds));
            self.log_error("loop_limit", &[("max_iterations", limit)]);
            self.finish(Ok(unavailable()), Outcome::LoopLimit);
        } else {
            self.call_model(0);
        }
    }

    fn call_model(&mut self, attempt: usize) {
        let payload = self.providers.get(attempt).map(|provider| {
            let limit = provider.max_tokens.and_then(|n| i64::try_from(n).ok());
            Json::object([
                ("attempt", &count(attempt)),
                ("base_url", &Json::string(&provider.base_url)),
                ("kind", &Json::string(kind(attempt))),
                ("max_tokens", &limit.map_or_else(Json::null, Json::integer)),
                ("model", &Json::string(&provider.model)),
                ("provider", &Json::string(&provider.provider)),
                ("tools", &self.tools_json),
            ])
        });
        let mut request = LogEvent::new(
            EventType::ProviderRequest,
            self.actor.clone(),
            payload.unwrap_or_else(Json::empty_object),
        );
        request.elided =
            Some(Elided { tail: Json::array(&self.tail), messages: Arc::clone(&self.messages) });
        self.pending.push(request);
        self.doing = Doing::Model { attempt };
        self.next = Some(Effect::CallModel(ModelCall {
            provider: attempt,
            round: self.round,
            messages: Arc::clone(&self.messages),
            tools: Arc::clone(&self.tools),
        }));
    }

    /// Goes on with the calls of a response until one has to be run outside, or all are answered.
    fn run_tools(&mut self, mut exchange: Exchange) {
        while let Some((call, route)) = exchange.calls.get(exchange.at).cloned() {
            match route {
                Route::Client => exchange.at += 1,
                Route::Mcp(server) => {
                    self.log(EventType::McpRequest, mcp_request(&call, server.as_deref()));
                    let ToolUse { id, name, input, .. } = call;
                    if let Some(server_name) = server {
                        self.next =
                            Some(Effect::CallTool(ToolRun { id, name, input, server_name }));
                        self.doing = Doing::Tools(exchange);
                        return;
                    }
                    let reason = format!("no MCP server is configured for tool '{name}'");
                    self.answer_mcp(&mut exchange, &ToolOutcome::Failed(reason));
                }
                Route::Sandbox => self.answer_sandbox(&mut exchange, &call),
                Route::Subagent => {
                    let error = Json::string("subagents are not built into this service yet");
                    let text = Json::object([("error", &error)]);
                    self.answer(
                        &mut exchange,
                        &call.id,
                        &Route::Subagent,
                        text_content(text.as_str()),
                        true,
                    );
                }
            }
        }
        if exchange.calls.iter().any(|(_, route)| *route == Route::Client) {
            self.pause(exchange);
        } else {
            self.next_round(exchange);
        }
    }

    fn next_round(&mut self, exchange: Exchange) {
        // In memory only, and without `dispatch` (session service §6.1).
        let asked = for_provider(Message::assistant(exchange.blocks));
        let answered = Message::user_blocks(exchange.results);
        self.tail.extend([asked.to_json(), answered.to_json()]);
        Arc::make_mut(&mut self.messages).extend([asked, answered]);
        self.round += 1;
        self.begin_round();
    }

    fn pause(&mut self, exchange: Exchange) {
        let dispatch = |block: &Block| match block.tool_use() {
            Some(call) => block.with_dispatch(Some(self.toolbox.route(&call.name).dispatch())),
            None => block.clone(),
        };
        let message = Message::assistant(exchange.blocks.iter().map(dispatch).collect());
        self.log(EventType::ServerMessageSend, message.to_json());
        let pause = Pause {
            owner: self.actor.clone(),
            expected: exchange.calls.into_iter().map(|(call, _)| call.id).collect(),
            stash: exchange.results,
        };
        let events = std::mem::take(&mut self.pending);
        self.doing = Doing::Over;
        self.next = Some(Effect::Pause { events, pause, message });
    }

    fn finish(&mut self, answer: Result<Message, RpcFailure>, outcome: Outcome) {
        let events = std::mem::take(&mut self.pending);
        self.doing = Doing::Over;
        self.next = Some(Effect::Finish { events, answer, outcome });
    }

    fn fail_config(&mut self, detail: &str) {
        self.log_error("provider_config", &[("detail", Json::string(detail))]);
        self.finish(Ok(unavailable()), Outcome::ProviderConfig);
    }

    fn answer_mcp(&mut self, exchange: &mut Exchange, outcome: &ToolOutcome) {
        let Some((call, route)) = exchange.calls.get(exchange.at).cloned() else { return };
        let Route::Mcp(server) = &route else { return };
        let (response, content, is_error) = match outcome {
            ToolOutcome::Answered(result) => {
                let is_error = result.member("isError").is_some_and(|e| e.as_str() == "true");
                let content = result.member("content").unwrap_or_else(|| Json::array([]));
                (mcp_response(server.as_deref(), !is_error, "result", result), content, is_error)
            }
            ToolOutcome::Failed(reason) => {
                let error = Json::string(reason);
                let content = text_content(&format!("MCP error: {reason}"));
                (mcp_response(server.as_deref(), false, "error", &error), content, true)
            }
        };
        self.log(EventType::McpResponse, response);
        self.answer(exchange, &call.id, &route, content, is_error);
    }

    fn answer_sandbox(&mut self, exchange: &mut Exchange, call: &ToolUse) {
        let name = &call.name;
        let command = call.input.member("command").filter(|c| c.to_text().is_some());
        let reason = match &command {
            Some(_) => format!(
                "no remote sandbox is running for tool '{name}'; call session.startRemoteSandbox first"
            ),
            None => {
                format!("sandbox tool '{name}' input is missing the required string \"command\"")
            }
        };
        let request = Json::object([
            ("command", &command.unwrap_or_default()),
            ("input", &call.input),
            ("tool", &Json::string(name)),
        ]);
        let response = Json::object([
            ("error", &Json::string(&reason)),
            ("ok", &boolean(false)),
            ("sandbox_id", &Json::null()),
        ]);
        self.log(EventType::SandboxRequest, request);
        self.log(EventType::SandboxResponse, response);
        let content = text_content(&format!("sandbox error: {reason}"));
        self.answer(exchange, &call.id, &Route::Sandbox, content, true);
    }

    /// Logs the result of the call at work, keeps it for the model and goes on to the next call.
    fn answer(
        &mut self,
        exchange: &mut Exchange,
        id: &str,
        route: &Route,
        content: Json,
        is_error: bool,
    ) {
        self.log(EventType::ToolResult, server_result(id, route, &content, is_error));
        exchange.results.push(Block::of_tool_result(ToolResult {
            tool_use_id: id.to_owned(),
            content,
            is_error: Some(is_error),
        }));
        exchange.at += 1;
    }

    /// Every call without a result gets one, so that no call dangles in the log.
    fn log_cancelled_calls(&mut self, exchange: &Exchange) {
        if let Some((_, Route::Mcp(server))) = exchange.calls.get(exchange.at) {
            let error = Json::string("the turn was cancelled");
            let response = mcp_response(server.as_deref(), false, "error", &error);
            self.log(EventType::McpResponse, response);
        }
        let answered: HashSet<&str> = exchange
            .results
            .iter()
            .filter_map(|block| block.tool_result().map(|r| r.tool_use_id.as_str()))
            .collect();
        for (call, route) in &exchange.calls {
            if answered.contains(call.id.as_str()) {
                continue;
            }
            let payload = match route {
                Route::Client => client_result(&call.id, &Json::string(CANCELLED)),
                _ => server_result(&call.id, route, &text_content(CANCELLED), true),
            };
            self.log(EventType::ToolResult, payload);
        }
    }

    fn log(&mut self, event_type: EventType, payload: Json) {
        self.pending.push(LogEvent::new(event_type, self.actor.clone(), payload));
    }

    fn log_error(&mut self, reason: &str, members: &[(&str, Json)]) {
        self.pending.push(LogEvent::error(self.actor.clone(), reason, members));
    }

    fn log_response(&mut self, attempt: usize, write: impl FnOnce(&[(&str, Json); 3]) -> Json) {
        let provider = self.providers.get(attempt).map_or("", |p| p.provider.as_str());
        let common = [
            ("attempt", count(attempt)),
            ("kind", Json::string(kind(attempt))),
            ("provider", Json::string(provider)),
        ];
        self.log(EventType::ProviderResponse, write(&common));
    }

    fn log_failed_response(&mut self, attempt: usize, failure: &ModelFailure) {
        let status = failure.status.map_or_else(Json::null, |s| Json::integer(i64::from(s)));
        let body = failure.body.as_deref().map_or_else(Json::null, Json::string);
        let error = Json::string(&failure.error);
        self.log_response(attempt, |common| {
            let members = [("body", &body), ("error", &error)];
            let rest = [("ok", &boolean(false)), ("status", &status)];
            Json::object(common.iter().map(|(k, v)| (*k, v)).chain(members).chain(rest))
        });
    }
}

/// Ends a paused turn of its owner without another model round: the results given, synthetic ones
/// for the other calls, in one message (feature `cancel`).
///
/// # Errors
/// `-32602` when a result belongs to no open call or comes twice; the turn stays paused.
pub fn cancel_paused(pause: &Pause, results: Vec<Block>) -> Result<Vec<LogEvent>, RpcFailure> {
    let invalid =
        |why: String| RpcFailure::new(code::INVALID_PARAMS, format!("Invalid params: {why}"));
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

fn rejected(actor: &KeyId, error: &MergeError) -> Rejected {
    let events = if error.ends_session() {
        let members = [("detail", Json::string(&error.to_string()))];
        let event = LogEvent::error(actor.clone(), "tool_result_merge_invalid", &members);
        vec![event.shown_to(Audience::Watchers)]
    } else {
        Vec::new()
    };
    Rejected { failure: error.to_failure(), events, ends_session: error.ends_session() }
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

fn unavailable() -> Message {
    Message::assistant(vec![Block::of_text(UNAVAILABLE)])
}

const fn kind(attempt: usize) -> &'static str {
    if attempt == 0 { "primary" } else { "fallback" }
}

fn count(number: usize) -> Json {
    Json::integer(i64::try_from(number).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
