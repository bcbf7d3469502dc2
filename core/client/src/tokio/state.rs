//! What the task and the handles of a session share behind their lock: the engine, its connections, and
//! who waits for which operation.

use super::running::Running;
use crate::engine::{
    Answer, CloseReason, ConnId, Effect, Engine, LogLevel, LogRecord, OpId, ResolveId, Resolved,
    Step,
};
use crate::setup::Setup;
use crate::tls::Connector;
use crate::wire::{Found, ReadBuffer, Socket, Wire, close_reason};
use ::tokio::io::{AsyncReadExt, AsyncWrite};
use ::tokio::net::TcpStream;
use broca_proto::{Error, Time};
use bytes::BytesMut;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Everything behind the lock.
pub(super) struct State {
    pub(super) engine: Engine,
    connector: Arc<Connector>,
    links: Vec<Link>,
    /// A link was taken out of the list, and others have changed their places.
    moved: bool,
    connecting: Vec<Connecting>,
    resolving: Vec<(ResolveId, Boxed<Resolved>)>,
    /// Connects and look-ups that the task has yet to begin.
    to_begin: Vec<Effect>,
    waiting: HashMap<OpId, Waiting>,
    pub(super) timer: Option<Time>,
    pub(super) busy: bool,
    pub(super) task: Option<Waker>,
    /// The task has something to do.
    pub(super) wake_task: bool,
    /// When the task's sleep ends.
    pub(super) armed: Option<Time>,
    // What must not happen while the lock is held: it could lead back here.
    pub(super) wakes: Vec<Waker>,
    pub(super) records: Vec<LogRecord>,
    pub(super) ended: Vec<Running>,
    scratch: Vec<Step>,
    /// Set when the last handle is gone: how long what is under way may still take.
    pub(super) leave_by: Option<Time>,
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

impl State {
    pub(super) fn new(setup: &Setup, engine: Engine) -> Self {
        let config = &setup.config;
        Self {
            engine,
            connector: Arc::clone(&setup.connector),
            links: Vec::new(),
            moved: false,
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
        }
    }

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

    /// The task ends: every connection with it. Whoever waits is woken.
    pub(super) fn end(&mut self) {
        self.over = true;
        for mut link in std::mem::take(&mut self.links) {
            link.wire.finish(&mut Direct(&link.stream));
        }
        self.connecting.clear();
        self.resolving.clear();
        for Waiting { waker, left, .. } in std::mem::take(&mut self.waiting).into_values() {
            self.wakes.extend(waker);
            self.ended.extend(left.into_iter().flatten());
        }
    }

    /// Carries out all effects, writing to the sockets what they take at once.
    pub(super) fn settle(&mut self, now: Time) {
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
        self.moved = true;
        Some(self.links.swap_remove(at))
    }

    // What follows is the task's: it has a waker to leave with the sockets.

    pub(super) fn begin(&mut self) {
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

    pub(super) fn poll_begun(&mut self, cx: &mut Context<'_>, now: Time) {
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
    pub(super) fn poll_links(
        &mut self,
        cx: &mut Context<'_>,
        room: &mut ReadBuffer,
        reads: &mut u32,
        now: Time,
    ) -> bool {
        let mut i = 0;
        loop {
            if std::mem::take(&mut self.moved) {
                // One that was not asked yet may stand before this place now, and would wake nobody.
                i = 0;
            }
            let Some(link) = self.links.get_mut(i) else { return true };
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
