//! `session.sendMessage` from its arrival to its answer: waits at the gate, then lets the turn run.
//!
//! The work is a task of its own: a caller that goes away while it waits leaves the queue, after a while if it can come
//! back (feature `message-id`); one that goes away later does not end the turn.

use super::Engine;
use super::listeners::{Asker, Listeners, Listening};
use super::quota::TurnSlot;
use super::session::{Ending, Left, Session, Stop};
use super::turn::Drive;
use crate::store::NamedMessage;
use broca_proto::run::gate::{Entry, Refusal, Ticket};
use broca_proto::run::methods::{self, SessionState};
use broca_proto::run::turn;
use broca_proto::session::content::Message;
use broca_proto::session::feature::Features;
use broca_proto::session::generation::Generation;
use broca_proto::session::ids::KeyId;
use broca_proto::session::rpc::{self, RpcFailure};
use bytes::Bytes;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tracing::Instrument;

/// What the gate tells a call.
#[derive(Debug)]
pub(super) enum Grant {
    /// It holds the gate.
    Go { entry: Entry, stopped: watch::Receiver<Stop>, cancelled: Arc<AtomicBool> },
    /// It was turned away; the session is in this state.
    Refused(Refusal, SessionState),
    /// Its client cancelled it.
    Cancelled,
    /// Its client key was revoked.
    Revoked,
    /// The service goes down.
    Stopping,
}

/// What is sent.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) message: Message,
    /// What it says about the generation.
    pub(super) generation: Generation,
}

/// One `session.sendMessage`: who sends what to whom it is shown.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) who: KeyId,
    /// What the request that began it asked for.
    pub(super) features: Features,
    pub(super) listeners: Arc<Listeners>,
    /// Its message, if it has an id.
    pub(super) message: Option<NamedMessage>,
    /// Counts it among the turns of its client key.
    slot: Mutex<Option<TurnSlot>>,
}

impl Call {
    /// A call, and the first stream that shows it.
    pub(super) fn new(
        who: KeyId,
        asker: Asker,
        message: Option<NamedMessage>,
    ) -> (Arc<Self>, Listening) {
        let features = asker.features;
        let (listeners, listening) = Listeners::new(asker);
        let slot = Mutex::default();
        (Arc::new(Self { who, features, listeners, message, slot }), listening)
    }

    /// It counts among the turns of its client key from now on.
    pub(super) fn hold(&self, slot: Option<TurnSlot>) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = slot;
    }

    /// It counts no more. To be said before its streams end: who has the answer may send again.
    pub(super) fn let_go(&self) {
        self.hold(None);
    }
}

/// Brings the call to the gate. Its streams get their feed when the gate opens.
pub(super) fn begin(engine: &Arc<Engine>, session: Arc<Session>, call: Arc<Call>, said: Said) {
    let engine = Arc::clone(engine);
    let (ticket, granted) = session.arrive(&call);
    if engine.is_stopping() {
        // It may have arrived after those that wait were refused.
        session.begin_shutdown();
    }
    let work = wait_and_run(engine, session, call, said, ticket, granted);
    // What the turn says in the service's log belongs to the request that began it.
    tokio::spawn(work.in_current_span());
}

async fn wait_and_run(
    engine: Arc<Engine>,
    session: Arc<Session>,
    call: Arc<Call>,
    said: Said,
    ticket: Ticket,
    mut granted: oneshot::Receiver<Grant>,
) {
    let mut was_alone = false;
    let grant = loop {
        tokio::select! {
            biased;
            grant = &mut granted => break grant,
            () = call.listeners.gone() => was_alone = true,
        }
        tokio::select! {
            biased;
            grant = &mut granted => break grant,
            () = call.listeners.back() => continue,
            () = tokio::time::sleep(grace(&engine, &call)) => {}
        }
        match session.leave(ticket, &call) {
            Left::Now => return,
            Left::NotAlone => {}
            Left::TooLate => break granted.await,
        }
    };
    let failure = match grant {
        Ok(Grant::Go { entry, stopped, cancelled }) => {
            let held = Held::new(&engine, &session, &call, ticket);
            let drive = Drive::new(engine, session, call, held, stopped, cancelled);
            return drive.run(entry, said, was_alone).await;
        }
        Ok(Grant::Refused(why, state)) => methods::gate_refusal(why, &state),
        Ok(Grant::Cancelled) => turn::turn_cancelled(),
        Ok(Grant::Revoked) => RpcFailure::new(rpc::code::APPLICATION, "the client key was revoked"),
        Ok(Grant::Stopping) => stopping(),
        Err(_) => methods::internal_error(),
    };
    session.end_unbegun(&call, |asker| asker.line(Err(&failure)));
}

/// How long a queued call that nobody listens to keeps its place: its sender can only come back if it can name it.
fn grace(engine: &Engine, call: &Call) -> Duration {
    call.message.as_ref().map_or(Duration::ZERO, |_| engine.config().queue_grace)
}

/// Gives the gate back if the task breaks off, so that the session goes on.
pub(super) struct Held {
    engine: Arc<Engine>,
    session: Arc<Session>,
    call: Arc<Call>,
    ticket: Ticket,
    armed: bool,
}

impl Held {
    fn new(engine: &Arc<Engine>, session: &Arc<Session>, call: &Arc<Call>, ticket: Ticket) -> Self {
        engine.turns.send_modify(|turns| *turns += 1);
        let (engine, session) = (Arc::clone(engine), Arc::clone(session));
        Self { engine, session, call: Arc::clone(call), ticket, armed: true }
    }

    /// Gives the gate back; the call's streams end with `line`.
    pub(super) fn end(&mut self, ending: Ending, line: impl Fn(&Asker) -> Bytes) {
        self.armed = false;
        self.call.let_go();
        let (call, hub) = (&self.call, &self.session.hub);
        let prepared = call.listeners.prepare(&line);
        let tell = || call.listeners.finish(hub, prepared, line);
        self.session.end_call(self.ticket, ending, Some(call), tell);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.armed {
            tracing::error!(session = %self.session.id, "a turn broke off");
            let failure = methods::internal_error();
            self.end(Ending::Released, |asker| asker.line(Err(&failure)));
        }
        self.engine.turns.send_modify(|turns| *turns -= 1);
    }
}

pub(super) fn stopping() -> RpcFailure {
    let message = "the service is shutting down; connect again";
    RpcFailure::new(rpc::code::APPLICATION, message)
}
