//! Events as they go into the log and come out of it (session service §9).

use std::fmt;

/// A place in one session's log: 1 is its first event, [`Seq::START`] the place before it.
///
/// The store numbers the events of a session without gaps, in the order in which they became durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// Before the first event.
    pub const START: Self = Self(0);
}

/// Wall-clock time in milliseconds since the Unix epoch. An argument of verbs; only shells read clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(pub i64);

impl fmt::Display for WallTime {
    /// ISO 8601 in UTC with milliseconds, as in `2026-07-06T18:26:10.000Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => f.write_str("1970-01-01T00:00:00.000Z"),
        }
    }
}

/// An event to be logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// `evt_` and 32 hex digits, drawn by the caller.
    pub id: String,
    /// The acting client key, where there is one.
    pub client_key_id: Option<String>,
    /// One of the catalogue's names; the store reads only those of the two message events.
    pub event_type: String,
    /// A JSON object as text, kept as it is.
    pub payload: String,
    /// For a payload whose `messages` are left out because the log already holds them.
    pub elided: Option<Elided>,
}

/// How to write out the `messages` that a `provider.request` payload leaves out.
///
/// They are the message events logged before the event itself, as
/// [`provider_message`](broca_proto::run::log::provider_message) gives them, then `tail`: so the log grows
/// with what was said and not with its square. [`compose_request`](broca_proto::run::log::compose_request)
/// puts them together, for [`page`](super::Store::page) as for those who watch live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elided {
    /// The first event that counts; [`Seq::START`] for the whole log. Compaction moves it.
    pub from: Seq,
    /// A JSON array of messages that exist in memory only; `[]` when there are none.
    pub tail: String,
}

/// An event that is on disk: as it was handed in, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its place in the session's log.
    pub seq: Seq,
    /// When it was logged.
    pub created_at: WallTime,
    /// What was logged. The payload of an elided event is still without its `messages`.
    pub event: NewEvent,
}

/// An event read from the log, its payload complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its place in the session's log.
    pub seq: Seq,
    /// Its opaque id.
    pub id: String,
    /// The acting client key, where there is one.
    pub client_key_id: Option<String>,
    /// The event's name.
    pub event_type: String,
    /// A JSON object as text, `messages` written out.
    pub payload: String,
    /// When it was logged.
    pub created_at: WallTime,
}

/// How much one page may hold. At least one event is always given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimit {
    /// The most events.
    pub events: u32,
    /// The most bytes of payload, composed payloads included. Default 8 MiB.
    pub bytes: usize,
}

impl PageLimit {
    /// At most `events` events and 8 MiB of payload.
    #[must_use]
    pub const fn events(events: u32) -> Self {
        Self { events, bytes: 8 << 20 }
    }
}

/// A part of the log, oldest event first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The events.
    pub events: Vec<Event>,
    /// Whether the log goes on behind them.
    pub more: bool,
}

/// A message event of the log, for the history that a provider is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedMessage {
    /// Its place in the session's log.
    pub seq: Seq,
    /// Its opaque id.
    pub id: String,
    /// `client.message.send` or `server.message.send`.
    pub event_type: String,
    /// The event's payload as text.
    pub payload: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_with_milliseconds_and_z() {
        assert_eq!(WallTime(1_783_362_370_000).to_string(), "2026-07-06T18:26:10.000Z");
        assert_eq!(WallTime(7).to_string(), "1970-01-01T00:00:00.007Z");
    }
}
