//! Profiles, keys, sessions and gates as values of the store.

use super::event::{NewEvent, Seq, Stored, WallTime};
use crate::keys::KeyHash;
use broca_proto::run::quota::KeyLimits;
use std::fmt;

/// What sessions are opened with: a trust boundary made by the operator (session service §13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// `pro_` and 32 hex digits.
    pub id: String,
    /// Unique, also among deleted profiles.
    pub name: String,
    /// The provider that is asked first, by name.
    pub primary_provider: String,
    /// The providers that are asked next, in order.
    pub fallback_providers: Vec<String>,
    /// The MCP servers whose tools its sessions have.
    pub mcp_servers: Vec<String>,
    /// The names of client tools that may be declared; `*` allows every name.
    pub allowed_tools: Vec<String>,
    /// The images that sandboxes may be started from.
    pub available_sandboxes: Vec<String>,
    /// What each of its client keys may use.
    pub limits: KeyLimits,
    /// Whether it was deleted: no session is opened or joined with it any more.
    pub deleted: bool,
}

/// A client key to be added.
#[derive(Debug, Clone)]
pub struct NewClientKey {
    /// `key_` and 32 hex digits.
    pub id: String,
    /// What its owner calls it.
    pub name: String,
    /// The first eight characters of the plaintext, for lists.
    pub display_prefix: String,
    /// The hash of the plaintext.
    pub hash: KeyHash,
    /// The profile that it is bound to.
    pub profile_id: String,
    /// What it may use, before what its profile says.
    pub limits: KeyLimits,
}

/// A client key that was recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientKey {
    /// Its id.
    pub id: String,
    /// What its owner calls it.
    pub name: String,
    /// The profile that it is bound to.
    pub profile_id: String,
}

/// Where a session is in its life. The last two are final (session service §11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// It takes turns.
    Open,
    /// Somebody closed it.
    Closed,
    /// A fault ended it, or it was refused when it was to be opened.
    Error,
}

impl SessionState {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The tool lists that one client key declared in one session: JSON arrays as text, as they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolLists {
    /// Run by the client.
    pub tools: String,
    /// Run by the service in the session's sandbox.
    pub sandbox_tools: String,
    /// Run by the service as subagents.
    pub subagent_tools: String,
}

impl Default for ToolLists {
    fn default() -> Self {
        let none = || "[]".to_owned();
        Self { tools: none(), sandbox_tools: none(), subagent_tools: none() }
    }
}

/// A session to be opened.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// `ses_` and 32 hex digits.
    pub id: String,
    /// The profile that it is bound to.
    pub profile_id: String,
    /// The client key that opens it.
    pub creator: String,
    /// What the client says of itself.
    pub client_version: Option<String>,
    /// Session-wide settings that are fixed at creation, a JSON object as text; see
    /// [`Declared::settings`](broca_proto::run::open::Declared::settings).
    pub settings: Option<String>,
    /// What is kept with it from the beginning, a JSON object as text.
    pub metadata: Option<String>,
}

/// A session as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: String,
    /// The profile that it is bound to.
    pub profile_id: String,
    /// The client key that opened it.
    pub creator: String,
    /// What the client said of itself.
    pub client_version: Option<String>,
    /// The settings fixed at creation.
    pub settings: Option<String>,
    /// Where it is in its life.
    pub state: SessionState,
    /// When it was opened.
    pub created_at: WallTime,
    /// When it ended.
    pub closed_at: Option<WallTime>,
    /// Its last event; [`Seq::START`] without events.
    pub last_seq: Seq,
}

/// A session as it is told of: what is kept with it, who drives it, how far its log has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview {
    /// The session.
    pub session: Session,
    /// Its drivers by id, sorted.
    pub drivers: Vec<String>,
    /// Its metadata, a JSON object as text.
    pub metadata: String,
    /// How often that was changed.
    pub metadata_version: u64,
    /// Id and time of its last event.
    pub last_event: Option<(String, WallTime)>,
}

/// Some of the sessions of a client key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OverviewPage {
    /// The sessions, newest first.
    pub items: Vec<Overview>,
    /// Whether older ones follow.
    pub more: bool,
}

/// What changing the metadata of a session did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataChange {
    /// It is changed, and this event was logged.
    Now(Stored),
    /// It has another version: nothing was changed.
    Behind,
}

/// What registering a driver did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// It was new: these events were logged.
    First(Vec<Stored>),
    /// It was a driver already; nothing was logged.
    Already,
}

/// What closing a session did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closing {
    /// It was open: these events were logged and it is over.
    Now(Vec<Stored>),
    /// It was over already, in this state; nothing was logged. [`SessionState::Open`] when it is not over: somebody
    /// takes part in a session that was to be closed because nobody does.
    Already(SessionState),
}

/// Which holding of a session's gate: it grows each time that the gate changes hands.
///
/// A turn passes its epoch with everything that it logs, so that one which lost the gate cannot write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// The gate, held, and the events that were logged with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Pass it with everything that the turn logs.
    pub epoch: Epoch,
    /// The events handed in, stored.
    pub events: Vec<Stored>,
}

/// A turn that waits for its driver (session service §7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// The client key whose turn it is.
    pub owner: String,
    /// When it began to wait.
    pub began: WallTime,
    /// Until when it waits.
    pub deadline: WallTime,
    /// The ids of all `tool_use` blocks of the paused message, in its order.
    pub expected: Vec<String>,
    /// The results that the service has already: a JSON array of `tool_result` blocks as text.
    pub stashed: String,
    /// What else the turn engine needs to go on: JSON as text.
    pub progress: String,
}

/// A paused turn in a session's gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// The session.
    pub session: String,
    /// Names this pause and no later one; not a lease.
    pub epoch: Epoch,
    /// The pause.
    pub pause: Pause,
}

/// A question for consent to a call, as the log tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedApproval {
    /// The client key whose turn it is.
    pub owner: String,
    /// The payload of `session.approval.resolved` as text, once the question is settled.
    pub resolved: Option<String>,
}

/// A question that nothing settles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenApproval {
    /// The session.
    pub session: String,
    /// The client key whose turn it was.
    pub owner: String,
    /// The id of the call.
    pub call: String,
}

/// A few numbers that cost nothing to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Sessions ever recorded, refused ones included.
    pub sessions: u64,
    /// Events ever logged.
    pub events: u64,
    /// Turns that wait for their driver.
    pub paused: u64,
}

/// Everything that a join records.
#[derive(Debug, Clone)]
pub struct Join {
    /// The session.
    pub session: String,
    /// The client key that joins.
    pub client_key_id: String,
    /// Replaces what it declared before; `None` leaves it.
    pub tools: Option<ToolLists>,
    /// The hash of the session key minted for it.
    pub session_key: KeyHash,
    /// `session.join`.
    pub event: NewEvent,
}
