//! Models: what answers a turn (session service §6.4).
//!
//! [`Model`] is the one thing the turn engine knows. [`scripted`] is built in and deterministic, [`openai`] speaks
//! to Chat Completions servers, [`catalog`] makes either from what was written on the command line or in the
//! configuration file, [`unbuilt`] stands for what is not there. The chain of
//! fallbacks is the engine's business: a model makes one attempt.

pub mod catalog;
pub mod openai;
pub mod scripted;
pub mod unbuilt;

use broca_proto::Json;
use broca_proto::provider::ToolSpec;
use broca_proto::provider::unit::ErrorClass;
use broca_proto::session::content::{Block, Message};
use broca_proto::session::generation::Generation;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// Something that answers a conversation.
pub trait Model: Send + Sync {
    /// What `provider.request` shows of this model.
    fn describe(&self) -> ModelDescription;

    /// Makes one attempt. Deltas go to `sink` as they are produced; what counts is the reply.
    ///
    /// Dropping the future ends the attempt at once: connections are closed.
    fn call<'a>(&'a self, request: &'a ModelRequest, sink: &'a dyn DeltaSink) -> ModelFuture<'a>;
}

/// An attempt under way.
pub type ModelFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ModelReply, ModelFailure>> + Send + 'a>>;

/// Takes the pieces of an answer for the display lane. Must not block.
pub trait DeltaSink: Send + Sync {
    /// One piece. It may be dropped: the reply holds everything.
    fn delta(&self, delta: Delta);
}

/// A sink for callers that show nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDeltas;

/// A piece of an answer.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delta {
    /// Of the text.
    Text(String),
    /// Of the reasoning.
    Reasoning(String),
    /// Of a tool call's arguments: JSON text cut anywhere.
    ToolInput {
        /// Which call of the answer, from 0.
        index: usize,
        /// The call's id, once known.
        id: Option<String>,
        /// The tool, once known.
        name: Option<String>,
        /// The piece.
        delta: String,
    },
}

/// The members of `provider.request` that belong to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDescription {
    /// The kind of wire: `openai`, `scripted`.
    pub provider: String,
    /// Where it is.
    pub base_url: String,
    /// The model's name.
    pub model: String,
    /// The most tokens of an answer when a request does not say.
    pub max_tokens: u64,
}

/// What a model is asked.
#[derive(Debug, Clone, Default)]
pub struct ModelRequest {
    /// The conversation; `tool_use` blocks carry no `dispatch`.
    pub messages: Vec<Message>,
    /// The tools on offer.
    pub tools: Vec<ToolSpec>,
    /// The most tokens of the answer; absent means the model's own setting.
    pub max_tokens: Option<u64>,
    /// What else the model is asked.
    pub generation: Generation,
    /// Whether images and files of the conversation are for the model; a driver of the plain contract has not asked for it.
    pub media: bool,
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelReply {
    /// The assistant's blocks, `tool_use` without `dispatch`.
    pub content: Vec<Block>,
    /// What `provider.response.body` shows.
    pub body: Json,
    /// Tokens, when both numbers are known.
    pub usage: Option<TokenUsage>,
    /// Why the answer ended, as the provider spells it.
    pub finish_reason: String,
    /// Whether the answer stopped at its output limit.
    pub truncated: bool,
    /// Oddities that did no harm, counted.
    pub warnings: u64,
}

/// The `usage` of `provider.response`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenUsage {
    /// All input tokens, cached ones included.
    pub input_tokens: u64,
    /// All output tokens, reasoning included.
    pub output_tokens: u64,
}

/// A failed attempt: what `provider.response` shows with `ok:false`.
#[derive(Clone, PartialEq, Eq)]
pub struct ModelFailure {
    /// The HTTP status; absent when no answer came.
    pub status: Option<u16>,
    /// What was wrong, never with a key in it.
    pub error: String,
    /// The body that came, as text, bounded.
    pub body: Option<String>,
    /// What to do about it.
    pub class: ErrorClass,
    /// Whether the same request may be sent again.
    pub retryable: bool,
    /// How long the provider asks to wait before that.
    pub retry_after: Option<Duration>,
}

impl ModelFailure {
    /// A failure without an answer.
    #[must_use]
    pub fn new(class: ErrorClass, error: impl Into<String>) -> Self {
        let retryable = class.retryable();
        let error = error.into();
        Self { status: None, error, body: None, class, retryable, retry_after: None }
    }

    /// The same failure with the status of the answer.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// The same failure with the body of the answer.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<String>) -> Self {
        self.body = Some(body.into());
        self
    }
}

impl DeltaSink for NoDeltas {
    fn delta(&self, _: Delta) {}
}

impl fmt::Display for ModelFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

impl std::error::Error for ModelFailure {}

// Bodies and pieces are payload: debug output shows their shape.
impl fmt::Debug for ModelFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelFailure")
            .field("status", &self.status)
            .field("class", &self.class)
            .field("body_bytes", &self.body.as_ref().map(String::len))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Delta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Reasoning(text) => write!(f, "Reasoning({} bytes)", text.len()),
            Self::ToolInput { index, delta, .. } => {
                write!(f, "ToolInput({index}, {} bytes)", delta.len())
            }
        }
    }
}
