//! The engine of one session, moved by whoever waits for it: see "Who moves the session" in the
//! [module's documentation](super).

use super::pool::Pool;
use crate::engine::{
    Accepted, Answer, CallId, CloseReason, ConnId, Effect, Engine, LogLevel, LogRecord, OpId,
    ResolveId, Resolved, Step,
};
use crate::setup::{LogSink, Setup};
use crate::steps::Answers;
use crate::tls::Connector;
use crate::tools::CancelSignal;
use crate::wire::{Found, ReadBuffer, Socket, Wire, close_reason};
use broca_proto::{Error, ErrorKind, Time};
use bytes::BytesMut;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token};
use std::collections::HashMap;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
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

/// Everything behind the lock.
pub(super) struct State {
    pub(super) engine: Engine,
    connector: Arc<Connector>,
    registry: Registry,
    /// Taken by the leader while it waits for the sockets.
    poller: Option<Poller>,
    /// Until when the leader waits, at the latest.
    polling_until: Time,
    /// The leader must look again.
    nudge: bool,
    /// Somebody other than the leader may have got what it waits for.
    news: bool,
    followers: usize,
    links: Vec<Link>,
    to_resolve: Vec<(ResolveId, String)>,
    waiting: HashMap<OpId, Waiting>,
    timer: Option<Time>,
    fired: Option<Time>,
    room: ReadBuffer,
    scratch: Box<[u8]>,
    records: Vec<LogRecord>,
    /// Calls to be told to stop, once the lock is free.
    ended: Vec<CancelSignal>,
    discarded: Vec<Step>,
}

struct Poller {
    poll: Poll,
    events: Events,
}

struct Link {
    conn: ConnId,
    stream: TcpStream,
    wire: Wire,
    stage: Stage,
    paused: bool,
    readable: bool,
}

enum Stage {
    /// The system connects; then TLS, when there is a server name.
    Connecting(Option<String>),
    /// TLS is being agreed, at the start or inside a tunnel.
    Securing {
        tunnel: bool,
    },
    Open,
}

#[derive(Default)]
struct Waiting {
    is_turn: bool,
    /// Nobody waits any more: steps are thrown away. These calls are to stop.
    left: Option<Vec<CancelSignal>>,
}

const WAKE: Token = Token(usize::MAX);
/// The leader looks up at least this often, so that only nearer timers have to wake it.
const LOOK_UP_MS: u64 = 1_000;
/// Reads in one go; then the reader of steps gets its turn.
const READS: u32 = 4;
const SCRATCH_BYTES: usize = 128 * 1024;

impl Shared {
    pub(super) fn new(setup: &Setup, engine: Engine) -> Result<Arc<Self>, Error> {
        let refused = |e: io::Error| {
            let message = format!("the system gives no way to wait for sockets: {e}");
            Error::new(ErrorKind::Io, message)
        };
        let poll = Poll::new().map_err(refused)?;
        let registry = poll.registry().try_clone().map_err(refused)?;
        let waker = mio::Waker::new(&registry, WAKE).map_err(refused)?;
        let state = State {
            engine,
            connector: Arc::clone(&setup.connector),
            registry,
            poller: Some(Poller { poll, events: Events::with_capacity(32) }),
            polling_until: Time::default(),
            nudge: false,
            news: false,
            followers: 0,
            links: Vec::new(),
            to_resolve: Vec::new(),
            waiting: HashMap::new(),
            timer: None,
            fired: None,
            room: ReadBuffer::new(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            records: Vec::new(),
            ended: Vec::new(),
            discarded: Vec::new(),
        };
        Ok(Arc::new(Self {
            state: Mutex::new(state),
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

impl State {
    /// Whether there is something to do outside the lock.
    fn has_chores(&self) -> bool {
        let quiet = self.records.is_empty() && self.to_resolve.is_empty() && self.ended.is_empty();
        self.news || self.nudge || !quiet
    }

    /// Somebody waits for this operation from now on.
    pub(super) fn expect(&mut self, op: OpId, is_turn: bool) {
        self.waiting.insert(op, Waiting { is_turn, left: None });
    }

    /// The operation has finished, and its steps were taken.
    pub(super) fn forget(&mut self, op: OpId) {
        self.waiting.remove(&op);
    }

    /// Asks for the end of every turn.
    pub(super) fn cancel_turns(&mut self, now: Time) {
        for (op, _) in self.waiting.iter().filter(|(_, waiting)| waiting.is_turn) {
            self.engine.cancel(*op, now);
        }
    }

    /// Nobody waits for the operation any more: it is cancelled, and its steps are thrown away.
    pub(super) fn leave(&mut self, op: OpId, running: Vec<CancelSignal>, now: Time) {
        self.waiting.insert(op, Waiting { is_turn: false, left: Some(running) });
        self.engine.cancel(op, now);
        self.discard(op, now);
    }

    /// Whether the operation is over for everybody.
    pub(super) fn is_forgotten(&self, op: OpId) -> bool {
        !self.waiting.contains_key(&op)
    }

    /// Reads, writes and lets time pass; true when there is more to read already.
    fn advance(&mut self, now: Time) -> bool {
        self.settle(now);
        let mut reads = READS;
        let more = !self.move_links(&mut reads, now);
        if self.timer.is_some_and(|at| at <= now) && self.fired != Some(now) {
            self.fired = Some(now);
            self.engine.timeout(now);
            self.settle(now);
        }
        more
    }

    /// Carries out all effects, writing to the sockets what they take at once.
    fn settle(&mut self, now: Time) {
        loop {
            let mut dirty = false;
            while let Some(effect) = self.engine.io() {
                dirty |= matches!(effect, Effect::Write { .. } | Effect::StartTls { .. });
                self.perform(effect, now);
            }
            if !dirty {
                return;
            }
            for i in 0..self.links.len() {
                self.flush(i, now);
            }
        }
    }

    fn flush(&mut self, i: usize, now: Time) {
        let link = &mut self.links[i];
        if !matches!(link.stage, Stage::Connecting(_)) && link.wire.wants_write() {
            let mut socket = Plain { stream: &mut link.stream, scratch: &mut self.scratch };
            let written = link.wire.flush(&mut socket);
            if written > 0 {
                self.engine.written(link.conn, written, now);
            }
        }
    }

    fn perform(&mut self, effect: Effect, now: Time) {
        match effect {
            Effect::Write { conn, bytes } => {
                if let Some(link) = self.link(conn) {
                    link.wire.push(bytes);
                }
            }
            Effect::Ready { op } => match self.waiting.get(&op) {
                Some(Waiting { left: Some(_), .. }) => self.discard(op, now),
                _ => self.news = true,
            },
            Effect::Timer { at } => {
                self.timer = at;
                self.nudge |= at.is_some_and(|at| at < self.polling_until);
            }
            Effect::Resolve { req, host } => self.to_resolve.push((req, host)),
            Effect::Connect { conn, addr, tls } => {
                self.connect(conn, addr, tls.map(|tls| tls.server_name), now);
            }
            Effect::StartTls { conn, tls } => self.start_tls(conn, &tls.server_name, true, now),
            Effect::PauseRead { conn } => self.pause(conn, true),
            Effect::ResumeRead { conn } => self.pause(conn, false),
            Effect::Close { conn, abort } => {
                if let Some(mut link) = self.unlink(conn).filter(|_| !abort) {
                    let mut socket = Plain { stream: &mut link.stream, scratch: &mut [] };
                    link.wire.finish(&mut socket);
                }
            }
            Effect::Log(record) => self.records.push(record),
            Effect::Busy(_) => {}
        }
    }

    fn connect(&mut self, conn: ConnId, addr: SocketAddr, tls: Option<String>, now: Time) {
        let registered = TcpStream::connect(addr).and_then(|mut stream| {
            let token = Token(usize::try_from(conn.0).map_err(io::Error::other)?);
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.registry.register(&mut stream, token, interest)?;
            Ok(stream)
        });
        match registered {
            Ok(stream) => self.links.push(Link {
                conn,
                stream,
                wire: Wire::new(),
                stage: Stage::Connecting(tls),
                paused: false,
                readable: false,
            }),
            Err(error) => self.engine.closed(conn, close_reason(&error), now),
        }
    }

    /// The system has something to say about a connect.
    fn connected(&mut self, i: usize, now: Time) {
        let link = &mut self.links[i];
        let conn = link.conn;
        let outcome = match link.stream.take_error() {
            Ok(None) => link.stream.peer_addr().and_then(|_| link.stream.set_nodelay(true)),
            Ok(Some(error)) | Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {
                let stage = std::mem::replace(&mut link.stage, Stage::Open);
                match stage {
                    Stage::Connecting(Some(name)) => self.start_tls(conn, &name, false, now),
                    _ => self.engine.connected(conn, now),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {} // not yet
            Err(error) => {
                self.unlink(conn);
                self.engine.closed(conn, close_reason(&error), now);
            }
        }
    }

    fn start_tls(&mut self, conn: ConnId, server_name: &str, tunnel: bool, now: Time) {
        let made = self.connector.connect(server_name);
        let Some(link) = self.link(conn) else { return };
        match made {
            Ok(connection) => {
                link.wire.start_tls(connection);
                link.stage = Stage::Securing { tunnel };
            }
            Err(error) => {
                let message = error.to_string();
                self.records.push(LogRecord { level: LogLevel::Warn, message });
                self.unlink(conn);
                self.engine.closed(conn, CloseReason::TlsOther, now);
            }
        }
    }

    fn pause(&mut self, conn: ConnId, paused: bool) {
        if let Some(link) = self.link(conn) {
            link.paused = paused;
            // What came meanwhile waits in the socket: no event will say so again.
            self.nudge |= !paused;
        }
    }

    fn resolved(&mut self, req: ResolveId, answer: Resolved, now: Time) {
        self.engine.resolved(req, answer, now);
    }

    /// Notes what the system says about a socket.
    fn mark(&mut self, event: &mio::event::Event) {
        let conn = ConnId(event.token().0 as u64);
        if let Some(link) = self.link(conn) {
            // A connect is over when the socket is writable or broken; both are looked at when it moves.
            link.readable |= event.is_readable()
                || event.is_read_closed()
                || event.is_error()
                || matches!(link.stage, Stage::Connecting(_));
        }
    }

    /// Moves every connection as far as it goes; false when `reads` were too few.
    fn move_links(&mut self, reads: &mut u32, now: Time) -> bool {
        let mut i = 0;
        while let Some(link) = self.links.get_mut(i) {
            let conn = link.conn;
            if matches!(link.stage, Stage::Connecting(_)) {
                if std::mem::take(&mut link.readable) {
                    self.connected(i, now);
                    self.settle(now);
                    // What comes next on this socket may have been announced with the connect.
                    if let Some(link) = self.link(conn) {
                        link.readable = !matches!(link.stage, Stage::Connecting(_));
                    }
                    continue;
                }
                i += 1;
                continue;
            }
            self.flush(i, now);
            let link = &mut self.links[i];
            if !link.readable || link.paused {
                i += 1;
                continue;
            }
            if *reads == 0 {
                return false;
            }
            let mut socket = Plain { stream: &mut link.stream, scratch: &mut self.scratch };
            match link.wire.read(&mut socket, &mut self.room) {
                Found::Blocked => link.readable = false,
                Found::Progress => self.secured(i, now),
                Found::Data(bytes) => {
                    *reads -= 1;
                    self.secured(i, now);
                    self.engine.data(conn, bytes, now);
                }
                Found::Closed(why) => {
                    self.unlink(conn);
                    self.engine.closed(conn, why, now);
                }
            }
            self.settle(now);
        }
        true
    }

    /// Tells the engine once when TLS is agreed.
    fn secured(&mut self, i: usize, now: Time) {
        let Some(link) = self.links.get_mut(i) else { return };
        if link.wire.take_secured() {
            match std::mem::replace(&mut link.stage, Stage::Open) {
                Stage::Securing { tunnel: true } => self.engine.tls_started(link.conn, now),
                Stage::Securing { tunnel: false } => self.engine.connected(link.conn, now),
                Stage::Open | Stage::Connecting(_) => {}
            }
        }
    }

    /// Throws away the steps of an operation that nobody waits for.
    fn discard(&mut self, op: OpId, now: Time) {
        let mut steps = std::mem::take(&mut self.discarded);
        self.engine.steps(op, usize::MAX, &mut steps);
        for step in steps.drain(..) {
            match step {
                Step::ToolCall(call) => {
                    let text = "The program left the turn before the call was started.";
                    // Nobody hears whether it came in time.
                    drop(self.engine.answer(call.call, Answer::Fail(text.to_owned()), now));
                }
                Step::Finished(_) => {
                    let left = self.waiting.remove(&op).and_then(|waiting| waiting.left);
                    self.ended.extend(left.into_iter().flatten());
                    self.news = true;
                }
                _ => {}
            }
        }
        self.discarded = steps;
    }

    fn link(&mut self, conn: ConnId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.conn == conn)
    }

    fn unlink(&mut self, conn: ConnId) -> Option<Link> {
        let at = self.links.iter().position(|link| link.conn == conn)?;
        let mut link = self.links.swap_remove(at);
        // The socket is closed right after; then the system forgets it by itself.
        drop(self.registry.deregister(&mut link.stream));
        Some(link)
    }
}

impl Drop for State {
    /// The last handle is gone: connections end as politely as they can at once.
    fn drop(&mut self) {
        for mut link in std::mem::take(&mut self.links) {
            let mut socket = Plain { stream: &mut link.stream, scratch: &mut [] };
            link.wire.finish(&mut socket);
        }
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

/// A socket that never waits, and the memory that it reads to first.
struct Plain<'a> {
    stream: &'a mut TcpStream,
    scratch: &'a mut [u8],
}

impl Socket for Plain<'_> {
    fn read(&mut self, into: &mut BytesMut) -> io::Result<usize> {
        let room = (into.capacity() - into.len()).min(self.scratch.len());
        let n = self.stream.read(&mut self.scratch[..room])?;
        into.extend_from_slice(&self.scratch[..n]);
        Ok(n)
    }

    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.write_vectored(slices)
    }
}
