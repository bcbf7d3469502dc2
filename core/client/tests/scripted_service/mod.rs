//! A session service that answers what a test says, on a socket of this machine: std threads, one
//! for each connection, and just enough HTTP to be read by a client.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of tests, of which each uses a part"
)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broca::Json;

/// The service. Dropped, it takes no more connections and cuts those there are.
pub(crate) struct Service {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    ended: AtomicBool,
    events: AtomicUsize,
    requests: Mutex<Vec<Asked>>,
    /// Second handles of the open connections, by number.
    sockets: Mutex<HashMap<usize, TcpStream>>,
    script: Box<Script>,
    features: &'static str,
    tls: Option<Arc<rustls::ServerConfig>>,
}

type Script = dyn Fn(&Asked, &mut Answer<'_>) + Send + Sync;

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// `METHOD path`.
    pub(crate) line: String,
    pub(crate) head: String,
    pub(crate) body: String,
    /// The JSON-RPC method, if it is a call of `/rpc`.
    pub(crate) method: Option<String>,
    pub(crate) id: Option<Json>,
    pub(crate) params: Option<Json>,
}

impl Asked {
    pub(crate) fn is(&self, method: &str) -> bool {
        self.method.as_deref() == Some(method)
    }

    /// Whether it is a message with results of tools.
    pub(crate) fn is_continuation(&self) -> bool {
        self.body.contains("\"tool_result\"")
    }
}

/// What the script answers with.
pub(crate) struct Answer<'a> {
    out: &'a mut dyn Write,
    shared: &'a Shared,
    id: Option<Json>,
    streaming: bool,
    answered: bool,
    /// Nothing more is read from this connection.
    cut: bool,
}

impl Service {
    /// A plain service. `script` sees each request first; what it leaves unanswered gets the usual answer.
    pub(crate) fn start(script: impl Fn(&Asked, &mut Answer<'_>) + Send + Sync + 'static) -> Self {
        Self::with("", None, "127.0.0.1:0", script)
    }

    pub(crate) fn with(
        features: &'static str,
        tls: Option<Arc<rustls::ServerConfig>>,
        at: &str,
        script: impl Fn(&Asked, &mut Answer<'_>) + Send + Sync + 'static,
    ) -> Self {
        let listener = listen(at);
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            ended: AtomicBool::new(false),
            events: AtomicUsize::new(0),
            requests: Mutex::default(),
            sockets: Mutex::default(),
            script: Box::new(script),
            features,
            tls,
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for (n, socket) in listener.incoming().enumerate() {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(socket) = socket else { continue };
                accepting.sockets.lock().unwrap().insert(n, socket.try_clone().unwrap());
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || {
                    shared.serve(socket);
                    shared.sockets.lock().unwrap().remove(&n);
                });
            }
        });
        Self { addr, shared }
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.shared.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://localhost:{}", self.addr.port())
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Cuts every connection there is.
    pub(crate) fn cut_all(&self) {
        for (_, socket) in self.shared.sockets.lock().unwrap().drain() {
            // It may have ended by itself.
            drop(socket.shutdown(Shutdown::Both));
        }
    }

    /// What came so far.
    pub(crate) fn requests(&self) -> Vec<Asked> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// The calls of `/rpc` with this method.
    pub(crate) fn calls(&self, method: &str) -> Vec<Asked> {
        self.requests().into_iter().filter(|asked| asked.is(method)).collect()
    }

    /// Waits until `condition` holds.
    pub(crate) fn until(&self, condition: impl Fn(&[Asked]) -> bool) {
        for _ in 0..3_000 {
            if condition(&self.shared.requests.lock().unwrap()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it did not happen; requests: {:?}", self.requests());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Frees the port: the accepting thread sees the end with this connection.
        drop(TcpStream::connect(self.addr));
        for (_, socket) in self.shared.sockets.lock().unwrap().drain() {
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}

/// Listens, again after a service at the same place has ended.
fn listen(at: &str) -> TcpListener {
    for _ in 0..1_000 {
        match TcpListener::bind(at) {
            Ok(listener) => return listener,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    panic!("the port {at} stays in use");
}

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

impl Shared {
    fn serve(&self, socket: TcpStream) {
        socket.set_nodelay(true).unwrap();
        let stream: Box<dyn Duplex> = match &self.tls {
            None => Box::new(socket),
            Some(config) => {
                let connection = rustls::ServerConnection::new(Arc::clone(config)).unwrap();
                Box::new(rustls::StreamOwned::new(connection, socket))
            }
        };
        let mut stream = BufReader::new(stream);
        while let Some(asked) = self.read(&mut stream) {
            self.requests.lock().unwrap().push(asked.clone());
            let mut answer = Answer {
                out: stream.get_mut(),
                shared: self,
                id: asked.id.clone(),
                streaming: false,
                answered: false,
                cut: false,
            };
            (self.script)(&asked, &mut answer);
            if !answer.answered {
                answer.usual(&asked);
            }
            answer.end();
            if answer.cut {
                return;
            }
        }
    }

    fn read(&self, stream: &mut BufReader<Box<dyn Duplex>>) -> Option<Asked> {
        let mut head = String::new();
        loop {
            let before = head.len();
            stream.read_line(&mut head).ok().filter(|n| *n > 0)?;
            if head.len() - before <= 2 {
                break;
            }
        }
        let lower = head.to_ascii_lowercase();
        let length = lower
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .map_or(0, |value| value.trim().parse().unwrap());
        let line = head.lines().next()?.rsplit_once(' ')?.0.to_owned();
        let mut asked =
            Asked { line, head, body: String::new(), method: None, id: None, params: None };
        if length > BODY_LIMIT {
            // The body is left unread: an answer to it is an early one.
            asked.body = "too large".to_owned();
            return Some(asked);
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        asked.body = String::from_utf8(body).unwrap();
        if asked.line.ends_with("/rpc") {
            let json = Json::parse(asked.body.clone()).unwrap();
            asked.method = json.member("method").and_then(|m| m.to_text());
            asked.id = json.member("id");
            asked.params = json.member("params");
        }
        Some(asked)
    }
}

/// Larger bodies are not read, and answered with 413.
pub(crate) const BODY_LIMIT: usize = 1024 * 1024;

impl Answer<'_> {
    /// A whole response.
    pub(crate) fn respond(&mut self, status: &str, content_type: &str, body: &str) {
        self.answered = true;
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.raw(head.as_bytes());
        self.raw(body.as_bytes());
    }

    /// An event of this type; its number is its id.
    pub(crate) fn event(&mut self, event_type: &str, payload: &str) {
        let n = self.shared.events.fetch_add(1, Ordering::SeqCst) + 1;
        self.event_of(&format!("evt_{n}"), event_type, payload);
    }

    pub(crate) fn event_of(&mut self, id: &str, event_type: &str, payload: &str) {
        self.line(&format!(
            r#"{{"jsonrpc":"2.0","method":"session.event","params":{{"client_key_id":null,"created_at":"2030-01-01T00:00:00.000Z","event_type":"{event_type}","id":"{id}","payload":{payload},"session_id":"ses_1"}}}}"#
        ));
    }

    /// One line of the stream, in a chunk of its own.
    pub(crate) fn line(&mut self, line: &str) {
        if !self.streaming {
            self.streaming = true;
            self.answered = true;
            self.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n");
        }
        self.raw(format!("{:x}\r\n{line}\n\r\n", line.len() + 1).as_bytes());
    }

    /// The terminal line with this result.
    pub(crate) fn result(&mut self, result: &str) {
        self.terminal(&format!(r#""result":{result}"#));
    }

    /// The terminal line with this error.
    pub(crate) fn error(&mut self, code: i32, message: &str) {
        self.terminal(&format!(r#""error":{{"code":{code},"message":"{message}"}}"#));
    }

    fn terminal(&mut self, member: &str) {
        let id = self.id.clone().unwrap_or_default();
        self.line(&format!(r#"{{"id":{},"jsonrpc":"2.0",{member}}}"#, id.as_str()));
    }

    /// The terminal line of a turn that ends with this text.
    pub(crate) fn says(&mut self, text: &str) {
        self.message(&format!(r#"[{{"text":"{text}","type":"text"}}]"#));
    }

    /// The terminal line of a turn that pauses for these calls: id, tool, input.
    pub(crate) fn calls(&mut self, calls: &[(&str, &str, &str)]) {
        let blocks: Vec<String> = calls
            .iter()
            .map(|(id, name, input)| {
                format!(
                    r#"{{"dispatch":"client","id":"{id}","input":{input},"name":"{name}","type":"tool_use"}}"#
                )
            })
            .collect();
        self.message(&format!("[{}]", blocks.join(",")));
    }

    fn message(&mut self, content: &str) {
        let message = format!(r#"{{"content":{content},"role":"assistant"}}"#);
        self.event("server.message.send", &message);
        self.result(&format!(r#"{{"events":[],"message":{message}}}"#));
    }

    /// Bytes as they are. What the peer does not take is the test's to notice.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        drop(self.out.write_all(bytes).and_then(|()| self.out.flush()));
    }

    /// Cuts the connection after what was written.
    pub(crate) fn cut(&mut self) {
        self.answered = true;
        self.streaming = false;
        self.cut = true;
    }

    /// Whether the peer still takes bytes; a heartbeat line is the probe.
    pub(crate) fn peer_is_there(&mut self) -> bool {
        let line = b"1\r\n\n\r\n";
        self.out.write_all(line).and_then(|()| self.out.flush()).is_ok()
    }

    fn end(&mut self) {
        if self.streaming {
            self.raw(b"0\r\n\r\n");
        }
    }

    fn usual(&mut self, asked: &Asked) {
        let json = "application/json";
        if asked.body == "too large" {
            self.respond("413 Payload Too Large", "text/plain", "the body is too large");
            self.cut = true;
            return;
        }
        match asked.method.as_deref() {
            Some("session.registerDriver") => self.result(r#"{"registered":true}"#),
            Some("session.updateClientTools") => self.result(r#"{"updated":true}"#),
            Some("session.cancel") => self.result(r#"{"cancelled":true,"was":"running"}"#),
            Some(_) => self.says("hello"),
            None if asked.line == "GET /api/v1/meta" => {
                let features: Vec<String> =
                    self.shared.features.split_whitespace().map(|f| format!("\"{f}\"")).collect();
                self.respond("200 OK", json, &format!(
                    r#"{{"version":"0.1.0","api_versions":["v1"],"features":[{}]}}"#,
                    features.join(",")
                ));
            }
            None if asked.line.starts_with("POST /api/v1/sessions") => self.respond(
                "201 Created",
                json,
                r#"{"session_id":"ses_1","session_key":"bae_ses_1","profile":{"id":"pro_1","name":"main"}}"#,
            ),
            None if asked.line.starts_with("DELETE ") => {
                self.respond("200 OK", json, r#"{"session_id":"ses_1","state":"closed"}"#);
            }
            None if asked.line.ends_with("/participants") => {
                self.respond("200 OK", json, r#"{"drivers":["key_1"]}"#);
            }
            None => self.respond("404 Not Found", "text/plain", ""),
        }
    }
}

/// A script that calls these tools first, and then repeats their results.
pub(crate) fn calling(
    calls: &'static [(&'static str, &'static str, &'static str)],
) -> impl Fn(&Asked, &mut Answer<'_>) {
    move |asked, answer| {
        if asked.is("session.sendMessage") {
            if asked.is_continuation() { answer.says("done") } else { answer.calls(calls) }
        }
    }
}

/// The results that came back: id, content, whether it is an error.
pub(crate) fn results(service: &Service) -> Vec<(String, String, bool)> {
    let calls = service.calls("session.sendMessage");
    let sent = calls.iter().find(|asked| asked.is_continuation()).expect("no results came");
    let content = sent.params.as_ref().unwrap().member("message").unwrap().member("content");
    let text = |block: &Json, name| block.member(name).and_then(|v| v.to_text()).unwrap();
    let blocks = content.unwrap().elements().unwrap();
    let block = |b: &Json| {
        let failed = b.member("is_error").is_some_and(|e| e.as_str() == "true");
        (text(b, "tool_use_id"), text(b, "content"), failed)
    };
    blocks.iter().map(block).collect()
}

/// A script whose turns stay open until they are cancelled, and what tells the test so.
pub(crate) fn endless() -> (impl Fn(&Asked, &mut Answer<'_>), Receiver<&'static str>) {
    let (sender, receiver) = channel();
    let cancelled = Arc::new(AtomicUsize::new(0));
    let script = move |asked: &Asked, answer: &mut Answer<'_>| {
        if asked.is("session.cancel") {
            cancelled.fetch_add(1, Ordering::SeqCst);
        }
        if asked.is("session.sendMessage") && asked.body.contains("endless") {
            answer.event("provider.request", "{}");
            for _ in 0..3_000 {
                if cancelled.load(Ordering::SeqCst) > 0 {
                    answer.error(-32000, "turn cancelled");
                    sender.send("cancelled").unwrap();
                    return;
                }
                if !answer.peer_is_there() {
                    sender.send("gone").unwrap();
                    return answer.cut();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    };
    (script, receiver)
}

/// A script that gives every subscriber the three events after its cursor and then stays silent.
pub(crate) fn three_at_a_time(asked: &Asked, answer: &mut Answer<'_>) {
    if asked.is("session.subscribe") {
        let since = asked.params.as_ref().unwrap().member("since_event_id");
        let since = since.and_then(|v| v.to_text()).unwrap_or_default();
        let first = since.strip_prefix("evt_").map_or(1, |n| n.parse::<u32>().unwrap() + 1);
        for n in first..first + 3 {
            answer.event_of(&format!("evt_{n}"), "session.join", "{}");
        }
        for _ in 0..500 {
            if !answer.peer_is_there() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        answer.cut();
    }
}

/// Milliseconds of processor time that this thread has used; nothing is known of it elsewhere than on Linux.
pub(crate) fn busy_ms() -> u64 {
    let Ok(stat) = std::fs::read_to_string("/proc/thread-self/stat") else { return 0 };
    let after_name = stat.rsplit(')').next().unwrap();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum()
}

/// A certificate for localhost and service.test that nobody has signed but itself, as PEM, and a server that shows it.
pub(crate) fn self_signed() -> (String, Arc<rustls::ServerConfig>) {
    let made =
        rcgen::generate_simple_self_signed(["localhost".to_owned(), "service.test".to_owned()])
            .unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (made.cert.pem(), Arc::new(config))
}
