//! What every vendor's stream becomes: units for the service's turn engine (provider streams §4).

use crate::Json;
use crate::session::content::{Block, ToolUse};
use std::fmt;
use thiserror::Error;

/// One step of a model's answer, in order.
///
/// Deltas are for showing only. [`Unit::AssistantMessage`] comes at most once, only when the answer is complete, and is
/// followed by [`Unit::StepFinished`]; [`Unit::Error`] is final too, and then there is no message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// The first chunk came.
    StreamStart {
        /// The provider's id of this answer.
        id: Option<String>,
        /// The model that answers, as the provider spells it.
        model: Option<String>,
    },
    /// A piece of the answer's text, never empty.
    TextDelta(String),
    /// A piece of the model's reasoning, never empty.
    ReasoningDelta(String),
    /// A piece of a tool call's arguments: JSON text cut anywhere, never empty.
    ToolInputDelta {
        /// Which call of the answer, from 0 in order of arrival.
        index: usize,
        /// The call's id, once it is known.
        id: Option<String>,
        /// The tool's name, once it is known.
        name: Option<String>,
        /// The piece.
        delta: String,
    },
    /// The whole answer.
    AssistantMessage(AssistantMessage),
    /// Why the answer ended and what it cost.
    StepFinished {
        /// The provider's own spelling of the reason.
        reason_raw: String,
        /// Tokens, when the provider said so in full.
        usage: Option<Usage>,
    },
    /// The answer failed. What came before it is for showing only.
    Error(ProviderError),
}

/// A complete answer.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct AssistantMessage {
    /// The text, refusals included; empty when there is none.
    pub text: String,
    /// The reasoning; empty when there is none.
    pub reasoning: String,
    /// The calls that may run, in order of arrival.
    pub tool_calls: Vec<ToolCall>,
    /// Calls whose arguments are no JSON object: they must not run.
    pub invalid_calls: Vec<InvalidCall>,
}

/// A complete tool call.
#[derive(Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The provider's id, or one made from the answer's id when it sent none.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments: a JSON object, its text exactly as the model wrote it.
    pub input: Json,
}

/// A tool call that must not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidCall {
    /// The call's id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// What is wrong; holds none of the arguments.
    pub reason: InvalidReason,
}

/// Why a tool call must not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidReason {
    /// The arguments break off: the model reached its output limit.
    Truncated,
    /// The arguments are not one JSON object.
    NotAnObject,
    /// No tool is named.
    NoName,
}

/// Tokens of one answer. The three input counts do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Input tokens that were neither read from a cache nor written to one.
    pub input: u64,
    /// Input tokens read from the provider's cache.
    pub cached_input: u64,
    /// Input tokens written to the provider's cache.
    pub cache_write: u64,
    /// Output tokens, reasoning included.
    pub output: u64,
    /// The part of the output that was reasoning.
    pub reasoning: u64,
}

/// What kind of failure it is, and so what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// May work when tried again.
    Transient,
    /// Fails again in the same way.
    Permanent,
    /// The key, its permissions or its account.
    Auth,
    /// The conversation is longer than the model can read.
    ContextOverflow,
    /// The provider cannot be reached.
    ProviderUnavailable,
}

/// A provider's failure. `Display` holds the provider's own sentence, bounded in length.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ProviderError {
    /// What to do about it.
    pub class: ErrorClass,
    /// Whether the same request may be sent again.
    pub retryable: bool,
    /// The provider's `type`, or ours: `stream_ended_early`, `malformed_stream`, `limit`.
    pub kind: Option<String>,
    /// The provider's `code`.
    pub code: Option<String>,
    /// What was wrong.
    pub message: String,
}

/// Something odd that did not end the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarningKind {
    /// The stream ended without its end mark, after a finish reason.
    MissingEndMark,
    /// Tool call pieces came without index or id, with changing ids, or repeated the name.
    LooseToolCalls,
    /// A call's arguments came as an object in place of a string.
    ArgumentsNotText,
    /// A call came without an id; one was made.
    MissingCallId,
    /// A call's arguments are no JSON object; it is kept out of the calls that may run.
    InvalidCall,
    /// An event that this reader does not know was skipped.
    UnknownEvent,
    /// A second choice was skipped.
    ExtraChoice,
    /// Usage that is incomplete or not in whole numbers was left out.
    PartialUsage,
    /// Text held bytes or escapes that are not Unicode; they were replaced.
    BadText,
}

/// One kind of oddity in one stream, and how often it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warning {
    /// What was odd.
    pub kind: WarningKind,
    /// How often, at least 1.
    pub times: u64,
}

impl AssistantMessage {
    /// The content blocks of the session's message: the reasoning and the text, if there are any, then the calls that
    /// may run. Readers of the plain contract are not shown the reasoning.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let reasoning = (!self.reasoning.is_empty()).then(|| Block::of_thinking(&self.reasoning));
        let text = (!self.text.is_empty()).then(|| Block::of_text(self.text.as_str()));
        let calls = self.tool_calls.iter().cloned().map(|ToolCall { id, name, input }| {
            Block::of_tool_use(ToolUse { id, name, input, dispatch: None })
        });
        reasoning.into_iter().chain(text).chain(calls).collect()
    }
}

impl Usage {
    /// Tokens that fill the model's window: input + cached_input + cache_write.
    #[must_use]
    pub const fn fill_tokens(&self) -> u64 {
        self.input.saturating_add(self.cached_input).saturating_add(self.cache_write)
    }
}

impl InvalidReason {
    /// The word used in every language.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::NotAnObject => "not_an_object",
            Self::NoName => "no_name",
        }
    }
}

impl WarningKind {
    /// The word used in every language.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MissingEndMark => "missing_end_mark",
            Self::LooseToolCalls => "loose_tool_calls",
            Self::ArgumentsNotText => "arguments_not_text",
            Self::MissingCallId => "missing_call_id",
            Self::InvalidCall => "invalid_call",
            Self::UnknownEvent => "unknown_event",
            Self::ExtraChoice => "extra_choice",
            Self::PartialUsage => "partial_usage",
            Self::BadText => "bad_text",
        }
    }
}

impl ErrorClass {
    /// The word used on the wire and in vectors.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Auth => "auth",
            Self::ContextOverflow => "context_overflow",
            Self::ProviderUnavailable => "provider_unavailable",
        }
    }

    /// Whether the same request may be sent again.
    #[must_use]
    pub const fn retryable(self) -> bool {
        matches!(self, Self::Transient | Self::ProviderUnavailable)
    }
}

impl ProviderError {
    /// A failure found by this program, not told by the provider.
    #[must_use]
    pub fn found(class: ErrorClass, kind: &str, message: impl Into<String>) -> Self {
        let kind = Some(kind.to_owned());
        Self { class, retryable: class.retryable(), kind, code: None, message: message.into() }
    }
}

impl fmt::Display for InvalidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "its arguments break off",
            Self::NotAnObject => "its arguments are not one JSON object",
            Self::NoName => "it names no tool",
        })
    }
}

// What people and models wrote stays out of debug output.
impl fmt::Debug for AssistantMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AssistantMessage")
            .field("text_bytes", &self.text.len())
            .field("reasoning_bytes", &self.reasoning.len())
            .field("tool_calls", &self.tool_calls)
            .field("invalid_calls", &self.invalid_calls)
            .finish()
    }
}

impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCall")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("input", &self.input)
            .finish()
    }
}
