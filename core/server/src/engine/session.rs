//! One session while somebody uses it: its gate, the calls at it, and its fan-out.

use super::approve::{Asked, Heard};
use super::listeners::{Asker, Listening};
use super::send::{Call, Grant};
use super::{millis, now_ms};
use crate::config::Config;
use crate::hub::Hub;
use crate::store::NamedMessage;
use broca_proto::Json;
use broca_proto::run::gate::{Gate, GateOutput, Parking, Ticket};
use broca_proto::run::methods::SessionState;
use broca_proto::run::repeat::{self, FirstOne};
use broca_proto::session::approval::Approve;
use broca_proto::session::ids::{KeyId, SessionId};
use broca_proto::session::info::{TurnInfo, TurnStatus};
use broca_proto::session::notice::Queued;
use broca_proto::session::rpc::RpcFailure;
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
        /// Since when, as the gate counts.
        began: u64,
        /// Until when.
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
    /// The question on which the turn at work waits, and the one before it until what became of that is on disk.
    questions: Vec<Asked>,
    /// The calls that go on whose message has an id, by sender and id.
    named: HashMap<(KeyId, String), Arc<Call>>,
    ended: Option<SessionState>,
    /// The earliest time for which a timer runs.
    timer: Option<u64>,
}

impl Control {
    /// Where a call stands, if it waits.
    fn place(&self, call: &Arc<Call>) -> Option<Queued> {
        let mut waiting = self.waiting.iter();
        let (ticket, _) = waiting.find(|(_, waiting)| Arc::ptr_eq(&waiting.call, call))?;
        self.gate.place(*ticket)
    }
}

#[derive(Debug)]
struct Waiting {
    call: Arc<Call>,
    grant: oneshot::Sender<Grant>,
}

#[derive(Debug)]
struct Running {
    call: Arc<Call>,
    stop: watch::Sender<Stop>,
    cancelled: Arc<AtomicBool>,
}

/// What became of a call whose message has an id, when it came.
pub(super) enum Enlisted {
    /// It is new, and its sender listens.
    New(Arc<Call>, Listening),
    /// It goes on already; its sender listens from now on.
    Joined(Listening),
    /// It is refused: another message with this id goes on.
    Refused(RpcFailure),
}

/// What became of a queued call that nobody listened to.
pub(super) enum Left {
    /// It is out of the queue.
    Now,
    /// Somebody listens to it again.
    NotAlone,
    /// It is granted, or was cancelled or refused, and is about to be told.
    TooLate,
}

/// What a cancel found.
pub(super) enum Found {
    /// The call waited and is out of the queue now; it is still to be told.
    Queued(Arc<Call>, oneshot::Sender<Grant>),
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
        let (waiting, named) = (HashMap::new(), HashMap::new());
        let (running, questions, ended, timer) = (None, Vec::new(), None, None);
        let control = Control { gate, waiting, running, questions, named, ended, timer };
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
    pub(super) fn arrive(self: &Arc<Self>, call: &Arc<Call>) -> (Ticket, oneshot::Receiver<Grant>) {
        let (grant, granted) = oneshot::channel();
        let mut control = self.lock();
        let ticket = control.gate.handle_arrival(call.who.clone(), now_ms());
        control.waiting.insert(ticket, Waiting { call: Arc::clone(call), grant });
        self.settle(&mut control);
        (ticket, granted)
    }

    /// A queued call that nobody listens to goes away.
    pub(super) fn leave(self: &Arc<Self>, ticket: Ticket, call: &Arc<Call>) -> Left {
        let mut control = self.lock();
        if !call.listeners.are_gone() {
            return Left::NotAlone;
        }
        if !control.gate.handle_leave(ticket) {
            return Left::TooLate;
        }
        control.waiting.remove(&ticket);
        forget(&mut control, call);
        tell_places(&mut control);
        Left::Now
    }

    /// A call whose message has an id comes: it begins, unless it goes on already.
    pub(super) fn enlist(&self, who: &KeyId, asker: Asker, message: NamedMessage) -> Enlisted {
        let mut control = self.lock();
        let name = (who.clone(), message.id.clone());
        if let Some(call) = control.named.get(&name) {
            let same = call.message.as_ref().is_some_and(|known| known.digest == message.digest);
            if let Err(failure) = repeat::share_in(FirstOne::GoesOn, same) {
                return Enlisted::Refused(failure);
            }
            let place = control.place(call);
            if let Some(listening) = call.listeners.add(&self.hub, asker.clone(), place) {
                return Enlisted::Joined(listening);
            }
        }
        let (call, listening) = Call::new(who.clone(), asker, Some(message));
        control.named.insert(name, Arc::clone(&call));
        Enlisted::New(call, listening)
    }

    /// A call ends without a turn.
    pub(super) fn end_unbegun(&self, call: &Arc<Call>, line: impl Fn(&Asker) -> Bytes) {
        call.let_go();
        let prepared = call.listeners.prepare(&line);
        let mut control = self.lock();
        forget(&mut control, call);
        call.listeners.finish(&self.hub, prepared, line);
    }

    /// Gives up a call that was granted after its last stream had gone; says whether it did. Who sends the message again
    /// finds nothing begun.
    pub(super) fn give_up_if_gone(&self, call: &Arc<Call>) -> bool {
        let mut control = self.lock();
        let gone = call.listeners.are_gone();
        if gone {
            forget(&mut control, call);
        }
        gone
    }

    /// A call that held the gate is over. `tell` ends its streams before anybody else's turn begins.
    pub(super) fn end_call(
        self: &Arc<Self>,
        ticket: Ticket,
        ending: Ending,
        call: Option<&Arc<Call>>,
        tell: impl FnOnce(),
    ) {
        let mut control = self.lock();
        if let Some(call) = call {
            forget(&mut control, call);
        }
        // A waiter may go at once, so the streams end first.
        tell();
        if control.gate.holder().is_some_and(|(holder, _)| holder == ticket) {
            control.running = None;
        }
        match ending {
            Ending::Parked { began, deadline } => {
                control.gate.handle_park(ticket, began, deadline, now_ms());
            }
            Ending::Released => {
                control.gate.handle_release(ticket);
            }
            Ending::GivenBack(parking) => {
                control.gate.handle_give_back(ticket, parking);
                control.gate.handle_timeout(now_ms());
            }
            Ending::Over(state) => self.end_session(&mut control, state),
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

    /// The turn at this moment, and how many calls wait for theirs.
    pub(super) fn turn(&self) -> TurnInfo {
        let control = self.lock();
        let mut turn = TurnInfo::idle();
        turn.waiting = control.gate.waiters().count() as u64;
        if let Some((_, owner)) = control.gate.holder() {
            (turn.status, turn.owner) = (TurnStatus::Running, Some(owner.clone()));
        } else if let Some(parking) = control.gate.pause() {
            (turn.status, turn.owner) = (TurnStatus::Paused, Some(parking.owner.clone()));
            turn.expires_in_ms = Some(parking.deadline.saturating_sub(now_ms()));
        }
        turn
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
        let means = |call: &Call| request.is_none_or(|request| call.listeners.means(request));
        if let Some(running) = &control.running
            && running.call.who == *who
            && means(&running.call)
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
        let queued = queued
            .map(|(ticket, _)| ticket)
            .find(|ticket| control.waiting.get(ticket).is_some_and(|w| means(&w.call)));
        if (request.is_none() || was_running)
            && let Some((ticket, parking)) = control.gate.claim_parked(who)
        {
            return Found::Paused(ticket, parking);
        }
        if let Some(ticket) = queued
            && control.gate.handle_leave(ticket)
            && let Some(Waiting { call, grant }) = control.waiting.remove(&ticket)
        {
            tell_places(&mut control);
            return Found::Queued(call, grant);
        }
        Found::Idle
    }

    /// The owner of a paused turn keeps it for longer: until when, as the gate counts. Nothing when none of its turns is
    /// paused.
    pub(super) fn hold(&self, who: &KeyId, config: &Config) -> Option<u64> {
        let (renew, longest) = (millis(config.turn_timeout), millis(config.max_hold));
        self.lock().gate.handle_hold(who, renew, longest, now_ms())
    }

    /// The turn at work waits for an answer.
    pub(super) fn open_question(&self, asked: Asked) {
        self.lock().questions.push(asked);
    }

    /// What became of the question about this call is on disk.
    pub(super) fn close_question(&self, call: &str) {
        self.lock().questions.retain(|asked| asked.call() != call);
    }

    /// Whether a turn waits for `who` to say something about this call.
    pub(super) fn asks(&self, who: &KeyId, call: &str) -> bool {
        self.lock().questions.iter().any(|asked| asked.is_about(who, call))
    }

    /// Hands what `who` says to the turn that waits for it; nothing when none does.
    ///
    /// # Errors
    /// `-32602` for an answer that the question does not take.
    pub(super) fn hear_answer(
        &self,
        who: &KeyId,
        said: Approve,
    ) -> Result<Option<Heard>, RpcFailure> {
        let mut control = self.lock();
        let mut questions = control.questions.iter_mut();
        let asked = questions.find(|asked| asked.is_about(who, &said.tool_use_id));
        asked.map(|asked| asked.hear(said)).transpose()
    }

    /// Tells a turn at work to stop.
    pub(super) fn stop_running(&self, why: Stop) {
        if let Some(running) = &self.lock().running {
            running.stop.send_replace(why);
        }
    }

    /// Ends subscriptions, refuses the calls that wait and stops a turn that waits for an answer: nobody can connect to
    /// give it.
    pub(super) fn begin_shutdown(&self) {
        self.stop_asking();
        self.turn_away(|_| true, || Grant::Stopping);
        self.hub.end_subscriptions();
    }

    /// A client key was revoked: its subscriptions end and its calls that wait are refused. A turn at work goes on, without
    /// the answer for which it waits.
    pub(super) fn revoke(&self, who: &KeyId) {
        self.lock().questions.iter_mut().for_each(|asked| asked.expect_none_of(who));
        self.turn_away(|waiter| waiter == who, || Grant::Revoked);
        self.hub.end_subscriptions_of(who);
    }

    fn stop_asking(&self) {
        let control = self.lock();
        if let Some(running) = control.running.as_ref().filter(|_| !control.questions.is_empty()) {
            running.stop.send_replace(Stop::Shutdown);
        }
    }

    fn turn_away(&self, is_meant: impl Fn(&KeyId) -> bool, grant: impl Fn() -> Grant) {
        let mut control = self.lock();
        let waiters = control.gate.waiters().filter(|(_, waiter)| is_meant(waiter));
        let waiting: Vec<Ticket> = waiters.map(|(ticket, _)| ticket).collect();
        for ticket in waiting {
            control.gate.handle_leave(ticket);
            if let Some(waiting) = control.waiting.remove(&ticket) {
                // Its stream may have gone.
                let _ = waiting.grant.send(grant());
            }
        }
        tell_places(&mut control);
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
                GateOutput::Granted { ticket, entry, .. } => {
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
                    let call = waiting.call;
                    control.running = Some(Running { call, stop, cancelled });
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
        if let Some(waiting) = control.waiting.get(&ticket) {
            waiting.call.listeners.tell_place(place);
        }
    }
}

/// The call goes on no longer: its message is looked up in the store from now on.
fn forget(control: &mut Control, call: &Arc<Call>) {
    let Some(message) = &call.message else { return };
    let name = (call.who.clone(), message.id.clone());
    if control.named.get(&name).is_some_and(|known| Arc::ptr_eq(known, call)) {
        control.named.remove(&name);
    }
}
