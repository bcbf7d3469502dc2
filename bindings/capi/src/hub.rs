//! What every object of a client shares, and who moves it.
//!
//! In the blocking style a client moves only while some thread is inside a call that waits. The first is the
//! **leader**: it waits for the sockets of all sessions, without the lock, and moves every operation. The
//! others **follow**: they wait for a signal that the leader gives when steps came. When the leader has what it
//! came for, a follower takes its place. In the style of an event loop nothing here waits.

use crate::boundary::usage;
use crate::callback::UserData;
use crate::fork;
use crate::link::Number;
use crate::operation::Operation;
use crate::state::{Lookup, Record, State};
use crate::step::Step;
use crate::waker::Waker;
use broca::engine::{Config, Environment};
use broca::tls::Connector;
use broca_bridge::{Error, ErrorKind, Handle, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{c_char, c_void};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a client is made of.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) environment: Environment,
    pub(crate) connector: Connector,
}

/// The sockets of a client, with all that moves them: `broca_io`.
pub struct Hub {
    setup: Arc<Setup>,
    /// The process it was made in.
    born: u32,
    state: Mutex<State>,
    /// Steps came, or the place of the leader is free.
    change: Condvar,
    waker: OnceLock<Waker>,
    start: Instant,
    wake: Mutex<Option<Arc<Wake>>>,
    resolver: Mutex<Option<Arc<Resolver>>>,
    asked: Mutex<Asked>,
    /// Whose steps `broca_io_next` is handing out.
    current: Mutex<Weak<Operation>>,
}

/// A function that ends the wait of the program's loop.
pub(crate) struct Wake {
    pub(crate) call: unsafe extern "C" fn(*mut c_void),
    pub(crate) user_data: UserData,
}

/// A function that begins to look a name up.
pub(crate) struct Resolver {
    pub(crate) call: unsafe extern "C" fn(*mut c_void, u64, *const c_char),
    pub(crate) user_data: UserData,
}

/// Names that the program's resolver was asked for.
#[derive(Default)]
struct Asked {
    next: u64,
    open: Vec<(u64, Lookup)>,
}

/// The leader looks up at least this often, so that only nearer timers have to wake it.
const LOOK_UP_MS: u64 = 1_000;

impl Hub {
    pub(crate) fn new(setup: Setup) -> Self {
        let setup = Arc::new(setup);
        Self {
            state: Mutex::new(State::new(Arc::clone(&setup))),
            setup,
            born: fork::generation(),
            change: Condvar::new(),
            waker: OnceLock::new(),
            start: Instant::now(),
            wake: Mutex::new(None),
            resolver: Mutex::new(None),
            asked: Mutex::new(Asked::default()),
            current: Mutex::new(Weak::new()),
        }
    }

    /// # Errors
    /// `forked` in any process but the one that made the client.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_here() {
            return Ok(());
        }
        let message = "this client was made before a fork; two processes must not share its sockets: make a new one here";
        Err(Error::new(ErrorKind::Forked, message))
    }

    pub(crate) fn is_here(&self) -> bool {
        fork::is_here(self.born)
    }

    /// How long leaving a turn may take.
    pub(crate) fn leave_time(&self) -> Duration {
        let config = &self.setup.config;
        let ms = config.cancel_timeout_ms.saturating_add(config.calls.cancel_grace_ms);
        Duration::from_millis(ms.saturating_add(1_000))
    }

    /// A new engine, with this machine's randomness and clock.
    pub(crate) fn engine(&self) -> Result<(u64, Arc<Handle>), Error> {
        self.check()?;
        let Setup { config, environment, .. } = &*self.setup;
        let seed = getrandom::u64().map_err(|e| {
            Error::new(ErrorKind::Internal, format!("the system gives no randomness: {e}"))
        })?;
        let handle = Handle::with_config(config.clone(), environment.clone(), seed, wall_ms())?;
        let handle = Arc::new(handle);
        Ok((self.lock().add(Arc::clone(&handle)), handle))
    }

    /// Gives a session an input and carries out what follows, without waiting. From any thread.
    pub(crate) fn with<R>(
        &self,
        session: u64,
        input: impl FnOnce(&mut State, Time) -> R,
    ) -> Result<R, Error> {
        self.check()?;
        let mut state = self.lock();
        let now = self.now();
        let output = input(&mut state, now);
        state.settle(session, now);
        let woken = state.looped && !std::mem::replace(&mut state.woken, true);
        self.release(state);
        if woken {
            self.call_wake();
        }
        Ok(output)
    }

    /// Looks at what is there, without waiting and without waking anybody who drives the client.
    pub(crate) fn at_once<R>(&self, look: impl FnOnce(&mut State, Time) -> R) -> Result<R, Error> {
        self.check()?;
        let mut state = self.lock();
        let now = self.now();
        let output = look(&mut state, now);
        self.release(state);
        Ok(output)
    }

    /// Forgets a session that nobody has anything of.
    pub(crate) fn remove(&self, session: u64) {
        // In a child of a fork the sockets belong to the parent.
        drop(self.with(session, |state, _| state.remove(session)));
    }

    /// Moves the client until `done` has something, at most until `until`; nothing then. With a time that is over it
    /// moves once and does not wait.
    ///
    /// # Errors
    /// `usage` for waiting on a client that an event loop drives, `io` when the system fails to wait.
    pub(crate) fn pump<R>(
        &self,
        until: Option<Instant>,
        mut done: impl FnMut(&mut State, Time) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        self.check()?;
        let mut state = self.lock();
        loop {
            let now = self.now();
            let more = state.advance(now);
            let output = done(&mut state, now);
            let late = until.is_some_and(|at| at <= Instant::now());
            if output.is_some() || late {
                // The place of the leader may be free now.
                state.news |= !state.polling;
                self.release(state);
                return Ok(output);
            }
            if state.looped {
                self.release(state);
                return Err(usage(
                    "this client is driven by an event loop, which this call would block: use a time of 0 or broca_io_next",
                ));
            }
            if let Some(lookup) = state.to_resolve.pop_front() {
                self.release(state);
                self.resolve(lookup);
                state = self.lock();
            } else if !state.polling {
                state = self.lead(state, until, more)?;
            } else if state.news || state.nudge {
                self.release(state);
                state = self.lock();
            } else {
                state = self.follow(state, until);
            }
        }
    }

    /// Waits for the sockets. The lock is free meanwhile.
    fn lead<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: Option<Instant>,
        more: bool,
    ) -> Result<MutexGuard<'a, State>, Error> {
        let waker = self.waker()?;
        let now = self.now();
        let own = until.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            now.plus(whole_ms(left))
        });
        // A timer that was served just now and is still due comes again with the next millisecond.
        let timer = state.next_timer().map(|at| at.max(now.plus(1)));
        let latest = timer.into_iter().chain(own).min().unwrap_or_else(|| now.plus(LOOK_UP_MS));
        state.polling_until = latest.min(now.plus(LOOK_UP_MS));
        let wait = if more { 0 } else { state.polling_until.since(now) };
        state.nudge = false;
        state.polling = true;
        if std::mem::take(&mut state.news) && state.followers > 0 {
            self.change.notify_all();
        }
        let watched = state.watched();
        drop(state);

        let mut sockets = Vec::with_capacity(watched.len() + 1);
        sockets.push(PollFd::new(waker.socket(), PollFlags::IN));
        for (_, _, socket, read, write) in &watched {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, *read);
            wanted.set(PollFlags::OUT, *write);
            sockets.push(PollFd::new(&**socket, wanted));
        }
        let polled = poll(&mut sockets, timespec(wait).as_ref());
        let woken = !sockets[0].revents().is_empty();
        let mut state = self.lock();
        for ((session, conn, ..), socket) in watched.iter().zip(&sockets[1..]) {
            if !socket.revents().is_empty() {
                state.mark(*session, *conn);
            }
        }
        state.polling = false;
        if woken {
            waker.drain();
        }
        match polled {
            Err(error) if error != rustix::io::Errno::INTR => {
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

    /// Unlocks, then wakes whoever has to look.
    fn release(&self, mut state: MutexGuard<'_, State>) {
        let news = std::mem::take(&mut state.news);
        let nudge = state.polling && (news || std::mem::take(&mut state.nudge));
        let followed = news && state.followers > 0;
        drop(state);
        if followed {
            self.change.notify_all();
        }
        if nudge && let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    fn waker(&self) -> Result<&Waker, Error> {
        if let Some(waker) = self.waker.get() {
            return Ok(waker);
        }
        let made = Waker::new().map_err(|e| {
            let message = format!("the system gives no way to wait for sockets: {e}");
            Error::new(ErrorKind::Io, message)
        })?;
        Ok(self.waker.get_or_init(|| made))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        let ms = self.start.elapsed().as_millis();
        Time::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
    }
}

/// Names: the program's resolver, or the system's.
impl Hub {
    /// Has a name looked up: by the program, which answers when it likes, or by the system, at once and
    /// blocking this thread.
    fn resolve(&self, lookup: Lookup) {
        let resolver = lock(&self.resolver).clone();
        let Some(resolver) = resolver else {
            let found = (lookup.host.as_str(), 0).to_socket_addrs();
            let answer = found.map(|all| all.map(|addr| addr.ip()).collect());
            return self.answer_lookup(&lookup, answer.map_err(|e| e.to_string()));
        };
        let host = crate::text::Text::new(lookup.host.as_bytes());
        let request = {
            let mut asked = lock(&self.asked);
            asked.next += 1;
            let request = asked.next;
            asked.open.push((request, lookup));
            request
        };
        // SAFETY: the header says what the function is called with; `host` lives until it returns, and the function and its
        // data as long as `resolver` is held.
        unsafe { (resolver.call)(resolver.user_data.data(), request, host.bytes().data) };
    }

    /// The program's resolver answers; unknown requests are ignored.
    pub(crate) fn resolved(
        &self,
        request: u64,
        answer: Result<Vec<IpAddr>, String>,
    ) -> Result<(), Error> {
        self.check()?;
        let lookup = {
            let mut asked = lock(&self.asked);
            let at = asked.open.iter().position(|(open, _)| *open == request);
            at.map(|at| asked.open.swap_remove(at).1)
        };
        if let Some(lookup) = lookup {
            self.answer_lookup(&lookup, answer);
        }
        Ok(())
    }

    fn answer_lookup(&self, lookup: &Lookup, answer: Result<Vec<IpAddr>, String>) {
        // After a fork there is nobody left to tell.
        drop(self.with(lookup.session, |state, now| state.resolved(lookup, answer, now)));
    }

    pub(crate) fn set_resolver(&self, resolver: Option<Resolver>) {
        let old = std::mem::replace(&mut *lock(&self.resolver), resolver.map(Arc::new));
        // Its destroy function runs here, without the lock.
        drop(old);
    }
}

/// The program's event loop.
impl Hub {
    /// The next change of what to watch.
    pub(crate) fn next_want(&self) -> Result<Option<(Number, i32)>, Error> {
        self.check()?;
        let mut state = self.lock();
        let want = state.next_want();
        self.release(state);
        Ok(want)
    }

    /// Something happened at a socket.
    pub(crate) fn heard(&self, number: Number) -> Result<(), Error> {
        self.check()?;
        let mut state = self.lock();
        let now = self.now();
        state.heard(number, now);
        self.release(state);
        Ok(())
    }

    /// Time has passed, or somebody has woken the loop.
    pub(crate) fn tick(&self) -> Result<(), Error> {
        self.check()?;
        let mut state = self.lock();
        let now = self.now();
        state.woken = false;
        state.advance(now);
        let lookups = std::mem::take(&mut state.to_resolve);
        self.release(state);
        lookups.into_iter().for_each(|lookup| self.resolve(lookup));
        Ok(())
    }

    /// Milliseconds until the next tick; `None` without end.
    pub(crate) fn due(&self) -> Option<u64> {
        if !self.is_here() {
            return None;
        }
        let left_over = self.has_left_over();
        let state = self.lock();
        if left_over || state.is_busy() {
            return Some(0);
        }
        let now = self.now();
        state.next_timer().map(|at| at.since(now))
    }

    /// The next step of any operation, in turns of what one of them has at once. Nothing is waited for.
    pub(crate) fn next_step(&self) -> Result<Option<Box<Step>>, Error> {
        self.check()?;
        if let Some(step) = self.current().and_then(|operation| operation.buffered()) {
            return Ok(Some(step));
        }
        loop {
            let Some(operation) = self.lock().next_ready() else { return Ok(None) };
            if let Some(step) = operation.next_at_once()? {
                *lock(&self.current) = Arc::downgrade(&operation);
                return Ok(Some(step));
            }
        }
    }

    /// Waits until some operation has a step, at most until `until`; true when one has.
    pub(crate) fn wait(&self, until: Option<Instant>) -> Result<bool, Error> {
        if self.has_left_over() {
            return Ok(true);
        }
        Ok(self.pump(until, |state, _| state.has_ready().then_some(()))?.is_some())
    }

    fn has_left_over(&self) -> bool {
        self.current().is_some_and(|operation| operation.has_buffered())
    }

    /// The last handle of an operation may go here: then its end calls the program's functions, so no lock is held.
    fn current(&self) -> Option<Arc<Operation>> {
        lock(&self.current).upgrade()
    }

    /// The next log record.
    pub(crate) fn next_log(&self) -> Result<Option<Record>, Error> {
        self.check()?;
        Ok(self.lock().next_log())
    }

    /// Ends the wait of whoever drives this client. From any thread.
    pub(crate) fn wake(&self) -> Result<(), Error> {
        self.check()?;
        let mut state = self.lock();
        state.nudge = true;
        state.woken = true;
        self.release(state);
        self.call_wake();
        Ok(())
    }

    pub(crate) fn set_wake(&self, wake: Option<Wake>) {
        let old = std::mem::replace(&mut *lock(&self.wake), wake.map(Arc::new));
        // Its destroy function runs here, without the lock.
        drop(old);
    }

    fn call_wake(&self) {
        let wake = lock(&self.wake).clone();
        if let Some(wake) = wake {
            // SAFETY: the header says what the function is called with; the function and its data live as long as `wake`
            // is held, and no lock is held that the function could want.
            unsafe { (wake.call)(wake.user_data.data()) };
        }
    }
}

/// Locks something that is held for no longer than it takes to look at it.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a call that was given this time has waited long enough; negative: never.
pub(crate) fn deadline(timeout_ms: i64) -> Option<Instant> {
    let timeout = Duration::from_millis(u64::try_from(timeout_ms).ok()?);
    Instant::now().checked_add(timeout)
}

/// Milliseconds, rounded up: who waits this long has waited long enough.
fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn timespec(ms: u64) -> Option<Timespec> {
    Timespec::try_from(Duration::from_millis(ms)).ok()
}

/// The wall clock: milliseconds since 1970.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
