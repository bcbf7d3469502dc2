//! What an application asks of the engine.

use broca_proto::Json;
use broca_proto::session::content::Message;
use broca_proto::session::ids::{Cursor, SessionId};
use broca_proto::session::saved::SavedSession;
use broca_proto::session::tool::Tool;
use std::fmt;

/// One operation. Each ends with exactly one [`Step::Finished`](super::Step::Finished).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Command {
    /// Opens a session and registers as its driver.
    Open {
        /// Tools of this client.
        tools: Vec<Tool>,
        /// What is kept with the session from the beginning: a JSON object. Only where the service offers `metadata`.
        metadata: Option<Json>,
    },
    /// Joins a session and registers as a driver.
    Join {
        /// The session.
        session_id: SessionId,
        /// Tools of this client.
        tools: Vec<Tool>,
    },
    /// Joins a session to watch it: no registration, no tools.
    Observe {
        /// The session.
        session_id: SessionId,
    },
    /// Goes on with a session that another program has saved: registers again, declares these tools if there are any, and
    /// reads the log. [`Outcome::Opened`](super::Outcome::Opened) says whether a turn waits to be taken up.
    Attach {
        /// The session.
        saved: Box<SavedSession>,
        /// Tools of this client.
        tools: Vec<Tool>,
    },
    /// Takes up the turn that another program has left; like a turn that was just begun it shows its events, asks for
    /// what is missing and ends. A message that is sent instead leads with results for the calls that were open.
    Resume,
    /// Saves the session, at any time.
    Save,
    /// Starts a turn. Turns of one engine run one after the other.
    Send {
        /// What to say.
        message: Message,
    },
    /// Watches the session.
    Subscribe {
        /// Where to begin: after this cursor, or with what happens from now on.
        from: Option<Cursor>,
    },
    /// Reads one page of the log.
    History {
        /// Where the page begins: the `next` of the page before, or the start.
        cursor: Option<String>,
        /// At most this many events; the service's default when absent.
        limit: Option<u32>,
    },
    /// Asks who drives.
    Participants,
    /// Asks how the session stands, and for what is kept with it. Only where the service offers `metadata`.
    Info,
    /// Changes what is kept with the session. Only where the service offers `metadata`.
    Update {
        /// What changes, as a JSON merge patch (RFC 7396): an object in which `null` takes a member away.
        metadata: Json,
        /// The version that is to be changed, such as [`SessionInfo::metadata_version`](broca_proto::session::info::SessionInfo);
        /// without it, whatever version there is.
        version: Option<u64>,
    },
    /// Lists the sessions that this client's key has opened or joined, one page, the newest first. Needs no session, and a
    /// service that offers `metadata`.
    Sessions {
        /// Where the page begins: the `next_cursor` of the page before, or the newest.
        cursor: Option<String>,
        /// At most this many sessions; the service's default when absent.
        limit: Option<u32>,
    },
    /// Asks what the service is and can do.
    Meta,
    /// Replaces this client's tools, from the next turn on.
    UpdateTools {
        /// The new tools.
        tools: Vec<Tool>,
    },
    /// Closes the session for everybody. A session that is closed already is no error.
    Close,
}

/// Trace headers of the application's own tracing (design §5); sent as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// The value of `traceparent`.
    pub traceparent: Option<String>,
    /// The value of `tracestate`.
    pub tracestate: Option<String>,
}

/// An answer to something the application was asked, by [`CallId`](super::CallId).
#[derive(Clone)]
#[non_exhaustive]
pub enum Answer {
    /// To `ToolCall`: the tool returned this, a JSON string or an array of content blocks.
    Complete(Json),
    /// To `ToolCall`: the tool failed; the model reads this text.
    Fail(String),
    /// To `ToolCall`: what ran the tool was lost before it ended, so that it may have run; the model reads this text.
    Interrupted(String),
    /// To `Approval`: run the call.
    Allow,
    /// To `Approval`: run the call with narrower arguments.
    AllowNarrowed(Json),
    /// To `Approval`: do not run the call; the model reads the reason.
    Deny(String),
    /// To `Sending`: go on, perhaps with another message and trace headers.
    Send {
        /// The message to send instead.
        message: Option<Message>,
        /// The trace headers of this request.
        trace: Option<Trace>,
    },
    /// To `Sending`: do not send; the operation ends with a hook error of this text.
    Refuse(String),
}

/// Which answer, and nothing of what it says.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Complete(_) => "Complete(..)",
            Self::Fail(_) => "Fail(..)",
            Self::Interrupted(_) => "Interrupted(..)",
            Self::Allow => "Allow",
            Self::AllowNarrowed(_) => "AllowNarrowed(..)",
            Self::Deny(_) => "Deny(..)",
            Self::Send { message, .. } if message.is_some() => "Send(another message)",
            Self::Send { .. } => "Send",
            Self::Refuse(_) => "Refuse(..)",
        })
    }
}

/// Why an approval is denied when nobody looks at the steps.
pub const NOBODY_TO_ASK: &str =
    "the program has nobody to ask for consent (no approval handler is set)";

/// Why a tool without a handler fails when nobody looks at the steps.
pub const NOBODY_TO_RUN: &str =
    "Nobody is there to run this tool: the program only waits for the reply.";
