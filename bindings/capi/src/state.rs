//! What is behind the lock of a client: its sessions with their sockets, timers and operations.

use crate::hub::Setup;
use crate::io::{BROCA_FORGET, BROCA_READABLE, BROCA_WRITABLE};
use crate::link::{Link, Number, Plain, Stage};
use crate::operation::{DROPPED_CALL, Operation};
use broca::wire::{Found, ReadBuffer, close_reason};
use broca_bridge::errors::push_failed;
use broca_bridge::layout::{log, log_dropped, tool_call};
use broca_bridge::{Answer, Batch, CloseReason, Effect, Error, Handle, Time};
use socket2::Socket;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

/// Reads in one go; then the reader of steps gets its turn.
const READS: u32 = 4;
/// Log records that wait at most.
const LOG_RECORDS: usize = 256;

/// Everything behind the lock.
pub(crate) struct State {
    setup: Arc<Setup>,
    sessions: HashMap<u64, Live>,
    next_session: u64,
    next_operation: u64,
    timers: BTreeSet<(Time, u64)>,
    /// When timers were last served: a timer that is still due waits for the next millisecond.
    fired: Option<Time>,
    /// Sessions with something to read already.
    active: Vec<u64>,
    pub(crate) to_resolve: VecDeque<Lookup>,
    room: ReadBuffer,
    logs: VecDeque<Record>,
    logs_dropped: u64,
    spare: Batch,

    /// A thread waits for the sockets.
    pub(crate) polling: bool,
    /// Until when, at the latest.
    pub(crate) polling_until: Time,
    /// It must look again.
    pub(crate) nudge: bool,
    /// Somebody other than the leader may have got what it waits for.
    pub(crate) news: bool,
    pub(crate) followers: usize,

    /// The program's event loop watches the sockets; nothing here waits for them.
    pub(crate) looped: bool,
    /// The loop was woken and has not looked yet.
    pub(crate) woken: bool,
    numbers: HashMap<Number, u64>,
    /// Sessions whose wants may have changed.
    touched: VecDeque<u64>,
    /// Sockets that the loop has to forget …
    leaving: VecDeque<Arc<Socket>>,
    /// … and the one that it was told to forget: closed when it comes back.
    forgotten: Option<Arc<Socket>>,
    /// Operations with steps, for `broca_io_next`.
    ready: VecDeque<(u64, u64)>,
}

/// A name to look up for a session.
pub(crate) struct Lookup {
    pub(crate) session: u64,
    pub(crate) handle: Arc<Handle>,
    pub(crate) req: u64,
    pub(crate) host: String,
}

/// A record of the log.
pub(crate) struct Record {
    pub(crate) level: i32,
    pub(crate) message: String,
}

struct Live {
    handle: Arc<Handle>,
    links: Vec<Link>,
    operations: HashMap<u64, Entry>,
    timer: Option<Time>,
    active: bool,
    touched: bool,
}

struct Entry {
    operation: Weak<Operation>,
    is_turn: bool,
    /// Nobody waits any more: steps are thrown away.
    left: bool,
    /// It is in the queue of `broca_io_next`.
    queued: bool,
}

impl State {
    pub(crate) fn new(setup: Arc<Setup>) -> Self {
        Self {
            setup,
            sessions: HashMap::new(),
            next_session: 1,
            next_operation: 1,
            timers: BTreeSet::new(),
            fired: None,
            active: Vec::new(),
            to_resolve: VecDeque::new(),
            room: ReadBuffer::new(),
            logs: VecDeque::new(),
            logs_dropped: 0,
            spare: Batch::new(),
            polling: false,
            polling_until: Time::default(),
            nudge: false,
            news: false,
            followers: 0,
            looped: false,
            woken: false,
            numbers: HashMap::new(),
            touched: VecDeque::new(),
            leaving: VecDeque::new(),
            forgotten: None,
            ready: VecDeque::new(),
        }
    }

    /// A new session moves with the others from now on.
    pub(crate) fn add(&mut self, handle: Arc<Handle>) -> u64 {
        let key = self.next_session;
        self.next_session += 1;
        let live = Live {
            handle,
            links: Vec::new(),
            operations: HashMap::new(),
            timer: None,
            active: false,
            touched: false,
        };
        self.sessions.insert(key, live);
        key
    }

    /// Nobody has anything of the session any more: its connections end as politely as they can at once.
    pub(crate) fn remove(&mut self, key: u64) {
        while let Some(conn) = self.links(key).last().map(|link| link.conn) {
            if let Some(mut link) = self.unlink(key, conn) {
                link.finish();
            }
        }
        self.set_timer(key, None);
        self.sessions.remove(&key);
        self.to_resolve.retain(|lookup| lookup.session != key);
        self.ready.retain(|(session, _)| *session != key);
    }

    /// An operation has begun. Gives the number that it has among all of the client.
    pub(crate) fn expect(&mut self, is_turn: bool, key: u64, op: u64, operation: Weak<Operation>) {
        if let Some(live) = self.sessions.get_mut(&key) {
            let entry = Entry { operation, is_turn, left: false, queued: false };
            live.operations.insert(op, entry);
        }
    }

    pub(crate) fn next_operation(&mut self) -> u64 {
        let id = self.next_operation;
        self.next_operation += 1;
        id
    }

    /// Takes steps of an operation; true when nothing follows. A broken engine gives one step that says so.
    pub(crate) fn take(&mut self, key: u64, op: u64, max_bytes: usize, batch: &mut Batch) -> bool {
        let Some(live) = self.sessions.get_mut(&key) else { return true };
        let over = live.handle.steps(op, max_bytes, batch).unwrap_or_else(|error| {
            push_failed(batch, &error);
            true
        });
        let queued = live.operations.get_mut(&op).is_some_and(|e| std::mem::take(&mut e.queued));
        if queued {
            // Whoever takes steps without asking which operation has some is told by the engine of what is left.
            self.ready.retain(|waiting| *waiting != (key, op));
        }
        if over {
            live.operations.remove(&op);
        }
        over
    }

    /// Asks for the end of every turn of a session.
    pub(crate) fn cancel_turns(&mut self, key: u64, now: Time) -> Result<(), Error> {
        let Some(live) = self.sessions.get(&key) else { return Ok(()) };
        let mut turns = live.operations.iter().filter(|(_, entry)| entry.is_turn);
        turns.try_for_each(|(op, _)| live.handle.cancel(*op, now))
    }

    /// Nobody waits for the operation any more: it is cancelled, and its steps are thrown away.
    pub(crate) fn leave(&mut self, key: u64, op: u64, now: Time) {
        let Some(live) = self.sessions.get_mut(&key) else { return };
        let Some(entry) = live.operations.get_mut(&op) else { return };
        entry.left = true;
        // A broken engine has nothing to cancel.
        drop(live.handle.cancel(op, now));
        self.discard(key, op, now);
    }

    /// Whether the operation is over for everybody.
    pub(crate) fn is_over(&self, key: u64, op: u64) -> bool {
        self.sessions.get(&key).is_none_or(|live| !live.operations.contains_key(&op))
    }

    /// The next operation with steps.
    pub(crate) fn next_ready(&mut self) -> Option<Arc<Operation>> {
        loop {
            let (key, op) = self.ready.pop_front()?;
            let entry = self.sessions.get_mut(&key).and_then(|live| live.operations.get_mut(&op));
            let Some(entry) = entry else { continue };
            entry.queued = false;
            if let Some(operation) = entry.operation.upgrade() {
                return Some(operation);
            }
        }
    }

    /// Reads, and lets time pass; true when there is more to read already.
    pub(crate) fn advance(&mut self, now: Time) -> bool {
        let mut reads = READS;
        for key in std::mem::take(&mut self.active) {
            if let Some(live) = self.sessions.get_mut(&key) {
                live.active = false;
                if !self.move_links(key, &mut reads, now) {
                    self.activate(key);
                }
            }
        }
        self.pass_time(now);
        !self.active.is_empty()
    }

    /// Serves the timers that are due, once for each time.
    pub(crate) fn pass_time(&mut self, now: Time) {
        if self.fired == Some(now) {
            return;
        }
        self.fired = Some(now);
        let due: Vec<u64> = self.timers.iter().take_while(|t| t.0 <= now).map(|t| t.1).collect();
        for key in due {
            let Some(live) = self.sessions.get(&key) else { continue };
            if let Err(error) = live.handle.timeout(now) {
                self.lose(key, &error);
            }
            self.settle(key, now);
        }
    }

    /// When the next timer is due.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Whether something can be done at once, without any socket.
    pub(crate) fn is_busy(&self) -> bool {
        !self.active.is_empty() || !self.to_resolve.is_empty() || self.has_ready()
    }

    /// Whether an operation has steps.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Carries out all effects of a session, writing to the sockets what they take at once.
    pub(crate) fn settle(&mut self, key: u64, now: Time) {
        let Some(live) = self.sessions.get(&key) else { return };
        let handle = Arc::clone(&live.handle);
        loop {
            let mut wrote = false;
            loop {
                match handle.next_effect() {
                    Ok(Some(effect)) => {
                        wrote |= matches!(effect, Effect::Write { .. } | Effect::StartTls { .. });
                        self.perform(key, &handle, effect, now);
                    }
                    Ok(None) => break,
                    Err(error) => return self.lose(key, &error),
                }
            }
            if !wrote {
                break;
            }
            for i in 0..self.links(key).len() {
                self.flush(key, i, now);
            }
        }
        if handle.has_logs() {
            self.keep_logs(&handle);
        }
        if self.looped {
            self.touch(key);
        }
    }

    fn flush(&mut self, key: u64, i: usize, now: Time) {
        let Some(live) = self.sessions.get_mut(&key) else { return };
        let Some(link) = live.links.get_mut(i) else { return };
        if !link.is_connecting() && link.wire.wants_write() {
            let written = link.wire.flush(&mut Plain(&link.socket));
            if written > 0 {
                // A broken engine is noticed when its effects are asked for.
                drop(live.handle.written(link.conn, written, now));
            }
        }
    }

    fn perform(&mut self, key: u64, handle: &Arc<Handle>, effect: Effect, now: Time) {
        match effect {
            Effect::Write { conn, bytes } => {
                if let Some(link) = self.link(key, conn.0) {
                    link.wire.push(bytes);
                }
            }
            Effect::Ready { op } => self.announce(key, op.0, now),
            Effect::Timer { at } => self.set_timer(key, at),
            Effect::Resolve { req, host } => {
                let handle = Arc::clone(handle);
                self.to_resolve.push_back(Lookup { session: key, handle, req: req.0, host });
                self.nudge = true;
            }
            Effect::Connect { conn, addr, tls } => {
                self.connect(key, conn.0, addr, tls.map(|tls| tls.server_name), now);
            }
            Effect::StartTls { conn, tls } => {
                self.start_tls(key, conn.0, &tls.server_name, true, now);
            }
            Effect::PauseRead { conn } => self.pause(key, conn.0, true),
            Effect::ResumeRead { conn } => self.pause(key, conn.0, false),
            Effect::Close { conn, abort } => {
                if let Some(mut link) = self.unlink(key, conn.0).filter(|_| !abort) {
                    link.finish();
                }
            }
            // Records are in the handle's ring; whether the process may end is the program's matter.
            Effect::Log(_) | Effect::Busy(_) => {}
        }
    }

    fn announce(&mut self, key: u64, op: u64, now: Time) {
        let Some(live) = self.sessions.get_mut(&key) else { return };
        match live.operations.get_mut(&op) {
            Some(Entry { left: true, .. }) => self.discard(key, op, now),
            Some(entry) => {
                self.news = true;
                if !std::mem::replace(&mut entry.queued, true) {
                    self.ready.push_back((key, op));
                }
            }
            None => {}
        }
    }

    fn set_timer(&mut self, key: u64, at: Option<Time>) {
        let Some(live) = self.sessions.get_mut(&key) else { return };
        if let Some(old) = std::mem::replace(&mut live.timer, at) {
            self.timers.remove(&(old, key));
        }
        if let Some(at) = at {
            self.timers.insert((at, key));
            self.nudge |= at < self.polling_until;
        }
    }

    fn connect(&mut self, key: u64, conn: u64, to: SocketAddr, name: Option<String>, now: Time) {
        let made = Link::connect(conn, to, name);
        let Some(live) = self.sessions.get_mut(&key) else { return };
        match made {
            Ok(link) => {
                self.numbers.insert(link.number(), key);
                live.links.push(link);
                self.nudge = true;
            }
            // A broken engine is noticed when its effects are asked for.
            Err(error) => drop(live.handle.closed(conn, close_reason(&error), now)),
        }
    }

    /// The system has something to say about a connect.
    fn connected(&mut self, key: u64, i: usize, now: Time) {
        let Some(live) = self.sessions.get_mut(&key) else { return };
        let Some(link) = live.links.get_mut(i) else { return };
        let conn = link.conn;
        match link.connected() {
            None => {} // not yet
            Some(Ok(())) => match std::mem::replace(&mut link.stage, Stage::Open) {
                Stage::Connecting(Some(name)) => self.start_tls(key, conn, &name, false, now),
                // A broken engine is noticed when its effects are asked for.
                _ => drop(live.handle.connected(conn, now)),
            },
            Some(Err(error)) => self.closed(key, conn, close_reason(&error), now),
        }
    }

    fn start_tls(&mut self, key: u64, conn: u64, name: &str, tunnel: bool, now: Time) {
        let made = self.setup.connector.connect(name);
        let Some(link) = self.link(key, conn) else { return };
        match made {
            Ok(connection) => {
                link.wire.start_tls(connection);
                link.stage = Stage::Securing { tunnel };
                let at = self.links(key).iter().position(|link| link.conn == conn);
                self.flush(key, at.unwrap_or_default(), now);
            }
            Err(error) => {
                self.keep_log(Record { level: 2, message: error.to_string() });
                self.closed(key, conn, CloseReason::TlsOther, now);
            }
        }
    }

    fn closed(&mut self, key: u64, conn: u64, why: CloseReason, now: Time) {
        self.unlink(key, conn);
        if let Some(live) = self.sessions.get(&key) {
            // A broken engine is noticed when its effects are asked for.
            drop(live.handle.closed(conn, why, now));
        }
    }

    fn pause(&mut self, key: u64, conn: u64, paused: bool) {
        let Some(link) = self.link(key, conn) else { return };
        link.paused = paused;
        if !paused {
            // Whoever waits for the sockets does not watch this one yet.
            let marked = link.marked;
            self.nudge = true;
            if marked {
                self.activate(key);
            }
        }
    }

    /// Notes what was said about a socket.
    pub(crate) fn mark(&mut self, key: u64, conn: u64) {
        if let Some(link) = self.link(key, conn) {
            link.marked = true;
            self.activate(key);
        }
    }

    fn activate(&mut self, key: u64) {
        if let Some(live) = self.sessions.get_mut(&key)
            && !std::mem::replace(&mut live.active, true)
        {
            self.active.push(key);
        }
    }

    /// Moves the connections of a session as far as they go; false when `reads` were too few.
    fn move_links(&mut self, key: u64, reads: &mut u32, now: Time) -> bool {
        let mut i = 0;
        loop {
            let Some(live) = self.sessions.get_mut(&key) else { return true };
            let Some(link) = live.links.get_mut(i) else { return true };
            if link.is_connecting() {
                if !std::mem::take(&mut link.marked) {
                    i += 1;
                    continue;
                }
                let conn = link.conn;
                self.connected(key, i, now);
                self.settle(key, now);
                // What comes next on this socket may have come with the connect.
                if let Some(link) = self.link(key, conn) {
                    link.marked = !link.is_connecting();
                }
                continue;
            }
            self.flush(key, i, now);
            let Some(live) = self.sessions.get_mut(&key) else { return true };
            let Some(link) = live.links.get_mut(i) else { return true };
            if !link.marked || link.paused {
                i += 1;
                continue;
            }
            if *reads == 0 {
                return false;
            }
            let conn = link.conn;
            let found = link.wire.read(&mut Plain(&link.socket), &mut self.room);
            match found {
                Found::Blocked => link.marked = false,
                Found::Progress => self.secured(key, i, now),
                Found::Data(bytes) => {
                    *reads -= 1;
                    self.secured(key, i, now);
                    if let Some(live) = self.sessions.get(&key) {
                        // A broken engine is noticed when its effects are asked for.
                        drop(live.handle.data_owned(conn, bytes, now));
                    }
                }
                Found::Closed(why) => self.closed(key, conn, why, now),
            }
            self.settle(key, now);
        }
    }

    /// Tells the engine once when TLS is agreed.
    fn secured(&mut self, key: u64, i: usize, now: Time) {
        let Some(live) = self.sessions.get_mut(&key) else { return };
        let Some(link) = live.links.get_mut(i).filter(|link| !link.is_connecting()) else { return };
        if link.wire.take_secured() {
            // A broken engine is noticed when its effects are asked for.
            drop(match std::mem::replace(&mut link.stage, Stage::Open) {
                Stage::Securing { tunnel: true } => live.handle.tls_started(link.conn, now),
                Stage::Securing { tunnel: false } => live.handle.connected(link.conn, now),
                Stage::Open | Stage::Connecting(_) => Ok(()),
            });
        }
    }

    /// Throws away the steps of an operation that nobody waits for.
    fn discard(&mut self, key: u64, op: u64, now: Time) {
        let Some(live) = self.sessions.get(&key) else { return };
        let handle = Arc::clone(&live.handle);
        let mut batch = std::mem::take(&mut self.spare);
        loop {
            batch.clear();
            let over = self.take(key, op, usize::MAX, &mut batch);
            fail_calls(&handle, &batch, 0, now);
            if over {
                self.news = true;
                break;
            }
            if batch.is_empty() {
                break;
            }
        }
        batch.clear();
        self.spare = batch;
    }

    /// The engine met a fault of its own: its connections are dropped, and every operation says so.
    fn lose(&mut self, key: u64, error: &Error) {
        while let Some(conn) = self.links(key).last().map(|link| link.conn) {
            self.unlink(key, conn);
        }
        self.set_timer(key, None);
        self.news = true;
        let Some(live) = self.sessions.get_mut(&key) else { return };
        live.operations.retain(|_, entry| !entry.left);
        for (op, entry) in &mut live.operations {
            if !std::mem::replace(&mut entry.queued, true) {
                self.ready.push_back((key, *op));
            }
        }
        let message = error.to_string();
        if self.logs.back().is_none_or(|last| last.message != message) {
            self.keep_log(Record { level: 2, message });
        }
    }

    fn links(&self, key: u64) -> &[Link] {
        self.sessions.get(&key).map_or(&[], |live| &live.links)
    }

    fn link(&mut self, key: u64, conn: u64) -> Option<&mut Link> {
        self.sessions.get_mut(&key)?.links.iter_mut().find(|link| link.conn == conn)
    }

    /// Takes a connection out. Its socket is closed with it, or when the program's loop has forgotten it.
    fn unlink(&mut self, key: u64, conn: u64) -> Option<Link> {
        let live = self.sessions.get_mut(&key)?;
        let at = live.links.iter().position(|link| link.conn == conn)?;
        let link = live.links.swap_remove(at);
        self.numbers.remove(&link.number());
        // Whoever waits for it holds it open until then.
        self.nudge = true;
        if link.told != 0 {
            self.leaving.push_back(Arc::clone(&link.socket));
        }
        Some(link)
    }
}

/// Log records.
impl State {
    fn keep_logs(&mut self, handle: &Handle) {
        let mut batch = std::mem::take(&mut self.spare);
        batch.clear();
        // A broken handle still gives its records.
        drop(handle.logs(&mut batch));
        for record in batch.records() {
            if record.kind() == log_dropped::NUMBER {
                self.logs_dropped += record.number(log_dropped::count).unwrap_or_default();
                continue;
            }
            let level = i32::try_from(record.word(log::level)).unwrap_or(2);
            let message = record.text(log::message).unwrap_or_default().to_owned();
            self.keep_log(Record { level, message });
        }
        batch.clear();
        self.spare = batch;
    }

    fn keep_log(&mut self, record: Record) {
        if self.logs.len() == LOG_RECORDS {
            self.logs.pop_front();
            self.logs_dropped += 1;
        }
        self.logs.push_back(record);
    }

    /// The oldest record that waits, or how many could not.
    pub(crate) fn next_log(&mut self) -> Option<Record> {
        match std::mem::take(&mut self.logs_dropped) {
            0 => self.logs.pop_front(),
            n => Some(Record { level: 2, message: format!("{n} log records were dropped") }),
        }
    }
}

/// The program's event loop, or whoever waits in its place.
impl State {
    /// What to wait for: connections, and whether for something to read and for room to write.
    pub(crate) fn watched(&self) -> Vec<(u64, u64, Arc<Socket>, bool, bool)> {
        let mut watched = Vec::new();
        for (key, live) in &self.sessions {
            for link in &live.links {
                let (read, write) = link.interest();
                if read || write {
                    watched.push((*key, link.conn, Arc::clone(&link.socket), read, write));
                }
            }
        }
        watched
    }

    /// The loop says what it found at a socket. Numbers it should have forgotten are ignored.
    pub(crate) fn heard(&mut self, number: Number, now: Time) {
        let Some(key) = self.numbers.get(&number).copied() else { return };
        let Some(live) = self.sessions.get_mut(&key) else { return };
        let Some(link) = live.links.iter_mut().find(|link| link.number() == number) else { return };
        link.marked = true;
        let conn = link.conn;
        self.move_links(key, &mut { READS }, now);
        if let Some(link) = self.link(key, conn) {
            // What is left is told again by a loop that watches levels.
            link.marked = false;
        }
    }

    /// The next change of what the loop shall watch. What it was told to forget before is closed now.
    pub(crate) fn next_want(&mut self) -> Option<(Number, i32)> {
        self.forgotten = None;
        if !std::mem::replace(&mut self.looped, true) {
            let all: Vec<u64> = self.sessions.keys().copied().collect();
            all.into_iter().for_each(|key| self.touch(key));
        }
        if let Some(socket) = self.leaving.pop_front() {
            let number = crate::link::number(&socket);
            self.forgotten = Some(socket);
            return Some((number, BROCA_FORGET));
        }
        while let Some(key) = self.touched.front().copied() {
            if let Some(live) = self.sessions.get_mut(&key) {
                for link in &mut live.links {
                    let (read, write) = link.interest();
                    let wanted = if read { BROCA_READABLE } else { 0 }
                        | if write { BROCA_WRITABLE } else { 0 };
                    // Paused, it may be watched by nobody, but is known to the loop.
                    let told = wanted | TOLD;
                    if link.told != told && (link.told != 0 || wanted != 0) {
                        link.told = told;
                        return Some((link.number(), wanted));
                    }
                }
                live.touched = false;
            }
            self.touched.pop_front();
        }
        self.woken = false;
        None
    }

    fn touch(&mut self, key: u64) {
        if let Some(live) = self.sessions.get_mut(&key)
            && !std::mem::replace(&mut live.touched, true)
        {
            self.touched.push_back(key);
        }
    }

    /// The addresses of a name, or why there are none.
    pub(crate) fn resolved(
        &mut self,
        lookup: &Lookup,
        answer: Result<Vec<IpAddr>, String>,
        now: Time,
    ) {
        // A broken engine is noticed when its effects are asked for.
        drop(lookup.handle.resolved(lookup.req, answer, now));
    }
}

/// In `Link::told`: the loop knows the socket.
const TOLD: i32 = 0x100;

/// Answers the calls among records that nobody will see, from the word `at` of the batch on.
pub(crate) fn fail_calls(handle: &Handle, batch: &Batch, at: usize, now: Time) {
    let calls = batch.records().filter(|r| r.at() >= at && r.kind() == tool_call::NUMBER);
    for call in calls.filter_map(|record| record.number(tool_call::call)) {
        // Nobody hears whether it came in time.
        drop(handle.answer(call, Answer::Fail(DROPPED_CALL.to_owned()), now));
    }
}
