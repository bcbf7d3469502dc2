//! Where one driver's last turn stands, read from the log alone (design §4, guarantees 7 and 11).
//!
//! A program that lost its turn, with its connection or its process, finds out what became of it by reading
//! the session's events in order. [`LoggedTurn`] is shown each of them and knows in the end.

use super::approval::Change;
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
    /// The question about a tool of the service on which the turn waits.
    question: Option<Change>,
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
    /// It broke off, because the service failed or was restarted: somebody else's turn follows it, and it has no answer.
    BrokenOff,
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
        Self { driver, opened, standing: Standing::None, rounds: 0, question: None }
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
            EventType::Unknown(_) if own && self.is_open() && self.consent(event) => {}
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

    /// The question on which the turn waits, if it does.
    #[must_use]
    pub fn question(&self) -> Option<&Change> {
        self.question.as_ref().filter(|_| matches!(self.standing, Standing::Running))
    }

    /// Whether the event is about a question of the turn.
    fn consent(&mut self, event: &Event) -> bool {
        let change = Change::of(event);
        let is_one = change.is_some();
        if is_one {
            self.question = change.filter(|change| matches!(change, Change::Asked { .. }));
        }
        is_one
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
            if matches!(self.standing, Standing::Running) {
                self.standing = Standing::Ended(Ending::BrokenOff);
            }
            return Part::Foreign;
        }
        let continues =
            matches!(self.standing, Standing::Paused(_)) && message.content.has_tool_results();
        self.standing = Standing::Running;
        self.question = None;
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
                logged_ms: event.logged_ms(),
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
    fn a_question_is_known_until_it_is_settled_or_its_turn_is_over() {
        let asked = |id: &str| {
            let payload =
                format!(r#"{{"expires_in_ms":9,"input":{{}},"name":"find","tool_use_id":"{id}"}}"#);
            event("a", "me", EventType::APPROVAL_REQUESTED, &payload)
        };
        let settled = event("s", "me", EventType::APPROVAL_RESOLVED, r#"{"tool_use_id":"t"}"#);
        let question = |events: &[Event]| {
            let turn = read(events);
            turn.question().map(|change| match change {
                Change::Asked { question, .. } => question.tool_use_id.clone(),
                Change::Settled { .. } => panic!(),
            })
        };
        let go = || said("me", "go");
        assert_eq!(question(&[go(), asked("t")]).as_deref(), Some("t"));
        assert_eq!(question(&[go(), asked("t"), settled.clone()]), None);
        assert_eq!(question(&[go(), asked("t"), settled, asked("u")]).as_deref(), Some("u"));
        assert_eq!(question(&[go(), asked("t"), said("me", "again")]), None);
        assert_eq!(question(&[go(), asked("t"), answered("me")]), None);
        assert_eq!(question(&[asked("t")]), None, "nobody's turn");
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
    fn a_turn_without_an_answer_has_broken_off_when_anybody_else_goes_on() {
        let broken = Standing::Ended(Ending::BrokenOff);
        let overtaken = [said("me", "go"), said("you", "mine")];
        assert_eq!(*read(&overtaken).standing(), broken);
        let continued = [said("me", "go"), paused("me"), results("me"), said("you", "mine")];
        assert_eq!(*read(&continued).standing(), broken);
        let again = [said("me", "go"), said("you", "mine"), answered("you"), said("me", "again")];
        assert_eq!(*read(&again).standing(), Standing::Running);
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
}
