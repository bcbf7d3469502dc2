//! What an application gets from the engine, one operation at a time.

use super::CallId;
use broca_proto::session::budget::Spent;
use broca_proto::session::content::Message;
use broca_proto::session::event::Event;
use broca_proto::session::exchange::{Warning, WarningClass};
use broca_proto::session::ids::{Cursor, SessionId};
use broca_proto::session::notice::Queued;
use broca_proto::session::payload::TokenUsage;
use broca_proto::session::rest::{Meta, Participants};
use broca_proto::session::saved::SavedSession;
use broca_proto::session::turn::ToolOutcome;
use broca_proto::{Error, ErrorKind, Json};
use std::fmt;

/// One step of an operation.
#[derive(Debug, Clone)]
pub enum Step {
    /// Something the session logged. Its id is the cursor after it.
    Event(Event),
    /// A notification this version does not know, with its raw JSON.
    Notification {
        /// The method.
        method: String,
        /// The whole line.
        raw: Json,
    },
    /// A piece of the display lane: lossy by contract.
    Delta(Delta),
    /// Something was lost.
    Gap(Gap),
    /// Run this tool and answer with [`Answer::Complete`](super::Answer::Complete) or [`Answer::Fail`](super::Answer::Fail).
    ToolCall(ToolCall),
    /// Stop this call if you can. Within the grace of a cancelled turn a result still counts as what it is; a failure
    /// then is an interruption. Later answers, and all answers of a call whose time was over, change nothing.
    ToolCancel {
        /// The call.
        call: CallId,
    },
    /// A call has its one result; what became of it, for the program.
    ToolSettled {
        /// The call's id in the conversation.
        tool_use_id: String,
        /// The tool.
        name: String,
        /// What became of it.
        outcome: ToolOutcome,
    },
    /// Somebody has to allow this call first.
    Approval(ToolCall),
    /// The question no longer matters.
    ApprovalWithdrawn {
        /// The question.
        call: CallId,
    },
    /// Where the operation stands.
    Status(Status),
    /// Something odd that does not end the stream.
    Warning(Warning),
    /// The message about to leave; answer with [`Answer::Send`](super::Answer::Send). Only with `Config::hooks`.
    Sending {
        /// Names the question.
        call: CallId,
        /// Which round of the turn, from 0.
        round: u32,
        /// The message.
        message: Message,
    },
    /// The answer to a message. Only with `Config::hooks`.
    Received {
        /// Which round of the turn, from 0.
        round: u32,
        /// The assistant's message.
        message: Message,
    },
    /// The turn is done.
    Done(Box<Reply>),
    /// The operation is over; nothing follows.
    Finished(Result<Outcome, Error>),
}

impl Step {
    /// What a step counts beside its texts.
    pub(crate) const OVERHEAD: usize = 128;

    /// About how many bytes the step holds, for bounding what waits.
    #[must_use]
    pub fn bytes(&self) -> usize {
        Self::OVERHEAD
            + match self {
                Self::Event(event) => event.bytes(),
                Self::Notification { raw, .. } => raw.as_bytes().len(),
                Self::Delta(delta) => delta.text.len() + delta.link.len(),
                Self::ToolCall(call) | Self::Approval(call) => call.input.as_bytes().len(),
                Self::Warning(warning) => warning.message.len(),
                _ => 0,
            }
    }
}

/// A piece of text that is being produced.
#[derive(Clone, PartialEq, Eq)]
pub struct Delta {
    /// Of what.
    pub kind: DeltaKind,
    /// The message or, for tool input, the call it belongs to.
    pub link: String,
    /// The piece.
    pub text: String,
}

/// Its size and not its text.
impl fmt::Debug for Delta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delta({:?} of {}, {} bytes)", self.kind, self.link, self.text.len())
    }
}

/// What a delta is a piece of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeltaKind {
    /// The answer.
    Text,
    /// The model's reasoning.
    Reasoning,
    /// The arguments of a tool call, as JSON text.
    ToolInput,
    /// Everything partial shown so far is void: the attempt failed or was replaced.
    Reset,
}

/// Something was lost, visibly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// What, and how much.
    pub lost: Lost,
    /// After which event.
    pub after: Cursor,
}

/// What a gap has swallowed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// Display pieces; the assembled message comes whole.
    Deltas(u64),
    /// One line longer than the limit.
    Line {
        /// Its bytes.
        bytes: u64,
        /// The limit in force: raise `max_line_bytes`.
        limit: usize,
    },
    /// The service does not know the cursor; it begins again at the start of its log.
    Cursor(Cursor),
    /// Events, nobody knows how many. What happened while the stream of a subscription was away, when no event had come yet
    /// from which it could be read on; one that names a cursor never has this gap. Of a turn: what a slow application had left
    /// in the log, and the log could not be had in time or was not waited for.
    Unseen,
}

/// A tool call for the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Names the answer.
    pub call: CallId,
    /// The call's id in the conversation.
    pub tool_use_id: String,
    /// The tool.
    pub name: String,
    /// The arguments, exactly as the model wrote them (or narrowed by an approval).
    pub input: Json,
    /// Made of the session, the event that showed the call, and its id: the same for every attempt at this call, in every
    /// process and language, and never that of another call. Hand it to whatever must not happen twice.
    pub idempotency_key: String,
    /// The program that had the session before may have run this call; nothing says how far it came.
    pub may_have_run: bool,
    /// The tool is the service's own: it runs there, and only consent is asked for.
    pub server_side: bool,
}

/// Where an operation stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// Waiting: behind another turn of this engine, or at the service.
    Queued {
        /// Where in the service's queue, and how long that is. It comes again whenever it changes.
        place: Option<Queued>,
    },
    /// The request has left.
    Sent,
    /// The stream is open.
    Connected,
    /// The stream was lost and is taken up again.
    Reconnecting {
        /// How long until the next try, in milliseconds.
        delay_ms: u64,
        /// The kind of error that ended the stream before.
        kind: ErrorKind,
        /// Why, in words.
        why: String,
    },
}

/// What a turn came to.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The assistant's last message.
    pub message: Message,
    /// Tokens of all rounds, when the provider counted them.
    pub usage: Option<TokenUsage>,
    /// Requests it took.
    pub rounds: u32,
    /// Calls of this client's tools.
    pub tool_calls: u32,
    /// What all turns of the session have spent, this one included.
    pub session: Spent,
    /// `result.events` of each round, raw arrays.
    pub events: Vec<Json>,
}

impl Reply {
    /// The text of the answer.
    #[must_use]
    pub fn text(&self) -> String {
        self.message.text()
    }

    /// The events of the turn, decoded; one that cannot be read is left out.
    #[must_use]
    pub fn turn_events(&self) -> Vec<Event> {
        let all = self.events.iter().filter_map(Json::elements).flatten();
        all.filter_map(|json| Event::parse(&json.into_bytes()).ok()).collect()
    }
}

/// What an operation came to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Outcome {
    /// To `Open`, `Join`, `Observe` and `Attach`.
    Opened {
        /// The session.
        session_id: SessionId,
        /// The profile as the service shows it, raw.
        profile: Json,
        /// A turn that another program has left waits for `Resume`.
        pending: bool,
    },
    /// To `Save`.
    Saved(Box<SavedSession>),
    /// To `Send` and `Resume`: the reply came as [`Step::Done`].
    Replied,
    /// To `Subscribe`: the session is over.
    Ended,
    /// To `History`.
    Page(HistoryPage),
    /// To `Participants`.
    Participants(Participants),
    /// To `Info` and `Update`: how the session stands, raw; see
    /// [`SessionInfo::read`](broca_proto::session::info::SessionInfo::read).
    Info(Json),
    /// To `Sessions`: `{"items","next_cursor"}`, the items as in `Info`, raw.
    Sessions(Json),
    /// To `Meta`.
    Meta(Meta),
    /// To `UpdateTools`.
    Updated,
    /// To `Close`.
    Closed,
}

/// A page of the log.
#[derive(Debug, Clone)]
pub struct HistoryPage {
    /// Events, oldest first.
    pub events: Vec<Event>,
    /// Where the next page begins; nothing at the end.
    pub next: Option<String>,
}

/// A warning step.
pub(crate) fn warning(class: WarningClass, message: impl Into<String>) -> Step {
    Step::Warning(Warning { class, message: message.into() })
}
