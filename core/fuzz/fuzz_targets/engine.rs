//! Any inputs in any order into an engine: no panic, no effect on a connection that is gone, at most
//! 256 KiB unacknowledged, nothing after `Finished`; and once all is cancelled and time has passed, each
//! operation has ended once and nothing is left over.

#![no_main]

use broca::engine::{
    Answer, CallId, CloseReason, Command, Config, ConnId, Effect, Engine, Environment, OpId,
    ResolveId, Step, Trace,
};
use broca::proto::session::content::Message;
use broca::proto::session::ids::Cursor;
use broca::proto::session::tool::Tool;
use broca::{Json, Time};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet};

const KEY: &str = "bae_sEcReT";

fuzz_target!(|data: &[u8]| {
    let [choice, inputs @ ..] = data else { return };
    let mut world = World::new(*choice);
    let mut inputs = Inputs(inputs);
    while let Some(input) = inputs.byte() {
        world.input(input, &mut inputs);
        world.effects();
    }
    world.end();
});

struct Inputs<'a>(&'a [u8]);

impl Inputs<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> u64 {
        u64::from(self.byte().unwrap_or_default() % 24)
    }

    fn bytes(&mut self) -> &[u8] {
        let length = usize::from(self.byte().unwrap_or_default()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }
}

struct World {
    engine: Engine,
    now: u64,
    next_op: u64,
    open: BTreeSet<OpId>,
    /// Connections, and what is unacknowledged on each.
    conns: BTreeMap<ConnId, usize>,
    timer: Option<Time>,
    busy: bool,
}

impl World {
    fn new(choice: u8) -> Self {
        let url = if choice & 1 == 0 { "http://example.org/base" } else { "https://example.org" };
        let mut config = Config::new(url, KEY);
        config.hooks = choice & 2 != 0;
        config.max_connections = usize::from(choice >> 2 & 3);
        config.step_buffer_bytes = 4_000;
        config.delta_buffer_bytes = 1_000;
        config.max_line_bytes = 2_000;
        config.max_answer_bytes = 10_000;
        config.silence_timeout_ms = (choice & 16 != 0).then_some(5_000);
        let proxied = choice & 32 != 0;
        let proxy = |name: &str| {
            (proxied && name.ends_with("_proxy") && name != "no_proxy").then(|| "http://p:1".into())
        };
        let engine = Engine::new(config, 1, 0, Environment::from_vars(proxy));
        Self {
            engine: engine.expect("the configuration is good"),
            now: 0,
            next_op: 0,
            open: BTreeSet::new(),
            conns: BTreeMap::new(),
            timer: None,
            busy: false,
        }
    }

    fn input(&mut self, input: u8, inputs: &mut Inputs<'_>) {
        let now = Time::from_millis(self.now);
        let conn = ConnId(inputs.number());
        match input % 13 {
            0 => self.command(inputs.number()),
            1 => self.engine.cancel(OpId(conn.0), now),
            2 => {
                let answer = answer(inputs.number());
                let _ = self.engine.answer(CallId(conn.0), answer, now);
            }
            3 => {
                let many = inputs.number() % 4;
                let list = (0..many).map(|n| [192, 0, 2, n as u8].into()).collect();
                self.engine.resolved(ResolveId(conn.0), Ok(list), now);
            }
            4 => self.engine.connected(conn, now),
            5 => self.engine.tls_started(conn, now),
            6 => self.engine.data(conn, Bytes::copy_from_slice(inputs.bytes()), now),
            7 => self.engine.data(conn, piece(inputs.number(), conn.0).into(), now),
            8 => {
                let owed = self.conns.get_mut(&conn).map(std::mem::take).unwrap_or(1 << 30);
                self.engine.written(conn, owed, now);
            }
            9 => {
                let whys = [CloseReason::Eof, CloseReason::Reset, CloseReason::TlsCert];
                self.conns.remove(&conn);
                self.engine.closed(conn, whys[inputs.number() as usize % 3], now);
            }
            10 => self.wait(inputs.number() * 700),
            11 => self.wait(60_000),
            _ => self.take(OpId(conn.0), inputs.number() as usize * 90),
        }
    }

    fn command(&mut self, kind: u64) {
        let command = match kind % 12 {
            0..=2 => Command::Open { tools: tools(), metadata: None },
            3..=5 => Command::Send { message: Message::user("hi") },
            6 => Command::Subscribe { from: None },
            7 => Command::Subscribe { from: Some(Cursor::after("e1".into())) },
            8 => Command::History { cursor: Some("c".into()), limit: None },
            9 => Command::Observe { session_id: "s".into() },
            10 => Command::UpdateTools { tools: tools() },
            _ => Command::Close,
        };
        let op = OpId(self.next_op);
        let now = Time::from_millis(self.now);
        if self.engine.command(op, command, Trace::default(), now).is_ok() {
            self.next_op += 1;
            self.open.insert(op);
        }
    }

    fn wait(&mut self, ms: u64) {
        self.now += ms;
        self.engine.timeout(Time::from_millis(self.now));
    }

    fn take(&mut self, op: OpId, max: usize) {
        let mut steps = Vec::new();
        self.engine.steps(op, max, &mut steps);
        for step in steps {
            assert!(self.open.contains(&op), "{step:?} after Finished");
            if let Step::Finished(outcome) = step {
                assert!(!format!("{outcome:?}").contains(KEY));
                self.open.remove(&op);
            }
        }
    }

    fn effects(&mut self) {
        while let Some(effect) = self.engine.io() {
            assert!(!format!("{effect:?}").contains(KEY));
            match effect {
                Effect::Connect { conn, .. } => {
                    assert!(self.conns.insert(conn, 0).is_none(), "{conn:?} is reused");
                }
                Effect::Write { conn, bytes } => {
                    let owed = self.conns.get_mut(&conn).expect("a write on an open connection");
                    *owed += bytes.len();
                    assert!(*owed <= 256 * 1024);
                }
                Effect::PauseRead { conn }
                | Effect::ResumeRead { conn }
                | Effect::StartTls { conn, .. } => assert!(self.conns.contains_key(&conn)),
                Effect::Close { conn, .. } => assert!(self.conns.remove(&conn).is_some()),
                Effect::Timer { at } => self.timer = at,
                Effect::Busy(busy) => {
                    assert_ne!(self.busy, busy);
                    self.busy = busy;
                }
                _ => {}
            }
        }
    }

    fn end(mut self) {
        for op in 0..self.next_op {
            self.engine.cancel(OpId(op), Time::from_millis(self.now));
        }
        for _ in 0..10 {
            self.wait(60_000);
            self.effects();
        }
        for op in 0..self.next_op {
            self.take(OpId(op), usize::MAX);
        }
        self.effects();
        assert!(self.open.is_empty() && !self.busy, "{:?}", self.open);
        assert!(self.timer.is_none() && self.conns.is_empty(), "{:?}", self.conns);
    }
}

fn tools() -> Vec<Tool> {
    let mut asks = Tool::new("y", "", Json::empty_object());
    asks.approval = true;
    vec![Tool::new("x", "", Json::empty_object()), asks]
}

fn answer(kind: u64) -> Answer {
    match kind % 7 {
        0 => Answer::Complete(Json::string("x")),
        1 => Answer::Fail("x".into()),
        2 => Answer::Allow,
        3 => Answer::AllowNarrowed(Json::empty_object()),
        4 => Answer::Deny("x".into()),
        5 => Answer::Refuse("x".into()),
        _ => Answer::Send { message: None, trace: None },
    }
}

/// Pieces of answers that fit together, so that the engine gets somewhere.
fn piece(kind: u64, id: u64) -> String {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = |text: &str| format!("{:x}\r\n{text}\n\r\n", text.len() + 1);
    let end = "0\r\n\r\n";
    let event = |kind: &str| {
        chunk(&format!(
            r#"{{"method":"session.event","params":{{"id":"e{id}","event_type":"{kind}","payload":{{}}}}}}"#
        ))
    };
    let call = r#"{"type":"tool_use","id":"ID","name":"x","dispatch":"client"},{"type":"tool_use","id":"IDy","name":"y"}"#;
    let call = call.replace("ID", &format!("t{id}"));
    match kind % 18 {
        0 => "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
        1 => head.to_owned(),
        2..=5 => {
            let body = r#"{"version":"1","api_versions":["v1"],"features":["cancel"],"session_id":"s","session_key":"k","items":[]}"#;
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        }
        6 | 7 => {
            format!("{head}{}{end}", chunk(r#"{"id":null,"result":{"message":{"content":"x"}}}"#))
        }
        8 | 9 => {
            let pause = format!(r#"{{"id":null,"result":{{"message":{{"content":[{call}]}}}}}}"#);
            format!("{head}{}{end}", chunk(&pause))
        }
        10 => event("session.open"),
        11 => event("x.y"),
        12 => event("session.close"),
        13 => {
            format!("{head}{}{end}", chunk(r#"{"id":null,"error":{"code":-32001,"message":"no"}}"#))
        }
        14 => end.to_owned(),
        15 => "HTTP/1.1 503 X\r\nContent-Length: 2\r\n\r\n{}".to_owned(),
        16 => chunk(r#"{"method":"session.display","params":{"type":"text_delta","delta":"d"}}"#),
        _ => chunk(&"x".repeat(3_000)),
    }
}
