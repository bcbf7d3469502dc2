//! The streams of one call: one as a rule, more when its sender asks again while it goes on (feature `message-id`).

use crate::hub::{Hub, Reader, ReaderId, ReaderKind};
use broca_proto::Json;
use broca_proto::session::feature::Features;
use broca_proto::session::notice::Queued;
use broca_proto::session::rpc::{self, RpcFailure};
use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, watch};

/// What a call's stream gets: places while it waits, then one of the others.
pub(crate) enum Feed {
    /// It waits, and asked to be told where.
    Place(Queued),
    /// The turn has begun: the session's feed, and at its end the terminal line.
    Live(Reader),
    /// There is no turn: one line, or none for a notification.
    Answer(Bytes),
}

/// Who asked, and how the answer is to look.
#[derive(Debug, Clone)]
pub(super) struct Asker {
    pub(super) features: Features,
    /// The id to answer with; a notification has none.
    pub(super) id: Option<Json>,
}

impl Asker {
    /// The terminal line.
    pub(super) fn line(&self, outcome: Result<&Json, &RpcFailure>) -> Bytes {
        self.id.as_ref().map(|id| rpc::response_line(id, outcome)).unwrap_or_default()
    }
}

/// A stream's end of its call; dropping it says that the stream is gone.
pub(crate) struct Listening {
    feed: mpsc::UnboundedReceiver<Feed>,
    listeners: Arc<Listeners>,
}

impl Listening {
    /// What comes next; nothing when the call has broken off.
    pub(crate) fn poll_feed(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Feed>> {
        self.feed.poll_recv(cx)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.listeners.present.send_modify(|present| *present = present.saturating_sub(1));
    }
}

/// The call's end of its streams.
#[derive(Debug)]
pub(super) struct Listeners {
    state: Mutex<State>,
    /// How many streams are there.
    present: watch::Sender<usize>,
}

#[derive(Debug)]
enum State {
    /// No turn yet.
    Waiting(Vec<Listener>),
    /// The streams read the session's feed, all as if they were the first one.
    Showing(Vec<(ReaderId, Asker)>),
    /// Every stream has its terminal line.
    Over,
}

#[derive(Debug)]
struct Listener {
    asker: Asker,
    /// What it holds is bounded: places only ever get better.
    feed: mpsc::UnboundedSender<Feed>,
}

impl Listeners {
    /// The first stream, and what is added to.
    pub(super) fn new(asker: Asker) -> (Arc<Self>, Listening) {
        let (feed, fed) = mpsc::unbounded_channel();
        let state = Mutex::new(State::Waiting(vec![Listener { asker, feed }]));
        let listeners = Arc::new(Self { state, present: watch::channel(1).0 });
        let listening = Listening { feed: fed, listeners: Arc::clone(&listeners) };
        (listeners, listening)
    }

    /// One more stream; nothing when the call is over. One that comes while the call waits is told its `place`, one that comes
    /// while the turn is at work sees it from now on, and all of it in its result.
    pub(super) fn add(
        self: &Arc<Self>,
        hub: &Arc<Hub>,
        mut asker: Asker,
        place: Option<Queued>,
    ) -> Option<Listening> {
        let (feed, fed) = mpsc::unbounded_channel();
        match &mut *self.lock() {
            State::Waiting(waiting) => {
                if let Some(place) = place.filter(|_| asker.features.queue) {
                    // The other end is in this function.
                    let _ = feed.send(Feed::Place(place));
                }
                waiting.push(Listener { asker, feed });
            }
            State::Showing(streams) => {
                let call = streams.first().map(|(first, _)| *first);
                let reader = hub.attach_beside(ReaderKind::Call, asker.features, call);
                asker.features.lean_result = false;
                streams.push((reader.id(), asker));
                let _ = feed.send(Feed::Live(reader));
            }
            State::Over => return None,
        }
        self.present.send_modify(|present| *present += 1);
        Some(Listening { feed: fed, listeners: Arc::clone(self) })
    }

    /// Tells those that asked for it where their call stands.
    pub(super) fn tell_place(&self, place: Queued) {
        if let State::Waiting(waiting) = &*self.lock() {
            for listener in waiting.iter().filter(|listener| listener.asker.features.queue) {
                // The stream may just have gone.
                let _ = listener.feed.send(Feed::Place(place));
            }
        }
    }

    /// The turn begins: the streams read the session's feed, but for what is withheld from the reader that is returned.
    pub(super) fn begin(&self, hub: &Arc<Hub>) -> Option<ReaderId> {
        let mut state = self.lock();
        let State::Waiting(waiting) = &mut *state else { return None };
        let mut streams: Vec<(ReaderId, Asker)> = Vec::with_capacity(waiting.len());
        for Listener { asker, feed } in waiting.drain(..) {
            let call = streams.first().map(|(first, _)| *first);
            let reader = hub.attach_beside(ReaderKind::Call, asker.features, call);
            streams.push((reader.id(), asker));
            // A caller that is gone is no reason to stop.
            let _ = feed.send(Feed::Live(reader));
        }
        let first = streams.first().map(|(first, _)| *first);
        *state = State::Showing(streams);
        first
    }

    /// The terminal lines of the streams that are there, made before the moment in which they are needed.
    pub(super) fn prepare(&self, line: impl Fn(&Asker) -> Bytes) -> Vec<Bytes> {
        let askers: Vec<Asker> = match &*self.lock() {
            State::Waiting(waiting) => {
                waiting.iter().map(|listener| listener.asker.clone()).collect()
            }
            State::Showing(streams) => streams.iter().map(|(_, asker)| asker.clone()).collect(),
            State::Over => Vec::new(),
        };
        // A line may be long, and nobody should wait for the lock meanwhile.
        askers.iter().map(line).collect()
    }

    /// Ends every stream with its terminal line: one that was prepared, or one that is made now.
    pub(super) fn finish(&self, hub: &Hub, prepared: Vec<Bytes>, line: impl Fn(&Asker) -> Bytes) {
        let state = std::mem::replace(&mut *self.lock(), State::Over);
        let mut prepared = prepared.into_iter();
        let mut terminal = |asker: &Asker| prepared.next().unwrap_or_else(|| line(asker));
        match state {
            State::Waiting(waiting) => {
                for Listener { asker, feed } in waiting {
                    // The stream may be gone: then nobody is left to tell.
                    let _ = feed.send(Feed::Answer(terminal(&asker)));
                }
            }
            State::Showing(streams) => {
                for (reader, asker) in streams {
                    hub.finish(reader, terminal(&asker));
                }
            }
            State::Over => {}
        }
    }

    /// Whether one of the streams belongs to the request with this id.
    pub(super) fn means(&self, request: &Json) -> bool {
        let is = |asker: &Asker| asker.id.as_ref() == Some(request);
        match &*self.lock() {
            State::Waiting(waiting) => waiting.iter().any(|listener| is(&listener.asker)),
            State::Showing(streams) => streams.iter().any(|(_, asker)| is(asker)),
            State::Over => false,
        }
    }

    /// Whether no stream is there.
    pub(super) fn are_gone(&self) -> bool {
        *self.present.borrow() == 0
    }

    /// Waits until no stream is there.
    pub(super) async fn gone(&self) {
        // The sender lives as long as this does.
        let _ = self.present.subscribe().wait_for(|present| *present == 0).await;
    }

    /// Waits until a stream is there.
    pub(super) async fn back(&self) {
        let _ = self.present.subscribe().wait_for(|present| *present > 0).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
