//! Watching a session over any number of connections.

use super::answer::{Progress, Rpc};
use super::command::Trace;
use super::effect::{LogLevel, OpId};
use super::net::{ExchangeId, NetEvent};
use super::ops::show;
use super::queue::StepQueue;
use super::session::Core;
use super::step::{Gap, Lost, Outcome, Status, Step};
use crate::http1;
use broca_proto::session::exchange::{BodyEnd, Item};
use broca_proto::session::ids::Cursor;
use broca_proto::session::method::{Method, Subscribe};
use broca_proto::session::subscription::{self, Delivery, Subscription, Want};
use broca_proto::{Error, ErrorKind, Json, Time};

pub(crate) struct Watch {
    op: OpId,
    subscription: Subscription,
    stream: Option<Rpc>,
    connected: bool,
    /// Since when the application is so far behind that the log keeps for it what comes.
    left: Option<Time>,
    /// It has caught up: the log is read on from there.
    returned: bool,
    /// It was between two connections when it left.
    waited: bool,
}

impl Watch {
    pub(crate) fn begin(
        op: OpId,
        from: Option<Cursor>,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) -> Self {
        let subscription = Subscription::new(from, core.config.reconnect);
        let subscription = subscription.with_keep_open(core.announced().keep_open);
        let mut watch = Self {
            op,
            subscription,
            stream: None,
            connected: false,
            left: None,
            returned: false,
            waited: false,
        };
        watch.advance(core, steps, trace, now);
        watch
    }

    #[inline]
    pub(crate) fn network(
        &mut self,
        exchange: ExchangeId,
        event: NetEvent,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        let Some(stream) = self.stream.as_mut().filter(|s| s.exchange == exchange) else { return };
        let opens = |head: &http1::Response| head.status() == 200 && !self.connected;
        if matches!(&event, NetEvent::Head(head) if opens(head)) {
            self.connected = true;
            steps.push(Step::Status(Status::Connected));
        }
        let broken = matches!(event, NetEvent::Failed(_) | NetEvent::End(BodyEnd::Broken));
        let subscription = &mut self.subscription;
        let delta_limit = core.config.delta_buffer_bytes;
        let progress = stream.take(event, "the service", |item| match item {
            Item::Event(event) => {
                if subscription.event(&event, now) == Delivery::Deliver {
                    steps.push(Step::Event(event));
                }
            }
            other => {
                let cursor = subscription.cursor();
                show(other, steps, delta_limit, || cursor.clone());
            }
        });
        let lost = match progress {
            Progress::Going => {
                if self.subscription.is_over() {
                    self.drop_now(core, now);
                    self.advance(core, steps, trace, now);
                }
                return;
            }
            Progress::Answered => {
                core.linger(exchange, now);
                return;
            }
            Progress::Refused => {
                core.hear_out(exchange, now);
                return;
            }
            // A terminal result means that somebody unsubscribed; the session itself goes on.
            Progress::Over(Ok(_)) => subscription::Lost::Ended,
            Progress::Over(Err(error)) => {
                if error.kind() == ErrorKind::StreamEndedEarly && !broken {
                    subscription::Lost::Ended
                } else {
                    subscription::Lost::Failed(error)
                }
            }
        };
        self.lost(lost, core, steps, trace, now);
    }

    pub(crate) fn timeout(
        &mut self,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.returned = false;
            self.advance(core, steps, trace, now);
        }
    }

    /// The exchange that brings events.
    pub(crate) fn stream(&self) -> Option<ExchangeId> {
        self.stream.as_ref().map(|stream| stream.exchange)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if self.returned {
            return Some(Time::default());
        }
        self.subscription.poll_timeout().filter(|_| self.left.is_none())
    }

    /// Too many steps wait. The stream is given up in place of leaving it unread: the log has what follows the last event,
    /// and the service need not wait for this reader. Not before there was an event to read on from.
    pub(crate) fn leave(&mut self, core: &mut Core, now: Time) -> bool {
        if self.left.is_none() {
            let knows = self.subscription.cursor().event_id().is_some();
            if !knows || self.subscription.is_over() {
                return false;
            }
            self.left = Some(now);
            if let Some(stream) = self.stream.take() {
                core.net.abort(stream.exchange, now);
                self.connected = false;
                return true;
            }
            self.waited = true;
        }
        true
    }

    /// Whether it has given its stream up for an application that is behind.
    pub(crate) fn is_away(&self) -> bool {
        self.left.is_some()
    }

    /// Few enough steps wait again.
    pub(crate) fn come_back(&mut self, core: &mut Core, steps: &mut StepQueue) {
        let Some(at) = self.left.take() else { return };
        self.returned = true;
        if std::mem::take(&mut self.waited) {
            return;
        }
        let behind = Error::new(ErrorKind::Lagged, "the application was behind");
        let jitter = core.random();
        if let Err(error) = self.subscription.lost(subscription::Lost::Failed(behind), at, jitter) {
            steps.push(Step::Finished(Err(error)));
        }
    }

    pub(crate) fn drop_now(&mut self, core: &mut Core, now: Time) {
        if let Some(stream) = self.stream.take() {
            core.net.abort(stream.exchange, now);
        }
    }

    fn lost(
        &mut self,
        lost: subscription::Lost,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        if let Some(stream) = self.stream.take() {
            core.net.abort(stream.exchange, now);
        }
        if std::mem::take(&mut self.connected) && self.subscription.since().is_none() {
            steps.push(Step::Gap(Gap { lost: Lost::Unseen, after: Cursor::start() }));
        }
        let (kind, why) = match &lost {
            subscription::Lost::Ended => {
                (ErrorKind::StreamEndedEarly, "the service ended the stream".to_owned())
            }
            subscription::Lost::Failed(error) => (error.kind(), error.message().to_owned()),
        };
        let jitter = core.random();
        if let Err(error) = self.subscription.lost(lost, now, jitter) {
            steps.push(Step::Finished(Err(error)));
            return;
        }
        if let Some(at) = self.subscription.poll_timeout() {
            core.log(LogLevel::Info, format!("subscription lost, reconnecting: {why}"));
            let delay_ms = at.since(now);
            steps.push(Step::Status(Status::Reconnecting { delay_ms, kind, why }));
        }
        self.advance(core, steps, trace, now);
    }

    fn advance(&mut self, core: &mut Core, steps: &mut StepQueue, trace: &Trace, now: Time) {
        loop {
            match self.subscription.poll(now) {
                Want::Connect(_) => {
                    let since_event_id = self.subscription.since().map(str::to_owned);
                    let params: Json = Subscribe { since_event_id }.to_json();
                    self.stream = Some(core.rpc(self.op, &Method::Subscribe, &params, trace, now));
                    return;
                }
                Want::CursorUnknown(cursor) => {
                    self.drop_now(core, now);
                    self.connected = false;
                    let gap = Gap { lost: Lost::Cursor(cursor), after: Cursor::start() };
                    steps.push(Step::Gap(gap));
                }
                Want::Ended => {
                    if !steps.is_finished() {
                        steps.push(Step::Finished(Ok(Outcome::Ended)));
                    }
                    return;
                }
                Want::Wait | Want::Streaming => return,
            }
        }
    }
}
