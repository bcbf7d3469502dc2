//! A host for engines in memory: it carries effects out by scripts, with a clock of its own.
//!
//! No socket, no thread, no real time. With a seed it cuts every stream of bytes anywhere and lets
//! what happens on different connections happen in any order; order within one connection stays. It
//! checks on the way what every shell relies on: no effect names a connection that is gone, at most
//! 256 KiB are unacknowledged, `Finished` comes once and last, `Busy` is true exactly while an
//! operation is unfinished, and nothing printable holds a planted secret.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of tests, of which each uses a part"
)]

pub(crate) mod service;

use broca::Error;
use broca::Time;
use broca::engine::{
    Answer, CallId, CloseReason, Command, Config, ConnId, Effect, Engine, Environment, OpId,
    Outcome, ResolveId, Resolved, Step, Trace,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// Marks whatever must never be printed: keys hold it, and payloads.
pub(crate) const SECRET: &str = "pLaNtEd";
pub(crate) const CLIENT_KEY: &str = "bae_pLaNtEd_client";
pub(crate) const SESSION_KEY: &str = "bae_ses_pLaNtEd_session";
const MAX_UNWRITTEN: usize = 256 * 1024;

/// What the service does on a connection, in order.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Send(Vec<u8>),
    Wait(u64),
    Close(CloseReason),
}

/// What becomes of an attempt to connect.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Dial {
    Open,
    Hang,
    Fail(CloseReason),
}

/// A request that has left completely.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) conn: ConnId,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: serde_json::Value,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The method of `/rpc`; empty for REST.
    pub(crate) fn rpc(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    pub(crate) fn id(&self) -> String {
        self.body["id"].to_string()
    }
}

pub(crate) type Script = Box<dyn FnMut(&Request) -> Vec<Act>>;
type Dialler = Box<dyn FnMut(SocketAddr) -> Dial>;
type Application = Box<dyn FnMut(OpId, &Step) -> Option<(CallId, Answer)>>;

struct Conn {
    open: bool,
    /// What has left on it and is no whole request yet.
    sent: Vec<u8>,
    acts: VecDeque<Act>,
    unwritten: usize,
    owed: VecDeque<usize>,
    paused: bool,
    resume_at: u64,
}

pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) now: u64,
    pub(crate) script: Script,
    pub(crate) dialler: Dialler,
    pub(crate) application: Application,
    pub(crate) addresses: Resolved,
    pub(crate) requests: Vec<Request>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) dialled: Vec<(ConnId, SocketAddr)>,
    pub(crate) closed: Vec<ConnId>,
    pub(crate) steps: BTreeMap<OpId, Vec<Step>>,
    pub(crate) timer: Option<Time>,
    pub(crate) busy: bool,
    /// How much is pulled at each `Ready`; nothing is pulled when it is 0.
    pub(crate) pull: usize,
    /// Whether a start of TLS inside a tunnel succeeds.
    pub(crate) starts_tls: bool,
    /// Whether `written` is reported.
    pub(crate) acknowledges: bool,
    /// The raw bytes that left, for every connection.
    pub(crate) raw: BTreeMap<ConnId, Vec<u8>>,
    conns: BTreeMap<ConnId, Conn>,
    resolves: VecDeque<(ResolveId, String)>,
    dialling: VecDeque<(ConnId, SocketAddr)>,
    tls: VecDeque<ConnId>,
    ready: BTreeSet<OpId>,
    unfinished: BTreeSet<OpId>,
    random: u64,
}

pub(crate) fn config() -> Config {
    Config::new("http://127.0.0.1:8080", CLIENT_KEY)
}

impl Host {
    /// A host of one engine. Seed 0 delivers everything whole and in order.
    pub(crate) fn new(config: Config, environment: Environment, seed: u64) -> Self {
        Self {
            engine: Engine::new(config, seed, 1_700_000_000_000, environment).unwrap(),
            now: 1_000,
            script: Box::new(|_| Vec::new()),
            dialler: Box::new(|_| Dial::Open),
            application: Box::new(|_, _| None),
            addresses: Ok(vec!["192.0.2.1".parse().unwrap()]),
            requests: Vec::new(),
            effects: Vec::new(),
            dialled: Vec::new(),
            closed: Vec::new(),
            steps: BTreeMap::new(),
            timer: None,
            busy: false,
            pull: usize::MAX,
            starts_tls: true,
            acknowledges: true,
            raw: BTreeMap::new(),
            conns: BTreeMap::new(),
            resolves: VecDeque::new(),
            dialling: VecDeque::new(),
            tls: VecDeque::new(),
            ready: BTreeSet::new(),
            unfinished: BTreeSet::new(),
            random: seed,
        }
    }

    pub(crate) fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    // ---- the application --------------------------------------------------------------------

    pub(crate) fn command(&mut self, op: u64, command: Command) {
        self.try_command(op, command).unwrap();
    }

    pub(crate) fn try_command(&mut self, op: u64, command: Command) -> Result<(), Error> {
        let now = self.time();
        let begun = self.engine.command(OpId(op), command, Trace::default(), now);
        if begun.is_ok() {
            self.unfinished.insert(OpId(op));
        } else {
            self.watch_for_secrets(&format!("{begun:?}"));
        }
        self.effects_out();
        begun
    }

    /// An operation that the test has begun by itself.
    pub(crate) fn begun(&mut self, op: u64) {
        self.unfinished.insert(OpId(op));
    }

    pub(crate) fn cancel(&mut self, op: u64) {
        let now = self.time();
        self.engine.cancel(OpId(op), now);
        self.effects_out();
    }

    pub(crate) fn answer(
        &mut self,
        call: CallId,
        answer: Answer,
    ) -> Result<broca::engine::Accepted, Error> {
        let now = self.time();
        let accepted = self.engine.answer(call, answer, now);
        self.effects_out();
        accepted
    }

    /// Pulls everything that waits for `op`.
    pub(crate) fn pull_all(&mut self, op: u64) {
        self.pull_some(op, usize::MAX);
    }

    /// Pulls about so many bytes of what waits for `op`.
    pub(crate) fn pull_some(&mut self, op: u64, bytes: usize) {
        self.take_steps(OpId(op), bytes);
        self.effects_out();
    }

    fn take_steps(&mut self, op: OpId, max: usize) {
        let mut taken = Vec::new();
        self.engine.steps(op, max, &mut taken);
        for step in taken {
            self.watch_for_secrets(&format!("{step:?}"));
            if let Step::Finished(outcome) = &step {
                assert!(self.unfinished.remove(&op), "{op:?} finished twice");
                if let Err(error) = outcome {
                    self.watch_for_secrets(&format!("{error} {}", error.message()));
                }
            } else {
                assert!(self.unfinished.contains(&op), "{op:?}: {step:?} after Finished");
            }
            let answer = (self.application)(op, &step);
            self.steps.entry(op).or_default().push(step);
            if let Some((call, answer)) = answer {
                let now = self.time();
                self.engine.answer(call, answer, now).unwrap();
            }
        }
    }

    /// Everything `op` said so far.
    pub(crate) fn said(&self, op: u64) -> &[Step] {
        self.steps.get(&OpId(op)).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn outcome(&self, op: u64) -> Option<&Result<Outcome, Error>> {
        self.said(op).iter().find_map(|step| match step {
            Step::Finished(outcome) => Some(outcome),
            _ => None,
        })
    }

    pub(crate) fn error(&self, op: u64) -> &Error {
        match self.outcome(op) {
            Some(Err(error)) => error,
            other => panic!("operation {op}: {other:?} after {:?}", self.said(op)),
        }
    }

    /// The ids of the events of `op`, in the order in which they came.
    pub(crate) fn event_ids(&self, op: u64) -> Vec<String> {
        let id = |step: &Step| match step {
            Step::Event(event) => Some(event.id().to_owned()),
            _ => None,
        };
        self.said(op).iter().filter_map(id).collect()
    }

    /// How many requests of this method of `/rpc` have left, whole or in part.
    pub(crate) fn left(&self, method: &str) -> usize {
        let needle = format!("\"method\":\"{method}\"");
        let count = |raw: &Vec<u8>| String::from_utf8_lossy(raw).matches(&needle).count();
        self.raw.values().map(count).sum()
    }

    pub(crate) fn rpcs(&self, method: &str) -> Vec<&Request> {
        self.requests.iter().filter(|r| r.rpc() == method).collect()
    }

    // ---- the world --------------------------------------------------------------------------

    /// Lets everything happen that can happen without time passing.
    pub(crate) fn settle(&mut self) {
        for _ in 0..2_000_000 {
            self.effects_out();
            if !self.happen() {
                self.check();
                return;
            }
        }
        panic!("the engine never comes to rest");
    }

    /// Lets `ms` milliseconds pass, with everything that is due in them.
    pub(crate) fn advance(&mut self, ms: u64) {
        let end = self.now + ms;
        self.settle();
        while let Some(at) = self.next_time().filter(|at| *at <= end) {
            self.move_to(at);
        }
        self.now = end;
        self.settle();
    }

    /// Lets time pass until `op` is finished.
    pub(crate) fn finish(&mut self, op: u64) {
        self.until(|host| host.outcome(op).is_some());
    }

    /// Lets time pass until `done`.
    pub(crate) fn until(&mut self, done: impl Fn(&Self) -> bool) {
        self.settle();
        for _ in 0..10_000 {
            if done(self) {
                return;
            }
            let Some(at) = self.next_time() else {
                panic!("nothing will ever happen again; said: {:?}", self.steps)
            };
            self.move_to(at);
        }
        panic!("time passes and nothing comes of it; said: {:?}", self.steps);
    }

    fn move_to(&mut self, at: u64) {
        self.now = self.now.max(at);
        if self.timer.is_some_and(|t| t.as_millis() <= self.now) {
            self.timer = None;
            let now = self.time();
            self.engine.timeout(now);
            let due = |e: &Effect| matches!(e, Effect::Timer { at: Some(at) } if *at <= now);
            self.effects_out();
            let again = self.effects.iter().rev().take(4).filter(|e| due(e)).count();
            assert!(again < 4, "a timer that is due again and again");
        }
        self.settle();
    }

    fn next_time(&self) -> Option<u64> {
        let waits = self.conns.values().filter(|c| !c.paused && c.resume_at > self.now);
        waits.map(|c| c.resume_at).chain(self.timer.map(Time::as_millis)).min()
    }

    /// Sends more on a connection than the script did.
    pub(crate) fn act(&mut self, conn: ConnId, act: Act) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.acts.push_back(act);
        }
    }

    /// Connections that are open.
    pub(crate) fn open_connections(&self) -> Vec<ConnId> {
        self.conns.iter().filter(|(_, c)| c.open).map(|(id, _)| *id).collect()
    }

    pub(crate) fn dialling(&self) -> usize {
        self.conns.values().filter(|c| !c.open).count()
    }

    pub(crate) fn is_paused(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|c| c.paused)
    }

    /// Ends a connection from outside, with this reason.
    pub(crate) fn cut(&mut self, conn: ConnId, why: CloseReason) {
        self.conns.remove(&conn);
        let now = self.time();
        self.engine.closed(conn, why, now);
        self.effects_out();
    }

    /// Reports that all bytes handed out are written.
    pub(crate) fn acknowledge(&mut self) {
        let owed: Vec<(ConnId, usize)> =
            self.conns.iter_mut().flat_map(|(id, c)| c.owed.drain(..).map(|n| (*id, n))).collect();
        for (conn, n) in owed {
            self.written(conn, n);
        }
    }

    fn written(&mut self, conn: ConnId, n: usize) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.unwritten -= n;
            let now = self.time();
            self.engine.written(conn, n, now);
            self.effects_out();
        }
    }

    /// One thing that can happen now; false when nothing can.
    fn happen(&mut self) -> bool {
        let mut sources: Vec<Source> = Vec::new();
        sources.extend(self.resolves.front().map(|_| Source::Resolve));
        sources.extend(self.dialling.front().map(|_| Source::Dial));
        sources.extend(self.tls.front().filter(|_| self.starts_tls).map(|_| Source::Tls));
        if self.pull > 0 {
            sources.extend(self.ready.iter().map(|op| Source::Ready(*op)));
        }
        for (id, c) in &self.conns {
            if !c.owed.is_empty() && self.acknowledges {
                sources.push(Source::Written(*id));
            }
            if c.open && !c.paused && c.resume_at <= self.now && !c.acts.is_empty() {
                sources.push(Source::Act(*id));
            }
        }
        if sources.is_empty() {
            return false;
        }
        let pick = if self.random == 0 { 0 } else { self.below(sources.len()) };
        let now = self.time();
        match sources[pick] {
            Source::Resolve => {
                if let Some((req, _)) = self.resolves.pop_front() {
                    let addresses = self.addresses.clone();
                    self.engine.resolved(req, addresses, now);
                }
            }
            Source::Dial => self.dial(),
            Source::Tls => {
                if let Some(conn) = self.tls.pop_front() {
                    self.engine.tls_started(conn, now);
                }
            }
            Source::Ready(op) => {
                self.ready.remove(&op);
                self.take_steps(op, self.pull);
            }
            Source::Written(conn) => {
                let n = self.conns.get_mut(&conn).and_then(|c| c.owed.pop_front());
                self.written(conn, n.unwrap_or_default());
            }
            Source::Act(conn) => self.perform(conn),
        }
        true
    }

    fn dial(&mut self) {
        let Some((conn, addr)) = self.dialling.pop_front() else { return };
        if !self.conns.contains_key(&conn) {
            return;
        }
        let now = self.time();
        match (self.dialler)(addr) {
            Dial::Open => {
                self.conns.get_mut(&conn).unwrap().open = true;
                self.engine.connected(conn, now);
            }
            Dial::Hang => {}
            Dial::Fail(why) => {
                self.conns.remove(&conn);
                self.engine.closed(conn, why, now);
            }
        }
    }

    fn perform(&mut self, conn: ConnId) {
        let random = self.random != 0;
        let now = self.time();
        let cut = self.below(64) + 1;
        let c = self.conns.get_mut(&conn).unwrap();
        match c.acts.pop_front() {
            Some(Act::Send(mut bytes)) => {
                if random && bytes.len() > cut {
                    c.acts.push_front(Act::Send(bytes.split_off(cut)));
                }
                self.engine.data(conn, Bytes::from(bytes), now);
            }
            Some(Act::Wait(ms)) => c.resume_at = self.now + ms,
            Some(Act::Close(why)) => {
                self.conns.remove(&conn);
                self.engine.closed(conn, why, now);
            }
            None => {}
        }
    }

    /// Carries out what the engine wants.
    pub(crate) fn effects_out(&mut self) {
        while let Some(effect) = self.engine.io() {
            self.watch_for_secrets(&format!("{effect:?}"));
            match effect.clone() {
                Effect::Resolve { req, host } => self.resolves.push_back((req, host)),
                Effect::Connect { conn, addr, .. } => {
                    let fresh = Conn {
                        open: false,
                        sent: Vec::new(),
                        acts: VecDeque::new(),
                        unwritten: 0,
                        owed: VecDeque::new(),
                        paused: false,
                        resume_at: 0,
                    };
                    assert!(self.conns.insert(conn, fresh).is_none(), "{conn:?} is reused");
                    self.dialled.push((conn, addr));
                    self.dialling.push_back((conn, addr));
                }
                Effect::StartTls { conn, .. } => {
                    assert!(self.conns.contains_key(&conn));
                    self.tls.push_back(conn);
                }
                Effect::Write { conn, bytes } => self.write(conn, &bytes),
                Effect::PauseRead { conn } => self.conn(conn).paused = true,
                Effect::ResumeRead { conn } => self.conn(conn).paused = false,
                Effect::Close { conn, .. } => {
                    assert!(self.conns.remove(&conn).is_some(), "{conn:?} is closed twice");
                    self.closed.push(conn);
                }
                Effect::Timer { at } => self.timer = at,
                Effect::Busy(busy) => {
                    assert_ne!(self.busy, busy, "Busy is an edge");
                    self.busy = busy;
                }
                Effect::Ready { op } => {
                    self.ready.insert(op);
                }
                Effect::Log(record) => self.watch_for_secrets(&record.message),
            }
            self.effects.push(effect);
        }
        self.watch_for_secrets(&format!("{:?}", self.engine));
    }

    fn write(&mut self, conn: ConnId, bytes: &[u8]) {
        self.raw.entry(conn).or_default().extend_from_slice(bytes);
        let c = self.conn(conn);
        c.unwritten += bytes.len();
        c.owed.push_back(bytes.len());
        assert!(c.unwritten <= MAX_UNWRITTEN, "{} bytes are unacknowledged", c.unwritten);
        c.sent.extend_from_slice(bytes);
        while let Some(request) = whole_request(conn, &mut self.conn(conn).sent) {
            self.requests.push(request.clone());
            let acts = (self.script)(&request);
            self.conn(conn).acts.extend(acts);
        }
    }

    fn conn(&mut self, conn: ConnId) -> &mut Conn {
        self.conns.get_mut(&conn).unwrap_or_else(|| panic!("an effect on {conn:?}, which is gone"))
    }

    fn check(&self) {
        if self.pull > 0 {
            assert_eq!(self.busy, !self.unfinished.is_empty(), "{:?}", self.unfinished);
        }
    }

    fn watch_for_secrets(&self, text: &str) {
        assert!(!text.contains(SECRET), "a secret is shown: {text}");
    }

    fn below(&mut self, bound: usize) -> usize {
        if self.random == 0 {
            return 0;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 33).unwrap() % bound
    }
}

#[derive(Clone, Copy)]
enum Source {
    Resolve,
    Dial,
    Tls,
    Ready(OpId),
    Written(ConnId),
    Act(ConnId),
}

/// Takes one whole request from what was sent.
fn whole_request(conn: ConnId, sent: &mut Vec<u8>) -> Option<Request> {
    let end = sent.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let head = String::from_utf8(sent[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let header = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_owned(), v.to_owned()));
    let headers: Vec<(String, String)> = lines.filter_map(header).collect();
    let length = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case("content-length"));
    let length: usize = length.map_or(0, |(_, n)| n.parse().unwrap());
    if sent.len() < end + length {
        return None;
    }
    let body = serde_json::from_slice(&sent[end..end + length]).unwrap_or_default();
    sent.drain(..end + length);
    Some(Request { conn, method, target, headers, body })
}
