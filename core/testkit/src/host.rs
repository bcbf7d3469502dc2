//! A host of the engine in memory: it carries effects out against a service made of a function.
//! The engine may be in anybody's hands: see [`Subject`].
//!
//! Names resolve at once, connections open at once, writes are taken whole, and the service's answer
//! to each request arrives in the reads that it was cut into. Time jumps from timer to timer.

use crate::clock::VirtualClock;
use crate::subject::{Direct, Subject};
use broca::engine::{
    Answer, CallId, CloseReason, Command, Config, ConnId, Effect, LogRecord, OpId, Step, Trace,
};
use broca::proto::session::turn::Accepted;
use broca::{Error, Json, Time};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

/// The service behind a [`Host`].
pub trait Service {
    /// The answer to a request: what the client's socket reads, in order.
    fn answer(&mut self, request: &Request, now: Time) -> Vec<Delivery>;
}

impl<F: FnMut(&Request, Time) -> Vec<Delivery>> Service for F {
    fn answer(&mut self, request: &Request, now: Time) -> Vec<Delivery> {
        self(request, now)
    }
}

/// One thing that happens at the client's socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// One read.
    Bytes(Bytes),
    /// The connection is gone.
    Closed(CloseReason),
}

/// A request as the service saw it.
#[derive(Debug, Clone)]
pub struct Request {
    /// The connection it came on.
    pub conn: ConnId,
    /// When its last byte came.
    pub at: Time,
    /// The HTTP method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

/// A call of `/rpc` inside a request.
#[derive(Debug, Clone)]
pub struct RpcCall {
    /// The id.
    pub id: Json,
    /// The method.
    pub method: String,
    /// The parameters.
    pub params: Json,
}

impl Request {
    /// A header's value; `name` in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The JSON-RPC call, when it is one.
    #[must_use]
    pub fn rpc(&self) -> Option<RpcCall> {
        if !self.path.ends_with("/rpc") {
            return None;
        }
        let body = Json::parse(self.body.clone()).ok()?;
        Some(RpcCall {
            id: body.member("id").unwrap_or_else(Json::null),
            method: body.member("method")?.to_text()?,
            params: body.member("params").unwrap_or_else(Json::empty_object),
        })
    }
}

/// The engine, its host and its service.
pub struct Host<S, C = Direct> {
    subject: C,
    clock: VirtualClock,
    service: S,
    peers: BTreeMap<ConnId, Peer>,
    steps: VecDeque<(OpId, Step)>,
    timer: Option<Time>,
    requests: Vec<Request>,
    log: Vec<LogRecord>,
    /// Bytes after the last whole request of connections that are gone.
    stray: usize,
}

/// The service's end of a connection.
#[derive(Default)]
struct Peer {
    inbox: BytesMut,
    outbox: VecDeque<Delivery>,
    paused: bool,
}

impl<S: Service> Host<S> {
    /// A host for an engine of this configuration.
    ///
    /// # Errors
    /// Those of [`Direct::new`].
    pub fn new(config: Config, service: S) -> Result<Self, Error> {
        Ok(Self::over(Direct::new(config)?, service))
    }
}

impl<S: Service, C: Subject> Host<S, C> {
    /// A host for this subject, which nobody has used yet.
    pub fn over(subject: C, service: S) -> Self {
        Self {
            subject,
            clock: VirtualClock::new(),
            service,
            peers: BTreeMap::new(),
            steps: VecDeque::new(),
            timer: None,
            requests: Vec::new(),
            log: Vec::new(),
            stray: 0,
        }
    }

    /// The subject.
    pub const fn subject(&mut self) -> &mut C {
        &mut self.subject
    }

    /// What has gone wrong with the subject itself: see [`Subject::fault`].
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.subject.fault()
    }

    /// What the clock shows.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.clock.now()
    }

    /// Every request so far, in order.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// What the engine logged.
    #[must_use]
    pub fn log(&self) -> &[LogRecord] {
        &self.log
    }

    /// The service.
    pub const fn service(&mut self) -> &mut S {
        &mut self.service
    }

    /// Takes the requests so far out of the host's memory.
    pub fn take_requests(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.requests)
    }

    /// Carries out what follows from an input that somebody else gave.
    pub fn wake(&mut self) {
        self.carry_out();
    }

    /// Bytes that came after the last whole request of their connection.
    #[must_use]
    pub fn stray_bytes(&self) -> usize {
        self.stray + self.peers.values().map(|peer| peer.inbox.len()).sum::<usize>()
    }

    /// Begins an operation.
    ///
    /// # Errors
    /// Those of [`Subject::command`].
    pub fn command(&mut self, command: Command) -> Result<OpId, Error> {
        let op = self.subject.command(command, Trace::default(), self.clock.now())?;
        self.carry_out();
        Ok(op)
    }

    /// Cancels an operation.
    pub fn cancel(&mut self, op: OpId) {
        self.subject.cancel(op, self.clock.now());
        self.carry_out();
    }

    /// Answers a question.
    ///
    /// # Errors
    /// Those of [`Subject::answer`].
    pub fn answer(&mut self, call: CallId, answer: Answer) -> Result<Accepted, Error> {
        let accepted = self.subject.answer(call, answer, self.clock.now());
        self.carry_out();
        accepted
    }

    /// The next step of any operation, letting things happen and time pass up to `until`; `None` when nothing more
    /// happens before. The clock then shows `until`, unless it stood later already.
    pub fn next(&mut self, until: Time) -> Option<(OpId, Step)> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Some(step);
            }
            if self.deliver() {
                continue;
            }
            match self.timer.filter(|at| *at <= until) {
                Some(at) => {
                    self.clock.advance_to(at);
                    // The engine sets the next one; until it has, this one is spent.
                    self.timer = None;
                    self.subject.timeout(self.clock.now());
                    self.carry_out();
                }
                None => {
                    self.clock.advance_to(until);
                    return None;
                }
            }
        }
    }

    /// Hands one delivery to the engine; false when none waits.
    fn deliver(&mut self) -> bool {
        let waiting =
            self.peers.iter_mut().find(|(_, peer)| !peer.paused && !peer.outbox.is_empty());
        let Some((conn, peer)) = waiting else { return false };
        let conn = *conn;
        match peer.outbox.pop_front() {
            Some(Delivery::Bytes(bytes)) => self.subject.data(conn, bytes, self.clock.now()),
            Some(Delivery::Closed(why)) => {
                self.forget(conn);
                self.subject.closed(conn, why, self.clock.now());
            }
            None => return false,
        }
        self.carry_out();
        true
    }

    fn carry_out(&mut self) {
        let now = self.clock.now();
        while let Some(effect) = self.subject.next_effect() {
            match effect {
                Effect::Resolve { req, .. } => {
                    self.subject.resolved(req, Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]), now);
                }
                Effect::Connect { conn, .. } => {
                    self.peers.insert(conn, Peer::default());
                    self.subject.connected(conn, now);
                }
                Effect::StartTls { conn, .. } => self.subject.tls_started(conn, now),
                Effect::Write { conn, bytes } => self.written(conn, &bytes),
                Effect::PauseRead { conn } => self.pause(conn, true),
                Effect::ResumeRead { conn } => self.pause(conn, false),
                Effect::Close { conn, .. } => self.forget(conn),
                Effect::Timer { at } => self.timer = at,
                Effect::Ready { op } => self.pull(op),
                Effect::Log(record) => self.log.push(record),
                _ => {}
            }
        }
    }

    /// Takes every step of an operation, as an application does that is told that some wait.
    fn pull(&mut self, op: OpId) {
        let mut steps = Vec::new();
        self.subject.steps(op, usize::MAX, &mut steps);
        self.steps.extend(steps.into_iter().map(|step| (op, step)));
    }

    fn forget(&mut self, conn: ConnId) {
        self.stray += self.peers.remove(&conn).map_or(0, |peer| peer.inbox.len());
    }

    fn pause(&mut self, conn: ConnId, paused: bool) {
        if let Some(peer) = self.peers.get_mut(&conn) {
            peer.paused = paused;
        }
    }

    fn written(&mut self, conn: ConnId, bytes: &Bytes) {
        let now = self.clock.now();
        if let Some(peer) = self.peers.get_mut(&conn) {
            peer.inbox.extend_from_slice(bytes);
            while let Some(request) = take_request(&mut peer.inbox, conn, now) {
                peer.outbox.extend(self.service.answer(&request, now));
                self.requests.push(request);
            }
        }
        self.subject.written(conn, bytes.len(), now);
    }
}

/// Takes a whole request off the front. Requests of the engine are never chunked.
fn take_request(inbox: &mut BytesMut, conn: ConnId, at: Time) -> Option<Request> {
    let end = inbox.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&inbox[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.and_then(|(_, value)| value.parse::<usize>().ok()).unwrap_or(0);
    if inbox.len() < end + length {
        return None;
    }
    let whole = inbox.split_to(end + length).freeze();
    Some(Request { conn, at, method, path, headers, body: whole.slice(end..) })
}

/// How the body of an answer is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// In chunks.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

/// What follows the last byte of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The body ends as its framing says.
    Eof,
    /// The connection breaks.
    Reset,
    /// Nothing: the service stays connected and silent.
    Hold,
}

/// An answer of status `status`: the head as one read, then each piece as one read, then its end.
#[must_use]
pub fn response(
    status: u16,
    content_type: &str,
    framing: Framing,
    pieces: impl IntoIterator<Item = Bytes>,
    end: End,
) -> Vec<Delivery> {
    let frame = match framing {
        Framing::Chunked => "Transfer-Encoding: chunked",
        Framing::UntilClose => "Connection: close",
    };
    let head = format!("HTTP/1.1 {status} Said\r\nContent-Type: {content_type}\r\n{frame}\r\n\r\n");
    let mut out = vec![Delivery::Bytes(head.into())];
    for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
        out.push(Delivery::Bytes(match framing {
            Framing::UntilClose => piece,
            Framing::Chunked => {
                let mut chunk = BytesMut::from(format!("{:x}\r\n", piece.len()).as_bytes());
                chunk.extend_from_slice(&piece);
                chunk.extend_from_slice(b"\r\n");
                chunk.freeze()
            }
        }));
    }
    out.extend(match (end, framing) {
        (End::Hold, _) => None,
        (End::Reset, _) => Some(Delivery::Closed(CloseReason::Reset)),
        (End::Eof, Framing::UntilClose) => Some(Delivery::Closed(CloseReason::Eof)),
        (End::Eof, Framing::Chunked) => Some(Delivery::Bytes(Bytes::from_static(b"0\r\n\r\n"))),
    });
    out
}

/// A whole JSON answer.
#[must_use]
pub fn json_response(status: u16, body: &str) -> Vec<Delivery> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    response(status, "application/json", Framing::Chunked, [body], End::Eof)
}

#[cfg(test)]
mod tests {
    use super::*;
    use broca::engine::Outcome;

    #[test]
    fn the_engine_speaks_to_a_service_made_of_a_function() {
        let service = |request: &Request, _: Time| {
            assert_eq!((request.method.as_str(), request.header("host")), ("GET", Some("svc:9")));
            json_response(200, r#"{"version":"7","api_versions":["v1"]}"#)
        };
        let mut host = Host::new(Config::new("http://svc:9", "key"), service).unwrap();
        let op = host.command(Command::Meta).unwrap();
        match host.next(Time::from_millis(1_000)) {
            Some((from, Step::Finished(Ok(Outcome::Meta(meta))))) => {
                assert_eq!((from, meta.version.as_str()), (op, "7"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(host.requests()[0].path, "/api/v1/meta");
        assert!(host.next(Time::from_millis(90_000)).is_none());
        assert_eq!(host.now(), Time::from_millis(90_000));
    }

    #[test]
    fn time_jumps_to_the_timeout_of_a_silent_service() {
        let silent = |_: &Request, _: Time| Vec::new();
        let mut host = Host::new(Config::new("http://127.0.0.1:9", "key"), silent).unwrap();
        host.command(Command::Meta).unwrap();
        let step = host.next(Time::from_millis(600_000));
        assert!(matches!(step, Some((_, Step::Finished(Err(_))))), "{step:?}");
        assert_eq!(host.now(), Time::from_millis(30_000));
    }
}
