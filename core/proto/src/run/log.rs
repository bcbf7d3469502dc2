//! Events on their way to the log: type, payload, who caused them, and who may see them.

use super::toolbox::Route;
use crate::Json;
use crate::session::approval::{Decision, Question, SettledBy, resolved_payload};
use crate::session::content::{Block, BlockKind, Content, Dispatch, Message, Role, ToolUse};
use crate::session::event::EventType;
use crate::session::ids::{KeyId, ProfileId};
use std::fmt;
use std::sync::Arc;

/// An event to be logged. The store adds id, number and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEvent {
    /// Its type.
    pub event_type: EventType,
    /// Who caused it.
    pub client_key_id: KeyId,
    /// Its payload, a JSON object. When [`LogEvent::elided`] is there, the payload lacks `messages`.
    pub payload: Json,
    /// What `messages` of a `provider.request` holds beyond the stored history.
    pub elided: Option<Elided>,
    /// Who is shown it.
    pub audience: Audience,
}

/// The part of `provider.request.messages` that is in no stored message.
///
/// The full list is: every `client.message.send` and `server.message.send` logged before the event
/// itself (only the turn that holds the gate logs messages, so its own message is the last of
/// them), each as [`provider_message`], then the tail. [`compose_request`] writes it out.
#[derive(Clone, PartialEq, Eq)]
pub struct Elided {
    /// Exchanges with server-side tools in this turn: a JSON array of messages.
    pub tail: Json,
    /// The full list, for those who watch while it happens. It is not to be stored.
    pub messages: Arc<Vec<Message>>,
}

impl fmt::Debug for Elided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elided({} messages, tail {:?})", self.messages.len(), self.tail)
    }
}

/// Who is shown an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Every watcher, and the caller's stream and `result.events`.
    Everyone,
    /// Every watcher and `result.events`, but not the caller's own stream: it has just sent this
    /// (session service §5.3).
    AllButCallerStream,
    /// Watchers and history only; neither the caller's stream nor its `result.events`.
    Watchers,
}

impl LogEvent {
    /// An event that everyone is shown.
    #[must_use]
    pub fn new(event_type: EventType, client_key_id: KeyId, payload: Json) -> Self {
        Self { event_type, client_key_id, payload, elided: None, audience: Audience::Everyone }
    }

    /// The same event for another audience.
    #[must_use]
    pub fn shown_to(mut self, audience: Audience) -> Self {
        self.audience = audience;
        self
    }

    /// The payload with nothing left out, as watchers and `result.events` show it. It is the same text that
    /// [`compose_request`] writes from the stored parts.
    #[must_use]
    pub fn whole_payload(&self) -> Json {
        let Some(elided) = &self.elided else { return self.payload.clone() };
        let messages: Vec<Json> = elided.messages.iter().map(Message::to_json).collect();
        self.payload.with_member("messages", &Json::array(&messages))
    }

    /// A `session.error` with `reason` and the members that belong to it.
    #[must_use]
    pub fn error(client_key_id: KeyId, reason: &str, members: &[(&str, Json)]) -> Self {
        let reason = Json::string(reason);
        let payload = Json::object(
            members.iter().map(|(name, value)| (*name, value)).chain([("reason", &reason)]),
        );
        Self::new(EventType::SessionError, client_key_id, payload)
    }

    /// A client registered as a driver for the first time.
    #[must_use]
    pub fn driver_registered(key: &KeyId) -> Self {
        Self::new(EventType::SessionDriverRegister, key.clone(), Json::empty_object())
    }

    /// A participant closed the session; attributed to its creator (session service §3.4).
    #[must_use]
    pub fn closed_by_client(creator: &KeyId) -> Self {
        let payload = Json::object([("reason", &Json::string("client_close"))]);
        Self::new(EventType::SessionClose, creator.clone(), payload)
    }

    /// The last client key that took part was revoked; attributed to the session's creator (session service §11).
    #[must_use]
    pub fn client_key_revoked(creator: &KeyId) -> Self {
        let payload = Json::object([("reason", &Json::string("client_key_revoked"))]);
        Self::new(EventType::SessionClose, creator.clone(), payload)
    }

    /// The profile is gone while the session runs; the session goes to state `error`.
    #[must_use]
    pub fn profile_unavailable(actor: &KeyId, profile: &ProfileId) -> Self {
        let members = [("profile_id", Json::string(profile.as_str()))];
        Self::error(actor.clone(), "profile_unavailable", &members).shown_to(Audience::Watchers)
    }

    /// A parked turn of `owner` passed its deadline and is taken over. To be logged with the take-over; the call that
    /// takes over is not shown it (session service §5.3).
    #[must_use]
    pub fn turn_abandoned(owner: &KeyId) -> Self {
        let members = [("owner_client_key_id", Json::string(owner.as_str()))];
        Self::error(owner.clone(), "driver_turn_abandoned", &members).shown_to(Audience::Watchers)
    }

    /// A turn of `owner` was cancelled; `was` is `running` or `paused`.
    #[must_use]
    pub fn turn_cancelled(owner: &KeyId, was: &str) -> Self {
        let payload = Json::object([
            ("owner_client_key_id", &Json::string(owner.as_str())),
            ("was", &Json::string(was)),
        ]);
        Self::new(EventType::parse(EventType::TURN_CANCELLED), owner.clone(), payload)
    }

    /// A driver changed what is kept with the session: all of it as it is now, and its new version.
    #[must_use]
    pub fn metadata_updated(who: &KeyId, metadata: &Json, version: u64) -> Self {
        let version = Json::integer(i64::try_from(version).unwrap_or(i64::MAX));
        let payload = Json::object([("metadata", metadata), ("version", &version)]);
        Self::new(EventType::parse(EventType::METADATA_UPDATED), who.clone(), payload)
    }

    /// A call of `owner`'s turn waits for consent.
    #[must_use]
    pub fn approval_requested(owner: &KeyId, question: &Question) -> Self {
        let event_type = EventType::parse(EventType::APPROVAL_REQUESTED);
        Self::new(event_type, owner.clone(), question.to_json(owner.as_str()))
    }

    /// A question was settled; `input` is what it was narrowed to.
    #[must_use]
    pub fn approval_resolved(
        owner: &KeyId,
        tool_use_id: &str,
        (decision, by): (&Decision, &SettledBy),
        input: Option<&Json>,
        reason: Option<&str>,
    ) -> Self {
        let payload = resolved_payload(tool_use_id, decision, by, input, reason);
        Self::new(EventType::parse(EventType::APPROVAL_RESOLVED), owner.clone(), payload)
    }

    /// A question that nobody has to answer any more, because its turn has ended.
    #[must_use]
    pub fn approval_withdrawn(owner: &KeyId, tool_use_id: &str, by: &SettledBy) -> Self {
        Self::approval_resolved(owner, tool_use_id, (&Decision::Withdrawn, by), None, None)
    }
}

/// Writes the payload of a `provider.request` out: the stored payload plus `messages`, which are the
/// messages of the history, each as [`provider_message`] gives it, and then the tail.
#[must_use]
pub fn compose_request<'a>(
    payload: &Json,
    history: impl IntoIterator<Item = &'a Json>,
    tail: &Json,
) -> Json {
    let tail = tail.elements().unwrap_or_default();
    let messages: Vec<Json> = history.into_iter().cloned().chain(tail).collect();
    payload.with_member("messages", &Json::array(&messages))
}

/// A stored message (the payload of `client.message.send` or `server.message.send`) as providers get
/// it: role and content only, without what concerns the service alone.
#[must_use]
pub fn provider_message(payload: &Json, event_type: &EventType) -> Json {
    history_message(payload, event_type).to_json()
}

/// As [`provider_message`], read.
#[must_use]
pub fn history_message(payload: &Json, event_type: &EventType) -> Message {
    let default = match event_type {
        EventType::ServerMessageSend => Role::Assistant,
        _ => Role::User,
    };
    let role = payload.member("role").and_then(|r| r.to_text());
    let content = payload.member("content").unwrap_or_default();
    let role = role.map_or(default, |word| Role::parse(&word));
    for_provider(Message { role, content: Content::read(&content) })
}

/// Takes `dispatch` and `caller` off every tool call: they never reach a provider (session service §6.4).
#[must_use]
pub fn for_provider(mut message: Message) -> Message {
    if let Content::Blocks(blocks) = &mut message.content {
        for block in blocks {
            let is_call = match block.kind() {
                BlockKind::ToolUse(_) => true,
                BlockKind::Unknown { block_type } => block_type == "tool_use",
                _ => false,
            };
            if is_call {
                let json = block.json();
                let internal = ["dispatch", "caller"];
                if internal.iter().any(|name| json.member(name).is_some()) {
                    *block = Block::read(json.without_member("dispatch").without_member("caller"));
                }
            }
        }
    }
    message
}

/// `tool.call`; `server_name` only for the bucket `mcp`.
pub(super) fn call_payload(call: &ToolUse, route: &Route) -> Json {
    let payload = Json::object([
        ("dispatch", &Json::string(route.dispatch().as_str())),
        ("id", &Json::string(&call.id)),
        ("input", &call.input),
        ("name", &Json::string(&call.name)),
    ]);
    match route {
        Route::Mcp(server) => payload.with_member("server_name", &name_or_null(server.as_deref())),
        _ => payload,
    }
}

/// `tool.result` of a client tool: neither `is_error` nor `server_name` (session service §9).
pub(super) fn client_result(id: &str, content: &Json) -> Json {
    Json::object([
        ("content", content),
        ("dispatch", &Json::string(Dispatch::Client.as_str())),
        ("tool_use_id", &Json::string(id)),
    ])
}

/// `tool.result` of a call that the service has run.
pub(super) fn server_result(id: &str, route: &Route, content: &Json, is_error: bool) -> Json {
    let (dispatch, is_error) = (Json::string(route.dispatch().as_str()), boolean(is_error));
    let server = match route {
        Route::Mcp(server) => Some(name_or_null(server.as_deref())),
        _ => None,
    };
    let id = Json::string(id);
    let head = [("content", content), ("dispatch", &dispatch), ("is_error", &is_error)];
    let server = server.as_ref().map(|name| ("server_name", name));
    Json::object(head.into_iter().chain(server).chain([("tool_use_id", &id)]))
}

/// `mcp.request`.
pub(super) fn mcp_request(call: &ToolUse, server: Option<&str>) -> Json {
    Json::object([
        ("input", &call.input),
        ("method", &Json::string("tools/call")),
        ("server_name", &name_or_null(server)),
        ("tool", &Json::string(&call.name)),
    ])
}

/// `mcp.response`, with `name` being `result` or `error`.
pub(super) fn mcp_response(server: Option<&str>, ok: bool, name: &str, value: &Json) -> Json {
    Json::object([(name, value), ("ok", &boolean(ok)), ("server_name", &name_or_null(server))])
}

/// Content of one text block.
pub(super) fn text_content(text: &str) -> Json {
    Json::array([Block::of_text(text).json()])
}

fn name_or_null(name: Option<&str>) -> Json {
    name.map_or_else(Json::null, Json::string)
}

/// A JSON truth value.
pub(super) fn boolean(value: bool) -> Json {
    Json::of_written(if value { "true" } else { "false" }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn a_request_is_written_out_with_history_and_tail() {
        let history = [
            json(r#"{"role":"user","content":"a"}"#),
            json(r#"{"role":"assistant","content":[]}"#),
        ];
        let whole = compose_request(&json(r#"{"attempt":0}"#), &history, &json("[1,2.0]"));
        assert_eq!(
            whole.as_str(),
            r#"{"attempt":0,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[]},1,2.0]}"#
        );
    }

    #[test]
    fn stored_messages_are_sent_with_role_and_content_only() {
        for (payload, event_type, sent) in [
            (
                r#"{"content":5.0}"#,
                EventType::ClientMessageSend,
                r#"{"role":"user","content":5.0}"#,
            ),
            (
                r#"{"content":""}"#,
                EventType::ServerMessageSend,
                r#"{"role":"assistant","content":""}"#,
            ),
            (
                r#"{"synthetic":"abandoned_tool_results","role":"user","content":[{"type":"tool_use","id":"t","name":"n","input":{"n":1e3},"dispatch":"mcp","caller":1}]}"#,
                EventType::ServerMessageSend,
                r#"{"role":"user","content":[{"type":"tool_use","id":"t","name":"n","input":{"n":1e3}}]}"#,
            ),
        ] {
            assert_eq!(provider_message(&json(payload), &event_type).as_str(), sent);
        }
    }

    #[test]
    fn events_of_the_session_have_the_payloads_of_the_catalogue() {
        let key = KeyId::from("key_a");
        for (event, event_type, payload) in [
            (LogEvent::driver_registered(&key), "session.driver.register", "{}"),
            (LogEvent::closed_by_client(&key), "session.close", r#"{"reason":"client_close"}"#),
            (
                LogEvent::client_key_revoked(&key),
                "session.close",
                r#"{"reason":"client_key_revoked"}"#,
            ),
            (
                LogEvent::profile_unavailable(&key, &ProfileId::from("pro_1")),
                "session.error",
                r#"{"profile_id":"pro_1","reason":"profile_unavailable"}"#,
            ),
        ] {
            assert_eq!(event.event_type.as_str(), event_type);
            assert_eq!(event.payload.as_str(), payload);
        }
    }

    #[test]
    fn a_cancelled_turn_names_its_owner_and_what_it_was() {
        let event = LogEvent::turn_cancelled(&KeyId::from("key_a"), "paused");
        assert_eq!(event.event_type.as_str(), "session.turn.cancelled");
        assert_eq!(event.payload.as_str(), r#"{"owner_client_key_id":"key_a","was":"paused"}"#);
    }
}
