//! The one task that moves a session's engine: it owns the waiting for sockets, names and the timer.
//!
//! Handles reach the engine directly, under a lock that is held for one input at a time, and write
//! to the sockets themselves; the task is woken only for what needs its waiting: a new connection, a
//! socket that takes no more, an earlier timer. So one round trip costs one wake-up of this task
//! (the answer has come) and one of the reader (steps are there).

use super::running::Running;
use super::state::State;
use crate::engine::{Accepted, Answer, CallId, Engine, OpId};
use crate::setup::{LogSink, Setup};
use crate::steps::Answers;
use crate::wire::ReadBuffer;
use ::tokio::time::{Instant, Sleep};
use broca_proto::{Error, Time};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// What the task and the handles share.
pub(super) struct Shared {
    state: Mutex<State>,
    runtime: ::tokio::runtime::Handle,
    start: Instant,
    next_op: AtomicU64,
    log: Option<LogSink>,
}

impl Shared {
    /// Starts the task of a new session on the current runtime.
    pub(super) fn start(setup: &Setup, engine: Engine) -> Option<Arc<Self>> {
        let runtime = ::tokio::runtime::Handle::try_current().ok()?;
        let shared = Arc::new(Self {
            state: Mutex::new(State::new(setup, engine)),
            runtime: runtime.clone(),
            start: Instant::now(),
            next_op: AtomicU64::new(1),
            log: setup.log.clone(),
        });
        runtime.spawn(Driver {
            shared: Arc::clone(&shared),
            sleep: None,
            fired: None,
            room: ReadBuffer::new(),
        });
        Some(shared)
    }

    /// The runtime that the session lives on.
    pub(super) fn runtime(&self) -> &::tokio::runtime::Handle {
        &self.runtime
    }

    pub(super) fn next_op(&self) -> OpId {
        OpId(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    /// Gives the engine an input and carries out what follows.
    pub(super) fn with<R>(&self, input: impl FnOnce(&mut State, Time) -> R) -> R {
        let mut state = self.lock();
        let now = self.now();
        let output = input(&mut state, now);
        state.settle(now);
        let task = if std::mem::take(&mut state.wake_task) { state.task.clone() } else { None };
        self.release(state);
        if let Some(task) = task {
            task.wake();
        }
        output
    }

    /// Unlocks, then wakes, drops what has ended, and logs: none of it may meet the lock.
    fn release(&self, mut state: MutexGuard<'_, State>) {
        let wakes = std::mem::take(&mut state.wakes);
        let records = std::mem::take(&mut state.records);
        let ended = std::mem::take(&mut state.ended);
        drop(state);
        wakes.into_iter().for_each(Waker::wake);
        ended.into_iter().for_each(Running::drop_now);
        if let Some(log) = &self.log {
            records.iter().for_each(|record| log(record));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        let ms = self.start.elapsed().as_millis();
        Time::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
    }
}

impl Answers for Shared {
    fn answer(&self, call: CallId, answer: Answer) -> Result<Accepted, Error> {
        self.with(|state, now| state.engine.answer(call, answer, now))
    }
}

/// The task.
struct Driver {
    shared: Arc<Shared>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// When the engine was last told that time has passed.
    fired: Option<Time>,
    room: ReadBuffer,
}

impl Driver {
    /// Reads in one go; then the readers of steps get their turn. A block holds fewer events than a
    /// reader takes in its turn, so that what waits between them stays small and warm.
    const READS: u32 = 1;

    /// Lets the engine know that its time has come; true when it had.
    fn fire(&mut self, state: &mut State, now: Time) -> bool {
        let due = state.timer.is_some_and(|at| at <= now) && self.fired != Some(now);
        if due {
            self.fired = Some(now);
            state.engine.timeout(now);
            state.settle(now);
        }
        due
    }

    /// Arms the sleep; true when it has ended already.
    fn poll_sleep(&mut self, state: &mut State, cx: &mut Context<'_>, now: Time) -> bool {
        // One that was served just now and is still due comes again with the next millisecond.
        let timer = state.timer.map(|at| at.max(now.plus(1)));
        let earliest = timer.into_iter().chain(state.leave_by).min();
        if let Some(at) = earliest.filter(|at| state.armed.is_none_or(|armed| *at < armed)) {
            let until = self.shared.start + Duration::from_millis(at.as_millis());
            match &mut self.sleep {
                Some(sleep) => sleep.as_mut().reset(until),
                none => *none = Some(Box::pin(::tokio::time::sleep_until(until))),
            }
            state.armed = Some(at);
        }
        let Some(sleep) = self.sleep.as_mut().filter(|_| state.armed.is_some()) else {
            return false;
        };
        let ended = sleep.as_mut().poll(cx).is_ready();
        if ended {
            state.armed = None;
        }
        ended
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let shared = Arc::clone(&this.shared);
        let mut state = shared.lock();
        match &mut state.task {
            Some(known) if known.will_wake(cx.waker()) => {}
            slot => *slot = Some(cx.waker().clone()),
        }
        let mut reads = Self::READS;
        let (over, again) = loop {
            let now = shared.now();
            state.wake_task = false;
            state.begin();
            state.poll_begun(cx, now);
            let all_read = state.poll_links(cx, &mut this.room, &mut reads, now);
            let fired = this.fire(&mut state, now);
            if state.leave_by.is_some_and(|by| !state.busy || by <= now) {
                break (true, false);
            }
            let ended = this.poll_sleep(&mut state, cx, now);
            if !all_read {
                break (false, true);
            }
            if !fired && !ended && !state.wake_task {
                break (false, false);
            }
        };
        state.wake_task = false;
        shared.release(state);
        if again {
            // Behind everybody who is ready now, so that they take the steps first. After a plain wake this
            // task could read on many times before the runtime comes to the reader.
            let later = pin!(::tokio::task::yield_now()).poll(cx);
            debug_assert!(later.is_pending(), "yielding ends at the second poll");
        }
        if over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Driver {
    /// The session is left, or the runtime shuts down. Whoever still waits is told.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.end();
        self.shared.release(state);
    }
}
