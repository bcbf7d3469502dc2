//! How a turn survives its stream (guarantee 7): the log is followed from before the request, what the
//! stream did not bring is delivered, and the outcome is taken from what the log says.

use super::heard::Carried;
use super::resend::{Heard, Resend, may_pass};
use super::{State, Turn};
use crate::engine::answer::Rpc;
use crate::engine::command::Trace;
use crate::engine::effect::LogLevel;
use crate::engine::net::{ExchangeId, NetEvent};
use crate::engine::queue::StepQueue;
use crate::engine::session::Core;
use crate::engine::step::{Gap, Lost, Status, Step};
use crate::engine::subscribe::Watch;
use broca_proto::session::event::Event;
use broca_proto::session::exchange::Item;
use broca_proto::session::ids::{Cursor, EventId};
use broca_proto::session::method::SendMessageResult;
use broca_proto::session::rpc::{RpcFailure, code};
use broca_proto::session::trail::{Told, Trail};
use broca_proto::{Error, ErrorKind, Json, Retry, Time};

/// A request whose stream broke and whose outcome the log may tell.
pub(super) struct Recovery {
    /// Why the stream broke; told if the log does not tell more.
    error: Error,
    /// The request's id.
    request: Json,
    trail: Trail,
    /// The request itself, sent again where the service knows it by its id.
    resend: Option<Resend>,
    /// Follows the log; nothing where it is not known from where.
    watch: Option<Watch>,
    /// What following the log has brought and nobody has looked at yet.
    found: StepQueue,
    /// Everything up to this event was delivered before.
    behind: Option<EventId>,
    /// The events of the request, for the reply.
    carried: Carried,
    timeout_ms: u64,
    /// What the log holds already comes within this time once it is followed.
    replay_ms: u64,
    /// Without news until then the outcome stays unknown.
    until: Time,
    /// Whether its log is being read, and until when there must be something in it if it is not.
    connected: bool,
    reach_by: Option<Time>,
}

/// How the search for an outcome ends.
enum Found {
    Answered(SendMessageResult),
    Failed(Error),
}

impl Recovery {
    pub(super) fn network(
        &mut self,
        exchange: ExchangeId,
        event: NetEvent,
        core: &mut Core,
        trace: &Trace,
        now: Time,
    ) {
        match &mut self.resend {
            Some(resend) if resend.has(exchange) => resend.network(event, core, trace, now),
            _ => {
                if let Some(watch) = &mut self.watch {
                    watch.network(exchange, event, core, &mut self.found, trace, now);
                }
            }
        }
    }

    pub(super) fn timeout(&mut self, core: &mut Core, trace: &Trace, now: Time) {
        if let Some(watch) = &mut self.watch {
            watch.timeout(core, &mut self.found, trace, now);
        }
        if let Some(resend) = &mut self.resend {
            resend.timeout(core, trace, now);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let resend = self.resend.as_ref().and_then(Resend::poll_timeout);
        let watch = self.watch.as_ref().and_then(Watch::poll_timeout);
        let news = self.news_deadline();
        [news, self.reach_deadline(), watch, resend].into_iter().flatten().min()
    }

    pub(super) fn stream(&self) -> Option<ExchangeId> {
        self.watch.as_ref().and_then(Watch::stream)
    }

    pub(super) fn drop_now(&mut self, core: &mut Core, now: Time) {
        if let Some(watch) = &mut self.watch {
            watch.drop_now(core, now);
        }
        if let Some(resend) = &mut self.resend {
            resend.drop_now(core, now);
        }
    }

    /// The id of the request, for cancelling it; nothing where it may have been answered under another one.
    pub(super) fn request(&self) -> Option<Json> {
        self.resend.is_none().then(|| self.request.clone())
    }

    /// Whether an event only shows what the request itself has said.
    pub(super) fn is_own(&self, event: &Event) -> bool {
        self.trail.is_said(event)
    }

    /// The service has broken the turn off: the log has all there is, and it is there already.
    fn interrupted(&mut self, error: Error, now: Time) {
        self.error = error;
        self.resend = None;
        self.timeout_ms = self.timeout_ms.min(self.replay_ms);
        self.until = now.plus(self.timeout_ms);
    }

    /// The next step that following the log has brought.
    fn next(&mut self) -> Option<Step> {
        let mut one = Vec::with_capacity(1);
        self.found.take(1, &mut one);
        one.pop()
    }

    /// Looks at an event. It is given back if the application has yet to see it: like on the stream that broke, nothing
    /// before the turn and nothing that the request itself said is shown.
    fn event(&mut self, event: Event, now: Time) -> (Option<Event>, Told) {
        let told = self.trail.event(&event);
        self.reach_by = None;
        if told != Told::Other && self.trail.has_arrived() {
            self.carried.add(&event);
            self.until = now.plus(self.timeout_ms);
        }
        if let Some(last) = &self.behind {
            if last.as_str() == event.id() {
                self.behind = None;
                // The stream that broke had begun: the request is in the log, whatever it looks like there.
                self.trail.arrived();
            }
            return (None, told);
        }
        let shown = match told {
            Told::Own => false,
            Told::Other => self.trail.has_arrived(),
            _ => true,
        };
        (shown.then_some(event), told)
    }

    /// Whether the service works on the request and keeps the line to us open.
    fn is_attended(&self) -> bool {
        self.resend.as_ref().is_some_and(Resend::is_attended)
    }

    fn reach_deadline(&self) -> Option<Time> {
        self.reach_by.filter(|_| !self.connected && !self.is_attended())
    }

    fn news_deadline(&self) -> Option<Time> {
        Some(self.until).filter(|_| self.connected && !self.is_attended())
    }

    /// Why it is time to give up, if it is.
    fn over(&self, core: &Core, now: Time) -> Option<String> {
        if self.news_deadline().is_some_and(|at| at <= now) {
            return Some(format!("its log had no news of the turn for {} ms", self.timeout_ms));
        }
        let ms = core.config.reach_timeout_ms;
        let unreached = self.reach_deadline().is_some_and(|at| at <= now);
        unreached.then(|| format!("and for {ms} ms its log could not be read"))
    }

    /// What an event means for the turn, if it ends the search.
    fn outcome(&mut self, told: Told) -> Option<Found> {
        let failed = |error| Some(Found::Failed(error));
        match told {
            Told::Other | Told::Own | Told::Part | Told::Failed => None,
            Told::Answered(message) => Some(Found::Answered(SendMessageResult {
                message,
                events: self.carried.take(),
                pause_ms: None,
                lean: false,
                usage: None,
            })),
            Told::Cancelled => {
                failed(RpcFailure::new(code::TURN_CANCELLED, "turn cancelled").to_error())
            }
            Told::Closed => {
                let message = "the session was closed, or ended in an error, while the turn ran; open a new session";
                failed(Error::new(ErrorKind::SessionClosed, message))
            }
            Told::BrokenOff => {
                failed(self.unknown("its log shows that the turn was broken off without an answer"))
            }
            Told::TooLate => failed(
                self.unknown("its log shows that the pause had ended before the tool results came"),
            ),
        }
    }

    /// The error of the stream, with what the log says instead of an outcome.
    fn unknown(&self, log: &str) -> Error {
        let error = Error::new(self.error.kind(), format!("{}; {log}", self.error.message()))
            .with_retry(Retry::Unknown);
        match self.error.details() {
            Some(details) => error.with_details(details.clone()),
            None => error,
        }
    }
}

impl Turn {
    /// The stream of a request broke. Whether the log is followed for its outcome.
    pub(super) fn recover(
        &mut self,
        error: &Error,
        rpc: &Rpc,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) -> bool {
        let resends = core.features().message_id;
        let breaks = is_a_break(error) || (resends && may_pass(error));
        if !rpc.has_left() || !breaks || core.config.recovery_timeout_ms == 0 {
            return false;
        }
        if let Some(failure) = self.heard.failure.take() {
            self.finish(Err(failure), core, steps);
            return true;
        }
        let Some(left) = self.left.clone() else { return false };
        let driver = core.session.as_ref().and_then(|s| s.memory.driver.as_ref());
        let driver = self.heard.driver().or(driver).map(ToString::to_string);
        let mut trail = Trail::new(&left.params, driver);
        let last = rpc.has_events().then(|| self.heard.cursor());
        let since = self.before_request(core);
        if since.is_none() && last.is_some() {
            // Where the request stands in the log is not known, but that it had come there.
            trail.arrived();
            if let Some(event) = self.heard.take_answer()
                && let Told::Answered(message) = trail.event(&event)
            {
                let events = Json::array([&event.json()]);
                let result =
                    SendMessageResult { message, events, pause_ms: None, lean: false, usage: None };
                self.concluded(result, core, steps, trace, now);
                return true;
            }
        }
        let since = since.or_else(|| last.clone());
        if since.is_none() && !resends {
            return false;
        }
        core.log(LogLevel::Info, format!("the stream of a turn broke, reading its log: {error}"));
        let (kind, why) = (error.kind(), error.message().to_owned());
        steps.push(Step::Status(Status::Reconnecting { delay_ms: 0, kind, why }));
        let mut found = StepQueue::default();
        let behind = last.filter(|last| Some(last) != since.as_ref());
        let watch =
            since.map(|since| Watch::begin(self.op, Some(since), core, &mut found, trace, now));
        let timeout_ms = core.config.recovery_timeout_ms;
        self.state = State::Recovering(Box::new(Recovery {
            error: error.clone(),
            request: rpc.id.clone(),
            trail,
            resend: resends.then(|| Resend::begin(self.op, left, core, trace, now)),
            watch,
            found,
            behind: behind.and_then(|last| last.event_id().cloned()),
            carried: Carried::new(core.config.reply_bytes),
            timeout_ms,
            replay_ms: core.config.replay_timeout_ms,
            until: now.plus(timeout_ms),
            connected: false,
            reach_by: Some(now.plus(core.config.reach_timeout_ms)),
        }));
        true
    }

    /// An event before the request under way, if one is known.
    fn before_request(&self, core: &Core) -> Option<Cursor> {
        let start = self.heard.start();
        if start.event_id().is_some() {
            return Some(start);
        }
        core.known()
    }

    /// Following the log may have brought something.
    pub(super) fn recovery_moved(
        &mut self,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        self.look_into_log(core, steps, trace, now);
        self.consent_moved(core, steps, now);
    }

    fn look_into_log(&mut self, core: &mut Core, steps: &mut StepQueue, trace: &Trace, now: Time) {
        let decided_by = self.consent_until();
        while let State::Recovering(recovery) = &mut self.state {
            if let Some(until) = decided_by {
                // Nothing is logged while a person decides.
                recovery.until = recovery.until.max(until.plus(recovery.timeout_ms));
            }
            if let Some(heard) = recovery.resend.as_mut().and_then(Resend::take) {
                match heard {
                    Heard::Answered(result) => {
                        self.resent_answered(result, core, steps, trace, now);
                    }
                    Heard::Interrupted(error) => recovery.interrupted(error, now),
                    Heard::Refused(error) => {
                        self.drop_now(core, now);
                        self.failed(error, false, true, core, steps, trace, now);
                    }
                }
                continue;
            }
            let found = match recovery.next() {
                Some(Step::Event(event)) => {
                    let (event, told) = recovery.event(event, now);
                    if let Some(event) = event {
                        self.heard.item(Item::Event(event), steps);
                    }
                    match self.heard.failure.take() {
                        Some(failure) => Some(Found::Failed(failure)),
                        None => recovery.outcome(told),
                    }
                }
                Some(Step::Delta(delta)) => {
                    if recovery.behind.is_none() {
                        self.heard.delta(delta, steps);
                    }
                    None
                }
                Some(Step::Status(Status::Connected)) => {
                    recovery.connected = true;
                    if decided_by.is_some() {
                        // A log in which nothing is to come yet can show no more than that it can be read.
                        recovery.reach_by = None;
                    }
                    // What is in the log already must have the time to come.
                    let replayed = now.plus(recovery.timeout_ms.min(recovery.replay_ms));
                    recovery.until = recovery.until.max(replayed);
                    None
                }
                Some(lost @ Step::Status(Status::Reconnecting { .. })) => {
                    recovery.connected = false;
                    let by = now.plus(core.config.reach_timeout_ms);
                    recovery.reach_by.get_or_insert(by);
                    steps.push(lost);
                    None
                }
                Some(Step::Finished(_) | Step::Gap(Gap { lost: Lost::Cursor(_), .. })) => {
                    Some(Found::Failed(recovery.unknown("its log cannot be followed")))
                }
                Some(other) => {
                    steps.push(other);
                    None
                }
                None => match recovery.over(core, now) {
                    Some(log) => Some(Found::Failed(recovery.unknown(&log))),
                    None => return,
                },
            };
            match found {
                None => {}
                Some(Found::Answered(result)) => {
                    self.drop_now(core, now);
                    self.concluded(result, core, steps, trace, now);
                }
                Some(Found::Failed(error)) => {
                    self.drop_now(core, now);
                    self.finish(Err(error), core, steps);
                }
            }
        }
    }
}

/// Whether a request ended in a way that leaves open what became of it, and its log may tell.
fn is_a_break(error: &Error) -> bool {
    error.retry() == Retry::Unknown
        && matches!(
            error.kind(),
            ErrorKind::Lagged
                | ErrorKind::StreamEndedEarly
                | ErrorKind::LineTooLong
                | ErrorKind::Transport
                | ErrorKind::Io
                | ErrorKind::Timeout
        )
}
