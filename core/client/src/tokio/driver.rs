//! The one task that moves a session's engine: it owns the waiting for sockets, names and the timer.
//!
//! Handles reach the engine directly, under a lock that is held for one input at a time, and write
//! to the sockets themselves; the task is woken only for what needs its waiting: a new connection, a
//! socket that takes no more, an earlier timer. So one round trip costs one wake-up of this task
//! (the answer has come) and one of the reader (steps are there).

use super::running::Running;
use crate::engine::{
    Accepted, Answer, CallId, CloseReason, ConnId, Effect, Engine, LogLevel, LogRecord, OpId,
    ResolveId, Resolved, Step,
};
use crate::setup::{LogSink, Setup};
use crate::steps::Answers;
use crate::tls::Connector;
use crate::wire::{Found, ReadBuffer, Socket, Wire, close_reason};
use ::tokio::io::{AsyncReadExt, AsyncWrite};
use ::tokio::net::TcpStream;
use ::tokio::time::{Instant, Sleep};
use broca_proto::{Error, Time};
use bytes::BytesMut;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
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

/// Everything behind the lock.
pub(super) struct State {
    pub(super) engine: Engine,
    connector: Arc<Connector>,
    links: Vec<Link>,
    connecting: Vec<Connecting>,
    resolving: Vec<(ResolveId, Boxed<Resolved>)>,
    /// Connects and look-ups that the task has yet to begin.
    to_begin: Vec<Effect>,
    waiting: HashMap<OpId, Waiting>,
    timer: Option<Time>,
    busy: bool,
    task: Option<Waker>,
    /// The task has something to do.
    wake_task: bool,
    /// When the task's sleep ends.
    armed: Option<Time>,
    // What must not happen while the lock is held: it could lead back here.
    wakes: Vec<Waker>,
    records: Vec<LogRecord>,
    ended: Vec<Running>,
    scratch: Vec<Step>,
    /// Set when the last handle is gone: how long what is under way may still take.
    leave_by: Option<Time>,
    /// How long that is, in milliseconds.
    leave_ms: u64,
    over: bool,
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

struct Link {
    conn: ConnId,
    stream: TcpStream,
    wire: Wire,
    handshake: Option<Handshake>,
    paused: bool,
}

/// What a finished TLS handshake is reported as.
#[derive(Clone, Copy)]
enum Handshake {
    Connected,
    Started,
}

struct Connecting {
    conn: ConnId,
    server_name: Option<String>,
    stream: Boxed<io::Result<TcpStream>>,
}

/// Who waits for an operation.
#[derive(Default)]
struct Waiting {
    waker: Option<Waker>,
    is_turn: bool,
    /// Nobody any more: its steps are thrown away. What still runs for it is dropped at its end.
    left: Option<Vec<Running>>,
}

impl Shared {
    /// Starts the task of a new session on the current runtime.
    pub(super) fn start(setup: &Setup, engine: Engine) -> Option<Arc<Self>> {
        let runtime = ::tokio::runtime::Handle::try_current().ok()?;
        let config = &setup.config;
        let state = State {
            engine,
            connector: Arc::clone(&setup.connector),
            links: Vec::new(),
            connecting: Vec::new(),
            resolving: Vec::new(),
            to_begin: Vec::new(),
            waiting: HashMap::new(),
            timer: None,
            busy: false,
            task: None,
            wake_task: false,
            armed: None,
            wakes: Vec::new(),
            records: Vec::new(),
            ended: Vec::new(),
            scratch: Vec::new(),
            leave_by: None,
            leave_ms: config
                .cancel_timeout_ms
                .saturating_add(config.calls.cancel_grace_ms)
                .saturating_add(1_000),
            over: false,
        };
        let shared = Arc::new(Self {
            state: Mutex::new(state),
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

impl State {
    /// Whether the task is gone, and with it every socket.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Somebody waits for this operation from now on.
    pub(super) fn expect(&mut self, op: OpId, is_turn: bool) {
        self.waiting.insert(op, Waiting { is_turn, ..Waiting::default() });
    }

    /// Asks for the end of every turn.
    pub(super) fn cancel_turns(&mut self, now: Time) {
        let turns = self.waiting.iter().filter(|(_, waiting)| waiting.is_turn);
        for (op, _) in turns {
            self.engine.cancel(*op, now);
        }
    }

    /// Wakes this waker when steps of the operation come.
    pub(super) fn wait(&mut self, op: OpId, waker: &Waker) {
        let waiting = self.waiting.entry(op).or_default();
        match &mut waiting.waker {
            Some(known) if known.will_wake(waker) => {}
            // The old one is woken for nothing: dropping it here could drop a task.
            slot => self.wakes.extend(slot.replace(waker.clone())),
        }
    }

    /// The operation has finished, and its steps were taken.
    pub(super) fn forget(&mut self, op: OpId) {
        let waiting = self.waiting.remove(&op);
        self.wakes.extend(waiting.and_then(|waiting| waiting.waker));
    }

    /// Nobody waits for the operation any more: it is cancelled, and what still runs for it is
    /// dropped when it ends.
    pub(super) fn leave(&mut self, op: OpId, running: Vec<Running>, now: Time) {
        self.forget(op);
        self.waiting.insert(op, Waiting { left: Some(running), ..Waiting::default() });
        self.engine.cancel(op, now);
        self.discard(op, now);
    }

    /// The last handle is gone.
    pub(super) fn leave_all(&mut self, now: Time) {
        self.leave_by = Some(now.plus(self.leave_ms));
        self.wake_task = true;
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
                let link = &mut self.links[i];
                let written = link.wire.flush(&mut Direct(&link.stream));
                self.wake_task |= link.wire.wants_write();
                if written > 0 {
                    let conn = link.conn;
                    self.engine.written(conn, written, now);
                }
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
            Effect::Ready { op } => match self.waiting.get_mut(&op) {
                Some(Waiting { left: Some(_), .. }) => self.discard(op, now),
                Some(waiting) => self.wakes.extend(waiting.waker.take()),
                None => {}
            },
            Effect::Timer { at } => {
                self.timer = at;
                // Of a later timer the task finds out by itself when its sleep ends.
                let earlier = |at| self.armed.is_none_or(|armed| at < armed);
                self.wake_task |= at.is_some_and(earlier);
            }
            Effect::Resolve { .. } | Effect::Connect { .. } => {
                self.to_begin.push(effect);
                self.wake_task = true;
            }
            Effect::StartTls { conn, tls } => self.start_tls(conn, &tls.server_name, now),
            Effect::PauseRead { conn } => self.pause(conn, true),
            Effect::ResumeRead { conn } => self.pause(conn, false),
            Effect::Close { conn, abort } => {
                self.connecting.retain(|other| other.conn != conn);
                self.to_begin.retain(
                    |other| !matches!(other, Effect::Connect { conn: c, .. } if *c == conn),
                );
                if let Some(mut link) = self.unlink(conn).filter(|_| !abort) {
                    link.wire.finish(&mut Direct(&link.stream));
                }
            }
            Effect::Busy(busy) => {
                self.busy = busy;
                self.wake_task |= self.leave_by.is_some();
            }
            Effect::Log(record) => self.records.push(record),
        }
    }

    fn start_tls(&mut self, conn: ConnId, server_name: &str, now: Time) {
        let made = self.connector.connect(server_name);
        let Some(link) = self.link(conn) else { return };
        match made {
            Ok(connection) => {
                link.wire.start_tls(connection);
                link.handshake = Some(Handshake::Started);
            }
            Err(error) => self.tls_failed(conn, &error, now),
        }
    }

    fn tls_failed(&mut self, conn: ConnId, error: &Error, now: Time) {
        let level = LogLevel::Warn;
        self.records.push(LogRecord { level, message: error.to_string() });
        self.unlink(conn);
        self.engine.closed(conn, CloseReason::TlsOther, now);
    }

    fn pause(&mut self, conn: ConnId, paused: bool) {
        self.wake_task |= !paused;
        if let Some(link) = self.link(conn) {
            link.paused = paused;
        }
    }

    /// Throws away the steps of an operation that nobody waits for.
    fn discard(&mut self, op: OpId, now: Time) {
        let mut steps = std::mem::take(&mut self.scratch);
        self.engine.steps(op, usize::MAX, &mut steps);
        for step in steps.drain(..) {
            match step {
                Step::ToolCall(call) => {
                    let text = "The program left the turn before the call was started.";
                    // Nobody hears whether it came in time.
                    let _ = self.engine.answer(call.call, Answer::Fail(text.to_owned()), now);
                }
                Step::Finished(_) => {
                    let left = self.waiting.remove(&op).and_then(|waiting| waiting.left);
                    self.ended.extend(left.into_iter().flatten());
                }
                _ => {}
            }
        }
        self.scratch = steps;
    }

    fn link(&mut self, conn: ConnId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.conn == conn)
    }

    fn unlink(&mut self, conn: ConnId) -> Option<Link> {
        let at = self.links.iter().position(|link| link.conn == conn)?;
        Some(self.links.swap_remove(at))
    }

    // What follows is the task's: it has a waker to leave with the sockets.

    fn begin(&mut self) {
        for effect in std::mem::take(&mut self.to_begin) {
            match effect {
                Effect::Resolve { req, host } => {
                    self.resolving.push((req, Box::pin(look_up(host))))
                }
                Effect::Connect { conn, addr, tls } => self.connecting.push(Connecting {
                    conn,
                    server_name: tls.map(|tls| tls.server_name),
                    stream: Box::pin(connect(addr)),
                }),
                _ => {}
            }
        }
    }

    fn poll_begun(&mut self, cx: &mut Context<'_>, now: Time) {
        let mut i = 0;
        while i < self.resolving.len() {
            match self.resolving[i].1.as_mut().poll(cx) {
                Poll::Pending => i += 1,
                Poll::Ready(answer) => {
                    let (req, _) = self.resolving.swap_remove(i);
                    self.engine.resolved(req, answer, now);
                    self.settle(now);
                }
            }
        }
        let mut i = 0;
        while i < self.connecting.len() {
            match self.connecting[i].stream.as_mut().poll(cx) {
                Poll::Pending => i += 1,
                Poll::Ready(outcome) => {
                    let Connecting { conn, server_name, .. } = self.connecting.swap_remove(i);
                    self.connected(conn, server_name, outcome, now);
                    self.settle(now);
                }
            }
        }
    }

    fn connected(
        &mut self,
        conn: ConnId,
        server_name: Option<String>,
        outcome: io::Result<TcpStream>,
        now: Time,
    ) {
        let stream = match outcome {
            Ok(stream) => stream,
            Err(error) => return self.engine.closed(conn, close_reason(&error), now),
        };
        let mut link = Link { conn, stream, wire: Wire::new(), handshake: None, paused: false };
        let Some(server_name) = server_name else {
            self.links.push(link);
            return self.engine.connected(conn, now);
        };
        match self.connector.connect(&server_name) {
            Ok(connection) => {
                link.wire.start_tls(connection);
                link.handshake = Some(Handshake::Connected);
                self.links.push(link);
            }
            Err(error) => self.tls_failed(conn, &error, now),
        }
    }

    /// Reads and writes what the sockets give and take; false when `reads` were too few.
    fn poll_links(
        &mut self,
        cx: &mut Context<'_>,
        room: &mut ReadBuffer,
        reads: &mut u32,
        now: Time,
    ) -> bool {
        let mut i = 0;
        while let Some(link) = self.links.get_mut(i) {
            let conn = link.conn;
            if link.wire.wants_write() {
                let written = link.wire.flush(&mut Polled { stream: &mut link.stream, cx });
                if written > 0 {
                    self.engine.written(conn, written, now);
                    self.settle(now);
                    continue;
                }
            }
            let Some(link) = self.links.get_mut(i).filter(|link| link.conn == conn) else {
                continue;
            };
            if link.paused {
                i += 1;
                continue;
            }
            if *reads == 0 {
                return false;
            }
            match link.wire.read(&mut Polled { stream: &mut link.stream, cx }, room) {
                Found::Blocked => {
                    i += 1;
                    continue;
                }
                Found::Progress => self.secured(i, now),
                Found::Data(bytes) => {
                    *reads -= 1;
                    // The server's last handshake records and its first bytes may come together.
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
            match link.handshake.take() {
                Some(Handshake::Started) => self.engine.tls_started(link.conn, now),
                Some(Handshake::Connected) => self.engine.connected(link.conn, now),
                None => {}
            }
        }
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
            // Behind those that were just woken: they take the steps first.
            cx.waker().wake_by_ref();
        }
        if over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Driver {
    /// The session is left, or the runtime shuts down. Whoever still waits is told.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.over = true;
        for mut link in std::mem::take(&mut state.links) {
            link.wire.finish(&mut Direct(&link.stream));
        }
        state.connecting.clear();
        state.resolving.clear();
        let waiting = std::mem::take(&mut state.waiting);
        for Waiting { waker, left, .. } in waiting.into_values() {
            state.wakes.extend(waker);
            state.ended.extend(left.into_iter().flatten());
        }
        self.shared.release(state);
    }
}

impl Answers for Shared {
    fn answer(&self, call: CallId, answer: Answer) -> Result<Accepted, Error> {
        self.with(|state, now| state.engine.answer(call, answer, now))
    }
}

async fn look_up(host: String) -> Resolved {
    let found = ::tokio::net::lookup_host((host.as_str(), 0)).await;
    found.map(|all| all.map(|addr| addr.ip()).collect()).map_err(|e| e.to_string())
}

async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A socket used by the task: what would wait wakes it later.
struct Polled<'a, 'b, 'c> {
    stream: &'a mut TcpStream,
    cx: &'b mut Context<'c>,
}

impl Socket for Polled<'_, '_, '_> {
    fn read(&mut self, into: &mut BytesMut) -> io::Result<usize> {
        or_would_block(pin!(self.stream.read_buf(into)).poll(self.cx))
    }

    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        or_would_block(Pin::new(&mut *self.stream).poll_write_vectored(self.cx, slices))
    }
}

fn or_would_block(done: Poll<io::Result<usize>>) -> io::Result<usize> {
    match done {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// A socket used by a handle: only for writing, and only what it takes at once.
struct Direct<'a>(&'a TcpStream);

impl Socket for Direct<'_> {
    fn read(&mut self, _: &mut BytesMut) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }
}
