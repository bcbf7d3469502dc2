//! Any calls in any order with any numbers: nothing panics, every operation ends once, effects stay in order.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use broca::engine::{Answer, CloseReason, Effect, OpId, Step};
use broca_bridge::{Batch, ErrorKind, Handle, Time, command};
use broca_testkit::subject::{CLOSE_WORDS, Taken, effect_of, steps_of};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One call from outside. Numbers are small, so that many of them mean something.
#[derive(Debug, Clone)]
enum Call {
    Command(usize),
    Cancel(u64),
    Answer(u64, usize),
    Resolved(u64, usize),
    Connected(u64),
    TlsStarted(u64),
    Data(u64, usize),
    Written(u64, usize),
    Closed(u64, usize),
    Timeout(u64),
    Wall(u64),
    Effects,
    /// What a well-behaved service does next on the oldest open connection.
    Serve,
    Steps(u64, usize),
    Logs,
}

const COMMANDS: [&str; 16] = [
    r#"{"open":{"tools":[{"name":"t","timeout_ms":50},{"name":"ask","approval":true}]}}"#,
    r#"{"join":{"session_id":"s"}}"#,
    r#"{"observe":{"session_id":"s"}}"#,
    r#"{"send":{"message":"go"}}"#,
    r#"{"subscribe":{"from":null}}"#,
    r#"{"subscribe":{"from":""}}"#,
    r#"{"history":{"cursor":null,"limit":2}}"#,
    r#"{"participants":{}}"#,
    r#"{"meta":{}}"#,
    r#"{"update_tools":{"tools":[]}}"#,
    r#"{"close":{}}"#,
    r#"{"send":{"message":7}}"#,
    r#"{"save":{}}"#,
    r#"{"resume":{}}"#,
    r#"{"attach":{"saved":{"broca_session":1,"service":"http://elsewhere","session_id":"s","session_key":"k"}}}"#,
    r#"{"attach":{"saved":{"broca_session":1,"service":"http://127.0.0.1:9","session_id":"s","session_key":"k","client_key_id":"key_1",
        "turn":{"results":[{"outcome":"done","result":{"type":"tool_result","tool_use_id":"a","content":"A"}}]}},"tools":[{"name":"t"}]}}"#,
];

const ANSWERS: [(&str, Option<&str>); 9] = [
    ("complete", Some(r#""x""#)),
    ("complete", Some("{}")),
    ("complete_text", Some("y")),
    ("fail", Some("z")),
    ("allow", None),
    ("allow_narrowed", Some(r#"{"n":1}"#)),
    ("deny", Some("no")),
    ("send", None),
    ("refuse", Some("no")),
];

const BYTES: [&str; 8] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "5\r\n{\"id\"\r\n",
    "0\r\n\r\n",
    "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
    "\u{0}\u{1}",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"message\":{\"content\":\"x\"}}}\n",
    "",
];

/// What the service of [`Call::Serve`] answers, by what stands in the path of the request.
const SERVED: [(&str, &str); 7] = [
    ("session.sendMessage", TWO_CALLS),
    ("/rpc ", "{}"),
    ("/meta", r#"{"version":"0","api_versions":["v1"],"features":["cancel","display"]}"#),
    ("/events", r#"{"items":[{"id":"e1","payload":{}}],"next_cursor":null}"#),
    ("/participants", r#"{"drivers":[]}"#),
    ("/sessions", r#"{"session_id":"s","session_key":"k","profile":{}}"#),
    ("", "{}"),
];

const TWO_CALLS: &str = r#"{"message":{"role":"assistant","content":[
    {"type":"tool_use","id":"a","name":"t","input":{}},
    {"type":"tool_use","id":"b","name":"ask","input":{"n":2}}]},"events":[]}"#;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0_u64..8, 1 => any::<u64>()]
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => (0..COMMANDS.len()).prop_map(Call::Command),
        1 => number().prop_map(Call::Cancel),
        2 => (number(), 0..ANSWERS.len()).prop_map(|(n, a)| Call::Answer(n, a)),
        1 => (number(), 0_usize..3).prop_map(|(n, a)| Call::Resolved(n, a)),
        2 => number().prop_map(Call::Connected),
        1 => number().prop_map(Call::TlsStarted),
        3 => (number(), 0..BYTES.len()).prop_map(|(n, b)| Call::Data(n, b)),
        1 => (number(), any::<usize>()).prop_map(|(n, size)| Call::Written(n, size)),
        1 => (number(), 0..CLOSE_WORDS.len()).prop_map(|(n, why)| Call::Closed(n, why)),
        2 => (0_u64..70_000).prop_map(Call::Timeout),
        1 => any::<u64>().prop_map(Call::Wall),
        4 => Just(Call::Effects),
        12 => Just(Call::Serve),
        3 => (number(), 0_usize..2_000).prop_map(|(n, max)| Call::Steps(n, max)),
        1 => Just(Call::Logs),
    ]
}

/// The handle and what the outside remembers of it.
struct Outside {
    handle: Handle,
    now: Time,
    begun: BTreeSet<u64>,
    ended: BTreeMap<u64, u32>,
    /// What was written to each connection that is open, and whether it was connected.
    open: BTreeMap<u64, (bool, Vec<u8>)>,
    names: Vec<u64>,
    last_conn: Option<u64>,
    gone: BTreeSet<u64>,
}

impl Outside {
    fn new(secure: bool, hooks: bool) -> Self {
        let scheme = if secure { "https" } else { "http" };
        let options = format!(
            r#"{{"base_url":"{scheme}://svc:1","client_key":"k","hooks":{hooks},"max_connections":3}}"#
        );
        Self {
            handle: Handle::new(options.as_bytes(), 7, 1).unwrap(),
            now: Time::from_millis(0),
            begun: BTreeSet::new(),
            ended: BTreeMap::new(),
            open: BTreeMap::new(),
            names: Vec::new(),
            last_conn: None,
            gone: BTreeSet::new(),
        }
    }

    fn make(&mut self, call: &Call) -> Result<(), TestCaseError> {
        let (handle, now) = (&self.handle, self.now);
        let why = |n: usize| CLOSE_WORDS[n].0;
        let fine = match *call {
            Call::Command(n) => {
                match handle.command(COMMANDS[n].as_bytes(), Default::default(), now) {
                    Ok(op) => {
                        prop_assert!(self.begun.insert(op), "operation {} began twice", op);
                        Ok(())
                    }
                    Err(error) => refused(&error),
                }
            }
            Call::Cancel(op) => handle.cancel(op, now).map_err(|e| e.to_string()),
            Call::Answer(call, n) => {
                let (word, value) = ANSWERS[n];
                match command::answer(word, value.map(str::as_bytes), None) {
                    Ok(answer) => {
                        handle.answer(call, answer, now).map(drop).or_else(|e| refused(&e))
                    }
                    Err(error) => refused(&error),
                }
            }
            Call::Resolved(req, n) => {
                let answer = match n {
                    0 => Err("no such name".to_owned()),
                    1 => Ok(Vec::new()),
                    _ => Ok(vec![IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)]),
                };
                handle.resolved(req, answer, now).map_err(|e| e.to_string())
            }
            Call::Connected(conn) => {
                if let Some(open) = self.open.get_mut(&conn) {
                    open.0 = true;
                }
                handle.connected(conn, now).map_err(|e| e.to_string())
            }
            Call::TlsStarted(conn) => handle.tls_started(conn, now).map_err(|e| e.to_string()),
            Call::Data(conn, n) => {
                handle.data(conn, BYTES[n].as_bytes(), now).map_err(|e| e.to_string())
            }
            Call::Written(conn, size) => handle.written(conn, size, now).map_err(|e| e.to_string()),
            Call::Closed(conn, n) => {
                self.open.remove(&conn);
                handle.closed(conn, why(n), now).map_err(|e| e.to_string())
            }
            Call::Timeout(ms) => {
                self.now = now.plus(ms);
                handle.timeout(self.now).map_err(|e| e.to_string())
            }
            Call::Wall(ms) => handle.wall(ms).map_err(|e| e.to_string()),
            Call::Effects => return self.effects(),
            Call::Serve => return self.serve(),
            Call::Steps(op, max) => return self.steps(op, max),
            Call::Logs => handle.logs(&mut Batch::new()).map_err(|e| e.to_string()),
        };
        fine.map_err(|fault| TestCaseError::fail(format!("{call:?}: {fault}")))
    }

    fn effects(&mut self) -> Result<(), TestCaseError> {
        let mut batch = Batch::new();
        self.handle.effects(&mut batch).map_err(|e| TestCaseError::fail(e.to_string()))?;
        for taken in Taken::all_of(&batch).map_err(TestCaseError::fail)? {
            match effect_of(&taken).map_err(TestCaseError::fail)? {
                Effect::Connect { conn, .. } => {
                    prop_assert!(Some(conn.0) > self.last_conn, "{} was used before", conn.0);
                    self.last_conn = Some(conn.0);
                    self.open.insert(conn.0, (false, Vec::new()));
                }
                Effect::Close { conn, .. } => {
                    prop_assert!(Some(conn.0) <= self.last_conn, "{} was never there", conn.0);
                    prop_assert!(self.gone.insert(conn.0), "{} was closed twice", conn.0);
                    self.open.remove(&conn.0);
                }
                Effect::Write { conn, bytes } => {
                    prop_assert!(!self.gone.contains(&conn.0), "{} is closed", conn.0);
                    prop_assert!(Some(conn.0) <= self.last_conn, "{} was never there", conn.0);
                    if let Some((_, written)) = self.open.get_mut(&conn.0) {
                        written.extend_from_slice(&bytes);
                    }
                }
                Effect::PauseRead { conn } | Effect::ResumeRead { conn } => {
                    prop_assert!(!self.gone.contains(&conn.0), "{} is closed", conn.0);
                }
                Effect::Resolve { req, .. } => self.names.push(req.0),
                Effect::Ready { op } => prop_assert!(self.begun.contains(&op.0)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Resolves, connects, and answers one request, as things go when nothing goes wrong.
    fn serve(&mut self) -> Result<(), TestCaseError> {
        let now = self.now;
        let fail = |e: broca_bridge::Error| TestCaseError::fail(e.to_string());
        self.effects()?;
        for req in std::mem::take(&mut self.names) {
            let localhost = Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]);
            self.handle.resolved(req, localhost, now).map_err(fail)?;
        }
        self.effects()?;
        let waits = |(connected, written): &(bool, Vec<u8>)| !*connected || !written.is_empty();
        let waiting = self.open.iter_mut().find(|(_, open)| waits(open));
        let Some((&conn, (connected, written))) = waiting else { return Ok(()) };
        if !*connected {
            *connected = true;
            return self.handle.connected(conn, now).map_err(fail);
        }
        let sent = std::mem::take(written);
        self.handle.written(conn, sent.len(), now).map_err(fail)?;
        let text = String::from_utf8_lossy(&sent).into_owned();
        let (_, said) = SERVED.iter().find(|(part, _)| text.contains(part)).copied().unwrap();
        let id = text.split("\"id\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
        let body = match id {
            Some(id) if text.contains("/rpc ") => {
                let said = said.replace('\n', " ");
                format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{said}}}\n")
            }
            _ => said.to_owned(),
        };
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.handle.data(conn, answer.as_bytes(), now).map_err(fail)
    }

    fn steps(&mut self, op: u64, max: usize) -> Result<(), TestCaseError> {
        let mut batch = Batch::new();
        let over = self.handle.steps(op, max, &mut batch);
        let over = over.map_err(|e| TestCaseError::fail(e.to_string()))?;
        let steps = Taken::all_of(&batch).and_then(|all| steps_of(&all));
        let steps = steps.map_err(TestCaseError::fail)?;
        if !steps.is_empty() {
            prop_assert!(self.begun.contains(&op), "{} never began", op);
            prop_assert!(!self.ended.contains_key(&op), "{} was over", op);
        }
        let ends = steps.iter().filter(|step| matches!(step, Step::Finished(_))).count();
        prop_assert_eq!(ends, usize::from(over));
        prop_assert!(!over || matches!(steps.last(), Some(Step::Finished(_))));
        if over {
            *self.ended.entry(op).or_default() += 1;
        }
        Ok(())
    }

    /// Gives everything up: whatever was begun must end now, without any help of a service.
    fn give_up(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..12 {
            for op in self.begun.clone() {
                self.make(&Call::Cancel(op))?;
            }
            self.effects()?;
            for conn in self.open.keys().copied().collect::<Vec<_>>() {
                self.make(&Call::Closed(conn, 2))?;
            }
            self.make(&Call::Timeout(200_000))?;
            self.effects()?;
            for op in self.begun.clone() {
                self.steps(op, usize::MAX)?;
            }
        }
        let left: Vec<_> = self.begun.iter().filter(|op| !self.ended.contains_key(op)).collect();
        prop_assert!(left.is_empty(), "never ended: {left:?}");
        prop_assert!(self.ended.values().all(|times| *times == 1));
        Ok(())
    }
}

/// Errors that a caller may meet; `panic` and `internal` are faults of ours.
fn refused(error: &broca_bridge::Error) -> Result<(), String> {
    match error.kind() {
        ErrorKind::Usage | ErrorKind::Closed | ErrorKind::InvalidArgument => Ok(()),
        _ => Err(error.to_string()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_in_any_order_do_no_harm(
        secure: bool,
        hooks: bool,
        opens: bool,
        calls in proptest::collection::vec(call(), 0..120),
    ) {
        let mut outside = Outside::new(secure && !opens, hooks);
        if opens {
            outside.make(&Call::Command(0))?;
            for _ in 0..12 {
                outside.make(&Call::Serve)?;
            }
        }
        for call in &calls {
            outside.make(call)?;
        }
        outside.give_up()?;
    }
}

/// The property is worth something only if calls get far: a session opens, a turn runs into its tools and ends.
#[test]
fn a_service_that_serves_gets_a_turn_through() {
    let mut outside = Outside::new(false, false);
    let op = |outside: &Outside| *outside.begun.last().unwrap();
    outside.make(&Call::Command(0)).unwrap();
    (0..12).for_each(|_| outside.make(&Call::Serve).unwrap());
    let opened = op(&outside);
    outside.make(&Call::Steps(opened, 10_000)).unwrap();
    assert_eq!(outside.ended.get(&opened), Some(&1));
    outside.make(&Call::Command(3)).unwrap();
    (0..4).for_each(|_| outside.make(&Call::Serve).unwrap());
    let turn = OpId(op(&outside));
    let mut batch = Batch::new();
    outside.handle.steps(turn.0, usize::MAX, &mut batch).unwrap();
    let steps = steps_of(&Taken::all_of(&batch).unwrap()).unwrap();
    assert!(steps.iter().any(|step| matches!(step, Step::ToolCall(_))), "{steps:?}");
    assert!(steps.iter().any(|step| matches!(step, Step::Approval(_))), "{steps:?}");
    let now = outside.now;
    for step in &steps {
        let (call, answer) = match step {
            Step::ToolCall(call) => (call.call, Answer::Fail("x".to_owned())),
            Step::Approval(call) => (call.call, Answer::Allow),
            _ => continue,
        };
        outside.handle.answer(call.0, answer, now).unwrap();
    }
    outside.handle.closed(u64::MAX, CloseReason::Eof, now).unwrap();
    outside.give_up().unwrap();
}
