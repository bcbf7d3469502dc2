//! A session as a value that outlives its program (design §4, guarantee 11).
//!
//! The format is one JSON object, the same in every language; `docs/attach.md` describes it. It holds the session's key and
//! results of tools: keep it where keys are kept, and never log it.

use super::budget::Spent;
use super::content::{Block, Message};
use super::ids::{Cursor, EventId, KeyId, SessionId};
use super::turn::ToolOutcome;
use crate::error::{Error, ErrorKind};
use crate::{Json, Secret};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the format that is written here.
pub const VERSION: u32 = 1;

/// Everything that a program needs to go on with a session that another one has left.
#[derive(Clone, PartialEq, Eq)]
pub struct SavedSession {
    /// The address of the service. Change it when the service has moved.
    pub service: String,
    /// The session.
    pub session_id: SessionId,
    /// The key of the session.
    pub session_key: Secret,
    /// The last event that the application took from a turn.
    pub cursor: Cursor,
    /// A page of the log at or before the beginning of the last turn, where one is known: reading begins there.
    pub page: Option<String>,
    /// The driver's client key, by its id, where it is known.
    pub client_key_id: Option<KeyId>,
    /// Whether this driver opened the session.
    pub opened: bool,
    /// The version text of the application.
    pub client_version: Option<String>,
    /// The names of the tools that were declared.
    pub tools: Vec<String>,
    /// The profile as the service showed it.
    pub profile: Json,
    /// What its turns have spent that were over.
    pub spent: Spent,
    /// The turn that was open.
    pub turn: Option<SavedTurn>,
}

/// A turn that was open when its session was saved.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SavedTurn {
    /// What the application said, if it is not known to be in the log.
    pub message: Option<Message>,
    /// The id under which it left, where the service knows messages by their ids: it can be sent again under it.
    pub message_id: Option<String>,
    /// The event that showed the calls to which the results belong, where it is known.
    pub pause: Option<EventId>,
    /// Results that the service has not taken, in call order.
    pub results: Vec<SavedResult>,
    /// The turn was cancelled: its results lead the next message, and buy no model round of their own.
    pub cancelled: bool,
}

/// The result of a call.
#[derive(Clone, PartialEq, Eq)]
pub struct SavedResult {
    /// What became of the call.
    pub outcome: ToolOutcome,
    /// The `tool_result` block.
    pub result: Block,
}

#[derive(Serialize, Deserialize)]
struct Version {
    broca_session: u32,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    broca_session: u32,
    service: String,
    session_id: SessionId,
    session_key: String,
    #[serde(default)]
    cursor: String,
    #[serde(default)]
    page: Option<String>,
    #[serde(default)]
    client_key_id: Option<KeyId>,
    #[serde(default)]
    opened: bool,
    #[serde(default)]
    client_version: Option<String>,
    #[serde(default)]
    tools: Vec<String>,
    #[serde(default)]
    profile: Json,
    #[serde(default)]
    spent: Spent,
    #[serde(default)]
    turn: Option<WireTurn>,
}

#[derive(Serialize, Deserialize)]
struct WireTurn {
    #[serde(default)]
    message: Option<Message>,
    #[serde(default)]
    message_id: Option<String>,
    #[serde(default)]
    pause: Option<EventId>,
    #[serde(default)]
    results: Vec<WireResult>,
    #[serde(default)]
    cancelled: bool,
}

#[derive(Serialize, Deserialize)]
struct WireResult {
    outcome: String,
    result: Json,
}

impl SavedSession {
    /// Reads what [`SavedSession::to_json`] wrote. Members that this version does not know are skipped.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedVersion`] for a format of another version, [`ErrorKind::InvalidArgument`] for anything that is no saved
    /// session. Values are not repeated: there are keys among them.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let none = || {
            Error::new(ErrorKind::InvalidArgument, "this is no saved session, or it was damaged")
        };
        let version: Version = serde_json::from_slice(text).map_err(|_| none())?;
        if version.broca_session != VERSION {
            let message = format!(
                "the session was saved in format {}, this version reads {VERSION}; use the version that saved it, or a newer one",
                version.broca_session
            );
            return Err(Error::new(ErrorKind::UnsupportedVersion, message));
        }
        let wire: Wire = serde_json::from_slice(text).map_err(|_| none())?;
        let session_key = Secret::new(wire.session_key);
        if wire.session_id.as_str().is_empty() || session_key.is_empty() {
            return Err(none());
        }
        Ok(Self {
            service: wire.service,
            session_id: wire.session_id,
            session_key,
            cursor: wire.cursor.as_str().into(),
            page: wire.page,
            client_key_id: wire.client_key_id,
            opened: wire.opened,
            client_version: wire.client_version,
            tools: wire.tools,
            profile: wire.profile,
            spent: wire.spent,
            turn: wire.turn.map(read_turn).transpose()?,
        })
    }

    /// The session as JSON text. It holds the key: keep it as one keeps keys.
    #[must_use]
    pub fn to_json(&self) -> Secret {
        let turn = self.turn.as_ref().map(|turn| WireTurn {
            message: turn.message.clone(),
            message_id: turn.message_id.clone(),
            pause: turn.pause.clone(),
            results: turn.results.iter().map(write_result).collect(),
            cancelled: turn.cancelled,
        });
        let wire = Wire {
            broca_session: VERSION,
            service: self.service.clone(),
            session_id: self.session_id.clone(),
            session_key: self.session_key.expose().to_owned(),
            cursor: self.cursor.to_string(),
            page: self.page.clone(),
            client_key_id: self.client_key_id.clone(),
            opened: self.opened,
            client_version: self.client_version.clone(),
            tools: self.tools.clone(),
            profile: self.profile.clone(),
            spent: self.spent,
            turn,
        };
        // Texts, numbers and JSON that was read: nothing in it cannot be written.
        let text = Secret::new(serde_json::to_string(&wire).unwrap_or_default());
        drop(Secret::new(wire.session_key));
        text
    }
}

fn read_turn(wire: WireTurn) -> Result<SavedTurn, Error> {
    let results: Result<Vec<SavedResult>, Error> =
        wire.results.into_iter().map(read_result).collect();
    Ok(SavedTurn {
        message: wire.message,
        message_id: wire.message_id,
        pause: wire.pause,
        results: results?,
        cancelled: wire.cancelled,
    })
}

fn read_result(wire: WireResult) -> Result<SavedResult, Error> {
    let result = Block::read(wire.result);
    let outcome = ToolOutcome::parse(&wire.outcome);
    match outcome.filter(|_| result.tool_result().is_some()) {
        Some(outcome) => Ok(SavedResult { outcome, result }),
        None => {
            let message = "a result in the saved session is none, or has an unknown outcome";
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
    }
}

fn write_result(saved: &SavedResult) -> WireResult {
    WireResult { outcome: saved.outcome.as_str().to_owned(), result: saved.result.json().clone() }
}

/// Which session, and nothing of its key, its messages and its results.
impl fmt::Debug for SavedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedSession")
            .field("session_id", &self.session_id)
            .field("cursor", &self.cursor)
            .field("turn", &self.turn)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SavedTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SavedTurn({} results, cancelled: {})", self.results.len(), self.cancelled)
    }
}

impl fmt::Debug for SavedResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SavedResult({})", self.outcome.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> SavedSession {
        let result = Json::parse(
            r#"{"type":"tool_result","tool_use_id":"a","content":"hunter2","big":12345678901234567890}"#,
        );
        SavedSession {
            service: "http://127.0.0.1:8080".to_owned(),
            session_id: "ses_1".into(),
            session_key: Secret::new("hunter2"),
            cursor: "evt_9".into(),
            page: Some("200".to_owned()),
            client_key_id: Some("key_1".into()),
            opened: true,
            client_version: None,
            tools: vec!["read".to_owned()],
            profile: Json::parse(r#"{"name":"main","n":1e2}"#).unwrap(),
            spent: Spent { rounds: 2, input_tokens: 7, ..Spent::default() },
            turn: Some(SavedTurn {
                message: Some(Message::user("hunter2 ä")),
                message_id: Some("msg_1".to_owned()),
                pause: Some("evt_8".into()),
                results: vec![SavedResult {
                    outcome: ToolOutcome::Done,
                    result: Block::read(result.unwrap()),
                }],
                cancelled: false,
            }),
        }
    }

    #[test]
    fn a_session_is_read_as_it_was_written() {
        let text = saved().to_json();
        assert_eq!(SavedSession::parse(text.expose().as_bytes()).unwrap(), saved());
        assert!(text.expose().contains("12345678901234567890") && text.expose().contains("1e2"));
        let idle = SavedSession { turn: None, cursor: Cursor::start(), ..saved() };
        let text = idle.to_json();
        assert_eq!(SavedSession::parse(text.expose().as_bytes()).unwrap(), idle);
    }

    #[test]
    fn nothing_that_is_printed_shows_keys_messages_or_results() {
        let shown = format!("{:?} {:?}", saved(), saved().to_json());
        assert!(!shown.contains("hunter2") && shown.contains("ses_1"), "{shown}");
    }

    #[test]
    fn what_is_no_saved_session_is_refused_without_repeating_it() {
        let whole = saved().to_json();
        let kind = |text: &str| {
            let error = SavedSession::parse(text.as_bytes()).unwrap_err();
            assert!(!error.message().contains("hunter2"), "{error}");
            error.kind()
        };
        for wrong in ["", "hunter2", "[]", "{}", r#"{"broca_session":1,"session_key":"hunter2"}"#] {
            assert_eq!(kind(wrong), ErrorKind::InvalidArgument, "{wrong}");
        }
        let newer = whole.expose().replace("\"broca_session\":1", "\"broca_session\":2");
        assert_eq!(kind(&newer), ErrorKind::UnsupportedVersion);
        for (part, other) in
            [("\"done\"", "\"hunter2\""), ("\"tool_result\"", "\"text\""), ("\"ses_1\"", "\"\"")]
        {
            assert_eq!(
                kind(&whole.expose().replace(part, other)),
                ErrorKind::InvalidArgument,
                "{part}"
            );
        }
        let cut = &whole.expose()[..whole.expose().len() - 1];
        assert_eq!(kind(cut), ErrorKind::InvalidArgument);
    }

    #[test]
    fn members_of_later_versions_are_skipped() {
        let text =
            saved().to_json().expose().replace("\"opened\":true", "\"opened\":true,\"more\":[1]");
        assert_eq!(SavedSession::parse(text.as_bytes()).unwrap(), saved());
    }
}
