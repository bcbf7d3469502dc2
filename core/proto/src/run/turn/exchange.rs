//! The tool calls of one answer: run here, refused, or left to the client (session service §6.3, §6.6).

use super::consent::CANNOT_BE_ASKED;
use super::{Doing, Effect, ToolOutcome, ToolRun, Turn};
use crate::Json;
use crate::run::depth;
use crate::run::log::{
    boolean, client_result, for_provider, mcp_request, mcp_response, server_result, text_content,
};
use crate::run::merge::{CANCELLED, Pause};
use crate::run::toolbox::Route;
use crate::session::content::{Block, Message, ToolResult, ToolUse};
use crate::session::event::EventType;
use std::collections::HashSet;
use std::sync::Arc;

/// The calls of one response, and what has come of them.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    pub(super) blocks: Vec<Block>,
    pub(super) calls: Vec<(ToolUse, Route)>,
    pub(super) results: Vec<Block>,
    /// The call that runs, an index into `calls`; those before it are answered or the client's.
    pub(super) at: usize,
}

impl Turn {
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

    /// Goes on with the calls of a response until one has to be run outside, or all are answered.
    pub(super) fn run_tools(&mut self, mut exchange: Exchange) {
        while let Some((call, route)) = exchange.calls.get(exchange.at).cloned() {
            match route {
                Route::Client => exchange.at += 1,
                Route::Mcp(Some(_)) if self.needs_consent(&call) => match self.question(&call) {
                    Some(question) => return self.ask(exchange, question),
                    None => self.refuse(&mut exchange, CANNOT_BE_ASKED),
                },
                Route::Mcp(Some(server)) => return self.call_tool(exchange, call, server),
                Route::Mcp(None) => {
                    self.log(EventType::McpRequest, mcp_request(&call, None));
                    let name = &call.name;
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

    /// Calls a tool of the service; its outcome is the result of the call at work.
    pub(super) fn call_tool(&mut self, exchange: Exchange, call: ToolUse, server_name: String) {
        self.log(EventType::McpRequest, mcp_request(&call, Some(&server_name)));
        let ToolUse { id, name, input, .. } = call;
        self.next = Some(Effect::CallTool(ToolRun { id, name, input, server_name }));
        self.doing = Doing::Tools(exchange);
    }

    fn next_round(&mut self, exchange: Exchange) {
        // In memory only, and without `dispatch` (session service §6.1).
        let asked = for_provider(Message::assistant(exchange.blocks));
        let answered = Message::user_blocks(exchange.results);
        self.tail.extend([asked.to_json(), answered.to_json()]);
        Arc::make_mut(&mut self.messages).extend([asked, answered]);
        self.round += 1;
        self.generation = std::mem::take(&mut self.generation).with_calls_made();
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
            generation: self.said.clone(),
        };
        let events = std::mem::take(&mut self.pending);
        self.doing = Doing::Over;
        self.next = Some(Effect::Pause { events, pause, message });
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

    /// The call at work does not run; `words` are its result.
    pub(super) fn refuse(&mut self, exchange: &mut Exchange, words: &str) {
        let Some((call, route)) = exchange.calls.get(exchange.at).cloned() else { return };
        self.answer(exchange, &call.id, &route, text_content(words), true);
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

    /// The tool at work is left, and what it answers counts no more.
    pub(super) fn log_cancelled_request(&mut self, exchange: &Exchange) {
        if let Some((_, Route::Mcp(server))) = exchange.calls.get(exchange.at) {
            let error = Json::string("the turn was cancelled");
            let response = mcp_response(server.as_deref(), false, "error", &error);
            self.log(EventType::McpResponse, response);
        }
    }

    /// Every call without a result gets one, so that no call dangles in the log.
    pub(super) fn log_cancelled_calls(&mut self, exchange: &Exchange) {
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
}
