//! Live fan-out of one session: a bounded ring of encoded lines, and the display lane beside it.
//!
//! Events are encoded once and shared. Each reader is a position in the ring; the socket's own pace moves
//! it, so that a slow reader costs nothing but what the ring keeps for it. A reader that the ring has
//! overtaken gets the lag line and the end (session service §10). Deltas travel in a bounded lane for each
//! reader that asked for them: joined while they wait, shed when there are too many, never in the way of
//! events and always before the event that was logged after them.

mod display;

use crate::config::HubLimits;
use broca_proto::run::view;
use broca_proto::session::feature::Features;
use broca_proto::session::ids::KeyId;
use broca_proto::session::rpc::{self, LAGGED_MESSAGE, RpcFailure};
use bytes::{Bytes, BytesMut};
pub(crate) use display::Delta;
use display::Lane;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// One event on its way to the readers.
#[derive(Debug, Clone)]
pub(crate) struct Publication {
    /// The event's place in the session's log.
    pub(crate) seq: u64,
    /// The notification line, newline included.
    pub(crate) line: Bytes,
    /// The line for readers that asked for less than everything in it, by what they asked for of it.
    pub(crate) reduced: Vec<(Vec<Features>, Bytes)>,
    /// What a reader must have asked for to see it; nothing when no reader may.
    pub(crate) needs: Option<Features>,
    /// The call whose own stream leaves it out.
    pub(crate) withheld_from: Option<ReaderId>,
}

impl Publication {
    fn line_for(&self, features: Features) -> &Bytes {
        let asked = features.and(view::CONTENT);
        let less = self.reduced.iter().find(|(readers, _)| readers.contains(&asked));
        less.map_or(&self.line, |(_, line)| line)
    }

    /// What it costs to keep.
    fn bytes(&self) -> usize {
        self.line.len() + self.reduced.iter().map(|(_, line)| line.len()).sum::<usize>()
    }
}

/// Names a reader within its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ReaderId(u64);

/// What a reader is: both see the whole feed, but they end differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaderKind {
    /// `session.subscribe`: ends by unsubscribe, close, shutdown.
    Subscription,
    /// The stream of one `session.sendMessage`: ends with its terminal line.
    Call,
}

/// The fan-out of one session.
#[derive(Debug)]
pub(crate) struct Hub {
    limits: HubLimits,
    ring: Mutex<Ring>,
    /// Readers with a display lane; lets a turn that nobody watches skip the lock.
    displays: AtomicUsize,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Entry>,
    /// The position of the first entry kept.
    first: u64,
    bytes: usize,
    readers: HashMap<u64, Slot>,
    next_reader: u64,
}

#[derive(Debug)]
struct Entry {
    publication: Publication,
    /// Readers that have not taken it; at zero it may go.
    unread: usize,
}

#[derive(Debug)]
struct Slot {
    kind: ReaderKind,
    /// Whose subscription it is, once that was said.
    owner: Option<KeyId>,
    position: u64,
    waker: Option<Waker>,
    lane: Option<Lane>,
    /// The position at which the stream ends, once that is known.
    end: Option<u64>,
    terminal: Option<Bytes>,
}

impl Ring {
    fn tip(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Whether the entries are too many bytes. The largest does not count: a single event over the bound is no
    /// reason to drop a reader that is about to take it.
    fn holds_more_than(&self, bytes: usize) -> bool {
        if self.bytes <= bytes {
            return false;
        }
        let lines = self.entries.iter().map(|entry| entry.publication.bytes());
        self.bytes - lines.max().unwrap_or(0) > bytes
    }

    fn trim(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.unread == 0) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry.publication.bytes();
            self.first += 1;
        }
    }

    fn forget(&mut self, id: u64) -> Option<Slot> {
        let slot = self.readers.remove(&id)?;
        let upto = slot.end.unwrap_or_else(|| self.tip());
        for position in slot.position.max(self.first)..upto {
            self.unread(position);
        }
        self.trim();
        Some(slot)
    }

    fn unread(&mut self, position: u64) {
        let index = usize::try_from(position - self.first).unwrap_or(usize::MAX);
        if let Some(entry) = self.entries.get_mut(index) {
            entry.unread = entry.unread.saturating_sub(1);
        }
    }
}

impl Hub {
    pub(crate) fn new(limits: HubLimits) -> Arc<Self> {
        Arc::new(Self { limits, ring: Mutex::default(), displays: AtomicUsize::new(0) })
    }

    /// A reader of everything that is published from now on.
    pub(crate) fn attach(self: &Arc<Self>, kind: ReaderKind, features: Features) -> Reader {
        self.attach_beside(kind, features, None)
    }

    /// As [`Hub::attach`]; what is withheld from the reader `first` is withheld from this one too.
    pub(crate) fn attach_beside(
        self: &Arc<Self>,
        kind: ReaderKind,
        features: Features,
        first: Option<ReaderId>,
    ) -> Reader {
        let mut ring = self.lock();
        let id = ring.next_reader;
        ring.next_reader += 1;
        let lane = features.display.then(Lane::default);
        if lane.is_some() {
            self.displays.fetch_add(1, Ordering::Relaxed);
        }
        let position = ring.tip();
        let slot =
            Slot { kind, owner: None, position, waker: None, lane, end: None, terminal: None };
        ring.readers.insert(id, slot);
        let call = first.unwrap_or(ReaderId(id));
        Reader { hub: Arc::clone(self), id, call, features, skip_to: 0 }
    }

    /// Hands events to all readers, in their order, with one wake-up for each reader.
    pub(crate) fn publish(&self, batch: impl IntoIterator<Item = Publication>) {
        let mut ring = self.lock();
        let readers = ring.readers.values().filter(|slot| slot.end.is_none()).count();
        if readers == 0 {
            return;
        }
        for publication in batch {
            ring.bytes += publication.bytes();
            ring.entries.push_back(Entry { publication, unread: readers });
        }
        let most = self.limits.ring_events + self.limits.stream_lines;
        while ring.entries.len() > most.max(1) || ring.holds_more_than(self.limits.ring_bytes) {
            ring.pop();
        }
        wake(ring, |slot| slot.waker.take());
    }

    /// Hands a delta to the readers that asked for the display lane.
    pub(crate) fn show(&self, delta: &Delta) {
        if self.displays.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut ring = self.lock();
        let tip = ring.tip();
        for slot in ring.readers.values_mut().filter(|slot| slot.end.is_none()) {
            if let Some(lane) = &mut slot.lane {
                lane.push(tip, delta, &self.limits);
            }
        }
        wake(ring, |slot| if slot.lane.is_some() { slot.waker.take() } else { None });
    }

    /// Ends every subscription after what has been published so far.
    pub(crate) fn end_subscriptions(&self) {
        self.end_where(|slot| slot.kind == ReaderKind::Subscription);
    }

    /// Ends the subscriptions of one client key after what has been published so far.
    pub(crate) fn end_subscriptions_of(&self, owner: &KeyId) {
        self.end_where(|slot| slot.owner.as_ref() == Some(owner));
    }

    fn end_where(&self, ends: impl Fn(&Slot) -> bool) {
        let mut ring = self.lock();
        let tip = ring.tip();
        for slot in ring.readers.values_mut().filter(|slot| ends(slot)) {
            slot.end.get_or_insert(tip);
        }
        wake(ring, |slot| slot.waker.take());
    }

    /// Ends a call's stream with `terminal` after what has been published so far. An empty line ends it
    /// without one.
    pub(crate) fn finish(&self, reader: ReaderId, terminal: Bytes) {
        let mut ring = self.lock();
        let tip = ring.tip();
        if let Some(slot) = ring.readers.get_mut(&reader.0) {
            slot.end.get_or_insert(tip);
            slot.terminal.get_or_insert(terminal);
            let waker = slot.waker.take();
            drop(ring);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // Nothing under the lock leaves the ring half-changed.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes wakers out under the lock and wakes after it.
fn wake(mut ring: MutexGuard<'_, Ring>, take: impl Fn(&mut Slot) -> Option<Waker>) {
    let wakers: Vec<Waker> = ring.readers.values_mut().filter_map(take).collect();
    drop(ring);
    wakers.into_iter().for_each(Waker::wake);
}

/// One stream's place in the feed. Dropping it gives up what the ring keeps for it.
#[derive(Debug)]
pub(crate) struct Reader {
    hub: Arc<Hub>,
    id: u64,
    /// The first reader of the call whose stream this is.
    call: ReaderId,
    features: Features,
    skip_to: u64,
}

/// What a reader's stream writes next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Whole lines.
    pub(crate) lines: Bytes,
    /// Whether more may follow.
    pub(crate) then: Then,
}

/// What follows a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// More lines, now or later.
    More,
    /// The stream's end.
    End,
    /// The stream's end, because the ring overtook the reader; the lag line is in the batch.
    Lagged,
}

impl Reader {
    /// Says whose subscription it is.
    pub(crate) fn belongs_to(&self, owner: &KeyId) {
        if let Some(slot) = self.hub.lock().readers.get_mut(&self.id) {
            slot.owner = Some(owner.clone());
        }
    }

    pub(crate) fn id(&self) -> ReaderId {
        ReaderId(self.id)
    }

    /// Leaves out events up to `seq`: a replay has shown them.
    pub(crate) fn skip_to(&mut self, seq: u64) {
        self.skip_to = seq;
    }

    /// Ends the stream after what has been published so far.
    pub(crate) fn end(&self) {
        let mut ring = self.hub.lock();
        let tip = ring.tip();
        if let Some(slot) = ring.readers.get_mut(&self.id) {
            slot.end.get_or_insert(tip);
        }
    }

    /// Whether the ring has overtaken this reader.
    pub(crate) fn has_lagged(&self) -> bool {
        let ring = self.hub.lock();
        ring.readers.get(&self.id).is_none_or(|slot| slot.position < ring.first)
    }

    /// Everything that is there for this reader, as one batch of whole lines; bounded by the limits.
    pub(crate) fn poll_batch(&mut self, cx: &Context<'_>) -> Poll<Batch> {
        let limits = &self.hub.limits;
        let mut guard = self.hub.lock();
        let ring = &mut *guard;
        let tip = ring.tip();
        let Some(slot) = ring.readers.get_mut(&self.id) else {
            return Poll::Ready(Batch { lines: Bytes::new(), then: Then::End });
        };
        let upto = slot.end.unwrap_or(tip);
        if slot.position < ring.first && slot.position < upto {
            let failure = RpcFailure::new(rpc::code::APPLICATION, LAGGED_MESSAGE);
            ring.forget(self.id);
            return Poll::Ready(Batch { lines: rpc::notice_line(&failure), then: Then::Lagged });
        }
        let mut out = Lines::default();
        if let Some(lane) = &mut slot.lane {
            let behind = upto.saturating_sub(slot.position);
            if behind > limits.stream_lines as u64 {
                lane.shed_before(upto);
            }
        }
        let mut position = slot.position;
        while position < upto && out.bytes < limits.batch_bytes {
            let index = usize::try_from(position - ring.first).unwrap_or(usize::MAX);
            let Some(entry) = ring.entries.get_mut(index) else { break };
            if let Some(lane) = &mut slot.lane {
                lane.take(position, &mut |line| out.push(line));
            }
            entry.unread = entry.unread.saturating_sub(1);
            position += 1;
            let event = &entry.publication;
            let hidden = event.withheld_from == Some(self.call)
                || event.seq <= self.skip_to
                || !event.needs.is_some_and(|needed| self.features.covers(needed));
            if !hidden {
                out.push(event.line_for(self.features).clone());
            }
        }
        slot.position = position;
        let caught_up = position >= upto;
        if caught_up && let Some(lane) = &mut slot.lane {
            lane.take(position, &mut |line| out.push(line));
        }
        let ended = caught_up && slot.end.is_some();
        if ended {
            out.push(slot.terminal.take().unwrap_or_default());
        } else if out.parts.is_empty() {
            if caught_up {
                slot.waker = Some(cx.waker().clone());
            } else {
                cx.waker().wake_by_ref();
            }
        }
        ring.trim();
        drop(guard);
        match (ended, out.parts.is_empty()) {
            (true, _) => Poll::Ready(Batch { lines: out.join(), then: Then::End }),
            (false, false) => Poll::Ready(Batch { lines: out.join(), then: Then::More }),
            (false, true) => Poll::Pending,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.hub.lock().forget(self.id);
        if self.features.display {
            self.hub.displays.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Lines gathered for one write; a single one is passed on without a copy.
#[derive(Default)]
struct Lines {
    parts: Vec<Bytes>,
    bytes: usize,
}

impl Lines {
    fn push(&mut self, line: Bytes) {
        if !line.is_empty() {
            self.bytes += line.len();
            self.parts.push(line);
        }
    }

    fn join(mut self) -> Bytes {
        if self.parts.len() == 1 {
            return self.parts.remove(0);
        }
        let mut out = BytesMut::with_capacity(self.bytes);
        for part in &self.parts {
            out.extend_from_slice(part);
        }
        out.freeze()
    }
}

#[cfg(test)]
mod tests;
