//! The connections of one engine: dialling, tunnels, keep-alive, deadlines, back-pressure.
//!
//! [`Net`] carries HTTP exchanges for the operations above it and knows nothing of what they say.
//! Each exchange reports `Sent` once, then `Head`, `Body`…, `End`, or at any point `Failed`.

mod dial;
mod trouble;

use super::address::{Address, Proxy};
use super::config::Config;
use super::effect::{CloseReason, ConnId, Effect, OpId, ResolveId};
use crate::http1::{self, Connection, Http1Error, Request, Target};
use broca_proto::session::exchange::BodyEnd;
use broca_proto::{Error, ErrorKind, Secret, Time};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// Bytes of one connection that may be handed out without being confirmed.
const MAX_UNWRITTEN: usize = 256 * 1024;

/// An HTTP exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExchangeId(u64);

/// What an exchange asks for.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    /// Path and query below the base address; begins with `/`.
    pub(crate) path: String,
    pub(crate) key: Option<Secret>,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
    /// Repeating it does no harm, so a kept connection that turns out dead costs only another try.
    pub(crate) idempotent: bool,
    /// Never waits for a free connection: cancelling and holding must not queue behind streams.
    pub(crate) urgent: bool,
    /// Time to the head of the answer, from when the request may leave.
    pub(crate) head_timeout_ms: u64,
    /// Time for the whole exchange.
    pub(crate) whole_timeout_ms: Option<u64>,
    /// Silence in the body after which it counts as dead.
    pub(crate) silence_timeout_ms: Option<u64>,
}

/// What becomes of an exchange.
#[derive(Debug)]
pub(crate) enum NetEvent {
    /// The request has left.
    Sent,
    /// The head of the answer.
    Head(http1::Response),
    /// Bytes of its body.
    Body(Bytes),
    /// The answer is over.
    End(BodyEnd),
    /// There will be no (more) answer.
    Failed(Error),
}

pub(crate) struct Net {
    address: Address,
    proxy: Option<Proxy>,
    settings: Settings,
    next: u64,
    conns: BTreeMap<ConnId, Conn>,
    exchanges: BTreeMap<ExchangeId, Exchange>,
    /// Exchanges that wait for a free connection, in order.
    waiting: VecDeque<ExchangeId>,
    effects: VecDeque<Effect>,
    events: VecDeque<(OpId, ExchangeId, NetEvent)>,
}

struct Settings {
    user_agent: String,
    connect_timeout_ms: u64,
    eyeballs_delay_ms: u64,
    idle_reuse_ms: u64,
    idle_close_ms: u64,
    max_connections: usize,
}

struct Exchange {
    op: OpId,
    call: Call,
    state: State,
    /// When the present phase, and when the whole exchange has taken too long.
    deadline: Option<Time>,
    whole_deadline: Option<Time>,
    got_head: bool,
    /// Its answer is not read for now.
    paused: bool,
    /// Its answer is complete but for the end of its body: it is read whatever waits.
    ending: bool,
    /// It is read again, and nothing has come since: the peer is not to blame for a silence of ours.
    resumed: bool,
    /// A kept connection turned out dead under it: it gets a new one.
    needs_new: bool,
}

impl Exchange {
    /// The deadline of the present phase; there is none for an answer that we do not read.
    fn phase_deadline(&self) -> Option<Time> {
        let unread = self.paused && matches!(self.state, State::Sent { .. });
        self.deadline.filter(|_| !unread)
    }
}

enum State {
    Waiting,
    Dialling(Dial),
    /// On a connection; whether that was a kept one.
    Sent {
        conn: ConnId,
        reused: bool,
    },
}

/// The search for a connection: addresses one after the other, each a little later beside the last.
struct Dial {
    resolving: Option<ResolveId>,
    left: VecDeque<SocketAddr>,
    flying: Vec<ConnId>,
    next_at: Option<Time>,
    failure: Option<CloseReason>,
}

struct Conn {
    http: Connection,
    phase: Phase,
    exchange: Option<ExchangeId>,
    since: Time,
    out: VecDeque<Bytes>,
    unwritten: usize,
    paused: bool,
    /// The shell has reported its end: no effect names it any more.
    gone: Option<CloseReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    /// CONNECT is out, the proxy's answer not in.
    Tunnelling,
    StartingTls,
    Open,
}

impl Net {
    pub(crate) fn new(address: Address, proxy: Option<Proxy>, config: &Config) -> Self {
        Self {
            address,
            proxy,
            settings: Settings {
                user_agent: config.user_agent.clone(),
                connect_timeout_ms: config.connect_timeout_ms,
                eyeballs_delay_ms: config.eyeballs_delay_ms,
                idle_reuse_ms: config.idle_reuse_ms,
                idle_close_ms: config.idle_close_ms,
                max_connections: config.max_connections.max(1),
            },
            next: 1,
            conns: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            waiting: VecDeque::new(),
            effects: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Where the service is, for messages.
    pub(crate) fn address(&self) -> String {
        self.address.display()
    }

    /// Begins an exchange for `op`.
    pub(crate) fn start(&mut self, op: OpId, call: Call, now: Time) -> ExchangeId {
        let id = ExchangeId(self.number());
        let exchange = Exchange {
            op,
            state: State::Waiting,
            deadline: Some(now.plus(self.settings.connect_timeout_ms)),
            whole_deadline: call.whole_timeout_ms.map(|ms| now.plus(ms)),
            call,
            got_head: false,
            paused: false,
            ending: false,
            resumed: false,
            needs_new: false,
        };
        self.exchanges.insert(id, exchange);
        self.waiting.push_back(id);
        self.serve_waiting(now);
        id
    }

    /// Drops an exchange: its connection is closed unless it is not needed any more.
    pub(crate) fn abort(&mut self, id: ExchangeId, now: Time) {
        let Some(exchange) = self.exchanges.remove(&id) else { return };
        self.waiting.retain(|waiting| *waiting != id);
        match exchange.state {
            State::Waiting => {}
            State::Dialling(dial) => {
                dial.flying.into_iter().for_each(|conn| self.close(conn, true))
            }
            State::Sent { conn, .. } => self.close(conn, true),
        }
        self.serve_waiting(now);
    }

    /// Whether the request of this exchange has left.
    pub(crate) fn has_left(&self, id: ExchangeId) -> bool {
        self.exchanges.get(&id).is_some_and(|x| matches!(x.state, State::Sent { .. }))
    }

    /// Replaces the deadline of an exchange whose answer is complete but for the end of its body.
    pub(crate) fn linger(&mut self, id: ExchangeId, until: Time) {
        if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.call.silence_timeout_ms = None;
            exchange.ending = true;
            exchange.paused = false;
            exchange.resumed = false;
            exchange.deadline = Some(until);
            if let State::Sent { conn, .. } = exchange.state {
                self.set_paused(conn, false);
            }
        }
    }

    /// Stops or goes on reading an answer.
    pub(crate) fn pause(&mut self, id: ExchangeId, paused: bool) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        if exchange.paused == paused || exchange.ending {
            return;
        }
        exchange.paused = paused;
        if let State::Sent { conn: id, .. } = exchange.state {
            exchange.resumed = !paused;
            self.set_paused(id, paused);
        }
    }

    /// The next effect.
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The next event of an exchange.
    pub(crate) fn poll_event(&mut self) -> Option<(OpId, ExchangeId, NetEvent)> {
        self.events.pop_front()
    }

    /// When something is due.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let exchanges = self.exchanges.values().flat_map(|x| {
            let dial = match &x.state {
                State::Dialling(dial) => dial.next_at,
                _ => None,
            };
            [x.phase_deadline(), x.whole_deadline, dial]
        });
        let idle = self.conns.values().filter(|c| c.exchange.is_none() && c.phase == Phase::Open);
        let idle = idle.map(|c| Some(c.since.plus(self.settings.idle_close_ms)));
        exchanges.chain(idle).flatten().min()
    }

    // ---- inputs -----------------------------------------------------------------------------

    pub(crate) fn written(&mut self, conn: ConnId, bytes: usize) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.unwritten = c.unwritten.saturating_sub(bytes);
            self.flush(conn);
        }
    }

    /// Takes bytes of the peer; then [`Net::poll_conn`] until it has nothing more.
    pub(crate) fn data(&mut self, conn: ConnId, bytes: Bytes) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.http.receive(bytes);
        }
    }

    /// The next event of the exchange on this connection.
    #[inline]
    pub(crate) fn poll_conn(
        &mut self,
        conn: ConnId,
        now: Time,
    ) -> Option<(OpId, ExchangeId, NetEvent)> {
        loop {
            let c = self.conns.get_mut(&conn)?;
            let polled = c.http.poll();
            let (Some(id), Phase::Open) = (c.exchange, c.phase) else {
                self.poll_without_exchange(conn, polled, now)?;
                continue;
            };
            let event = match polled {
                Ok(Some(event)) => event,
                Ok(None) => return None,
                Err(error) => {
                    // What becomes of the exchange waits with the other events.
                    self.broken(conn, id, &error, now);
                    return None;
                }
            };
            let Some(exchange) = self.exchanges.get_mut(&id) else {
                self.close(conn, true);
                return None;
            };
            let silence = exchange.call.silence_timeout_ms;
            let event = match event {
                http1::Event::Body(bytes) => {
                    exchange.resumed = false;
                    if let Some(ms) = silence {
                        exchange.deadline = Some(now.plus(ms));
                    }
                    NetEvent::Body(bytes)
                }
                http1::Event::Head(head) => {
                    exchange.got_head = true;
                    exchange.deadline = silence.map(|ms| now.plus(ms));
                    NetEvent::Head(head)
                }
                http1::Event::End { reusable, complete_by_close } => {
                    let op = exchange.op;
                    self.exchanges.remove(&id);
                    self.set_paused(conn, false);
                    if let Some(c) = self.conns.get_mut(&conn) {
                        c.exchange = None;
                        c.since = now;
                        if !reusable || !c.out.is_empty() {
                            self.close(conn, true);
                        }
                    }
                    self.serve_waiting(now);
                    let end = if complete_by_close { BodyEnd::ByClose } else { BodyEnd::Complete };
                    return Some((op, id, NetEvent::End(end)));
                }
                http1::Event::Tunnel(_) => continue,
            };
            return Some((exchange.op, id, event));
        }
    }

    pub(crate) fn closed(&mut self, conn: ConnId, why: CloseReason, now: Time) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        let Some(id) = c.exchange else {
            self.conns.remove(&conn);
            self.serve_waiting(now);
            return;
        };
        match c.phase {
            Phase::Open => {
                c.gone = Some(why);
                c.http.eof(why == CloseReason::Eof);
                // What is already there outranks the reason: an early answer, a body that is whole.
                while let Some(event) = self.poll_conn(conn, now) {
                    self.events.push_back(event);
                }
                self.conns.remove(&conn);
                let carried =
                    |x: &Exchange| matches!(x.state, State::Sent { conn: c, .. } if c == conn);
                if self.exchanges.get(&id).is_some_and(carried) {
                    self.lost(id, why, now);
                }
            }
            Phase::Connecting => {
                self.conns.remove(&conn);
                self.dial_failed(id, conn, why, now);
            }
            Phase::Tunnelling | Phase::StartingTls => {
                self.conns.remove(&conn);
                let kind = if why.is_tls() { ErrorKind::Tls } else { ErrorKind::Connect };
                let message = format!(
                    "no tunnel to {} through the proxy: {}",
                    self.address.host,
                    why.as_str()
                );
                self.fail(id, Error::new(kind, message), now);
            }
        }
        self.serve_waiting(now);
    }

    pub(crate) fn timeout(&mut self, now: Time) {
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let late: Vec<ExchangeId> = self
            .exchanges
            .iter()
            .filter(|(_, x)| due(x.phase_deadline()) || due(x.whole_deadline))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.phase_over(id, now);
        }
        let next: Vec<ExchangeId> = self
            .exchanges
            .iter()
            .filter(|(_, x)| matches!(&x.state, State::Dialling(dial) if due(dial.next_at)))
            .map(|(id, _)| *id)
            .collect();
        for id in next {
            self.fly(id, now);
        }
        let idle_close_ms = self.settings.idle_close_ms;
        let idle: Vec<ConnId> = self
            .conns
            .iter()
            .filter(|(_, c)| c.exchange.is_none() && due(Some(c.since.plus(idle_close_ms))))
            .map(|(id, _)| *id)
            .collect();
        idle.into_iter().for_each(|conn| self.close(conn, false));
        self.serve_waiting(now);
    }

    fn send(&mut self, id: ExchangeId, conn: ConnId, reused: bool, now: Time) {
        let (Some(x), Some(c)) = (self.exchanges.get_mut(&id), self.conns.get_mut(&conn)) else {
            return;
        };
        let path = format!("{}{}", self.address.prefix, x.call.path);
        let authority = self.address.authority();
        let absolute = format!("http://{authority}{path}");
        let mut headers: Vec<(&str, &str)> =
            vec![("User-Agent", &self.settings.user_agent), ("Accept", "*/*")];
        let bearer;
        if let Some(key) = &x.call.key {
            bearer = Secret::new(format!("Bearer {}", key.expose()));
            headers.push(("Authorization", bearer.expose()));
        }
        let plain_proxy = self.proxy.as_ref().filter(|_| !self.address.tls);
        if let Some(authorization) = plain_proxy.and_then(|p| p.authorization.as_ref()) {
            headers.push(("Proxy-Authorization", authorization.expose()));
        }
        headers.extend(x.call.headers.iter().map(|(name, value)| (*name, value.as_str())));
        let request = Request {
            method: x.call.method,
            target: if plain_proxy.is_some() {
                Target::Absolute(&absolute)
            } else {
                Target::Origin(&path)
            },
            host: &authority,
            headers: &headers,
            body: &x.call.body,
        };
        match c.http.send(request) {
            Ok(bytes) => {
                c.out.push_back(bytes);
                c.exchange = Some(id);
                x.state = State::Sent { conn, reused };
                x.deadline = Some(now.plus(x.call.head_timeout_ms));
                let (op, paused) = (x.op, x.paused);
                self.flush(conn);
                self.set_paused(conn, paused);
                self.events.push_back((op, id, NetEvent::Sent));
            }
            Err(error) => {
                c.since = now;
                let message = format!("the request cannot be written: {error}");
                self.fail(id, Error::new(ErrorKind::InvalidArgument, message), now);
            }
        }
    }

    // ---- connections ------------------------------------------------------------------------

    fn close(&mut self, conn: ConnId, abort: bool) {
        if self.conns.remove(&conn).is_some_and(|c| c.gone.is_none()) {
            self.effects.push_back(Effect::Close { conn, abort });
        }
    }

    fn set_paused(&mut self, conn: ConnId, paused: bool) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        if c.paused != paused && c.gone.is_none() {
            c.paused = paused;
            let effect =
                if paused { Effect::PauseRead { conn } } else { Effect::ResumeRead { conn } };
            self.effects.push_back(effect);
        }
    }

    /// Hands out what may be written.
    fn flush(&mut self, conn: ConnId) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        while let Some(front) = c.out.front_mut() {
            let room = MAX_UNWRITTEN - c.unwritten.min(MAX_UNWRITTEN);
            if room == 0 {
                return;
            }
            let bytes = front.split_to(room.min(front.len()));
            if front.is_empty() {
                c.out.pop_front();
            }
            c.unwritten += bytes.len();
            c.http.written(bytes.len());
            self.effects.push_back(Effect::Write { conn, bytes });
        }
    }

    /// Connections there are or are about to be.
    fn connections(&self) -> usize {
        self.conns.len() + self.resolving()
    }

    /// Those of them that carry an exchange or are made for one.
    fn connections_in_use(&self) -> usize {
        self.conns.values().filter(|c| c.exchange.is_some()).count() + self.resolving()
    }

    fn resolving(&self) -> usize {
        let resolving =
            |x: &&Exchange| matches!(&x.state, State::Dialling(d) if d.resolving.is_some());
        self.exchanges.values().filter(resolving).count()
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }
}

fn internal(error: &Http1Error) -> Error {
    Error::new(ErrorKind::Internal, format!("a request of our own cannot be written: {error}"))
}
