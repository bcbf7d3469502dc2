//! What the operations of one engine share: configuration, network, the session and its numbers.

use super::address::{Address, Proxy};
use super::answer::{Rest, Rpc};
use super::command::{Command, Trace};
use super::config::Config;
use super::effect::{CallId, LogLevel, LogRecord, OpId};
use super::memory::Memory;
use super::net::{Call, ExchangeId, Net};
use broca_proto::session::content::{Block, Content, Message};
use broca_proto::session::feature::{self, Features};
use broca_proto::session::ids::{Cursor, SessionId};
use broca_proto::session::media;
use broca_proto::session::method::{Method, UpdateClientTools};
use broca_proto::session::rest::{Meta, Opened};
use broca_proto::session::rpc;
use broca_proto::session::tool::Tool;
use broca_proto::session::turn::{Accepted, CallLimits};
use broca_proto::{Error, ErrorKind, Json, Retry, Secret, Time};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// What a request holds beside the tool results in it, at most.
const ENVELOPE_BYTES: usize = 1_024;
/// Log records that wait; older ones are dropped.
const MAX_LOG_RECORDS: usize = 256;

/// A session as the application sees it.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    /// The session.
    pub id: SessionId,
    /// The profile as the service shows it, raw.
    pub profile: Json,
    /// The features in use.
    pub features: Features,
    /// The service's own words about itself.
    pub meta: Meta,
}

pub(crate) struct OpenSession {
    pub(crate) info: SessionInfo,
    pub(crate) key: Secret,
    pub(crate) tools: Vec<Tool>,
    /// Results of a cancelled turn that lead the next message (a service without `session.cancel`).
    pub(crate) kept_results: Vec<Block>,
    pub(crate) memory: Memory,
    /// The last event that is known to lie before whatever this client says next.
    pub(crate) known: Option<Cursor>,
}

pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) net: Net,
    pub(crate) wall_now_ms: u64,
    pub(crate) session: Option<OpenSession>,
    pub(crate) log: VecDeque<LogRecord>,
    opening: bool,
    closed: bool,
    random: u64,
    next_rpc_id: u64,
    next_call: u64,
    asked: BTreeMap<CallId, OpId>,
}

impl Core {
    pub(crate) fn new(
        config: Config,
        address: Address,
        proxy: Option<Proxy>,
        seed: u64,
        wall_now_ms: u64,
    ) -> Self {
        let net = Net::new(address, proxy, &config);
        Self {
            config,
            net,
            wall_now_ms,
            session: None,
            log: VecDeque::new(),
            opening: false,
            closed: false,
            random: seed,
            next_rpc_id: 1,
            next_call: 1,
            asked: BTreeMap::new(),
        }
    }

    /// Whether this command may begin now.
    pub(crate) fn admit(&mut self, command: &Command) -> Result<(), Error> {
        let usage = |message: &str| Err(Error::new(ErrorKind::Usage, message));
        let opens = matches!(
            command,
            Command::Open { .. }
                | Command::Join { .. }
                | Command::Observe { .. }
                | Command::Attach { .. }
        );
        let changes = matches!(
            command,
            Command::Send { .. }
                | Command::Resume
                | Command::UpdateTools { .. }
                | Command::Update { .. }
        );
        if self.closed && (opens || changes) {
            return Err(Error::new(ErrorKind::Closed, "this session was closed; open a new one"));
        }
        let told = matches!(command, Command::Info | Command::Update { .. });
        match command {
            _ if opens && (self.opening || self.session.is_some()) => {
                return usage("this client has a session already; one client holds one session");
            }
            Command::Meta | Command::Sessions { .. } => {}
            _ if !opens && (self.session.is_none() || self.opening) => {
                return usage("no session is open yet; open or join one first");
            }
            _ if told && !self.features().metadata => return Err(not_offered("metadata", "")),
            Command::Close => self.closed = true,
            Command::Resume if self.memory().is_none_or(|memory| memory.pending.is_none()) => {
                return usage("no turn waits to be taken up");
            }
            _ => {}
        }
        if let Command::Open { metadata: Some(metadata), .. } | Command::Update { metadata, .. } =
            command
            && !metadata.is_object()
        {
            let message = "the metadata of a session is a JSON object";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if let Command::Open { tools, .. }
        | Command::Join { tools, .. }
        | Command::Attach { tools, .. }
        | Command::UpdateTools { tools } = command
        {
            check_tools(tools)?;
        }
        if let Command::Send { message } = command {
            self.check_message(message)?;
        }
        self.opening |= opens;
        Ok(())
    }

    /// Whether the session can take this message.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for images and files where it takes none, and [`ErrorKind::Limit`] for more bytes than
    /// the service takes at once.
    pub(crate) fn check_message(&self, message: &Message) -> Result<(), Error> {
        if !self.features().blocks && media::is_in(&message.content) {
            let message = "this session takes text only: its service does not offer the feature \"blocks\", or it was not asked for; leave images and files out";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let bytes = match &message.content {
            Content::Text(text) => text.len(),
            content => content.blocks().iter().map(|block| block.json().as_bytes().len()).sum(),
        };
        let limits = self.session.as_ref().and_then(|session| session.info.meta.limits.as_ref());
        let Some(most) = limits.and_then(|limits| limits.max_request_bytes) else { return Ok(()) };
        if bytes.saturating_add(ENVELOPE_BYTES) as u64 > most {
            let message = format!(
                "the message has {bytes} bytes (images and files grow by a third on their way), and the service takes requests of at most {most} (limits.max_request_bytes): send less at once"
            );
            return Err(Error::new(ErrorKind::Limit, message).with_retry(Retry::Safe));
        }
        Ok(())
    }

    /// What a tool gave, as this session can take it. Where it takes no images and files, words stand in their place.
    pub(crate) fn result_content(&mut self, content: Json) -> Json {
        if self.features().blocks {
            return content;
        }
        let Some(plain) = media::left_out(&content) else { return content };
        let words =
            "an image or a file in a tool's result was left out: the session takes text only";
        self.log(LogLevel::Warn, words.to_owned());
        plain
    }

    pub(crate) fn is_opening(&self) -> bool {
        self.opening
    }

    /// An open is over: the session is there, or another open may be tried.
    pub(crate) fn opening_over(&mut self) {
        self.opening = false;
    }

    /// A close did not succeed: it may be tried again.
    pub(crate) fn closing_failed(&mut self) {
        self.closed = false;
    }

    /// A session is open.
    pub(crate) fn begin_session(&mut self, opened: Opened, meta: Meta, tools: Vec<Tool>) {
        let features = self.offered(&meta);
        self.session = Some(OpenSession {
            info: SessionInfo { id: opened.session_id, profile: opened.profile, features, meta },
            key: opened.session_key,
            tools,
            kept_results: Vec::new(),
            memory: Memory::default(),
            known: None,
        });
    }

    /// Notes how the session was begun.
    pub(crate) fn remember(&mut self, opened: bool, drives: bool) {
        if let Some(session) = &mut self.session {
            (session.memory.opened, session.memory.drives) = (opened, drives);
        }
    }

    pub(crate) fn memory(&mut self) -> Option<&mut Memory> {
        self.session.as_mut().map(|session| &mut session.memory)
    }

    /// The log has come at least as far as this event.
    pub(crate) fn know(&mut self, cursor: Cursor) {
        if let Some(session) = self.session.as_mut().filter(|_| cursor.event_id().is_some()) {
            session.known = Some(cursor);
        }
    }

    /// An event that lies before whatever is said next, or the start of a log that this client began.
    pub(crate) fn known(&self) -> Option<Cursor> {
        let session = self.session.as_ref()?;
        session.known.clone().or_else(|| session.memory.opened.then(Cursor::start))
    }

    pub(crate) fn session_info(&self) -> Option<&SessionInfo> {
        self.session.as_ref().map(|session| &session.info)
    }

    /// Keeps results for the next message.
    pub(crate) fn keep_results(&mut self, blocks: Vec<Block>) {
        if let Some(session) = self.session.as_mut().filter(|_| !blocks.is_empty()) {
            session.kept_results = blocks;
        }
    }

    /// The features that the service has, asked for or not; none before a session is open.
    pub(crate) fn announced(&self) -> Features {
        self.session.as_ref().map_or(Features::NONE, |session| announced(&session.info.meta))
    }

    /// The features in use; none before a session is open.
    pub(crate) fn features(&self) -> Features {
        self.session.as_ref().map_or(Features::NONE, |session| session.info.features)
    }

    /// The features that this client asks for and the service has.
    pub(crate) fn offered(&self, meta: &Meta) -> Features {
        self.config.features.and(announced(meta))
    }

    /// How calls are run, with what the service says about its pauses and the size of requests.
    pub(crate) fn call_limits(&self) -> CallLimits {
        let announced = self.session.as_ref().and_then(|s| s.info.meta.limits);
        let pause_ms = announced.and_then(|l| l.turn_timeout_ms);
        let request_bytes = announced.and_then(|l| l.max_request_bytes);
        let request_bytes = request_bytes.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let max_hold_ms = announced.and_then(|l| l.max_hold_ms).unwrap_or(u64::MAX);
        let hold_ms = self.config.hold_ms.filter(|_| self.features().hold);
        CallLimits {
            hold_ms: hold_ms.map(|ms| ms.min(max_hold_ms)).filter(|ms| *ms > 0),
            pause_ms: pause_ms.unwrap_or(self.config.calls.pause_ms),
            results_bytes: request_bytes
                .map_or(self.config.calls.results_bytes, |n| n.saturating_sub(ENVELOPE_BYTES)),
            ..self.config.calls
        }
    }

    /// A REST call. `key` is the client key unless the session's is wanted.
    pub(crate) fn rest(&mut self, op: OpId, request: RestCall, trace: &Trace, now: Time) -> Rest {
        let key = match (&self.session, request.session_key) {
            (Some(session), true) => Some(session.key.clone()),
            _ => request.client_key.then(|| self.config.client_key.clone()),
        };
        let mut headers = trace_headers(trace);
        if !request.body.is_empty() {
            headers.push(("Content-Type", "application/json".to_owned()));
        }
        feature_header(self.features().or(request.asks), &mut headers);
        let call = Call {
            method: request.method,
            path: request.path,
            key,
            headers,
            body: request.body,
            idempotent: request.method == "GET",
            urgent: false,
            head_timeout_ms: self.config.head_timeout_ms,
            whole_timeout_ms: Some(self.config.rest_timeout_ms),
            silence_timeout_ms: None,
        };
        let exchange = self.net.start(op, call, now);
        Rest::new(exchange, self.config.max_answer_bytes)
    }

    /// A call of `/rpc` in the open session.
    pub(crate) fn rpc(
        &mut self,
        op: OpId,
        method: &Method,
        params: &Json,
        trace: &Trace,
        now: Time,
    ) -> Rpc {
        let id = Json::integer(i64::try_from(self.next_rpc_id).unwrap_or(i64::MAX));
        self.next_rpc_id += 1;
        let mut headers = trace_headers(trace);
        headers.push(("Content-Type", "application/json".to_owned()));
        feature_header(self.features(), &mut headers);
        let (path, key) = match &self.session {
            Some(s) => (format!("{}/rpc", session_path(&s.info.id)), Some(s.key.clone())),
            None => ("/api/v1/sessions/-/rpc".to_owned(), None),
        };
        let streams = matches!(method, Method::SendMessage | Method::Subscribe);
        let call = Call {
            method: "POST",
            path,
            key,
            headers,
            body: rpc::request(&id, method.as_str(), params),
            idempotent: false,
            urgent: matches!(method, Method::Cancel | Method::Hold | Method::Approve),
            head_timeout_ms: self.config.head_timeout_ms,
            whole_timeout_ms: (!streams).then_some(self.config.rest_timeout_ms),
            silence_timeout_ms: if streams { self.silence_timeout_ms() } else { None },
        };
        let exchange = self.net.start(op, call, now);
        Rpc::new(exchange, id, self.config.max_line_bytes)
    }

    /// Declares the client's tools.
    pub(crate) fn declare_tools(
        &mut self,
        op: OpId,
        tools: &[Tool],
        trace: &Trace,
        now: Time,
    ) -> Result<Rpc, Error> {
        let tools = tools.iter().map(|tool| tool.declaration.clone()).collect();
        let params = Json::encode(&UpdateClientTools { tools })
            .map_err(|e| Error::new(ErrorKind::InvalidArgument, e.to_string()))?;
        Ok(self.rpc(op, &Method::UpdateClientTools, &params, trace, now))
    }

    /// The silence after which a stream counts as dead: what was set, or so many signs of life that a service which gives
    /// them has left out.
    fn silence_timeout_ms(&self) -> Option<u64> {
        let limits = self.session.as_ref().and_then(|s| s.info.meta.limits.as_ref());
        let every =
            limits.and_then(|limits| limits.heartbeat_ms).filter(|_| self.features().heartbeat);
        let intervals = u64::from(self.config.silence_intervals);
        let missed = every.map(|ms| ms.saturating_mul(intervals)).filter(|ms| *ms > 0);
        self.config.silence_timeout_ms.or(missed)
    }

    /// The terminal line of a call is there: its connection gets a moment to end the body.
    pub(crate) fn linger(&mut self, exchange: ExchangeId, now: Time) {
        const LINGER_MS: u64 = 500;
        self.net.linger(exchange, now.plus(LINGER_MS));
    }

    /// The answer is a refusal: its reason may take as long as a head.
    pub(crate) fn hear_out(&mut self, exchange: ExchangeId, now: Time) {
        self.net.linger(exchange, now.plus(self.config.head_timeout_ms));
    }

    /// A number for a new question of `op`.
    pub(crate) fn ask(&mut self, op: OpId) -> CallId {
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.asked.insert(call, op);
        call
    }

    /// Whose question it is.
    pub(crate) fn asked(&self, call: CallId) -> Option<OpId> {
        self.asked.get(&call).copied()
    }

    /// The questions of an operation are over.
    pub(crate) fn forget_questions(&mut self, op: OpId) {
        self.asked.retain(|_, asker| *asker != op);
    }

    /// An answer to no open question: late if it was ever asked.
    pub(crate) fn unknown_call(&self, call: CallId) -> Result<Accepted, Error> {
        if (1..self.next_call).contains(&call.0) {
            return Ok(Accepted::TooLate);
        }
        Err(Error::new(ErrorKind::Usage, "nothing with this number was ever asked"))
    }

    /// The next random number (SplitMix64).
    pub(crate) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A name for a message, which no other message of the session has.
    pub(crate) fn message_id(&mut self) -> String {
        format!("{:016x}{:016x}", self.random(), self.random())
    }

    pub(crate) fn log(&mut self, level: LogLevel, message: String) {
        if self.log.len() >= MAX_LOG_RECORDS {
            self.log.pop_front();
        }
        self.log.push_back(LogRecord { level, message });
    }
}

/// A REST call to make.
pub(crate) struct RestCall {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) body: Bytes,
    pub(crate) client_key: bool,
    pub(crate) session_key: bool,
    /// What it asks for beside the features in use: there are none before a session is open.
    pub(crate) asks: Features,
}

impl RestCall {
    /// A call without a body.
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            body: Bytes::new(),
            client_key: false,
            session_key: false,
            asks: Features::NONE,
        }
    }

    pub(crate) fn with_client_key(mut self) -> Self {
        self.client_key = true;
        self
    }

    pub(crate) fn with_session_key(mut self) -> Self {
        self.session_key = true;
        self
    }

    pub(crate) fn asking_for(mut self, features: Features) -> Self {
        self.asks = features;
        self
    }

    pub(crate) fn with_body(mut self, body: Json) -> Self {
        self.body = body.into_bytes();
        self
    }
}

/// The path of a session. Ids are opaque, so anything unusual in one is escaped.
pub(crate) fn session_path(id: &SessionId) -> String {
    let mut path = String::from("/api/v1/sessions/");
    escape_into(&mut path, id.as_str());
    path
}

/// Percent-encodes everything but unreserved characters (RFC 3986 §2.3).
pub(crate) fn escape_into(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            }
        }
    }
}

fn feature_header(features: Features, headers: &mut Vec<(&'static str, String)>) {
    let words = features.words();
    if !words.is_empty() {
        headers.push((feature::HEADER, words.join(", ")));
    }
}

/// Why a call that needs a feature is not made; `cost` says what would happen without it.
pub(super) fn not_offered(feature: &str, cost: &str) -> Error {
    let message = format!(
        "the feature \"{feature}\" is not in use: the service does not offer it, or this client does not ask for it{cost}"
    );
    Error::new(ErrorKind::NotOffered, message)
}

/// The features among the service's own words about itself.
fn announced(meta: &Meta) -> Features {
    Features::parse(meta.features.iter().map(String::as_str))
}

fn trace_headers(trace: &Trace) -> Vec<(&'static str, String)> {
    let parent = trace.traceparent.iter().map(|value| ("traceparent", value.clone()));
    let state = trace.tracestate.iter().map(|value| ("tracestate", value.clone()));
    parent.chain(state).collect()
}

/// The longest name of a tool, in bytes: what the vendors' models accept.
const MAX_TOOL_NAME: usize = 128;

fn check_tools(tools: &[Tool]) -> Result<(), Error> {
    let bad = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
    let mut names: Vec<&str> = Vec::new();
    for tool in tools {
        let name = tool.name();
        if name.trim().is_empty() {
            return bad("a tool has no name".to_owned());
        }
        if name.len() > MAX_TOOL_NAME || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return bad(format!(
                "\"{}\" cannot name a tool: at most {MAX_TOOL_NAME} bytes without blanks; models want letters, digits, _ and -",
                name.escape_debug().take(80).collect::<String>()
            ));
        }
        if names.contains(&name) {
            return bad(format!("two tools are named \"{name}\""));
        }
        if !tool.declaration.input_schema.is_object() {
            return bad(format!("the input schema of \"{name}\" is no JSON object"));
        }
        if let Err(fault) = tool.narrow.fit(&tool.declaration.input_schema) {
            return bad(format!("the tool \"{name}\": {fault}"));
        }
        names.push(name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use broca_proto::session::narrow::{NarrowRule, NarrowRules};

    #[test]
    fn ids_cannot_leave_their_place_in_a_path() {
        assert_eq!(session_path(&"ses_01".into()), "/api/v1/sessions/ses_01");
        assert_eq!(session_path(&"../x?y".into()), "/api/v1/sessions/..%2Fx%3Fy");
    }

    #[test]
    fn tools_that_cannot_be_declared_are_refused() {
        let tool = |name: &str| Tool::new(name, "", Json::empty_object());
        assert!(check_tools(&[tool("a"), tool("b")]).is_ok());
        assert!(check_tools(&[tool("a"), tool("a")]).is_err());
        for name in [" ", "a b", "a\n", &"x".repeat(129)] {
            assert!(check_tools(&[tool(name)]).is_err(), "{name}");
        }
        assert!(check_tools(&[Tool::new("a", "", Json::null())]).is_err());
        let schema = Json::parse(r#"{"type":"object","properties":{"paths":{"type":"array"}}}"#);
        let mut narrowed = Tool::new("rm", "", schema.unwrap());
        for (pointer, admitted) in [("/paths", true), ("/pahts", false)] {
            let rule = (pointer.to_owned(), NarrowRule::RemoveElements);
            narrowed.narrow = NarrowRules::new([rule]);
            assert_eq!(check_tools(&[narrowed.clone()]).is_ok(), admitted, "{pointer}");
        }
    }
}
