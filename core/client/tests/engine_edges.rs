//! The engine's edge: usage, closing, hooks, stale numbers, timers, secrets (guarantees 13 and 14).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{
    Accepted, Answer, CallId, CloseReason, Command, Config, ConnId, Effect, Engine, Environment,
    OpId, Outcome, ResolveId, Step, Trace,
};
use broca::proto::session::content::Message;
use broca::{ErrorKind, Json, Retry, Time};
use bytes::Bytes;
use engine_host::service::{
    FULL, PLAIN, answer, bare_event, event, failure, head, json, pause, problem, reply, result,
    say, stream, tool,
};
use engine_host::{Act, CLIENT_KEY, Host, SECRET, config};
use proptest::prelude::*;

fn fresh() -> Host {
    Host::new(config(), Environment::none(), 0)
}

// ---- usage -----------------------------------------------------------------------------------

#[test]
fn an_engine_that_cannot_work_is_not_made() {
    for (url, key) in [
        ("127.0.0.1:8080", CLIENT_KEY),
        ("http://user:pLaNtEd@x", CLIENT_KEY),
        ("http://x", ""),
        ("http://x", "pLaNtEd\r\nX: y"),
    ] {
        let error = Engine::new(Config::new(url, key), 1, 0, Environment::none()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(!format!("{error} {error:?}").contains(SECRET));
    }
}

#[test]
fn commands_of_a_session_need_one() {
    let mut host = fresh();
    for command in
        [say("x"), Command::Participants, Command::Close, Command::Subscribe { from: None }]
    {
        assert_eq!(host.try_command(2, command).unwrap_err().kind(), ErrorKind::Usage);
    }
    // Not while it is being opened either.
    host.command(1, Command::Open { tools: Vec::new(), metadata: None });
    assert_eq!(host.try_command(2, say("x")).unwrap_err().kind(), ErrorKind::Usage);
    let again = host.try_command(2, Command::Open { tools: Vec::new(), metadata: None });
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Usage);
    assert!(host.said(2).is_empty());
}

#[test]
fn a_number_in_use_is_refused_and_the_operation_goes_on() {
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), |r| stream(&[reply(r, "hi")]));
    host.command(2, say("go"));
    assert_eq!(host.try_command(2, say("again")).unwrap_err().kind(), ErrorKind::Usage);
    host.finish(2);
    assert_eq!(host.left("session.sendMessage"), 1);
}

#[test]
fn tools_that_cannot_be_declared_are_refused_before_anything_leaves() {
    let mut host = fresh();
    let twice = vec![tool("a"), tool("a")];
    let refused = host.try_command(1, Command::Open { tools: twice, metadata: None });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(host.effects.is_empty());
}

#[test]
fn an_open_that_failed_may_be_tried_again() {
    let reset = vec![Act::Close(CloseReason::Reset)];
    let other_version = json(200, r#"{"version":"2","api_versions":["v9"]}"#);
    let meta = json(200, r#"{"version":"0.1.0","api_versions":["v1"]}"#);
    for (first, second) in [
        (answer(200, "text/html", "<html>"), Vec::new()),
        (other_version, Vec::new()),
        (reset.clone(), Vec::new()),
        (meta.clone(), problem(401, "unauthorized")),
        (meta.clone(), problem(403, "tool_not_allowed")),
        (meta.clone(), json(201, "{}")),
        (meta, reset),
    ] {
        let mut host = fresh();
        host.script = Box::new(move |r| match r.method.as_str() {
            "GET" => first.clone(),
            _ => second.clone(),
        });
        host.command(1, Command::Open { tools: Vec::new(), metadata: None });
        host.finish(1);
        assert!(host.outcome(1).unwrap().is_err());
        assert!(host.engine.session().is_none());
        host.script = engine_host::service::service(PLAIN, |_| Vec::new());
        host.command(2, Command::Open { tools: Vec::new(), metadata: None });
        host.finish(2);
        assert!(matches!(host.outcome(2), Some(Ok(Outcome::Opened { .. }))));
    }
}

#[test]
fn opening_registers_and_observing_does_not() {
    let mut host = fresh();
    host.script = engine_host::service::service(PLAIN, |_| Vec::new());
    host.command(1, Command::Observe { session_id: "ses_1".into() });
    host.finish(1);
    assert_eq!(host.left("session.registerDriver"), 0);
    assert!(host.requests.iter().any(|r| r.target == "/api/v1/sessions/ses_1/join"));
    let host = Host::opened(|_| (), 0, PLAIN, Vec::new(), |_| Vec::new());
    assert_eq!(host.left("session.registerDriver"), 1);
}

#[test]
fn only_features_of_both_sides_are_asked_for() {
    for (features, header) in
        [(PLAIN, None), (FULL, Some("display, cancel")), (&["cancel", "x"], Some("cancel"))]
    {
        let mut host = Host::opened(|_| (), 0, features, Vec::new(), |r| stream(&[reply(r, "hi")]));
        host.command(2, say("go"));
        host.finish(2);
        assert_eq!(host.requests[0].header("broca-features"), header);
    }
}

#[test]
fn history_participants_and_tools_are_asked_for() {
    let mut host = Host::opened(
        |_| (),
        0,
        PLAIN,
        Vec::new(),
        |r| match r.target.as_str() {
            "/api/v1/sessions/ses_1/events?cursor=a%26b&limit=7" => json(
                200,
                &format!(r#"{{"items":[{}],"next_cursor":"n"}}"#, bare_event("e1", "x.y", "{}")),
            ),
            "/api/v1/sessions/ses_1/participants" => json(200, r#"{"drivers":["key_1"]}"#),
            _ if r.rpc() == "session.updateClientTools" => {
                stream(&[result(r, r#"{"updated":true}"#)])
            }
            _ if r.rpc() == "session.sendMessage" => stream(&[pause(r, &[("a", "new")])]),
            other => panic!("{other}"),
        },
    );
    host.command(2, Command::History { cursor: Some("a&b".into()), limit: Some(7) });
    host.command(3, Command::Participants);
    host.command(4, Command::UpdateTools { tools: vec![tool("new")] });
    host.settle();
    let Some(Ok(Outcome::Page(page))) = host.outcome(2) else { panic!("{:?}", host.said(2)) };
    assert_eq!((page.events[0].id(), page.next.as_deref()), ("e1", Some("n")));
    let Some(Ok(Outcome::Participants(who))) = host.outcome(3) else { panic!() };
    assert_eq!(who.drivers, ["key_1"]);
    assert!(matches!(host.outcome(4), Some(Ok(Outcome::Updated))));
    host.command(5, say("go"));
    host.settle();
    assert!(matches!(host.said(5).last(), Some(Step::ToolCall(call)) if call.name == "new"));
}

// ---- closing ---------------------------------------------------------------------------------

#[test]
fn closing_ends_the_turns_and_none_begins_after_it() {
    let mut host = Host::opened(
        |_| (),
        0,
        PLAIN,
        vec![tool("x")],
        |r| match r.rpc() {
            "session.sendMessage" => stream(&[pause(r, &[("a", "x")])]),
            "session.subscribe" => vec![head()],
            _ => json(200, r#"{"session_id":"ses_1","state":"closed"}"#),
        },
    );
    host.command(2, say("go"));
    host.command(3, say("queued"));
    host.command(4, Command::Subscribe { from: None });
    host.settle();
    let Some(Step::ToolCall(call)) = host.said(2).last().cloned() else { panic!() };
    host.command(5, Command::Close);
    host.settle();
    for op in [2, 3] {
        assert_eq!(host.error(op).kind(), ErrorKind::Closed);
    }
    // A subscription still brings the end of the session.
    assert!(host.outcome(4).is_none());
    assert!(
        host.said(2).iter().any(|s| matches!(s, Step::ToolCancel { call: c } if *c == call.call))
    );
    assert!(matches!(host.outcome(5), Some(Ok(Outcome::Closed))));
    assert_eq!(host.requests.last().unwrap().method, "DELETE");
    let late = host.answer(call.call, Answer::Complete(Json::string("x"))).unwrap();
    assert_eq!(late, Accepted::TooLate);
    for command in [say("x"), Command::Open { tools: Vec::new(), metadata: None }] {
        assert_eq!(host.try_command(6, command).unwrap_err().kind(), ErrorKind::Closed);
    }
}

#[test]
fn closing_what_is_closed_is_no_error_and_a_failed_close_may_be_repeated() {
    let mut tries = 0;
    let mut host = Host::opened(
        |_| (),
        0,
        PLAIN,
        Vec::new(),
        move |_| {
            tries += 1;
            if tries == 1 { problem(500, "internal") } else { problem(409, "session_closed") }
        },
    );
    host.command(2, Command::Close);
    host.finish(2);
    assert_eq!(host.error(2).kind(), ErrorKind::Api);
    host.command(3, Command::Close);
    host.finish(3);
    assert!(matches!(host.outcome(3), Some(Ok(Outcome::Closed))));
}

// ---- hooks -----------------------------------------------------------------------------------

fn hooked(rest: impl FnMut(&engine_host::Request) -> Vec<Act> + 'static) -> Host {
    Host::opened(|c| c.hooks = true, 0, PLAIN, vec![tool("x")], rest)
}

fn sending(host: &Host, op: u64) -> (CallId, u32) {
    match host.said(op).last() {
        Some(Step::Sending { call, round, .. }) => (*call, *round),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hook_may_change_the_message_and_its_trace_and_sees_the_answer() {
    let mut host = hooked(|r| stream(&[reply(r, "hi")]));
    host.command(2, say("go"));
    host.settle();
    assert_eq!(host.left("session.sendMessage"), 0);
    let (call, round) = sending(&host, 2);
    assert_eq!(round, 0);
    let trace = Trace { traceparent: Some("00-a-b-01".into()), tracestate: Some("k=v".into()) };
    let changed = Answer::Send { message: Some(Message::user("changed")), trace: Some(trace) };
    assert_eq!(host.answer(call, Answer::Allow).unwrap_err().kind(), ErrorKind::Usage);
    host.answer(call, changed).unwrap();
    host.settle();
    let sent = host.rpcs("session.sendMessage")[0];
    assert_eq!(sent.body["params"]["message"]["content"], "changed");
    assert_eq!(sent.header("traceparent"), Some("00-a-b-01"));
    assert_eq!(sent.header("tracestate"), Some("k=v"));
    let received =
        |s: &Step| matches!(s, Step::Received { round: 0, message } if message.text() == "hi");
    assert!(host.said(2).iter().any(received));
}

#[test]
fn what_a_hook_changed_is_what_goes_again_after_a_registration() {
    let mut sent = 0;
    let mut host = hooked(move |r| match r.rpc() {
        "session.registerDriver" => stream(&[result(r, "{}")]),
        _ => {
            sent += 1;
            if sent == 1 {
                stream(&[failure(r, -32001, "register first")])
            } else {
                stream(&[reply(r, "hi")])
            }
        }
    });
    host.command(2, say("go"));
    host.settle();
    let trace = Trace { traceparent: Some("00-x".into()), tracestate: None };
    let changed = Answer::Send { message: Some(Message::user("changed")), trace: Some(trace) };
    host.answer(sending(&host, 2).0, changed).unwrap();
    host.finish(2);
    let sent = host.rpcs("session.sendMessage");
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].body["params"], sent[1].body["params"]);
    assert_eq!(sent[1].header("traceparent"), Some("00-x"));
}

#[test]
fn a_hook_that_refuses_or_sleeps_ends_the_turn_before_it_leaves() {
    for refuses in [true, false] {
        let mut host = hooked(|_| Vec::new());
        host.command(2, say("go"));
        host.settle();
        let (call, _) = sending(&host, 2);
        if refuses {
            host.answer(call, Answer::Refuse("budget".into())).unwrap();
        }
        host.finish(2);
        assert_eq!((host.error(2).kind(), host.error(2).retry()), (ErrorKind::Hook, Retry::Safe));
        assert_eq!(host.left("session.sendMessage"), 0);
        let late = host.answer(call, Answer::Send { message: None, trace: None }).unwrap();
        assert_eq!(late, Accepted::TooLate);
    }
}

#[test]
fn a_refused_continuation_keeps_its_results() {
    let mut sent = 0;
    let mut host = hooked(move |r| {
        sent += 1;
        if sent == 1 { stream(&[pause(r, &[("a", "x")])]) } else { stream(&[reply(r, "hi")]) }
    });
    let go = || Answer::Send { message: None, trace: None };
    host.command(2, say("go"));
    host.settle();
    host.answer(sending(&host, 2).0, go()).unwrap();
    host.settle();
    let Some(Step::ToolCall(call)) = host.said(2).last().cloned() else { panic!() };
    host.answer(call.call, Answer::Complete(Json::string("R"))).unwrap();
    host.settle();
    let (call, round) = sending(&host, 2);
    assert_eq!(round, 1);
    host.answer(call, Answer::Refuse("no".into())).unwrap();
    host.settle();
    host.command(3, say("more"));
    host.settle();
    host.answer(sending(&host, 3).0, go()).unwrap();
    host.finish(3);
    let last = host.rpcs("session.sendMessage")[1];
    assert_eq!(engine_host::service::results(last), [("a".into(), false)]);
}

#[test]
fn trace_headers_that_cannot_be_written_end_the_operation_and_not_the_client() {
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), |r| stream(&[reply(r, "hi")]));
    let trace = Trace { traceparent: Some("a\r\nb: c".into()), tracestate: None };
    let now = host.time();
    host.engine.command(OpId(2), say("go"), trace, now).unwrap();
    host.begun(2);
    host.settle();
    assert_eq!(host.error(2).kind(), ErrorKind::InvalidArgument);
    assert_eq!(host.left("session.sendMessage"), 0);
    host.command(3, say("go"));
    host.finish(3);
    assert!(matches!(host.outcome(3), Some(Ok(_))));
}

// ---- numbers, timers -------------------------------------------------------------------------

#[test]
fn inputs_for_numbers_that_mean_nothing_change_nothing() {
    let mut host = Host::opened(|_| (), 0, FULL, vec![tool("x")], |_| vec![head()]);
    host.command(2, say("go"));
    host.settle();
    let known = host.open_connections();
    let before = (host.said(2).len(), host.effects.len());
    let bytes = Bytes::from(format!("{}\n", event("e1", "x", "{}")));
    for n in (0..60).chain([u64::MAX]) {
        let now = host.time();
        let conn = ConnId(n);
        host.engine.resolved(ResolveId(n), Ok(vec!["192.0.2.7".parse().unwrap()]), now);
        host.engine.connected(conn, now);
        host.engine.tls_started(conn, now);
        if !known.contains(&conn) {
            host.engine.data(conn, bytes.clone(), now);
            host.engine.written(conn, 1 << 40, now);
            host.engine.closed(conn, CloseReason::Reset, now);
        }
        let _ = host.engine.answer(CallId(n), Answer::Allow, now);
        if n != 2 {
            host.engine.cancel(OpId(n), now);
        }
        let mut steps = Vec::new();
        host.engine.steps(OpId(n.wrapping_add(3)), 1, &mut steps);
        assert!(steps.is_empty());
        host.engine.timeout(now);
        host.effects_out();
    }
    host.settle();
    assert_eq!((host.said(2).len(), host.effects.len()), before);
}

#[test]
fn a_timer_that_rings_early_or_often_does_no_harm() {
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), |_| vec![head()]);
    host.command(2, Command::Subscribe { from: None });
    host.command(3, say("go"));
    host.settle();
    let before = host.effects.len();
    for ms in [0, 1, 100, 20_000, 5] {
        let at = Time::from_millis(host.now + ms);
        host.engine.timeout(at);
        host.engine.timeout(at);
        host.effects_out();
    }
    let timers = |e: &&Effect| !matches!(e, Effect::Timer { .. });
    assert_eq!(host.effects[before..].iter().filter(timers).count(), 0);
}

#[test]
fn nothing_that_can_be_printed_shows_a_key_or_a_payload() {
    let mut settings = config();
    settings.client_version = None;
    let environment = Environment::from_vars(|name| {
        (name == "http_proxy").then(|| format!("http://u:{SECRET}@proxy:1"))
    });
    let answers = [
        Answer::Complete(Json::string(SECRET)),
        Answer::Fail(SECRET.into()),
        Answer::AllowNarrowed(Json::string(SECRET)),
        Answer::Deny(SECRET.into()),
        Answer::Send { message: Some(Message::user(SECRET)), trace: None },
        Answer::Refuse(SECRET.into()),
    ];
    let shown = format!("{settings:?} {environment:?} {answers:?} {:?}", say(SECRET));
    assert!(!shown.contains(SECRET), "{shown}");
    // Steps, effects, errors and log records are looked at by the host, in every test.
    let mut host = Host::opened(
        |_| (),
        0,
        FULL,
        vec![tool("x")],
        |r| {
            stream(&[
                event("e1", "tool.call", &format!("{{\"{SECRET}\":\"{SECRET}\"}}")),
                engine_host::service::delta(SECRET),
                format!("{{\"method\":\"x\",\"params\":\"{SECRET}\"}}"),
                format!("junk {SECRET}"),
                format!("{{\"id\":99,\"result\":\"{SECRET}\"}}"),
                result(r, &format!("{{\"events\":[],\"message\":\"{SECRET}\"}}")),
            ])
        },
    );
    host.command(2, say(SECRET));
    host.finish(2);
    assert_eq!(host.error(2).kind(), ErrorKind::Malformed);
    assert!(host.said(2).len() >= 6);
}

#[derive(Debug, Clone)]
enum Input {
    Command(u64, u8),
    Cancel(u64),
    Answer(u64, u8),
    Resolved(u64, u8),
    Connected(u64),
    Tls(u64),
    Data(u64, u8),
    Written(u64, usize),
    Closed(u64),
    Wait(u64),
    Steps(u64, usize),
}

fn input() -> impl Strategy<Value = Input> {
    let n = 0..30_u64;
    prop_oneof![
        (0..12_u64, 0..8_u8).prop_map(|(op, kind)| Input::Command(op, kind)),
        (0..12_u64).prop_map(Input::Cancel),
        (n.clone(), 0..7_u8).prop_map(|(call, kind)| Input::Answer(call, kind)),
        (n.clone(), 0..4_u8).prop_map(|(req, many)| Input::Resolved(req, many)),
        n.clone().prop_map(Input::Connected),
        n.clone().prop_map(Input::Tls),
        (n.clone(), 0..16_u8).prop_map(|(conn, what)| Input::Data(conn, what)),
        (n.clone(), 0..2_000_usize).prop_map(|(conn, bytes)| Input::Written(conn, bytes)),
        n.prop_map(Input::Closed),
        (0..60_000_u64).prop_map(Input::Wait),
        (0..12_u64, 0..3_000_usize).prop_map(|(op, max)| Input::Steps(op, max)),
    ]
}

fn pieces(what: u8, id: u64) -> String {
    let (connected, ok) = (
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    let chunk = |text: String| format!("{:x}\r\n{text}\n\r\n", text.len() + 1);
    let body = r#"{"version":"1","api_versions":["v1"],"features":["cancel","display"],"session_id":"s","session_key":"k","drivers":[],"items":[]}"#;
    match what {
        0 => connected.to_owned(),
        1 => ok.to_owned(),
        2..=5 => format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
        6 => format!(
            "{ok}{}0\r\n\r\n",
            chunk(format!("{{\"id\":{id},\"result\":{{\"message\":{{\"content\":\"x\"}}}}}}"))
        ),
        7 => format!(
            "{ok}{}0\r\n\r\n",
            chunk(format!(
                r#"{{"id":null,"result":{{"message":{{"content":[{{"type":"tool_use","id":"t{id}","name":"x","input":{{}},"dispatch":"client"}}]}}}}}}"#
            ))
        ),
        8 => chunk(event(&format!("e{id}"), "session.open", "{}")),
        9 => chunk(event(&format!("e{id}"), "session.close", "{}")),
        10 => {
            chunk("{\"id\":null,\"error\":{\"code\":-32001,\"message\":\"register\"}}".to_owned())
        }
        11 => "0\r\n\r\n".to_owned(),
        12 => "HTTP/1.1 503 X\r\nContent-Length: 2\r\n\r\n{}".to_owned(),
        13 => "HTTP/1.1 200 OK\r\nContent-Length: 9".to_owned(),
        14 => chunk("junk".to_owned()),
        _ => "\u{0}".to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Any inputs in any order, right or wrong: no panic; nothing after `Finished`; and once everything is
    /// cancelled and time has passed, nothing is left over.
    #[test]
    fn whatever_goes_in_every_operation_ends_once(
        inputs in prop::collection::vec(input(), 0..120), seed in any::<u64>(), proxy in any::<bool>(), hooks in any::<bool>(),
    ) {
        let mut settings = Config::new(if proxy { "https://x.org" } else { "http://x.org" }, CLIENT_KEY);
        settings.max_connections = 2;
        settings.step_buffer_bytes = 2_000;
        settings.hooks = hooks;
        let environment = Environment::from_vars(|n| (proxy && n == "https_proxy").then(|| "http://p:1".into()));
        let mut engine = Engine::new(settings, seed, 0, environment).unwrap();
        let (mut now, mut open, mut timer, mut busy) = (0, std::collections::BTreeSet::new(), None, false);
        let mut conns = std::collections::BTreeSet::new();
        let mut next_op = 100;
        let mut names = std::collections::BTreeMap::new();
        for input in inputs.into_iter().chain([Input::Wait(0)]) {
            let at = Time::from_millis(now);
            match input {
                Input::Command(op, kind) => {
                    let command = match kind {
                        0 | 1 => Command::Open { tools: vec![tool("x")], metadata: None },
                        2 | 3 => say("hi"),
                        4 => Command::Subscribe { from: None },
                        5 => Command::History { cursor: None, limit: None },
                        6 => Command::Observe { session_id: "s".into() },
                        _ => Command::Close,
                    };
                    next_op += 1;
                    if engine.command(OpId(next_op), command, Trace::default(), at).is_ok() {
                        names.insert(op, OpId(next_op));
                        open.insert(OpId(next_op));
                    }
                }
                Input::Cancel(op) => if let Some(op) = names.get(&op) { engine.cancel(*op, at) },
                Input::Answer(call, kind) => {
                    let answer = match kind {
                        0 => Answer::Complete(Json::string("x")),
                        1 => Answer::Fail("x".into()),
                        2 => Answer::Allow,
                        3 => Answer::Deny("x".into()),
                        4 => Answer::Refuse("x".into()),
                        5 => Answer::AllowNarrowed(Json::null()),
                        _ => Answer::Send { message: None, trace: None },
                    };
                    let _ = engine.answer(CallId(call), answer, at);
                }
                Input::Resolved(req, many) => {
                    let list = (0..many).map(|i| std::net::IpAddr::from([192, 0, 2, i])).collect();
                    engine.resolved(ResolveId(req), Ok(list), at);
                }
                Input::Connected(conn) => engine.connected(ConnId(conn), at),
                Input::Tls(conn) => engine.tls_started(ConnId(conn), at),
                Input::Data(conn, what) => engine.data(ConnId(conn), pieces(what, conn).into(), at),
                Input::Written(conn, n) => engine.written(ConnId(conn), n, at),
                Input::Closed(conn) => { conns.remove(&ConnId(conn)); engine.closed(ConnId(conn), CloseReason::Reset, at); }
                Input::Wait(ms) => { now += ms; engine.timeout(Time::from_millis(now)); }
                Input::Steps(op, max) => if let Some(op) = names.get(&op) {
                    let mut steps = Vec::new();
                    engine.steps(*op, max, &mut steps);
                    for step in steps {
                        prop_assert!(open.contains(op), "{:?} after Finished", step);
                        if matches!(step, Step::Finished(_)) { open.remove(op); }
                    }
                },
            }
            while let Some(effect) = engine.io() {
                match effect {
                    Effect::Timer { at } => timer = at,
                    Effect::Busy(b) => { prop_assert_ne!(b, busy); busy = b; }
                    Effect::Connect { conn, .. } => prop_assert!(conns.insert(conn)),
                    Effect::Close { conn, .. } => prop_assert!(conns.remove(&conn)),
                    Effect::Write { conn, .. } | Effect::PauseRead { conn } | Effect::ResumeRead { conn } | Effect::StartTls { conn, .. } => {
                        prop_assert!(conns.contains(&conn), "{:?}", conn);
                    }
                    _ => {}
                }
            }
        }
        let ops: Vec<OpId> = names.values().copied().chain(open.iter().copied()).collect();
        for op in &ops { engine.cancel(*op, Time::from_millis(now)); }
        for _ in 0..10 { now += 40_000; engine.timeout(Time::from_millis(now)); }
        for op in ops {
            let mut steps = Vec::new();
            engine.steps(op, usize::MAX, &mut steps);
            let finished = steps.iter().filter(|s| matches!(s, Step::Finished(_))).count();
            prop_assert_eq!(finished, usize::from(open.remove(&op)), "{:?}: {:?}", op, steps);
        }
        while let Some(effect) = engine.io() {
            match effect {
                Effect::Timer { at } => timer = at,
                Effect::Busy(b) => busy = b,
                Effect::Close { conn, .. } => { conns.remove(&conn); }
                _ => {}
            }
        }
        prop_assert!(!busy && timer.is_none() && conns.is_empty(), "{busy} {timer:?} {conns:?}");
    }
}

#[test]
fn an_engine_that_was_never_used_wants_nothing() {
    let mut host = fresh();
    host.settle();
    assert!(host.effects.is_empty());
}
