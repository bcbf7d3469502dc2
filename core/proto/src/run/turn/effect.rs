//! What goes into a turn and what comes out of it.

use crate::Json;
use crate::run::gate::Entry;
use crate::run::log::{LogEvent, boolean};
use crate::run::merge::Pause;
use crate::run::toolbox::Toolbox;
use crate::session::approval::{Approvals, Question};
use crate::session::content::{Block, Message};
use crate::session::generation::Generation;
use crate::session::ids::KeyId;
use crate::session::payload::TokenUsage;
use crate::session::rpc::RpcFailure;
use crate::session::tool::ToolDeclaration;
use std::fmt;
use std::sync::Arc;

/// A provider as `provider.request` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// The wire format: `anthropic`, `openai`, `scripted`, …
    pub provider: String,
    /// Where it is.
    pub base_url: String,
    /// The model.
    pub model: String,
    /// The most tokens it may write.
    pub max_tokens: Option<u64>,
}

/// Everything a turn starts from.
#[derive(Debug, Clone)]
pub struct TurnStart {
    /// The driver that acts.
    pub actor: KeyId,
    /// How its call came through the gate.
    pub entry: Entry,
    /// The paused turn that it took up or over.
    pub paused: Option<Pause>,
    /// The driver's message.
    pub message: Message,
    /// The messages logged so far, oldest first (see [`crate::run::log::history_message`]).
    pub history: Vec<Message>,
    /// The tools of this turn.
    pub toolbox: Toolbox,
    /// The primary provider and then its fallbacks; the error says why there is no primary.
    pub providers: Result<Vec<Provider>, String>,
    /// How many model rounds this call may take.
    pub max_rounds: u32,
    /// Whether what fails ends this turn and not the session (feature `keep-open`), and how attempts are tried again.
    pub keep_open: Option<RetryPolicy>,
    /// What was said about the generation when the session was opened (feature `options`).
    pub session_generation: Generation,
    /// What the driver's message says about it, for its turn.
    pub generation: Generation,
    /// Which calls of the service's own tools need consent (feature `approve`).
    pub consent: ConsentTerms,
}

/// Which calls of the service's own tools need consent, and whether it can be asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConsentTerms {
    /// What was settled when the session was opened.
    pub approvals: Approvals,
    /// How long an answer is waited for, in milliseconds; nothing when the request did not ask for `approve`, so
    /// that nobody could answer: then such calls do not run.
    pub wait_ms: Option<u64>,
}

/// How attempts that failed in a way that may pass are tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How often one provider is tried again in one round.
    pub retries: u32,
    /// The first wait, in milliseconds; it doubles each time.
    pub base_ms: u64,
    /// The longest wait, in milliseconds, also when the provider asks for a longer one.
    pub cap_ms: u64,
    /// Any random number: it spreads the waits between half and whole.
    pub jitter: u64,
}

/// A message that starts no turn: log the events and answer the caller. The gate is given back as it was: a turn that was
/// paused stays paused, unless the session ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The answer to the caller.
    pub failure: RpcFailure,
    /// What to log.
    pub events: Vec<LogEvent>,
    /// Whether the session goes to state `error`.
    pub ends_session: bool,
}

/// What the shell has to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Log these events, in this order.
    Log(Vec<LogEvent>),
    /// Ask a model; answer with [`super::Turn::handle_model_reply`] or [`super::Turn::handle_model_failure`].
    CallModel(ModelCall),
    /// Wait, then say so with [`super::Turn::handle_wait_over`].
    Wait {
        /// How long, in milliseconds.
        ms: u64,
    },
    /// Log the events, wait for consent to a call, and answer with [`super::Turn::handle_answer`] or
    /// [`super::Turn::handle_approval_deadline`]. Who answers as soon as the events are shown must be heard.
    Ask {
        /// To be logged before anybody is asked.
        events: Vec<LogEvent>,
        /// What is asked.
        question: Question,
    },
    /// Run a server-side tool; answer with [`super::Turn::handle_tool_outcome`].
    CallTool(ToolRun),
    /// Log the events, park the gate with the pause and answer the caller with the message.
    Pause {
        /// To be logged together with the parking.
        events: Vec<LogEvent>,
        /// What to keep.
        pause: Pause,
        /// The assistant's message, its calls tagged with `dispatch`.
        message: Message,
    },
    /// Log the events, release the gate and answer the caller.
    Finish {
        /// To be logged together with the release.
        events: Vec<LogEvent>,
        /// The answer: the assistant's message, or an error.
        answer: Result<Message, RpcFailure>,
        /// How the turn ended.
        outcome: Outcome,
        /// Whether the session goes to state `error` with it.
        ends_session: bool,
    },
}

/// One attempt of one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCall {
    /// Which provider of the chain, from 0.
    pub provider: usize,
    /// Which round of the turn, from 0.
    pub round: u32,
    /// The messages, without what concerns the service alone.
    pub messages: Arc<Vec<Message>>,
    /// The tools the model is told about.
    pub tools: Arc<[ToolDeclaration]>,
    /// What else it is asked.
    pub generation: Generation,
}

/// One call of a server-side tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolRun {
    /// Identifies the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments, exactly as the model wrote them, or narrowed by who consented.
    pub input: Json,
    /// The server that has it.
    pub server_name: String,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With the assistant's message.
    Completed,
    /// Every provider failed.
    ProvidersFailed,
    /// The primary provider is not configured.
    ProviderConfig,
    /// Too many rounds.
    LoopLimit,
    /// The owner cancelled it.
    Cancelled,
}

impl Outcome {
    /// Whether the session of a plain caller goes to state `error` (session service §11).
    pub(super) const fn ends_session(self) -> bool {
        matches!(self, Self::ProvidersFailed | Self::ProviderConfig | Self::LoopLimit)
    }
}

/// A model's complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelReply {
    /// Its content, possibly empty.
    pub content: Vec<Block>,
    /// What `provider.response` shows as `body`.
    pub body: Json,
    /// Tokens, when the provider said.
    pub usage: Option<TokenUsage>,
}

/// A failed attempt.
#[derive(Clone, PartialEq, Eq)]
pub struct ModelFailure {
    /// The HTTP status, when there was one.
    pub status: Option<u16>,
    /// Why, for people.
    pub error: String,
    /// The provider's own words.
    pub body: Option<String>,
    /// Whether the same request may be sent again.
    pub retryable: bool,
    /// How long the provider asks to wait before that, in milliseconds.
    pub retry_after_ms: Option<u64>,
}

impl ModelFailure {
    /// A failure without an answer that a further try cannot cure.
    #[must_use]
    pub fn lasting(error: impl Into<String>) -> Self {
        let error = error.into();
        Self { status: None, error, body: None, retryable: false, retry_after_ms: None }
    }

    /// A failure without an answer that may be gone the next time.
    #[must_use]
    pub fn passing(error: impl Into<String>) -> Self {
        Self { retryable: true, ..Self::lasting(error) }
    }
}

impl fmt::Debug for ModelFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The provider's words may repeat what it was sent: only their size is printed.
        let body = self.body.as_ref().map_or(0, String::len);
        write!(f, "ModelFailure(status {:?}, {} bytes of body)", self.status, body)
    }
}

/// How a server-side tool call ended.
#[derive(Clone, PartialEq, Eq)]
pub enum ToolOutcome {
    /// The server answered: an MCP result `{"content":[…],"isError"?:bool}`.
    Answered(Json),
    /// It did not: the connection failed, the tool timed out, ….
    Failed(String),
}

impl ToolOutcome {
    /// An answer of these content blocks.
    #[must_use]
    pub fn of_content(content: &Json, is_error: bool) -> Self {
        Self::Answered(Json::object([("content", content), ("isError", &boolean(is_error))]))
    }
}

impl fmt::Debug for ToolOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(result) => write!(f, "Answered({result:?})"),
            Self::Failed(reason) => write!(f, "Failed({} bytes)", reason.len()),
        }
    }
}
