//! A request sent again where the service knows its message by an id: the second call reads what the first one came to
//! (guarantee 4). It goes on until the service has answered, or the search for the outcome is given up.

use super::heard::Carried;
use super::{Left, State, Turn};
use crate::engine::answer::{Progress, Rpc};
use crate::engine::command::Trace;
use crate::engine::effect::OpId;
use crate::engine::net::{ExchangeId, NetEvent};
use crate::engine::queue::StepQueue;
use crate::engine::session::Core;
use broca_proto::session::event::Event;
use broca_proto::session::exchange::Item;
use broca_proto::session::method::{Method, SendMessageResult};
use broca_proto::session::rpc::RpcFailure;
use broca_proto::{Error, ErrorKind, Json, Retry, Time};

/// A request that is sent again.
pub(super) struct Resend {
    op: OpId,
    left: Left,
    doing: Doing,
    failures: u32,
    heard: Option<Heard>,
    carried: Carried,
}

enum Doing {
    Waiting(Time),
    Sending(Rpc),
    /// The service had forgotten this driver.
    Registering(Rpc),
    Over,
}

/// What became of the request.
pub(super) enum Heard {
    /// It is answered.
    Answered(SendMessageResult),
    /// The service broke the turn off; the log has what it came to.
    Interrupted(Error),
    /// It was refused, or has failed.
    Refused(Error),
}

impl Resend {
    /// Sends the request again at once.
    pub(super) fn begin(op: OpId, left: Left, core: &mut Core, trace: &Trace, now: Time) -> Self {
        let mut resend = Self {
            op,
            left,
            doing: Doing::Over,
            failures: 0,
            heard: None,
            carried: Carried::new(core.config.reply_bytes),
        };
        resend.send(core, trace, now);
        resend
    }

    pub(super) fn has(&self, exchange: ExchangeId) -> bool {
        matches!(&self.doing, Doing::Sending(rpc) | Doing::Registering(rpc) if rpc.exchange == exchange)
    }

    /// Whether the service holds the line while it works on the request.
    pub(super) fn is_attended(&self) -> bool {
        matches!(&self.doing, Doing::Sending(rpc) if rpc.has_begun())
    }

    /// What became of the request, once.
    pub(super) fn take(&mut self) -> Option<Heard> {
        self.heard.take()
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match &self.doing {
            Doing::Waiting(at) => Some(*at),
            _ => None,
        }
    }

    pub(super) fn timeout(&mut self, core: &mut Core, trace: &Trace, now: Time) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.send(core, trace, now);
        }
    }

    pub(super) fn drop_now(&mut self, core: &mut Core, now: Time) {
        if let Doing::Sending(rpc) | Doing::Registering(rpc) =
            std::mem::replace(&mut self.doing, Doing::Over)
        {
            core.net.abort(rpc.exchange, now);
        }
    }

    /// An event of its exchange. The turn's events come from the log.
    pub(super) fn network(&mut self, event: NetEvent, core: &mut Core, trace: &Trace, now: Time) {
        let (Doing::Sending(rpc) | Doing::Registering(rpc)) = &mut self.doing else { return };
        let carried = &mut self.carried;
        let keep = |item| {
            if let Item::Event(event) = item {
                carried.add(&event);
            }
        };
        match rpc.take(event, "the service", keep) {
            Progress::Going => {}
            Progress::Answered => core.linger(rpc.exchange, now),
            Progress::Refused => core.hear_out(rpc.exchange, now),
            Progress::Over(outcome) => {
                core.net.abort(rpc.exchange, now);
                self.over(outcome, core, trace, now);
            }
        }
    }

    fn over(&mut self, outcome: Result<Json, Error>, core: &mut Core, trace: &Trace, now: Time) {
        let was = std::mem::replace(&mut self.doing, Doing::Over);
        match (was, outcome) {
            (Doing::Registering(_), Ok(_)) => self.send(core, trace, now),
            (_, Ok(json)) => match SendMessageResult::read(&json) {
                Ok(mut result) => {
                    self.carried.complete(&mut result);
                    self.heard = Some(Heard::Answered(result));
                }
                Err(e) => {
                    let message = format!("the turn's result cannot be read: {e}");
                    let error = Error::new(ErrorKind::Malformed, message);
                    self.heard = Some(Heard::Refused(error.with_retry(Retry::Unknown)));
                }
            },
            (Doing::Sending(_), Err(error)) if error.is(ErrorKind::DriverNotRegistered) => {
                let params = Json::empty_object();
                let rpc = core.rpc(self.op, &Method::RegisterDriver, &params, trace, now);
                self.doing = Doing::Registering(rpc);
            }
            // The same answer would come again; the log may still tell.
            (_, Err(error)) if error.is(ErrorKind::LineTooLong) => {}
            (_, Err(error)) if may_pass(&error) => {
                self.failures = self.failures.saturating_add(1);
                let jitter = core.random();
                let delay = core.config.reconnect.delay_ms(self.failures, jitter);
                self.doing = Doing::Waiting(now.plus(delay));
            }
            (_, Err(error)) if RpcFailure::is_interrupted(&error) => {
                self.heard = Some(Heard::Interrupted(error));
            }
            (_, Err(error)) => self.heard = Some(Heard::Refused(error)),
        }
    }

    fn send(&mut self, core: &mut Core, trace: &Trace, now: Time) {
        self.carried.clear();
        let trace = self.left.trace.as_ref().unwrap_or(trace);
        let rpc = core.rpc(self.op, &Method::SendMessage, &self.left.params, trace, now);
        self.doing = Doing::Sending(rpc);
    }
}

/// Whether a request that ended in this way may be answered when it comes again under its id.
pub(super) fn may_pass(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Transport
        | ErrorKind::Connect
        | ErrorKind::Io
        | ErrorKind::Timeout
        | ErrorKind::StreamEndedEarly
        | ErrorKind::Lagged => true,
        // A proxy's page while the service restarts, and answers that say "later".
        ErrorKind::Api | ErrorKind::NotBroca => error.retry() != Retry::Unsafe,
        ErrorKind::Rpc => RpcFailure::is_shutdown(error),
        _ => false,
    }
}

impl Turn {
    /// The request that was sent again is answered. What the log had not brought yet is in its result.
    pub(super) fn resent_answered(
        &mut self,
        result: SendMessageResult,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        let State::Recovering(recovery) = &mut self.state else { return };
        let events = result.events.elements().unwrap_or_default();
        let read = |json: &Json| Event::parse(&json.clone().into_bytes()).ok();
        let events: Vec<Event> = events.iter().filter_map(read).collect();
        let seen = events.iter().rposition(|event| self.heard.has_seen(event));
        for event in events.into_iter().skip(seen.map_or(0, |at| at + 1)) {
            if !recovery.is_own(&event) {
                self.heard.item(Item::Event(event), steps);
            }
        }
        self.drop_now(core, now);
        self.concluded(result, core, steps, trace, now);
    }
}
