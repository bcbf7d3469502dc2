//! The engine of one session, moved by whoever waits for it: see "Who moves the session" in the
//! [module's documentation](super).

use super::pool::Pool;
use super::state::{Poller, State};
use crate::engine::{Accepted, Answer, CallId, Engine, OpId, ResolveId, Resolved};
use crate::setup::{LogSink, Setup};
use crate::steps::Answers;
use crate::tools::CancelSignal;
use broca_proto::{Error, ErrorKind, Time};
use mio::{Events, Poll, Token};
use std::io;
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What every handle of a session shares.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Steps came, or the place of the leader is free.
    change: Condvar,
    /// Ends the leader's wait.
    waker: mio::Waker,
    pub(super) pool: Pool,
    start: Instant,
    next_op: AtomicU64,
    log: Option<LogSink>,
}

const WAKE: Token = Token(usize::MAX);
/// What the system may say at once.
const EVENTS: usize = 32;
/// The leader looks up at least this often, so that only nearer timers have to wake it.
const LOOK_UP_MS: u64 = 1_000;

impl Shared {
    pub(super) fn new(setup: &Setup, engine: Engine) -> Result<Arc<Self>, Error> {
        let refused = |e: io::Error| {
            let message = format!("the system gives no way to wait for sockets: {e}");
            Error::new(ErrorKind::Io, message)
        };
        let poll = Poll::new().map_err(refused)?;
        let registry = poll.registry().try_clone().map_err(refused)?;
        let waker = mio::Waker::new(&registry, WAKE).map_err(refused)?;
        let poller = Poller { poll, events: Events::with_capacity(EVENTS) };
        Ok(Arc::new(Self {
            state: Mutex::new(State::new(setup, engine, registry, poller)),
            change: Condvar::new(),
            waker,
            pool: Pool::new(setup.config.calls.concurrent),
            start: Instant::now(),
            next_op: AtomicU64::new(1),
            log: setup.log.clone(),
        }))
    }

    pub(super) fn next_op(&self) -> OpId {
        OpId(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    /// Gives the engine an input and carries out what follows, without waiting. From any thread.
    pub(super) fn with<R>(self: &Arc<Self>, input: impl FnOnce(&mut State, Time) -> R) -> R {
        let mut state = self.lock();
        let now = self.now();
        let output = input(&mut state, now);
        state.settle(now);
        self.release(state);
        output
    }

    /// Moves the session until `done` has something, at most until `until`; nothing then.
    ///
    /// # Errors
    /// When the system fails to wait.
    pub(super) fn pump<R>(
        self: &Arc<Self>,
        until: Option<Instant>,
        mut done: impl FnMut(&mut State, Time) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        let mut state = self.lock();
        loop {
            let now = self.now();
            let more = state.advance(now);
            let output = done(&mut state, now);
            state.settle(now);
            let late = until.is_some_and(|at| at <= Instant::now());
            if output.is_some() || late {
                // The place of the leader may be free now.
                state.news |= state.poller.is_some();
                self.release(state);
                return Ok(output);
            }
            if state.poller.is_some() {
                state = self.lead(state, until, more)?;
            } else if state.has_chores() {
                self.release(state);
                state = self.lock();
            } else {
                state = self.follow(state, until);
            }
        }
    }

    /// Waits for the sockets. The lock is free meanwhile.
    fn lead<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        until: Option<Instant>,
        more: bool,
    ) -> Result<MutexGuard<'a, State>, Error> {
        let Some(mut poller) = state.poller.take() else { return Ok(state) };
        let now = self.now();
        let own = until.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            now.plus(whole_ms(left))
        });
        // A timer that was served just now and is still due comes again with the next millisecond.
        let timer = state.timer.map(|at| at.max(now.plus(1)));
        let latest = timer.into_iter().chain(own).min().unwrap_or_else(|| now.plus(LOOK_UP_MS));
        state.polling_until = latest.min(now.plus(LOOK_UP_MS));
        let wait = if more || state.nudge { 0 } else { state.polling_until.since(now) };
        state.nudge = false;
        if std::mem::take(&mut state.news) && state.followers > 0 {
            self.change.notify_all();
        }
        self.release(state);
        let polled = poller.poll.poll(&mut poller.events, Some(Duration::from_millis(wait)));
        let mut state = self.lock();
        for event in &poller.events {
            state.mark(event);
        }
        state.poller = Some(poller);
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                state.news = true;
                self.release(state);
                let message = format!("the system failed to wait for sockets: {error}");
                Err(Error::new(ErrorKind::Io, message))
            }
            _ => Ok(state),
        }
    }

    /// Waits until there are news or the leader's place is free.
    fn follow<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        let longest = Duration::from_millis(LOOK_UP_MS);
        let left = until.map_or(longest, |at| at.saturating_duration_since(Instant::now()));
        state.followers += 1;
        let waited = self.change.wait_timeout(state, left.min(longest));
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.followers -= 1;
        state
    }

    /// Unlocks; then wakes, logs and resolves, none of which may meet the lock.
    fn release(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let news = std::mem::take(&mut state.news);
        let led = state.poller.is_none();
        let nudge = led && (news || std::mem::take(&mut state.nudge));
        let followed = news && state.followers > 0;
        let records = std::mem::take(&mut state.records);
        let names = std::mem::take(&mut state.to_resolve);
        let ended = std::mem::take(&mut state.ended);
        drop(state);
        ended.iter().for_each(CancelSignal::raise);
        if followed {
            self.change.notify_all();
        }
        if nudge {
            // Failing that, the leader looks up within a second.
            drop(self.waker.wake());
        }
        if let Some(log) = &self.log {
            records.iter().for_each(|record| log(record));
        }
        for (req, host) in names {
            self.resolve(req, host);
        }
    }

    /// Looks a name up on a thread of its own: the system's resolver may take long, and cannot be interrupted.
    fn resolve(self: &Arc<Self>, req: ResolveId, host: String) {
        let shared = Arc::clone(self);
        let look_up = move || {
            let answer = look_up(&host);
            shared.with(|state, now| state.resolved(req, answer, now));
        };
        let thread = std::thread::Builder::new().name("broca-resolve".to_owned());
        if let Err(error) = thread.spawn(look_up) {
            let why = format!("no thread to look the name up: {error}");
            self.with(|state, now| state.resolved(req, Err(why), now));
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

impl Answers for Arc<Shared> {
    fn answer(&self, call: CallId, answer: Answer) -> Result<Accepted, Error> {
        self.with(|state, now| state.engine.answer(call, answer, now))
    }
}

fn look_up(host: &str) -> Resolved {
    let found = (host, 0).to_socket_addrs();
    found.map(|all| all.map(|addr| addr.ip()).collect()).map_err(|e| e.to_string())
}

/// Milliseconds, rounded up: who waits this long has waited long enough.
fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
