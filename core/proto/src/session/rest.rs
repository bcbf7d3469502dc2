//! The REST calls around the session loop: open, join, participants, events, meta (session service §3).

use super::ids::SessionId;
use super::tool::ToolDeclaration;
use crate::{Json, Secret};
use serde::{Deserialize, Serialize};

/// The body of `POST /api/v1/sessions` and `POST /api/v1/sessions/{id}/join`. Unknown members are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OpenRequest {
    /// The client's own version text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_version: Option<String>,
    /// Tools that the client runs. A join without the member leaves what its key declared before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<ToolDeclaration>>,
    /// Tools that run in the session's sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandbox_tools: Vec<ToolDeclaration>,
    /// Subagents that the service starts, raw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subagent_tools: Vec<Json>,
    /// How the history is compacted, raw; only when a session is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<Json>,
    /// What is kept with the session from the beginning, raw; only when it is opened (feature `metadata`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
    /// Which tools of the service a person is asked for, raw; only when a session is opened (feature `approve`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<Json>,
}

/// The answer to open and join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The session.
    pub session_id: SessionId,
    /// The key for everything else in this session; shown once.
    pub session_key: Secret,
    /// The profile as the service shows it, raw.
    pub profile: Json,
}

impl Opened {
    /// Reads the answer.
    ///
    /// # Errors
    /// When the id or the key is missing.
    pub fn read(body: &Json) -> Result<Self, crate::json::JsonError> {
        let text = |name: &str| {
            body.member(name).and_then(|v| v.to_text()).ok_or_else(|| crate::json::JsonError {
                at: 0,
                reason: format!("the answer has no string \"{name}\""),
            })
        };
        Ok(Self {
            session_id: text("session_id")?.into(),
            session_key: Secret::new(text("session_key")?),
            profile: body.member("profile").unwrap_or_default(),
        })
    }
}

/// `GET …/participants`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Participants {
    /// The client keys registered as drivers, sorted.
    #[serde(default)]
    pub drivers: Vec<String>,
}

/// A page of `GET …/events`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Page {
    /// Events, oldest first, raw.
    #[serde(default)]
    pub items: Vec<Json>,
    /// Where the next page starts; opaque. Absent at the end.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// `GET /api/v1/meta`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Meta {
    /// The service's version.
    #[serde(default)]
    pub version: String,
    /// API versions; this one is `v1`.
    #[serde(default)]
    pub api_versions: Vec<String>,
    /// Features beyond the plain contract.
    #[serde(default)]
    pub features: Vec<String>,
    /// The service's limits; absent on a plain service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// The limits a service announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Limits {
    /// How long a paused turn waits for its results, in milliseconds.
    #[serde(default)]
    pub turn_timeout_ms: Option<u64>,
    /// The largest request body, in bytes.
    #[serde(default)]
    pub max_request_bytes: Option<u64>,
    /// Model rounds in one turn.
    #[serde(default)]
    pub max_rounds: Option<u32>,
    /// How many events a reader may fall behind before it is dropped.
    #[serde(default)]
    pub ring_events: Option<u64>,
    /// The largest page of `GET …/events`.
    #[serde(default)]
    pub max_page: Option<u32>,
    /// The silence after which a stream that asked for `heartbeat` gets a sign of life, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<u64>,
    /// How long a pause may be held after it began, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hold_ms: Option<u64>,
    /// How many ids of messages a session remembers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_ids: Option<u32>,
    /// Bytes of JSON text that a session's metadata may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_metadata_bytes: Option<u64>,
    /// Members that a session's metadata may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_metadata_keys: Option<u32>,
    /// How long the service waits for consent to a call of its own, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_timeout_ms: Option<u64>,
}

impl Limits {
    /// What the plain contract prescribes: 120 s, 16 MiB, 8 rounds, 256 events, 200 items. It has no features.
    #[must_use]
    pub const fn standard() -> Self {
        Self {
            turn_timeout_ms: Some(120_000),
            max_request_bytes: Some(16 * 1024 * 1024),
            max_rounds: Some(8),
            ring_events: Some(256),
            max_page: Some(200),
            heartbeat_ms: None,
            max_hold_ms: None,
            message_ids: None,
            max_metadata_bytes: None,
            max_metadata_keys: None,
            approval_timeout_ms: None,
        }
    }
}
