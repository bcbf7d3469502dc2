//! Where one driver's last turn stands, read from the log alone (design §4, guarantees 7 and 11).
//!
//! A program that lost its turn, with its connection or its process, finds out what became of it by reading
//! the session's events in order. [`LoggedTurn`] is shown each of them and knows in the end.

use super::content::{Dispatch, Message, Role};
use super::event::{Event, EventType};
use super::ids::KeyId;
use super::payload::{ErrorReason, ServerMessage};
use crate::Json;

/// What the service calls the results that it makes up when it retires a pause.
const ABANDONED_RESULTS: &str = "abandoned_tool_results";

/// One driver's last turn, as the log has it.
#[derive(Debug, Clone)]
pub struct LoggedTurn {
    driver: Option<KeyId>,
    /// The driver opened the session, so the log's first event names it.
    opened: bool,
    standing: Standing,
    rounds: u32,
}

/// Where a turn stands.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Standing {
    /// The driver has begun no turn.
    None,
    /// Its message is logged, and neither an answer nor a failure follows: the service is at work, or broke off.
    Running,
    /// It waits for results of this driver.
    Paused(Box<LoggedPause>),
    /// The model has answered.
    Replied(Message),
    /// It came to another end.
    Ended(Ending),
}

/// A pause in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedPause {
    /// The assistant's message with the calls.
    pub message: Message,
    /// The id of its event.
    pub event_id: String,
    /// When it was logged, in milliseconds since 1970, if the event says so.
    pub logged_ms: Option<u64>,
}

/// How a turn ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// The service gave the pause up: its time was over and somebody else wanted to go on.
    Abandoned,
    /// It was cancelled.
    Cancelled,
    /// It failed; the event says more.
    Failed(ErrorReason),
    /// The session was closed.
    SessionClosed,
}

/// What an event is to the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The first event of a new turn: what came before belongs to an earlier one.
    First,
    /// An event of the turn.
    Own,
    /// Something else.
    Foreign,
}

impl LoggedTurn {
    /// Reads for the driver with this client key. When that is unknown and `opened` says that the driver opened the session,
    /// the first event of the log names it; when neither helps, no turn is found.
    #[must_use]
    pub const fn new(driver: Option<KeyId>, opened: bool) -> Self {
        Self { driver, opened, standing: Standing::None, rounds: 0 }
    }

    /// Takes the next event of the log.
    pub fn event(&mut self, event: &Event) -> Part {
        let key = event.client_key_id();
        if self.driver.is_none() && self.opened && event.is(&EventType::SessionOpen) {
            self.driver.clone_from(&key);
        }
        if self.driver.is_none() {
            return Part::Foreign;
        }
        let own = key == self.driver;
        match event.event_type() {
            EventType::ClientMessageSend => return self.said(event, own),
            EventType::ServerMessageSend => {
                let Ok(server) = ServerMessage::read(&event.payload()) else {
                    return Part::Foreign;
                };
                match server.synthetic.as_deref() {
                    // After the turn's end it is the summary of a compaction.
                    None if own && self.is_open() && server.message.role == Role::Assistant => {
                        self.answered(server.message, event);
                    }
                    Some(ABANDONED_RESULTS) => self.retired(),
                    _ => return Part::Foreign,
                }
            }
            EventType::SessionError => return self.failed(&event.payload(), own),
            EventType::SessionClose => {
                if self.is_open() {
                    self.standing = Standing::Ended(Ending::SessionClosed);
                }
                return Part::Foreign;
            }
            EventType::ProviderRequest
            | EventType::ProviderResponse
            | EventType::ToolCall
            | EventType::ToolResult
            | EventType::McpRequest
            | EventType::McpResponse
            | EventType::SandboxRequest
            | EventType::SandboxResponse
                if own && self.is_open() => {}
            EventType::Unknown(name) if *name == *EventType::TURN_CANCELLED => {
                if !own || !self.is_open() {
                    return Part::Foreign;
                }
                self.standing = Standing::Ended(Ending::Cancelled);
            }
            _ => return Part::Foreign,
        }
        Part::Own
    }

    /// Where the turn stands after the events so far.
    #[must_use]
    pub const fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Answers of the model in this turn so far, the one that paused it included.
    #[must_use]
    pub const fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The driver it reads for, once known.
    #[must_use]
    pub const fn driver(&self) -> Option<&KeyId> {
        self.driver.as_ref()
    }

    const fn is_open(&self) -> bool {
        matches!(self.standing, Standing::Running | Standing::Paused(_))
    }

    /// A driver's message: ours begins or continues a turn; another's can only come when ours is over.
    fn said(&mut self, event: &Event, own: bool) -> Part {
        let Ok(message) = Message::read(&event.payload(), Role::User) else {
            return Part::Foreign;
        };
        if !own {
            self.retired();
            return Part::Foreign;
        }
        let continues =
            matches!(self.standing, Standing::Paused(_)) && message.content.has_tool_results();
        self.standing = Standing::Running;
        if continues {
            return Part::Own;
        }
        self.rounds = 0;
        Part::First
    }

    fn answered(&mut self, message: Message, event: &Event) {
        self.rounds = self.rounds.saturating_add(1);
        let ours = |dispatch: &Option<Dispatch>| *dispatch == Some(Dispatch::Client);
        self.standing = if message.tool_uses().any(|(_, call)| ours(&call.dispatch)) {
            Standing::Paused(Box::new(LoggedPause {
                message,
                event_id: event.id().to_owned(),
                logged_ms: unix_ms(event.created_at()),
            }))
        } else {
            Standing::Replied(message)
        };
    }

    /// A pause, if there is one, was answered by the service itself.
    fn retired(&mut self) {
        if matches!(self.standing, Standing::Paused(_)) {
            self.standing = Standing::Ended(Ending::Abandoned);
        }
    }

    fn failed(&mut self, error: &Json, own: bool) -> Part {
        let text = |name: &str| error.member(name).and_then(|value| value.to_text());
        let Some(reason) = text("reason") else { return Part::Foreign };
        match ErrorReason::parse(&reason) {
            ErrorReason::DriverTurnAbandoned => {
                let owner = text("owner_client_key_id");
                if owner.is_some() && owner.as_deref() == self.driver.as_ref().map(KeyId::as_str) {
                    self.retired();
                }
                Part::Foreign
            }
            // The turn goes on.
            ErrorReason::ProviderCallFailed | ErrorReason::CompactionStoreFailed => {
                if own && self.is_open() { Part::Own } else { Part::Foreign }
            }
            reason if own && self.is_open() => {
                self.standing = Standing::Ended(Ending::Failed(reason));
                Part::Own
            }
            _ => Part::Foreign,
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn event(id: &str, key: &str, kind: &str, payload: &str) -> Event {
        let text = format!(
            r#"{{"id":"{id}","session_id":"s","client_key_id":"{key}","event_type":"{kind}","payload":{payload},"created_at":"2026-07-06T18:26:10.000Z"}}"#
        );
        Event::parse(&Bytes::from(text)).unwrap()
    }

    fn said(key: &str, text: &str) -> Event {
        event("c", key, "client.message.send", &format!(r#"{{"role":"user","content":"{text}"}}"#))
    }

    fn paused(key: &str) -> Event {
        let call = r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"x","input":{},"dispatch":"client"}]}"#;
        event("p", key, "server.message.send", call)
    }

    fn answered(key: &str) -> Event {
        event("r", key, "server.message.send", r#"{"role":"assistant","content":"done"}"#)
    }

    fn results(key: &str) -> Event {
        let content =
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"A"}]}"#;
        event("k", key, "client.message.send", content)
    }

    fn read(events: &[Event]) -> LoggedTurn {
        let mut turn = LoggedTurn::new(Some("me".into()), false);
        for event in events {
            turn.event(event);
        }
        turn
    }

    #[test]
    fn a_turn_is_followed_from_its_message_to_its_answer() {
        let mut turn = LoggedTurn::new(Some("me".into()), false);
        assert_eq!(turn.event(&said("me", "go")), Part::First);
        assert_eq!(*turn.standing(), Standing::Running);
        assert_eq!(turn.event(&event("q", "me", "provider.request", "{}")), Part::Own);
        assert_eq!(turn.event(&paused("me")), Part::Own);
        let Standing::Paused(pause) = turn.standing() else { panic!() };
        assert_eq!((pause.event_id.as_str(), pause.logged_ms), ("p", Some(1_783_362_370_000)));
        assert_eq!(turn.event(&results("me")), Part::Own);
        assert_eq!(*turn.standing(), Standing::Running);
        assert_eq!(turn.event(&event("j", "me", "session.join", "{}")), Part::Foreign);
        assert_eq!(turn.event(&answered("me")), Part::Own);
        assert!(matches!(turn.standing(), Standing::Replied(_)));
        assert_eq!(turn.rounds(), 2);
        assert_eq!(turn.event(&paused("me")), Part::Foreign, "the turn is over");
        assert_eq!(turn.event(&said("me", "again")), Part::First);
        assert_eq!(turn.rounds(), 0);
    }

    #[test]
    fn the_turns_of_others_are_not_ours() {
        let turn = read(&[said("you", "go"), paused("you")]);
        assert_eq!(*turn.standing(), Standing::None);
    }

    #[test]
    fn a_pause_is_over_when_anybody_else_goes_on() {
        let abandoned = Standing::Ended(Ending::Abandoned);
        let taken_over = [said("me", "go"), paused("me"), said("you", "mine")];
        assert_eq!(*read(&taken_over).standing(), abandoned);
        let told = r#"{"reason":"driver_turn_abandoned","owner_client_key_id":"me"}"#;
        let told = event("e", "me", "session.error", told);
        assert_eq!(*read(&[said("me", "go"), paused("me"), told]).standing(), abandoned);
        let compacted = r#"{"role":"user","content":[],"synthetic":"abandoned_tool_results"}"#;
        let compacted = event("e", "you", "server.message.send", compacted);
        assert_eq!(*read(&[said("me", "go"), paused("me"), compacted]).standing(), abandoned);
    }

    #[test]
    fn another_drivers_abandonment_leaves_ours_alone() {
        let told = r#"{"reason":"driver_turn_abandoned","owner_client_key_id":"you"}"#;
        let told = event("e", "you", "session.error", told);
        let turn = read(&[said("me", "go"), paused("me"), told]);
        assert!(matches!(turn.standing(), Standing::Paused(_)));
    }

    #[test]
    fn every_other_end_is_named() {
        let ends = |last: Event| match read(&[said("me", "go"), last]).standing() {
            Standing::Ended(ending) => ending.clone(),
            other => panic!("{other:?}"),
        };
        let error = |reason: &str| {
            event("e", "me", "session.error", &format!(r#"{{"reason":"{reason}"}}"#))
        };
        assert_eq!(ends(error("loop_limit")), Ending::Failed(ErrorReason::LoopLimit));
        assert_eq!(ends(event("e", "me", "session.turn.cancelled", "{}")), Ending::Cancelled);
        assert_eq!(ends(event("e", "me", "session.close", "{}")), Ending::SessionClosed);
        let turn = read(&[said("me", "go"), error("provider_call_failed")]);
        assert_eq!(*turn.standing(), Standing::Running);
    }

    #[test]
    fn who_opened_the_session_is_found_in_its_first_event() {
        let mut turn = LoggedTurn::new(None, true);
        turn.event(&event("o", "me", "session.open", "{}"));
        turn.event(&said("me", "go"));
        assert_eq!(*turn.standing(), Standing::Running);
        let mut nobody = LoggedTurn::new(None, false);
        nobody.event(&event("o", "me", "session.open", "{}"));
        assert_eq!(nobody.event(&said("me", "go")), Part::Foreign);
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
