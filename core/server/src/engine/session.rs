//! One session while somebody uses it: its gate, the calls at it, and its fan-out.

use super::send::{Feed, Feeding, Grant};
use super::{millis, now_ms};
use crate::config::Config;
use crate::hub::{Hub, ReaderId};
use broca_proto::Json;
use broca_proto::run::gate::{Gate, GateOutput, Parking, Ticket};
use broca_proto::run::methods::SessionState;
use broca_proto::session::ids::{KeyId, SessionId};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Why a turn at work should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It should not.
    No,
    /// Its owner cancels it.
    Cancel,
    /// The session was closed.
    Closed,
    /// The service goes down and has waited long enough.
    Shutdown,
}

/// How a call gives the gate back.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The next one may go.
    Released,
    /// The turn waits for its owner's results.
    Parked {
        /// Until when, as the gate counts.
        deadline: u64,
    },
    /// The paused turn could not be taken up or over; it waits on.
    GivenBack(Parking),
    /// The session is over.
    Over(SessionState),
}

/// A session in memory. Nothing here is remembered: it can be made anew from the store.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) hub: Arc<Hub>,
    /// Held while events are written and shown, so that they are shown in the order of the log.
    pub(super) order: tokio::sync::Mutex<()>,
    control: Mutex<Control>,
}

#[derive(Debug)]
struct Control {
    gate: Gate,
    waiting: HashMap<Ticket, Waiting>,
    running: Option<Running>,
    ended: Option<SessionState>,
    /// The earliest time for which a timer runs.
    timer: Option<u64>,
}

#[derive(Debug)]
struct Waiting {
    request: Option<Json>,
    grant: oneshot::Sender<Grant>,
    /// Where it is told its place, if it asked for that.
    places: Option<Feeding>,
}

#[derive(Debug)]
struct Running {
    owner: KeyId,
    request: Option<Json>,
    stop: watch::Sender<Stop>,
    cancelled: Arc<AtomicBool>,
}

/// What a cancel found.
pub(super) enum Found {
    /// The call waited and is refused now.
    Queued,
    /// A turn at work: it has been told. The sender is closed when the turn is over; the flag says whether it was
    /// cancelled.
    Running(watch::Sender<Stop>, Arc<AtomicBool>),
    /// A paused turn; the gate is held by this ticket now.
    Paused(Ticket, Parking),
    /// Nothing.
    Idle,
}

impl Session {
    pub(super) fn new(id: SessionId, config: &Config) -> Arc<Self> {
        Self::with_gate(id, config, Gate::new(config.max_waiters))
    }

    /// A session with a turn that was paused before a restart.
    pub(super) fn parked(id: SessionId, config: &Config, parking: Parking) -> Arc<Self> {
        Self::with_gate(id, config, Gate::parked(config.max_waiters, parking))
    }

    fn with_gate(id: SessionId, config: &Config, gate: Gate) -> Arc<Self> {
        let control =
            Control { gate, waiting: HashMap::new(), running: None, ended: None, timer: None };
        Arc::new(Self {
            id,
            hub: Hub::new(config.hub.clone()),
            order: tokio::sync::Mutex::new(()),
            control: Mutex::new(control),
        })
    }

    /// Whether it must stay in memory. Asked under the lock of the map that holds it.
    pub(super) fn is_in_use(self: &Arc<Self>) -> bool {
        if Arc::strong_count(self) > 1 || Arc::strong_count(&self.hub) > 1 {
            return true;
        }
        let control = self.lock();
        !control.gate.is_idle() && control.ended.is_none()
    }

    /// A call arrives at the gate. Its grant comes through the channel, perhaps at once.
    pub(super) fn arrive(
        self: &Arc<Self>,
        who: KeyId,
        request: Option<Json>,
        places: Option<Feeding>,
    ) -> (Ticket, oneshot::Receiver<Grant>) {
        let (grant, granted) = oneshot::channel();
        let mut control = self.lock();
        let ticket = control.gate.handle_arrival(who, now_ms());
        control.waiting.insert(ticket, Waiting { request, grant, places });
        self.settle(&mut control);
        (ticket, granted)
    }

    /// A queued call goes away; says whether it was still waiting.
    pub(super) fn leave(self: &Arc<Self>, ticket: Ticket) -> bool {
        let mut control = self.lock();
        let left = control.gate.handle_leave(ticket);
        if left {
            control.waiting.remove(&ticket);
            tell_places(&mut control);
        }
        left
    }

    /// A call that held the gate is over. Its stream ends with `line` before anybody else's turn begins.
    pub(super) fn end_call(
        self: &Arc<Self>,
        ticket: Ticket,
        ending: Ending,
        stream: Option<(ReaderId, Bytes)>,
    ) {
        let mut control = self.lock();
        if control.gate.holder().is_some_and(|(holder, _)| holder == ticket) {
            control.running = None;
        }
        match ending {
            Ending::Parked { deadline } => {
                // A waiter may take over at once, so the stream ends first.
                finish(&self.hub, stream);
                control.gate.handle_park(ticket, deadline, now_ms());
            }
            Ending::Released => {
                finish(&self.hub, stream);
                control.gate.handle_release(ticket);
            }
            Ending::GivenBack(parking) => {
                finish(&self.hub, stream);
                control.gate.handle_give_back(ticket, parking);
                control.gate.handle_timeout(now_ms());
            }
            Ending::Over(state) => {
                finish(&self.hub, stream);
                self.end_session(&mut control, state);
            }
        }
        self.settle(&mut control);
    }

    /// The session was closed from outside: a turn at work stops, calls that wait are refused.
    pub(super) fn close(self: &Arc<Self>, state: SessionState) {
        let mut control = self.lock();
        if let Some(running) = &control.running {
            running.stop.send_replace(Stop::Closed);
        }
        self.end_session(&mut control, state);
        self.settle(&mut control);
    }

    /// The state in which the session ended, if it did while it was in memory.
    pub(super) fn ended(&self) -> Option<SessionState> {
        self.lock().ended.clone()
    }

    /// Looks for what a cancel of `who` means, and begins it. `was_running`: the call that is meant was at work
    /// a moment ago, so that a pause is its own.
    pub(super) fn find_cancelled(
        self: &Arc<Self>,
        who: &KeyId,
        request: Option<&Json>,
        was_running: bool,
    ) -> Found {
        let mut control = self.lock();
        let means = |given: Option<&Json>| request.is_none() || given == request;
        if let Some(running) = &control.running
            && running.owner == *who
            && means(running.request.as_ref())
        {
            running.stop.send_if_modified(|stop| {
                let idle = *stop == Stop::No;
                if idle {
                    *stop = Stop::Cancel;
                }
                idle
            });
            return Found::Running(running.stop.clone(), Arc::clone(&running.cancelled));
        }
        // A queued call is meant by its id, or when nothing else of this client goes on.
        let queued = control.gate.waiters().filter(|(_, waiter)| *waiter == who);
        let queued = queued.map(|(ticket, _)| ticket).find(|ticket| {
            let given = control.waiting.get(ticket).and_then(|w| w.request.as_ref());
            means(given)
        });
        if (request.is_none() || was_running)
            && let Some((ticket, parking)) = control.gate.claim_parked(who)
        {
            return Found::Paused(ticket, parking);
        }
        if let Some(ticket) = queued
            && control.gate.handle_leave(ticket)
        {
            if let Some(waiting) = control.waiting.remove(&ticket) {
                // Its stream may have gone away at this very moment.
                let _ = waiting.grant.send(Grant::Cancelled);
            }
            tell_places(&mut control);
            return Found::Queued;
        }
        Found::Idle
    }

    /// The owner of a paused turn keeps it for longer: until when, as the gate counts. Nothing when none of its turns is
    /// paused.
    pub(super) fn hold(&self, who: &KeyId, config: &Config) -> Option<u64> {
        let (renew, longest) = (millis(config.turn_timeout), millis(config.max_hold));
        self.lock().gate.handle_hold(who, renew, longest, now_ms())
    }

    /// Tells a turn at work to stop.
    pub(super) fn stop_running(&self, why: Stop) {
        if let Some(running) = &self.lock().running {
            running.stop.send_replace(why);
        }
    }

    /// Ends subscriptions and refuses the calls that wait.
    pub(super) fn begin_shutdown(self: &Arc<Self>) {
        let mut control = self.lock();
        let waiting: Vec<Ticket> = control.gate.waiters().map(|(ticket, _)| ticket).collect();
        for ticket in waiting {
            control.gate.handle_leave(ticket);
            if let Some(waiting) = control.waiting.remove(&ticket) {
                let _ = waiting.grant.send(Grant::Stopping);
            }
        }
        drop(control);
        self.hub.end_subscriptions();
    }

    fn end_session(&self, control: &mut Control, state: SessionState) {
        control.ended = Some(state);
        control.gate.handle_close();
        self.hub.end_subscriptions();
    }

    /// Carries out what the gate says, and sets its timer.
    fn settle(self: &Arc<Self>, control: &mut Control) {
        while let Some(output) = control.gate.poll_output() {
            match output {
                GateOutput::Granted { ticket, who, entry } => {
                    let Some(waiting) = control.waiting.remove(&ticket) else {
                        control.gate.handle_release(ticket);
                        continue;
                    };
                    let (stop, stopped) = watch::channel(Stop::No);
                    let cancelled = Arc::new(AtomicBool::new(false));
                    let grant = Grant::Go { entry, stopped, cancelled: Arc::clone(&cancelled) };
                    if waiting.grant.send(grant).is_err() {
                        control.gate.handle_release(ticket);
                        continue;
                    }
                    let request = waiting.request;
                    control.running = Some(Running { owner: who, request, stop, cancelled });
                }
                GateOutput::Refused { ticket, why } => {
                    if let Some(waiting) = control.waiting.remove(&ticket) {
                        let state = control.ended.clone().unwrap_or(SessionState::Closed);
                        let _ = waiting.grant.send(Grant::Refused(why, state));
                    }
                }
            }
        }
        tell_places(control);
        self.set_timer(control);
    }

    fn set_timer(self: &Arc<Self>, control: &mut Control) {
        let Some(at) = control.gate.poll_timeout() else { return };
        if control.timer.is_some_and(|running| running <= at) {
            return;
        }
        control.timer = Some(at);
        let session = Arc::downgrade(self);
        let wait = Duration::from_millis(at.saturating_sub(now_ms()));
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let Some(session) = session.upgrade() else { return };
            let mut control = session.lock();
            control.timer = None;
            control.gate.handle_timeout(now_ms());
            session.settle(&mut control);
        });
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a turn as cancelled, for whoever asked for it.
pub(super) fn mark_cancelled(flag: &AtomicBool) {
    flag.store(true, Ordering::SeqCst);
}

/// Tells the calls that wait where they stand, where that is new.
fn tell_places(control: &mut Control) {
    for (ticket, place) in control.gate.take_places() {
        let places = control.waiting.get(&ticket).and_then(|waiting| waiting.places.as_ref());
        // The stream may just have gone.
        let _ = places.map(|places| places.send(Feed::Place(place)));
    }
}

fn finish(hub: &Hub, stream: Option<(ReaderId, Bytes)>) {
    if let Some((reader, line)) = stream {
        hub.finish(reader, line);
    }
}
