//! `session.sendMessage` from its arrival to its answer: waits at the gate, then lets the turn run.
//!
//! The work is a task of its own: a caller that goes away while it waits leaves the queue, one that goes
//! away later does not end the turn.

use super::Engine;
use super::session::{Ending, Session, Stop};
use super::turn::Drive;
use crate::hub::{Reader, ReaderId};
use broca_proto::Json;
use broca_proto::run::gate::{Entry, Refusal, Ticket};
use broca_proto::run::methods::{self, SessionState};
use broca_proto::run::turn;
use broca_proto::session::content::Message;
use broca_proto::session::feature::Features;
use broca_proto::session::ids::KeyId;
use broca_proto::session::notice::Queued;
use broca_proto::session::rpc::{self, RpcFailure};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::Instrument;

/// What a call's stream gets: places while it waits, then one of the others.
pub(crate) enum Feed {
    /// It waits, and asked to be told where.
    Place(Queued),
    /// The turn has begun: the session's feed, and at its end the terminal line.
    Live(Reader),
    /// There is no turn: one line, or none for a notification.
    Answer(Bytes),
}

/// What the gate tells a call.
#[derive(Debug)]
pub(super) enum Grant {
    /// It holds the gate.
    Go { entry: Entry, stopped: watch::Receiver<Stop>, cancelled: Arc<AtomicBool> },
    /// It was turned away; the session is in this state.
    Refused(Refusal, SessionState),
    /// Its client cancelled it.
    Cancelled,
    /// The service goes down.
    Stopping,
}

/// Who calls, and how the answer is to look.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) who: KeyId,
    pub(super) features: Features,
    /// The id to answer with; a notification has none.
    pub(super) id: Option<Json>,
}

impl Call {
    pub(super) fn line(&self, outcome: Result<&Json, &RpcFailure>) -> Bytes {
        self.id.as_ref().map(|id| rpc::response_line(id, outcome)).unwrap_or_default()
    }
}

/// The sending end of a stream's feed. What it holds is bounded: places only ever get better.
pub(super) type Feeding = mpsc::UnboundedSender<Feed>;

/// Starts the call. Its stream gets the feed when the gate opens; dropping the sender of `presence` says
/// that the stream is gone.
pub(super) fn begin(
    engine: &Arc<Engine>,
    session: Arc<Session>,
    call: Call,
    message: Message,
) -> (mpsc::UnboundedReceiver<Feed>, oneshot::Sender<()>) {
    let (feed, fed) = mpsc::unbounded_channel();
    let (presence, present) = oneshot::channel();
    let engine = Arc::clone(engine);
    let places = call.features.queue.then(|| feed.clone());
    let (ticket, granted) = session.arrive(call.who.clone(), call.id.clone(), places);
    if engine.is_stopping() {
        // It may have arrived after those that wait were refused.
        session.begin_shutdown();
    }
    let work = wait_and_run(engine, session, call, message, ticket, granted, feed, present);
    // What the turn says in the service's log belongs to the request that began it.
    tokio::spawn(work.in_current_span());
    (fed, presence)
}

#[expect(clippy::too_many_arguments, reason = "the parts of one task")]
async fn wait_and_run(
    engine: Arc<Engine>,
    session: Arc<Session>,
    call: Call,
    message: Message,
    ticket: Ticket,
    mut granted: oneshot::Receiver<Grant>,
    feed: Feeding,
    present: oneshot::Receiver<()>,
) {
    let grant = tokio::select! {
        biased;
        grant = &mut granted => grant,
        _ = present => {
            if session.leave(ticket) {
                return;
            }
            granted.await
        }
    };
    let failure = match grant {
        Ok(Grant::Go { entry, stopped, cancelled }) => {
            let held = Held::new(&engine, &session, ticket);
            let drive = Drive::new(engine, session, call, held, stopped, cancelled);
            return drive.run(entry, message, feed).await;
        }
        Ok(Grant::Refused(why, state)) => methods::gate_refusal(why, &state),
        Ok(Grant::Cancelled) => turn::turn_cancelled(),
        Ok(Grant::Stopping) => stopping(),
        Err(_) => methods::internal_error(),
    };
    // The stream may be gone: then nobody is left to tell.
    let _ = feed.send(Feed::Answer(call.line(Err(&failure))));
}

/// Gives the gate back if the task breaks off, so that the session goes on.
pub(super) struct Held {
    engine: Arc<Engine>,
    session: Arc<Session>,
    ticket: Ticket,
    /// How the caller's stream ends if the task breaks off.
    pub(super) stream: Option<(ReaderId, Bytes)>,
    armed: bool,
}

impl Held {
    fn new(engine: &Arc<Engine>, session: &Arc<Session>, ticket: Ticket) -> Self {
        engine.turns.send_modify(|turns| *turns += 1);
        let (engine, session) = (Arc::clone(engine), Arc::clone(session));
        Self { engine, session, ticket, stream: None, armed: true }
    }

    pub(super) fn end(&mut self, ending: Ending, stream: Option<(ReaderId, Bytes)>) {
        self.armed = false;
        self.session.end_call(self.ticket, ending, stream);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.armed {
            tracing::error!(session = %self.session.id, "a turn broke off");
            self.session.end_call(self.ticket, Ending::Released, self.stream.take());
        }
        self.engine.turns.send_modify(|turns| *turns -= 1);
    }
}

pub(super) fn stopping() -> RpcFailure {
    let message = "the service is shutting down; connect again";
    RpcFailure::new(rpc::code::APPLICATION, message)
}
