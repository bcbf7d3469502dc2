//! What a session's log says about one request of a turn whose stream broke (design §4, guarantee 7).
//!
//! [`Trail`] is shown the log from a point before the request, event by event, and says for each what it
//! means for the request: whether it belongs to it, and how the turn went on. It knows no network.

use super::content::{Block, BlockKind, Content, Message, Role};
use super::event::{Event, EventType};
use super::payload::ErrorReason;
use crate::Json;
use serde_json::Value;
use std::sync::Arc;

/// What an event says about the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Nothing: it is somebody else's.
    Other,
    /// It is the request itself, which has arrived: what its own stream leaves out.
    Own,
    /// It is a part of the request's turn.
    Part,
    /// The turn has answered, or paused, with this message.
    Answered(Message),
    /// The turn has failed in the way that this event names.
    Failed,
    /// The turn was cancelled.
    Cancelled,
    /// The session is over.
    Closed,
    /// Another message follows although the turn has not answered: it was broken off where it stood.
    BrokenOff,
    /// The pause that waited for these results has ended without them.
    TooLate,
}

/// What a request has said itself. Its own stream leaves these events out; the log and every other reader has them.
#[derive(Debug, Clone, Default)]
pub struct Said {
    /// The calls whose results it brings.
    results: Arc<[String]>,
}

impl Said {
    /// What this message says.
    #[must_use]
    pub fn of(message: &Message) -> Self {
        let results = message.content.blocks().iter().filter_map(Block::tool_result);
        Self { results: results.map(|result| result.tool_use_id.clone()).collect() }
    }

    /// Whether an event of the request's turn only shows what the request has said.
    #[must_use]
    pub fn shows(&self, event: &Event) -> bool {
        event.is(&EventType::ClientMessageSend) || self.shows_result(event)
    }

    fn shows_result(&self, event: &Event) -> bool {
        if !event.is(&EventType::ToolResult) {
            return false;
        }
        let id = event.payload().member("tool_use_id").and_then(|id| id.to_text());
        id.is_some_and(|id| self.results.contains(&id))
    }
}

/// Looks for one request in a log, and then for its end.
#[derive(Debug)]
pub struct Trail {
    sought: Sought,
    said: Said,
    /// The client key that sends, when it is known.
    own_key: Option<String>,
    began: bool,
}

/// What the request's own `client.message.send` must hold.
#[derive(Debug)]
struct Sought {
    message_id: Option<String>,
    /// Results of tool calls, by id. The service puts them in the order of the calls, with those of its own.
    results: Vec<(String, Value)>,
    /// Everything else, which stands at the end.
    rest: Vec<Value>,
}

impl Trail {
    /// A trail of the request with these `params` of `session.sendMessage`. `own_key` is the client key that sends, as
    /// the log names it.
    #[must_use]
    pub fn new(params: &Json, own_key: Option<String>) -> Self {
        let message = params.member("message").unwrap_or_default();
        let content = message.member("content").unwrap_or_default();
        let (results, rest) = apart(&Content::read(&content));
        let said = Said { results: results.iter().map(|(id, _)| id.clone()).collect() };
        let message_id = params.member("message_id").and_then(|id| id.to_text());
        Self { said, sought: Sought { message_id, results, rest }, own_key, began: false }
    }

    /// The request is known to have arrived before the events that follow.
    pub fn arrived(&mut self) {
        self.began = true;
    }

    /// Whether the request has arrived.
    #[must_use]
    pub const fn has_arrived(&self) -> bool {
        self.began
    }

    /// Whether an event only shows what the request itself has said.
    #[must_use]
    pub fn is_said(&self, event: &Event) -> bool {
        self.said.shows(event)
    }

    /// The next event of the log.
    pub fn event(&mut self, event: &Event) -> Told {
        match event.event_type() {
            EventType::ClientMessageSend => self.client_message(event),
            EventType::ServerMessageSend if self.began => answer(event),
            EventType::SessionError => self.error(event),
            EventType::SessionClose => Told::Closed,
            EventType::SessionOpen | EventType::SessionJoin | EventType::SessionDriverRegister => {
                Told::Other
            }
            _ if event.type_name() == EventType::METADATA_UPDATED => Told::Other,
            _ if event.type_name() == EventType::TURN_CANCELLED => self.cancelled(),
            _ if self.began && self.said.shows_result(event) => Told::Own,
            _ if self.began => Told::Part,
            _ => Told::Other,
        }
    }

    fn client_message(&mut self, event: &Event) -> Told {
        if self.began {
            return Told::BrokenOff;
        }
        if self.is_sought(event) {
            self.began = true;
            return Told::Own;
        }
        // While a turn is paused, the next message is the one that ends the pause.
        if self.continues() { Told::TooLate } else { Told::Other }
    }

    fn is_sought(&self, event: &Event) -> bool {
        let payload = event.payload();
        let theirs = payload.member("message_id").and_then(|id| id.to_text());
        if let (Some(ours), Some(theirs)) = (&self.sought.message_id, theirs) {
            return *ours == theirs;
        }
        if let (Some(ours), Some(theirs)) = (&self.own_key, event.client_key_id())
            && ours != theirs.as_str()
        {
            return false;
        }
        let content = payload.member("content").unwrap_or_default();
        let (results, rest) = apart(&Content::read(&content));
        self.sought.results.iter().all(|ours| results.contains(ours))
            && rest.ends_with(&self.sought.rest)
            && !(self.sought.results.is_empty() && self.sought.rest.is_empty())
    }

    /// Whether the request goes on with a paused turn: it holds nothing but results.
    fn continues(&self) -> bool {
        self.sought.rest.is_empty() && !self.sought.results.is_empty()
    }

    fn error(&self, event: &Event) -> Told {
        let reason = event.payload().member("reason").and_then(|r| r.to_text()).unwrap_or_default();
        match ErrorReason::parse(&reason) {
            ErrorReason::DriverTurnAbandoned if self.continues() && !self.began => Told::TooLate,
            ErrorReason::DriverTurnAbandoned => Told::Other,
            ErrorReason::ProfileUnavailable
            | ErrorReason::PrimaryProviderUnavailable
            | ErrorReason::ToolResultMergeInvalid => Told::Closed,
            _ if !self.began => Told::Other,
            ErrorReason::ProviderConfig
            | ErrorReason::AllProvidersFailed
            | ErrorReason::LoopLimit => Told::Failed,
            _ => Told::Part,
        }
    }

    fn cancelled(&self) -> Told {
        match (self.began, self.continues()) {
            (true, _) => Told::Cancelled,
            (false, true) => Told::TooLate,
            (false, false) => Told::Other,
        }
    }
}

/// The message of a `server.message.send`. One that the service wrote in somebody's name is no answer.
fn answer(event: &Event) -> Told {
    let payload = event.payload();
    let synthetic = payload.member("synthetic").is_some();
    match Message::read(&payload, Role::Assistant) {
        Ok(message) if message.role == Role::Assistant && !synthetic => Told::Answered(message),
        _ => Told::Part,
    }
}

/// Results of tool calls, and everything else, of a message. Compared as values: a service may order members anew.
fn apart(content: &Content) -> (Vec<(String, Value)>, Vec<Value>) {
    let (mut results, mut rest) = (Vec::new(), Vec::new());
    match content {
        Content::Text(text) => rest.push(text_block(text)),
        Content::Other(json) => rest.push(value(json)),
        Content::Blocks(blocks) => {
            for block in blocks {
                match block.kind() {
                    BlockKind::ToolResult(result) => {
                        results.push((result.tool_use_id.clone(), value(&result.content)));
                    }
                    _ => rest.push(value(block.json())),
                }
            }
        }
    }
    (results, rest)
}

/// Text alone and one block of it are the same message.
fn text_block(text: &str) -> Value {
    value(Block::of_text(text).json())
}

/// What cannot be decoded is compared by its text.
fn value(json: &Json) -> Value {
    json.decode().unwrap_or_else(|_| Value::String(json.as_str().to_owned()))
}

#[cfg(test)]
mod tests;
