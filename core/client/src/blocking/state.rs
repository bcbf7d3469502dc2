//! What every handle of a session shares behind its lock: the engine, its connections, and who waits for
//! which operation.

use crate::engine::{
    Answer, CloseReason, ConnId, Effect, Engine, LogLevel, LogRecord, OpId, ResolveId, Resolved,
    Step,
};
use crate::setup::Setup;
use crate::tls::Connector;
use crate::tools::CancelSignal;
use crate::wire::{Found, ReadBuffer, Socket, Wire, close_reason};
use broca_proto::Time;
use bytes::BytesMut;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token};
use std::collections::HashMap;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

/// Everything behind the lock.
pub(super) struct State {
    pub(super) engine: Engine,
    connector: Arc<Connector>,
    registry: Registry,
    /// Taken by the leader while it waits for the sockets.
    pub(super) poller: Option<Poller>,
    /// Until when the leader waits, at the latest.
    pub(super) polling_until: Time,
    /// The leader must look again.
    pub(super) nudge: bool,
    /// Somebody other than the leader may have got what it waits for.
    pub(super) news: bool,
    pub(super) followers: usize,
    links: Vec<Link>,
    /// A link was taken out of the list, and others have changed their places.
    moved: bool,
    pub(super) to_resolve: Vec<(ResolveId, String)>,
    waiting: HashMap<OpId, Waiting>,
    pub(super) timer: Option<Time>,
    fired: Option<Time>,
    room: ReadBuffer,
    scratch: Box<[u8]>,
    pub(super) records: Vec<LogRecord>,
    /// Calls to be told to stop, once the lock is free.
    pub(super) ended: Vec<CancelSignal>,
    discarded: Vec<Step>,
}

/// What the leader waits with.
pub(super) struct Poller {
    pub(super) poll: Poll,
    pub(super) events: Events,
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

/// Reads in one go; then the reader of steps gets its turn.
const READS: u32 = 4;
const SCRATCH_BYTES: usize = 128 * 1024;

impl State {
    pub(super) fn new(setup: &Setup, engine: Engine, registry: Registry, poller: Poller) -> Self {
        Self {
            engine,
            connector: Arc::clone(&setup.connector),
            registry,
            poller: Some(poller),
            polling_until: Time::default(),
            nudge: false,
            news: false,
            followers: 0,
            links: Vec::new(),
            moved: false,
            to_resolve: Vec::new(),
            waiting: HashMap::new(),
            timer: None,
            fired: None,
            room: ReadBuffer::new(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            records: Vec::new(),
            ended: Vec::new(),
            discarded: Vec::new(),
        }
    }

    /// Whether there is something to do outside the lock.
    pub(super) fn has_chores(&self) -> bool {
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
    pub(super) fn advance(&mut self, now: Time) -> bool {
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

    pub(super) fn resolved(&mut self, req: ResolveId, answer: Resolved, now: Time) {
        self.engine.resolved(req, answer, now);
    }

    /// Notes what the system says about a socket.
    pub(super) fn mark(&mut self, event: &mio::event::Event) {
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
        loop {
            if std::mem::take(&mut self.moved) {
                // One that can be read may stand before this place now, and is not announced again.
                i = 0;
            }
            let Some(link) = self.links.get_mut(i) else { return true };
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
        self.moved = true;
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
