//! Kind `rpc_stream`: the NDJSON answer to one request of a driver, through the engine.
//!
//! A case is played in every cut, once in a chunked body and once in one that ends with its
//! connection. A subscription goes on for ever, so its outcome is how its last scripted connection ended.

mod expected;

use super::Case;
use super::feed::{Connection, Cut};
use super::fields::{Fields, cut};
use super::outcome::Ending;
use super::service::{PATIENCE_MS, around, config, meta, prepare, result, silence};
use super::surface::Surface;
use crate::host::{Delivery, End, Framing, Host, Request, Service, response};
use broca::engine::{Answer, Command, Delta, Outcome, Status, Step};
use broca::proto::session::content::{Message, Role};
use broca::proto::session::event::Event;
use broca::proto::session::exchange::{BodyEnd, Exchange, Warning};
use broca::proto::session::ids::{Cursor, EventId};
use broca::proto::session::rpc::event_line;
use broca::proto::session::tool::Tool;
use broca::{ErrorKind, Json, Time};
use bytes::Bytes;
use serde_json::Value;

/// The longest way to a request id: calls that are made before, one for each number.
const MAX_CALLS_BEFORE: u64 = 512;

/// An event that the service logs while a reader lags; only a client that reconciles shows it.
const MISSED: &str = "evt_logged_while_the_reader_lagged";

/// What a case feeds.
struct Feed {
    method: String,
    id: Json,
    params: Json,
    max_line_bytes: Option<usize>,
    connections: Vec<Connection>,
    /// The lines of all connections that are JSON.
    lines: Vec<Json>,
}

/// What the application saw, and what the service saw.
#[derive(Default)]
struct Observed {
    seen: Vec<Seen>,
    warnings: Vec<Warning>,
    calls: Vec<(String, Json)>,
    ending: Option<Ending>,
    reconnects: Vec<String>,
    params: Vec<Json>,
    later: Vec<(String, Json)>,
    resent: usize,
    bytes_after_request: usize,
    missed: usize,
}

/// One thing that the application saw.
enum Seen {
    Event(Event),
    Notification { method: String, raw: Json },
    Delta(Delta),
    Gap(broca::engine::Lost),
}

/// Plays a case; gives what was wrong.
pub(super) fn play(case: &Case, surface: &mut impl Surface) -> Result<Vec<String>, String> {
    let feed = Feed::read(case)?;
    let reconciles = case.expect.get("then").is_some();
    let mut first: Option<String> = None;
    for framing in [Framing::Chunked, Framing::UntilClose] {
        for cut_in in Cut::ALL {
            let way = match framing {
                Framing::Chunked => format!("{}, chunked body", cut_in.name()),
                Framing::UntilClose => format!("{}, body until close", cut_in.name()),
            };
            let came = feed.run(surface, cut_in, framing, reconciles);
            let came = came.map_err(|e| format!("{way}: {e}"))?;
            let mut faults = Vec::new();
            expected::check(&case.expect, &feed, &came, &mut faults)?;
            if !faults.is_empty() {
                faults.insert(0, way);
                return Ok(faults);
            }
            let signature = came.signature();
            match &first {
                Some(before) if *before != signature => {
                    return Ok(vec![format!(
                        "{way}: the outcome differs from that of the first way: {} / {}",
                        cut(before),
                        cut(&signature)
                    )]);
                }
                _ => first = Some(signature),
            }
        }
    }
    Ok(Vec::new())
}

impl Feed {
    fn read(case: &Case) -> Result<Self, String> {
        let mut fields = Fields::of(&case.feed, "feed")?;
        let mut request = Fields::of(fields.need("request")?, "request")?;
        let method = request.text("method")?;
        for known in ["id", "params"] {
            request.take(known);
        }
        request.finish()?;
        let raw = case.feed_text.member("request").unwrap_or_default();
        let max_line_bytes = fields.number("max_line_bytes")?.and_then(|n| usize::try_from(n).ok());
        let connections = match fields.list("connections")? {
            None => vec![Connection::read(&mut fields, false)?],
            Some(list) => {
                let read = |value| {
                    let mut fields = Fields::of(value, "a connection")?;
                    let connection = Connection::read(&mut fields, true)?;
                    fields.finish().map(|()| connection)
                };
                list.iter().map(read).collect::<Result<Vec<_>, String>>()?
            }
        };
        fields.finish()?;
        let lines = connections.iter().flat_map(|c| json_lines(&c.bytes())).collect();
        Ok(Self {
            method,
            id: raw.member("id").ok_or("the request has no id")?,
            params: raw.member("params").unwrap_or_else(Json::empty_object),
            max_line_bytes,
            connections,
            lines,
        })
    }

    /// The tools that the feed's messages call: the application of the case has them.
    fn tools(&self) -> Vec<Tool> {
        let mut names: Vec<String> = Vec::new();
        for line in &self.lines {
            let message = line.member("result").and_then(|r| r.member("message"));
            let message = message.and_then(|m| Message::read(&m, Role::Assistant).ok());
            for (_, call) in message.iter().flat_map(Message::tool_uses) {
                if !names.contains(&call.name) {
                    names.push(call.name.clone());
                }
            }
        }
        names.into_iter().map(|name| Tool::new(name, "", Json::empty_object())).collect()
    }

    fn command(&self, tools: Vec<Tool>) -> Result<Command, String> {
        match self.method.as_str() {
            "session.sendMessage" => {
                let message = self.params.member("message");
                let message = message.map(|m| Message::read(&m, Role::User)).transpose();
                let message = message.map_err(|e| format!("the request's message: {e}"))?;
                Ok(Command::Send { message: message.unwrap_or_else(|| Message::user("hello")) })
            }
            "session.subscribe" => {
                let since = self.params.member("since_event_id").and_then(|v| v.to_text());
                let from = since.map(|id| match id.as_str() {
                    "" => Cursor::start(),
                    id => Cursor::after(EventId::new(id)),
                });
                Ok(Command::Subscribe { from })
            }
            "session.updateClientTools" => Ok(Command::UpdateTools { tools }),
            "session.registerDriver" => Ok(Command::Open { tools, metadata: None }),
            other => Err(format!("the client has no operation that is a {other} alone")),
        }
    }

    fn run(
        &self,
        surface: &mut impl Surface,
        cut: Cut,
        framing: Framing,
        reconciles: bool,
    ) -> Result<Observed, String> {
        let mut config = config();
        config.max_line_bytes = self.max_line_bytes.unwrap_or(config.max_line_bytes);
        let limit = config.max_line_bytes;
        let log = self.lines.iter().filter_map(|line| line.member("params")?.decode().ok());
        let missed = reconciles.then(|| missed_event(self)).transpose()?;
        let script = Script {
            feed: self,
            cut,
            framing,
            armed: false,
            taken: 0,
            params: Vec::new(),
            later: Vec::new(),
            log: log.chain(missed.iter().filter_map(|e| e.json().decode().ok())).collect(),
            missed,
        };
        let client = surface.client(config).map_err(|e| e.to_string())?;
        let mut host = Host::over(client, script);
        let tools = self.tools();
        let command = self.command(tools.clone())?;
        if !matches!(command, Command::Open { .. }) {
            prepare(&mut host, Command::Observe { session_id: "ses_demo".into() })?;
            // Ids are numbers from 1 on: calls before the one of the case bring it to its id.
            let wanted = self.id.decode::<u64>().unwrap_or(0).min(MAX_CALLS_BEFORE);
            let least = u64::from(!tools.is_empty());
            for _ in 0..least.max(wanted.saturating_sub(1)) {
                prepare(&mut host, Command::UpdateTools { tools: tools.clone() })?;
            }
        }
        host.service().armed = true;
        let before = host.requests().len();
        let op = host.command(command).map_err(|e| format!("the command was refused: {e}"))?;
        let mut came = Observed::default();
        let mut until = host.now().plus(PATIENCE_MS);
        while let Some((from, step)) = host.next(until) {
            if from != op {
                continue;
            }
            if let Step::ToolCall(call) = step {
                came.calls.push((call.name, call.input));
                if host.service().taken < self.connections.len() {
                    let answer = Answer::Complete(Json::string("ok"));
                    host.answer(call.call, answer).map_err(|e| e.to_string())?;
                } else {
                    // Nobody answers: the pause itself is what the case is about.
                    until = host.now().plus(1_000).min(until);
                }
                continue;
            }
            came.take(step);
        }
        if let Some(fault) = host.fault() {
            return Err(fault);
        }
        let requests = &host.requests()[before..];
        let rpcs = requests.iter().filter_map(Request::rpc);
        let sent = rpcs.filter(|call| call.method == self.method).count();
        came.resent = sent.saturating_sub(self.connections.len());
        let again = requests.iter().skip(1).map(|r| r.body.len()).sum::<usize>();
        came.bytes_after_request = host.stray_bytes() + again;
        came.params = std::mem::take(&mut host.service().params);
        came.later = std::mem::take(&mut host.service().later);
        if came.ending.is_none() && !came.reconnects.is_empty() {
            came.ending = Some(self.end_of_last_connection(&came.reconnects, limit)?);
        }
        Ok(came)
    }

    /// How the last connection of a subscription ended: in detail as the exchange's state machine says, and in
    /// the same words as the engine told the application.
    fn end_of_last_connection(&self, told: &[String], limit: usize) -> Result<Ending, String> {
        let Some(last) = self.connections.last() else { return Ok(Ending::Open) };
        let Some(why) = told.get(self.connections.len() - 1) else { return Ok(Ending::Open) };
        let mut exchange = Exchange::new(self.id.clone(), limit);
        exchange.receive(last.bytes());
        while exchange.poll().is_some() {}
        let end = if last.end == End::Reset { BodyEnd::Broken } else { BodyEnd::Complete };
        while exchange.end(end).is_some() {}
        let Some(Err(error)) = exchange.take_outcome() else {
            return Ok(Ending::Replied(String::new()));
        };
        let early = error.kind() == ErrorKind::StreamEndedEarly && why.contains("ended the stream");
        if early || why.starts_with(error.kind().as_str()) {
            return Ok(Ending::Failed(error));
        }
        Err(format!("the application was told \"{}\" where {error} happened", cut(why)))
    }
}

impl Observed {
    fn take(&mut self, step: Step) {
        match step {
            Step::Event(event) if event.id() == MISSED => self.missed += 1,
            Step::Event(event) => self.seen.push(Seen::Event(event)),
            Step::Notification { method, raw } => {
                self.seen.push(Seen::Notification { method, raw });
            }
            Step::Delta(delta) => self.seen.push(Seen::Delta(delta)),
            Step::Gap(gap) => self.seen.push(Seen::Gap(gap.lost)),
            Step::Warning(warning) => self.warnings.push(warning),
            Step::Status(Status::Reconnecting { kind, why, .. }) => {
                self.reconnects.push(format!("{kind}: {why}"));
            }
            Step::Done(reply) => {
                let calls = reply.message.tool_uses();
                self.calls.extend(calls.map(|(_, call)| (call.name.clone(), call.input.clone())));
                self.ending = Some(Ending::Replied(reply.text()));
            }
            Step::Finished(Ok(Outcome::Ended)) => self.ending = Some(Ending::Ended),
            Step::Finished(Ok(_)) if self.ending.is_none() => {
                self.ending = Some(Ending::Replied(String::new()));
            }
            Step::Finished(Err(error)) => self.ending = Some(Ending::Failed(error)),
            _ => {}
        }
    }

    fn ending(&self) -> &Ending {
        self.ending.as_ref().unwrap_or(&Ending::Open)
    }

    /// Everything that must not depend on how the bytes were cut.
    fn signature(&self) -> String {
        let seen = self.seen.iter().map(|seen| match seen {
            Seen::Event(event) => event.json().as_str().to_owned(),
            Seen::Notification { raw, .. } => raw.as_str().to_owned(),
            Seen::Delta(delta) => format!("{delta:?}"),
            Seen::Gap(lost) => format!("{lost:?}"),
        });
        let warnings = self.warnings.iter().map(|w| w.class.as_str().to_owned());
        let calls = self.calls.iter().map(|(_, input)| input.as_str().to_owned());
        let later = self.later.iter().map(|(method, _)| method.clone());
        let all: Vec<String> = seen.chain(warnings).chain(calls).chain(later).collect();
        format!("{} | {}", self.ending().describe(), all.join(" | "))
    }
}

/// The service of a case.
struct Script<'a> {
    feed: &'a Feed,
    cut: Cut,
    framing: Framing,
    armed: bool,
    taken: usize,
    params: Vec<Json>,
    later: Vec<(String, Json)>,
    log: Vec<Value>,
    missed: Option<Event>,
}

impl Service for Script<'_> {
    fn answer(&mut self, request: &Request, _: Time) -> Vec<Delivery> {
        let Some(call) = request.rpc() else { return around(request, meta(&[], None), &self.log) };
        if !self.armed {
            return result(&call, &Json::empty_object());
        }
        let after_registration =
            self.later.last().is_some_and(|(m, _)| m == "session.registerDriver");
        if call.method == self.feed.method && self.taken < self.feed.connections.len() {
            self.taken += 1;
            self.params.push(call.params);
            return self.connection(self.taken - 1, &call.id);
        }
        self.later.push((call.method.clone(), call.params.clone()));
        match call.method.as_str() {
            "session.registerDriver" => result(&call, &Json::empty_object()),
            // The service of the case says the same again.
            method if method == self.feed.method && after_registration => {
                self.connection(self.feed.connections.len() - 1, &call.id)
            }
            "session.subscribe" => match &self.missed {
                Some(missed) => {
                    let line = event_line(missed);
                    response(200, "application/x-ndjson", self.framing, [line], End::Hold)
                }
                None => silence(),
            },
            _ => silence(),
        }
    }
}

impl Script<'_> {
    fn connection(&self, number: usize, sent: &Json) -> Vec<Delivery> {
        let connection = &self.feed.connections[number];
        if *sent == self.feed.id {
            return connection.answer(self.cut, self.framing);
        }
        connection.with_id(&self.feed.id, sent).answer(self.cut, self.framing)
    }
}

fn missed_event(feed: &Feed) -> Result<Event, String> {
    let session =
        feed.lines.iter().find_map(|l| l.member("params")?.member("session_id")?.to_text());
    let members = [
        ("id", &Json::string(MISSED)),
        ("session_id", &Json::string(&session.unwrap_or_default())),
        ("event_type", &Json::string("server.message.send")),
        ("payload", &Json::empty_object()),
        ("created_at", &Json::string("2030-01-01T00:00:00.000Z")),
    ];
    let text = Json::object(members).into_bytes();
    Event::parse(&text).map_err(|e| e.to_string())
}

fn json_lines(bytes: &Bytes) -> Vec<Json> {
    let lines = bytes.split(|byte| *byte == b'\n');
    let lines = lines.map(|line| line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line));
    lines.filter_map(|line| Json::parse(bytes.slice_ref(line)).ok()).collect()
}
