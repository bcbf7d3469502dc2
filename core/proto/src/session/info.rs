//! How a session stands, and what its participants keep with it (feature `metadata`): the answer to
//! `GET` and `PATCH /api/v1/sessions/{id}`, and an item of `GET /api/v1/sessions`.

use super::content::open_enum;
use super::ids::{EventId, KeyId, SessionId};
use crate::Json;
use crate::json::JsonError;
use serde::{Deserialize, Serialize};

open_enum! {
    /// The state of a session (session service §11).
    SessionState {
        /// Turns are possible.
        Open = "open",
        /// Closed by a participant.
        Closed = "closed",
        /// Ended by a failure.
        Error = "error",
    }
}

open_enum! {
    /// What a session's gate is doing.
    TurnStatus {
        /// No turn runs, and none is paused.
        Idle = "idle",
        /// A turn runs.
        Running = "running",
        /// A turn waits for its driver.
        Paused = "paused",
    }
}

/// The turn of a session at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TurnInfo {
    /// Whether one runs or is paused.
    pub status: TurnStatus,
    /// The client key whose turn it is; nothing when it is nobody's.
    #[serde(default)]
    pub owner: Option<KeyId>,
    /// For how long nobody takes a paused turn over, in milliseconds; nothing when none is paused.
    #[serde(default)]
    pub expires_in_ms: Option<u64>,
    /// How many calls wait for their turn.
    #[serde(default)]
    pub waiting: u64,
}

impl TurnInfo {
    /// No turn, and nobody waits.
    #[must_use]
    pub const fn idle() -> Self {
        Self { status: TurnStatus::Idle, owner: None, expires_in_ms: None, waiting: 0 }
    }
}

impl Default for TurnInfo {
    fn default() -> Self {
        Self::idle()
    }
}

/// A session as it stands. Members that this version does not know are passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session.
    pub session_id: SessionId,
    /// Where it is in its life.
    pub state: SessionState,
    /// When it was opened: UTC, ISO 8601.
    pub created_at: String,
    /// When its last event was logged.
    pub updated_at: String,
    /// When it ended; nothing while it is open.
    #[serde(default)]
    pub closed_at: Option<String>,
    /// The client key that opened it.
    pub created_by: KeyId,
    /// The client keys registered as drivers, sorted.
    #[serde(default)]
    pub drivers: Vec<String>,
    /// Its turn at this moment.
    #[serde(default)]
    pub turn: TurnInfo,
    /// The profile, as the answer to opening shows it; raw.
    #[serde(default)]
    pub profile: Json,
    /// How the history is compacted: `client` or `auto`.
    #[serde(default)]
    pub compaction: String,
    /// What its participants keep with it: a JSON object, raw.
    #[serde(default)]
    pub metadata: Json,
    /// How often the metadata was changed: for an update that must not undo another one's.
    #[serde(default)]
    pub metadata_version: u64,
    /// How many events its log has.
    #[serde(default)]
    pub events: u64,
    /// The last event of its log: a cursor from which a subscription shows what comes.
    #[serde(default)]
    pub last_event_id: Option<EventId>,
}

impl SessionInfo {
    /// How a session stands of which only what never changes is known; the rest is to be filled in.
    #[must_use]
    pub fn new(session_id: SessionId, created_by: KeyId, created_at: impl Into<String>) -> Self {
        let created_at = created_at.into();
        Self {
            session_id,
            state: SessionState::Open,
            updated_at: created_at.clone(),
            created_at,
            closed_at: None,
            created_by,
            drivers: Vec::new(),
            turn: TurnInfo::idle(),
            profile: Json::null(),
            compaction: "client".to_owned(),
            metadata: Json::empty_object(),
            metadata_version: 0,
            events: 0,
            last_event_id: None,
        }
    }

    /// Reads the answer of a service.
    ///
    /// # Errors
    /// When a member is missing or of another type.
    pub fn read(body: &Json) -> Result<Self, JsonError> {
        body.decode()
    }
}

/// A page of `GET /api/v1/sessions`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionPage {
    /// Sessions, the newest first.
    #[serde(default)]
    pub items: Vec<SessionInfo>,
    /// Where the next page begins; opaque. Nothing at the end.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// The body of `PATCH /api/v1/sessions/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataPatch {
    /// What changes, as a JSON merge patch (RFC 7396): `null` takes a member away.
    pub metadata: Json,
    /// The version that is to be changed; without it, whatever version there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_members_nobody_knows_are_passed_over() {
        let mut info = SessionInfo::new("ses_1".into(), "key_a".into(), "2026-01-01T00:00:00.000Z");
        info.metadata = Json::parse(r#"{"n":1e3}"#).unwrap();
        info.turn = TurnInfo {
            status: TurnStatus::Paused,
            owner: Some("key_a".into()),
            expires_in_ms: Some(5),
            waiting: 2,
        };
        let written = Json::encode(&info).unwrap();
        assert_eq!(SessionInfo::read(&written), Ok(info.clone()));
        assert_eq!(written.member("metadata").unwrap().as_str(), r#"{"n":1e3}"#);
        let more = written.with_member("mood", &Json::string("fine"));
        assert_eq!(SessionInfo::read(&more), Ok(info));
        assert!(SessionInfo::read(&Json::empty_object()).is_err());
    }

    #[test]
    fn a_status_nobody_knows_is_kept_and_is_no_other_one() {
        let turn: TurnInfo = Json::parse(r#"{"status":"dreaming"}"#).unwrap().decode().unwrap();
        assert_eq!(turn.status, TurnStatus::Unknown("dreaming".into()));
        assert_eq!((turn.owner, turn.waiting), (None, 0));
    }
}
