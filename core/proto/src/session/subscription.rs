//! The client's side of a subscription: every event once, in order, over any number of connections
//! (design §4, guarantee 8).
//!
//! The machine says when to connect and from where; it is told what came and how each connection
//! ended. Jitter comes from the caller as a number.

use super::event::{Event, EventType};
use super::ids::{Cursor, EventId};
use super::payload::ErrorReason;
use super::seen::Seen;
use crate::Time;
use crate::backoff;
use crate::error::{Error, ErrorKind, Retry};

/// How a lost subscription is taken up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReconnectPolicy {
    /// The first delay after a failure, in milliseconds.
    pub first_delay_ms: u64,
    /// The longest delay, in milliseconds.
    pub max_delay_ms: u64,
    /// Give up after this many failures in a row without an event; never when absent.
    pub max_failures: Option<u32>,
}

impl ReconnectPolicy {
    /// The delay before the next try after so many `failures` in a row. `jitter` is any random number; it spreads the
    /// delay between half and whole.
    #[must_use]
    pub fn delay_ms(&self, failures: u32, jitter: u64) -> u64 {
        let before = failures.saturating_sub(1);
        backoff::delay_ms(self.first_delay_ms, before, self.max_delay_ms, jitter)
    }
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self { first_delay_ms: 100, max_delay_ms: 10_000, max_failures: None }
    }
}

/// How one connection of the subscription ended.
#[derive(Debug)]
pub enum Lost {
    /// The stream ended cleanly, without a terminal line: the service closed it.
    Ended,
    /// An error; whether it is worth another try is decided here.
    Failed(Error),
}

/// What becomes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Hand it to the application.
    Deliver,
    /// It was delivered before.
    Duplicate,
}

/// What the machine wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// Connect now and subscribe from this cursor.
    Connect(Cursor),
    /// Nothing before [`Subscription::poll_timeout`].
    Wait,
    /// The stream is open.
    Streaming,
    /// The service does not know this cursor: drop the connection, show the application a gap. The next
    /// [`Want::Connect`] starts from the beginning of the log.
    CursorUnknown(Cursor),
    /// It is over: the session has ended.
    Ended,
}

/// A subscription that outlives its connections.
#[derive(Debug)]
pub struct Subscription {
    policy: ReconnectPolicy,
    cursor: Cursor,
    live_from_here: bool,
    seen: Seen,
    state: State,
    failures: u32,
    /// The service replays its whole log although we named a cursor: skip until the cursor's event.
    skipping: bool,
    /// When a replay that is being skipped counts as over, unless more of it comes.
    skip_until: Time,
    /// The replay that is being skipped has shown the end of the session: nothing follows it.
    skipped_end: bool,
    first_of_connection: bool,
    /// An event was delivered since the last connection began.
    progressed: bool,
    /// Connections in a row that the service ended cleanly without anything new.
    empty_ends: u32,
    session_over: bool,
    /// A session may go on after an error that ends others.
    keep_open: bool,
}

/// So many connections in a row that end cleanly and bring nothing mean that nothing will come.
const MAX_EMPTY_ENDS: u32 = 3;

/// A replay in which our cursor did not show up is over after this long without an event.
const QUIET_MS: u64 = 2_000;

#[derive(Debug)]
enum State {
    Idle { at: Time },
    Open,
    Over,
}

impl Subscription {
    /// A subscription that delivers what comes after `cursor`; `None` starts with what happens from now on.
    #[must_use]
    pub fn new(cursor: Option<Cursor>, policy: ReconnectPolicy) -> Self {
        let live_from_here = cursor.is_none();
        Self {
            policy,
            cursor: cursor.unwrap_or_default(),
            live_from_here,
            seen: Seen::default(),
            state: State::Idle { at: Time::default() },
            failures: 0,
            skipping: false,
            skip_until: Time::default(),
            skipped_end: false,
            first_of_connection: false,
            progressed: false,
            empty_ends: 0,
            session_over: false,
            keep_open: false,
        }
    }

    /// Says whether the service announces `keep-open`: then an error in the log may have ended a turn alone, and a stream that
    /// broke after it is taken up again. The session is over when a stream ends there that brings nothing.
    #[must_use]
    pub const fn with_keep_open(mut self, announced: bool) -> Self {
        self.keep_open = announced;
        self
    }

    /// What to do now. After [`Want::Connect`] the stream counts as open.
    pub fn poll(&mut self, now: Time) -> Want {
        match self.state {
            State::Idle { at } if at <= now => {
                self.state = State::Open;
                self.first_of_connection = true;
                self.progressed = false;
                self.skipping = false;
                self.skipped_end = false;
                Want::Connect(self.cursor.clone())
            }
            State::Idle { .. } => Want::Wait,
            State::Open if self.skipping && self.skip_until <= now => {
                self.skipping = false;
                self.state = State::Idle { at: now };
                self.seen = Seen::default();
                self.live_from_here = false;
                Want::CursorUnknown(std::mem::take(&mut self.cursor))
            }
            State::Open => Want::Streaming,
            State::Over => Want::Ended,
        }
    }

    /// When [`Subscription::poll`] has something to do next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.state {
            State::Idle { at } => Some(at),
            State::Open => self.skipping.then_some(self.skip_until),
            State::Over => None,
        }
    }

    /// What to name as `since_event_id`: nothing while a live-only subscription has seen no event,
    /// the empty id (replay everything) for a cursor at the start.
    #[must_use]
    pub fn since(&self) -> Option<&str> {
        match self.cursor.event_id() {
            Some(id) => Some(id.as_str()),
            None if self.live_from_here => None,
            None => Some(""),
        }
    }

    /// An event came.
    #[inline]
    pub fn event(&mut self, event: &Event, now: Time) -> Delivery {
        let id = event.id();
        if self.is_over() {
            return Delivery::Duplicate;
        }
        if std::mem::take(&mut self.first_of_connection) {
            // A log begins with `session.open`. Seeing it although we asked for what follows our
            // cursor means that the service does not know the cursor and replays everything.
            let replays_all = event.is(&EventType::SessionOpen);
            self.skipping = replays_all && self.cursor.event_id().is_some();
        }
        if self.skipping {
            self.skipping = self.cursor.event_id().is_some_and(|at| at.as_str() != id);
            self.skip_until = now.plus(QUIET_MS);
            self.skipped_end |= ends_the_session(event);
            return Delivery::Duplicate;
        }
        if !self.seen.insert(event.id_bytes()) {
            return Delivery::Duplicate;
        }
        self.failures = 0;
        self.progressed = true;
        self.cursor = Cursor::after(EventId::new(id));
        // Nothing follows the end of a session: whatever comes after an error shows that it goes on.
        self.session_over = ends_the_session(event);
        if event.is(&EventType::SessionClose) {
            // Nothing is ever logged after it, and some services leave the stream open (§5.4).
            self.state = State::Over;
        }
        Delivery::Deliver
    }

    /// Whether it has ended, so that its connection is needed no more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// The cursor after the last delivered event.
    #[must_use]
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// The connection is gone. `jitter` is any random number; it spreads the delay between half and whole.
    ///
    /// # Errors
    /// The error, when another try cannot help.
    pub fn lost(&mut self, lost: Lost, now: Time, jitter: u64) -> Result<(), Error> {
        let confirmed = matches!(lost, Lost::Ended) && !self.progressed;
        if self.session_over && (confirmed || !self.keep_open) {
            self.state = State::Over;
            return Ok(());
        }
        if std::mem::take(&mut self.skipping) && self.skipped_end && matches!(lost, Lost::Ended) {
            // All of a log that has ended was skipped: our cursor is not in it.
            self.skipping = true;
            self.skip_until = now;
            return Ok(());
        }
        let retry = match &lost {
            Lost::Ended => {
                self.empty_ends = if self.progressed { 0 } else { self.empty_ends + 1 };
                self.empty_ends < MAX_EMPTY_ENDS
            }
            Lost::Failed(error) => worth_another_try(error),
        };
        let error = match lost {
            Lost::Failed(error) => error,
            Lost::Ended => {
                let message = "the service ends the subscription again and again without an event: the session is over, or somebody unsubscribes for everyone; its log says which";
                Error::new(ErrorKind::StreamEndedEarly, message).with_retry(Retry::Safe)
            }
        };
        if !retry {
            self.state = State::Over;
            return Err(error);
        }
        if error.is(ErrorKind::Lagged) && std::mem::take(&mut self.progressed) {
            // The service is well and we know from where to go on. One that drops us before it has
            // shown anything new is treated like one that fails.
            self.state = State::Idle { at: now };
            return Ok(());
        }
        self.failures = self.failures.saturating_add(1);
        if self.policy.max_failures.is_some_and(|max| self.failures > max) {
            self.state = State::Over;
            return Err(error);
        }
        let delay = self.policy.delay_ms(self.failures, jitter);
        self.state = State::Idle { at: now.plus(delay) };
        Ok(())
    }
}

fn worth_another_try(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Lagged
        | ErrorKind::StreamEndedEarly
        | ErrorKind::Timeout
        | ErrorKind::Transport
        | ErrorKind::Connect
        | ErrorKind::Io
        | ErrorKind::LineTooLong => true,
        // A proxy's page while the service restarts, faults inside it, and answers that say "later".
        ErrorKind::Api | ErrorKind::NotBroca | ErrorKind::Rpc => error.retry() != Retry::Unsafe,
        _ => false,
    }
}

/// Whether a session's log says that nothing more will happen in it (session service §11).
fn ends_the_session(event: &Event) -> bool {
    if event.is(&EventType::SessionClose) {
        return true;
    }
    if !event.is(&EventType::SessionError) {
        return false;
    }
    let reason = event.payload().member("reason").and_then(|r| r.to_text()).unwrap_or_default();
    matches!(
        ErrorReason::parse(&reason),
        ErrorReason::ProviderConfig
            | ErrorReason::AllProvidersFailed
            | ErrorReason::LoopLimit
            | ErrorReason::ProfileUnavailable
            | ErrorReason::PrimaryProviderUnavailable
            | ErrorReason::ToolResultMergeInvalid
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn event(id: &str, kind: &str, payload: &str) -> Event {
        let text = format!(r#"{{"id":"{id}","event_type":"{kind}","payload":{payload}}}"#);
        Event::parse(&Bytes::from(text)).unwrap()
    }

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn broken() -> Lost {
        Lost::Failed(Error::new(ErrorKind::Io, "reset"))
    }

    #[test]
    fn an_overlap_after_a_reconnect_is_not_delivered_again() {
        let mut sub = Subscription::new(None, ReconnectPolicy::default());
        assert_eq!(sub.since(), None);
        assert_eq!(sub.poll(at(0)), Want::Connect(Cursor::start()));
        assert_eq!(sub.event(&event("1", "x", "{}"), at(0)), Delivery::Deliver);
        assert_eq!(sub.event(&event("2", "x", "{}"), at(0)), Delivery::Deliver);
        sub.lost(broken(), at(5), 7).unwrap();
        assert_eq!(sub.poll(at(5)), Want::Wait);
        let again = sub.poll_timeout().unwrap();
        assert!(again > at(5) && again <= at(105));
        assert_eq!(sub.poll(again), Want::Connect(Cursor::after("2".into())));
        assert_eq!(sub.since(), Some("2"));
        assert_eq!(sub.event(&event("2", "x", "{}"), at(0)), Delivery::Duplicate);
        assert_eq!(sub.event(&event("3", "x", "{}"), at(0)), Delivery::Deliver);
    }

    #[test]
    fn a_lagged_reader_goes_on_at_once_from_its_cursor() {
        let mut sub = Subscription::new(Some(Cursor::start()), ReconnectPolicy::default());
        assert_eq!(sub.since(), Some(""));
        sub.poll(at(0));
        sub.event(&event("9", "x", "{}"), at(0));
        sub.lost(Lost::Failed(Error::new(ErrorKind::Lagged, "lagged")), at(3), 0).unwrap();
        assert_eq!(sub.poll(at(3)), Want::Connect(Cursor::after("9".into())));
    }

    #[test]
    fn a_service_that_only_ever_says_lagged_is_not_asked_without_a_pause() {
        let mut sub = Subscription::new(None, ReconnectPolicy::default());
        let lagged = || Lost::Failed(Error::new(ErrorKind::Lagged, "lagged"));
        sub.poll(at(0));
        sub.lost(lagged(), at(0), 7).unwrap();
        assert_eq!(sub.poll(at(0)), Want::Wait);
    }

    #[test]
    fn a_whole_replay_is_skipped_up_to_the_cursor_however_long_the_log_is() {
        let mut sub = Subscription::new(Some(Cursor::start()), ReconnectPolicy::default());
        sub.poll(at(0));
        sub.event(&event("open", "session.open", "{}"), at(0));
        for i in 0..3_000 {
            assert_eq!(sub.event(&event(&i.to_string(), "x", "{}"), at(0)), Delivery::Deliver);
        }
        sub.lost(Lost::Ended, at(0), 0).unwrap();
        sub.poll(at(1_000));
        sub.event(&event("open", "session.open", "{}"), at(0));
        for i in 0..3_000 {
            assert_eq!(
                sub.event(&event(&i.to_string(), "x", "{}"), at(0)),
                Delivery::Duplicate,
                "{i}"
            );
        }
        assert_eq!(sub.event(&event("new", "x", "{}"), at(0)), Delivery::Deliver);
    }

    #[test]
    fn a_cursor_the_service_does_not_know_becomes_a_gap_and_a_start_from_the_beginning() {
        let saved = Cursor::after("foreign".into());
        let mut sub = Subscription::new(Some(saved.clone()), ReconnectPolicy::default());
        sub.poll(at(0));
        for (id, kind) in [("open", "session.open"), ("1", "x")] {
            assert_eq!(sub.event(&event(id, kind, "{}"), at(10)), Delivery::Duplicate);
        }
        assert_eq!(sub.poll(at(11)), Want::Streaming);
        assert_eq!(sub.poll_timeout(), Some(at(2_010)));
        assert_eq!(sub.poll(at(2_010)), Want::CursorUnknown(saved));
        assert_eq!(sub.poll(at(2_010)), Want::Connect(Cursor::start()));
        assert_eq!(sub.since(), Some(""));
        assert_eq!(sub.event(&event("open", "session.open", "{}"), at(2_011)), Delivery::Deliver);
    }

    #[test]
    fn it_ends_with_the_session_and_not_before() {
        let mut sub = Subscription::new(None, ReconnectPolicy::default());
        sub.poll(at(0));
        sub.event(&event("1", "session.error", r#"{"reason":"provider_call_failed"}"#), at(0));
        sub.lost(Lost::Ended, at(0), 0).unwrap();
        assert!(matches!(sub.poll(at(100)), Want::Connect(_)));
        sub.event(&event("2", "session.close", r#"{"reason":"client_close"}"#), at(0));
        sub.lost(Lost::Ended, at(100), 0).unwrap();
        assert_eq!(sub.poll(at(100)), Want::Ended);
    }

    #[test]
    fn after_an_error_that_may_have_ended_a_turn_alone_the_subscription_goes_on() {
        let failed =
            || event("1", "session.error", r#"{"reason":"all_providers_failed","attempts":1}"#);
        for lost in [broken(), Lost::Ended] {
            let new = Subscription::new(None, ReconnectPolicy::default());
            let mut sub = new.with_keep_open(true);
            sub.poll(at(0));
            sub.event(&failed(), at(0));
            sub.lost(lost, at(0), 0).unwrap();
            assert_eq!(sub.poll(at(1_000)), Want::Connect(Cursor::after("1".into())));
            assert_eq!(sub.event(&event("2", "x", "{}"), at(1_000)), Delivery::Deliver);
            sub.lost(broken(), at(1_000), 0).unwrap();
            assert!(matches!(sub.poll(at(9_000)), Want::Connect(_)));
        }
    }

    #[test]
    fn a_session_that_an_error_has_ended_is_over_when_a_stream_ends_there_without_anything_new() {
        let mut sub = Subscription::new(None, ReconnectPolicy::default()).with_keep_open(true);
        sub.poll(at(0));
        sub.event(&event("1", "session.error", r#"{"reason":"loop_limit"}"#), at(0));
        for now in [0, 1_000] {
            sub.lost(broken(), at(now), 0).unwrap();
            assert!(matches!(sub.poll(at(now + 1_000)), Want::Connect(_)));
        }
        sub.lost(Lost::Ended, at(2_000), 0).unwrap();
        assert_eq!(sub.poll(at(2_000)), Want::Ended);
    }

    #[test]
    fn without_keep_open_such_an_error_is_the_end_however_the_stream_ends() {
        for lost in [broken(), Lost::Ended] {
            let mut sub = Subscription::new(None, ReconnectPolicy::default());
            sub.poll(at(0));
            sub.event(&event("1", "session.error", r#"{"reason":"loop_limit"}"#), at(0));
            sub.lost(lost, at(0), 0).unwrap();
            assert_eq!(sub.poll(at(0)), Want::Ended);
        }
    }

    #[test]
    fn a_stream_that_only_ever_ends_is_given_up() {
        let mut sub = Subscription::new(None, ReconnectPolicy::default());
        for round in 0..3_u64 {
            assert!(matches!(sub.poll(at(round * 1_000)), Want::Connect(_)));
            let lost = sub.lost(Lost::Ended, at(round * 1_000), 0);
            assert_eq!(lost.is_err(), round == 2);
        }
        assert_eq!(sub.poll(at(9_000)), Want::Ended);
    }

    #[test]
    fn a_refused_key_is_final_and_a_bad_gateway_is_not() {
        let mut sub = Subscription::new(None, ReconnectPolicy::default());
        sub.poll(at(0));
        let page = Error::new(ErrorKind::NotBroca, "502").with_retry(Retry::Unknown);
        sub.lost(Lost::Failed(page), at(0), 0).unwrap();
        sub.poll(at(500));
        let refused = Error::new(ErrorKind::Unauthorized, "no");
        assert!(sub.lost(Lost::Failed(refused), at(500), 0).is_err());
        assert_eq!(sub.poll(at(9_000)), Want::Ended);
    }

    #[test]
    fn delays_grow_to_their_bound_and_shrink_after_success() {
        let mut sub = Subscription::new(None, ReconnectPolicy::default());
        let mut now = at(0);
        let mut delays = Vec::new();
        for _ in 0..12 {
            sub.poll(now);
            sub.lost(broken(), now, u64::MAX).unwrap();
            let next = sub.poll_timeout().unwrap();
            delays.push(next.since(now));
            now = next;
        }
        assert!(delays[0] <= 100 && delays[11] <= 10_000 && delays[11] >= 5_000, "{delays:?}");
        sub.poll(now);
        sub.event(&event("1", "x", "{}"), at(0));
        sub.lost(broken(), now, 0).unwrap();
        assert!(sub.poll_timeout().unwrap().since(now) <= 100);
    }

    proptest! {
        #[test]
        fn every_event_once_in_order_for_any_cuts(total in 1..200_usize, cuts in prop::collection::vec((0..200_usize, 0..4_u8), 0..12)) {
            let mut sub = Subscription::new(Some(Cursor::start()), ReconnectPolicy::default());
            let mut got = Vec::new();
            let mut now = at(0);
            let mut cuts = cuts.into_iter();
            loop {
                now = now.plus(20_000);
                let Want::Connect(cursor) = sub.poll(now) else { prop_assert!(false); unreachable!() };
                let (take, how) = cuts.next().unwrap_or((usize::MAX, 0));
                // Some services resend a little, some everything.
                let from = cursor.event_id().map_or(0, |id| id.as_str().parse::<usize>().unwrap() + 1);
                let from = match how { 1 => from.saturating_sub(3), 2 => 0, _ => from };
                let mut sent = 0;
                for i in (from..total).take(take) {
                    let kind = if i == 0 { "session.open" } else { "x" };
                    if sub.event(&event(&i.to_string(), kind, "{}"), at(0)) == Delivery::Deliver { got.push(i); }
                    sent += 1;
                }
                if from + sent >= total { break; }
                sub.lost(if how == 3 { Lost::Ended } else { broken() }, now, 1).unwrap();
            }
            prop_assert_eq!(got, (0..total).collect::<Vec<_>>());
        }
    }
}
