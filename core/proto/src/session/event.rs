//! One event of a session's log, as the wire shows it (session service §3.4, §9).

use super::content::open_enum;
use super::ids::{EventId, KeyId, SessionId};
use crate::Json;
use crate::json::{JsonError, scan, write_string};
use bytes::Bytes;
use std::fmt;

open_enum! {
    /// The type of an event. The catalogue has 28; a service may have more.
    EventType {
        /// A driver's message, after any merge.
        ClientMessageSend = "client.message.send",
        /// The model's message at the end of a turn or at a pause.
        ServerMessageSend = "server.message.send",
        /// A request to a provider.
        ProviderRequest = "provider.request",
        /// A provider's answer, or its failure.
        ProviderResponse = "provider.response",
        /// The model called a tool.
        ToolCall = "tool.call",
        /// The result of a tool call.
        ToolResult = "tool.result",
        /// A call of an MCP server.
        McpRequest = "mcp.request",
        /// The answer of an MCP server.
        McpResponse = "mcp.response",
        /// A command for the remote sandbox.
        SandboxRequest = "sandbox.request",
        /// The outcome of a sandbox command.
        SandboxResponse = "sandbox.response",
        /// The session was opened.
        SessionOpen = "session.open",
        /// A client joined.
        SessionJoin = "session.join",
        /// A client registered as a driver.
        SessionDriverRegister = "session.driver.register",
        /// The session was closed.
        SessionClose = "session.close",
        /// Something went wrong; the payload's `reason` says what.
        SessionError = "session.error",
        /// A compaction began.
        SessionCompactionStarted = "session.compaction.started",
        /// A compaction is done; later history starts at its summary.
        SessionCompactionCompleted = "session.compaction.completed",
        /// The sandbox images that the profile offers.
        SessionSandboxAvailable = "session.sandbox.available",
        /// A sandbox is being started.
        SessionSandboxStart = "session.sandbox.start",
        /// A sandbox runs.
        SessionSandboxRunning = "session.sandbox.running",
        /// A sandbox is being stopped.
        SessionSandboxStop = "session.sandbox.stop",
        /// A sandbox has stopped.
        SessionSandboxStopped = "session.sandbox.stopped",
        /// A sandbox failed.
        SessionSandboxError = "session.sandbox.error",
        /// A subagent is being started.
        SessionSubagentStart = "session.subagent.start",
        /// A subagent runs.
        SessionSubagentRunning = "session.subagent.running",
        /// A subagent finished.
        SessionSubagentCompleted = "session.subagent.completed",
        /// A subagent failed.
        SessionSubagentFailed = "session.subagent.failed",
        /// A subagent was cancelled.
        SessionSubagentCancelled = "session.subagent.cancelled",
    }
}

impl EventType {
    /// A turn was cancelled; logged only for readers that asked for [`super::feature::Feature::Cancel`].
    pub const TURN_CANCELLED: &'static str = "session.turn.cancelled";
    /// The session's metadata was changed; shown to readers that asked for [`super::feature::Feature::Metadata`].
    pub const METADATA_UPDATED: &'static str = "session.metadata.updated";
    /// A call of the service's own waits for consent; shown to those who asked for [`super::feature::Feature::Approve`].
    pub const APPROVAL_REQUESTED: &'static str = "session.approval.requested";
    /// A question was settled; shown as it was.
    pub const APPROVAL_RESOLVED: &'static str = "session.approval.resolved";

    /// Whether the plain contract's closed catalogue holds this type.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.is_known()
    }
}

/// An event: its JSON as it came, and where the envelope's members lie in it.
///
/// The payload is neither copied nor decoded before it is asked for.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    raw: Bytes,
    id: Text,
    session_id: Text,
    event_type: Text,
    created_at: Text,
    client_key_id: Option<Text>,
    payload: (u32, u32),
}

/// Where the members of an event's envelope lie in its JSON: for handing an event over whole, without copying or
/// looking for each.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// The event's own id.
    pub id: Place<'a>,
    /// The type.
    pub event_type: Place<'a>,
    /// The session it belongs to.
    pub session_id: Place<'a>,
    /// Who caused it.
    pub client_key_id: Option<Place<'a>>,
    /// When it was logged.
    pub created_at: Place<'a>,
    /// The payload: from, to. Nothing when the event has none.
    pub payload: Option<(u32, u32)>,
}

/// Where a string lies in the JSON of its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// From, to: the text is there as it is.
    At(u32, u32),
    /// It was written with escapes; this is the text.
    Decoded(&'a str),
}

/// The members from which the service makes an event.
#[derive(Debug, Clone, Copy)]
pub struct EventParts<'a> {
    /// The event's own id.
    pub id: &'a str,
    /// The session it belongs to.
    pub session_id: &'a str,
    /// Who caused it.
    pub client_key_id: Option<&'a str>,
    /// Its type.
    pub event_type: &'a str,
    /// Its payload, a JSON object.
    pub payload: &'a str,
    /// When it was logged: UTC, ISO-8601 with milliseconds and `Z`.
    pub created_at: &'a str,
}

impl Event {
    /// Writes an event from its parts.
    ///
    /// # Errors
    /// When the payload is not valid JSON.
    pub fn write(parts: &EventParts<'_>) -> Result<Self, JsonError> {
        let mut out = String::with_capacity(parts.payload.len() + 256);
        out.push_str("{\"client_key_id\":");
        match parts.client_key_id {
            Some(key) => write_string(&mut out, key),
            None => out.push_str("null"),
        }
        for (name, text) in [
            (",\"created_at\":", parts.created_at),
            (",\"event_type\":", parts.event_type),
            (",\"id\":", parts.id),
        ] {
            out.push_str(name);
            write_string(&mut out, text);
        }
        out.push_str(",\"payload\":");
        out.push_str(parts.payload);
        out.push_str(",\"session_id\":");
        write_string(&mut out, parts.session_id);
        out.push('}');
        Self::parse(&out.into())
    }

    /// Reads an event from its JSON text.
    ///
    /// # Errors
    /// When the text is not one JSON object with at least string members `id` and `event_type`.
    pub fn parse(text: &Bytes) -> Result<Self, JsonError> {
        if let Err(e) = std::str::from_utf8(text) {
            return Err(JsonError { at: e.valid_up_to(), reason: "not UTF-8".to_owned() });
        }
        let start = scan::blanks(text, 0);
        let (event, end) = Self::scan(text, start)?;
        if scan::blanks(text, end) != text.len() {
            return Err(JsonError { at: end, reason: "something follows the event".to_owned() });
        }
        Ok(event)
    }

    /// Reads the event that starts at `start` of a text known to be UTF-8; also says where it ends.
    pub(crate) fn scan(text: &Bytes, start: usize) -> Result<(Self, usize), JsonError> {
        let missing = |name: &str| JsonError { at: start, reason: format!("no member \"{name}\"") };
        let Some(mut members) = scan::members(text, start) else {
            return Err(JsonError { at: start, reason: "an event must be an object".to_owned() });
        };
        let mut fields: [Option<Text>; 5] = Default::default();
        let mut payload = (0, 0);
        loop {
            // Strings of the envelope are scanned here, so that it is known whether they hold escapes.
            let mut escaped = None;
            let step = members.step(|_, _, at| {
                if text.get(at) != Some(&b'"') {
                    return Ok(scan::Visit::Skip);
                }
                let (end, has_escapes) = scan::string(text, at + 1)?;
                escaped = Some(has_escapes);
                Ok(scan::Visit::Until(end))
            })?;
            let Some(member) = step else { break };
            let slot = match member.key_bytes(text).as_ref() {
                b"id" => 0,
                b"session_id" => 1,
                b"event_type" => 2,
                b"created_at" => 3,
                b"client_key_id" => 4,
                b"payload" => {
                    payload = (member.value.0 - start, member.value.1 - start);
                    continue;
                }
                _ => continue,
            };
            fields[slot] =
                escaped.and_then(|escaped| Text::read(text, start, member.value, escaped));
        }
        let end = members.end();
        let [id, session_id, event_type, created_at, client_key_id] = fields;
        let event = Self {
            id: id.ok_or_else(|| missing("id"))?,
            event_type: event_type.ok_or_else(|| missing("event_type"))?,
            session_id: session_id.unwrap_or_default(),
            created_at: created_at.unwrap_or_default(),
            client_key_id,
            payload: (offset(payload.0)?, offset(payload.1)?),
            raw: text.slice(start..end),
        };
        Ok((event, end))
    }

    /// The event's own id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.id.of(&self.raw)
    }

    /// The event's own id as bytes: for comparing and keeping, without looking at the text.
    #[must_use]
    #[inline]
    pub fn id_bytes(&self) -> &[u8] {
        self.id.bytes(&self.raw)
    }

    /// Whether the event is of this type.
    #[must_use]
    #[inline]
    pub fn is(&self, event_type: &EventType) -> bool {
        self.event_type.bytes(&self.raw) == event_type.as_str().as_bytes()
    }

    /// Whether the event is of the type with this name, also one that the plain catalogue lacks.
    #[must_use]
    #[inline]
    pub fn is_named(&self, event_type: &str) -> bool {
        self.event_type.bytes(&self.raw) == event_type.as_bytes()
    }

    /// The event's own id, owned.
    #[must_use]
    pub fn event_id(&self) -> EventId {
        self.id().into()
    }

    /// The session it belongs to.
    #[must_use]
    pub fn session_id(&self) -> SessionId {
        self.session_id.of(&self.raw).into()
    }

    /// Who caused it, when the service says so.
    #[must_use]
    pub fn client_key_id(&self) -> Option<KeyId> {
        self.client_key_id.as_ref().map(|t| t.of(&self.raw).into())
    }

    /// The type as it is spelt on the wire.
    #[must_use]
    pub fn type_name(&self) -> &str {
        self.event_type.of(&self.raw)
    }

    /// The type.
    #[must_use]
    pub fn event_type(&self) -> EventType {
        EventType::parse(self.type_name())
    }

    /// When it was logged, as the service wrote it: UTC, ISO-8601 with milliseconds.
    #[must_use]
    pub fn created_at(&self) -> &str {
        self.created_at.of(&self.raw)
    }

    /// When it was logged, in milliseconds since 1970, if it says so in the service's way.
    #[must_use]
    pub fn logged_ms(&self) -> Option<u64> {
        unix_ms(self.created_at())
    }

    /// The payload, raw; `{}` when the event has none.
    #[must_use]
    pub fn payload(&self) -> Json {
        let (start, end) = (self.payload.0 as usize, self.payload.1 as usize);
        if start == end { Json::empty_object() } else { Json::of_scanned(&self.raw, start, end) }
    }

    /// The payload, typed by the event's type.
    ///
    /// # Errors
    /// When a member that must be there is missing or has another type.
    pub fn decode(&self) -> Result<super::payload::Payload, JsonError> {
        super::payload::Payload::decode(&self.event_type(), &self.payload())
    }

    /// The whole event as JSON, with every member that this version does not know.
    #[must_use]
    pub fn json(&self) -> Json {
        Json::of_scanned(&self.raw, 0, self.raw.len())
    }

    /// Where the members of the envelope lie in [`Event::json`].
    #[must_use]
    pub fn places(&self) -> Places<'_> {
        let (from, to) = self.payload;
        Places {
            id: self.id.place(),
            event_type: self.event_type.place(),
            session_id: self.session_id.place(),
            client_key_id: self.client_key_id.as_ref().map(Text::place),
            created_at: self.created_at.place(),
            payload: (from != to).then_some((from, to)),
        }
    }

    /// The event's JSON as bytes, without a check.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.raw
    }

    /// How many bytes the event's JSON has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.raw.len()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({} {}, {} bytes)", self.id(), self.type_name(), self.raw.len())
    }
}

/// A string of the envelope: where it lies, or its decoded text when it was written with escapes.
#[derive(Clone, PartialEq, Eq)]
enum Text {
    At(u32, u32),
    Decoded(Box<str>),
}

impl Default for Text {
    fn default() -> Self {
        Self::At(0, 0)
    }
}

impl Text {
    /// The string at `span` of `text`, relative to `start`.
    fn read(text: &Bytes, start: usize, span: (usize, usize), escaped: bool) -> Option<Self> {
        if escaped {
            let decoded: String = serde_json::from_slice(&text[span.0..span.1]).ok()?;
            return Some(Self::Decoded(decoded.into()));
        }
        let from = u32::try_from(span.0 + 1 - start).ok()?;
        let to = u32::try_from(span.1 - 1 - start).ok()?;
        Some(Self::At(from, to))
    }

    fn place(&self) -> Place<'_> {
        match self {
            Self::At(from, to) => Place::At(*from, *to),
            Self::Decoded(text) => Place::Decoded(text),
        }
    }

    fn bytes<'a>(&'a self, raw: &'a [u8]) -> &'a [u8] {
        match self {
            Self::At(from, to) => &raw[*from as usize..*to as usize],
            Self::Decoded(text) => text.as_bytes(),
        }
    }

    fn of<'a>(&'a self, raw: &'a [u8]) -> &'a str {
        match self {
            Self::At(from, to) => {
                std::str::from_utf8(&raw[*from as usize..*to as usize]).unwrap_or_default()
            }
            Self::Decoded(text) => text,
        }
    }
}

/// A time as the service writes it, `2026-07-06T18:26:10.000Z`, in milliseconds since 1970.
fn unix_ms(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let shape: Vec<(usize, char)> =
        text.char_indices().filter(|(_, c)| !c.is_ascii_digit()).collect();
    let stops = [(4, '-'), (7, '-'), (10, 'T'), (13, ':'), (16, ':')];
    if !shape.starts_with(&stops) || shape.last()?.1 != 'Z' {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since the first of March of the year 0, so that a leap day is the last of its year.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
    let seconds = (days - 719_468) * 86_400
        + number(11, 13)? * 3_600
        + number(14, 16)? * 60
        + number(17, 19)?;
    let millis = number(20, 23).unwrap_or_default();
    Some(seconds * 1_000 + millis)
}

fn offset(at: usize) -> Result<u32, JsonError> {
    u32::try_from(at)
        .map_err(|_| JsonError { at, reason: "the event is larger than 4 GiB".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_with_its_unknown_members() {
        let text = r#"{"id":"evt_1","session_id":"ses_d","client_key_id":null,"event_type":"quota.window.changed","payload":{"w":"5h"},"created_at":"2030-01-01T00:00:00.000Z","shard":4}"#;
        let event = Event::parse(&Bytes::from_static(text.as_bytes())).unwrap();
        assert_eq!(event.id(), "evt_1");
        assert_eq!(event.client_key_id(), None);
        assert_eq!(event.event_type(), EventType::Unknown("quota.window.changed".into()));
        assert_eq!(event.payload().as_str(), r#"{"w":"5h"}"#);
        assert_eq!(event.json().as_str(), text);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let parts = EventParts {
            id: "evt_\"odd\"",
            session_id: "ses_1",
            client_key_id: Some("key_1"),
            event_type: "tool.call",
            payload: r#"{"n":9007199254740993}"#,
            created_at: "2026-07-06T18:26:10.000Z",
        };
        let event = Event::write(&parts).unwrap();
        assert_eq!(event.id(), parts.id);
        assert_eq!(event.session_id().as_str(), "ses_1");
        assert_eq!(event.client_key_id().unwrap().as_str(), "key_1");
        assert_eq!(event.event_type(), EventType::ToolCall);
        assert_eq!(event.created_at(), parts.created_at);
        assert_eq!(event.payload().as_str(), parts.payload);
        assert_eq!(Event::parse(&event.json().into_bytes()).unwrap(), event);
    }

    #[test]
    fn an_event_needs_an_id_and_a_type() {
        for text in
            ["{}", r#"{"id":"e"}"#, r#"{"id":1,"event_type":"x"}"#, "[]", "{\"id\":\"e\",", "1"]
        {
            assert!(Event::parse(&Bytes::from_static(text.as_bytes())).is_err(), "{text}");
        }
        let least = Event::parse(&Bytes::from_static(br#"{"id":"e","event_type":"x"}"#)).unwrap();
        assert_eq!(least.payload().as_str(), "{}");
    }

    #[test]
    fn the_catalogue_has_28_types() {
        assert_eq!(EventType::KNOWN.len(), 28);
        for known in EventType::KNOWN {
            assert_eq!(&EventType::parse(known.as_str()), known);
        }
    }

    #[test]
    fn times_are_read_and_what_is_none_is_not() {
        assert_eq!(unix_ms("1970-01-01T00:00:00.000Z"), Some(0));
        assert_eq!(unix_ms("2024-02-29T12:00:00.250Z"), Some(1_709_208_000_250));
        assert_eq!(unix_ms("2026-12-01T00:00:00Z"), Some(1_796_083_200_000));
        for wrong in [
            "",
            "2030",
            "2026-13-01T00:00:00Z",
            "2026-01-01 00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00+01:00",
        ] {
            assert_eq!(unix_ms(wrong), None, "{wrong}");
        }
    }
}
