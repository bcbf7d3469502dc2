//! A message is never sent again once bytes of it may have left, unless the service provably did
//! nothing with it (guarantee 4).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{Answer, CloseReason, Command, Outcome, Step};
use broca::proto::session::exchange::WarningClass;
use broca::{ErrorKind, Json, Retry};
use engine_host::service::{
    FULL, PLAIN, blocks, end, event, failure, head, line, pause, reply, result, results, say,
    stream, tool,
};
use engine_host::{Act, Dial, Host, Request};

const RESETS: [CloseReason; 4] =
    [CloseReason::Eof, CloseReason::UncleanEof, CloseReason::Reset, CloseReason::TimedOut];

/// A turn whose answer breaks off as `acts` say. Registration closes its connection, so that the
/// message dials.
fn broken(acts: &[Act]) -> Host {
    let acts = acts.to_vec();
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), move |_| acts.clone());
    host.advance(5_000);
    host.command(2, say("go"));
    host
}

#[test]
fn a_message_that_cannot_connect_has_not_left() {
    for why in [CloseReason::Refused, CloseReason::Unreachable, CloseReason::Local] {
        let mut host = broken(&[]);
        host.dialler = Box::new(move |_| Dial::Fail(why));
        host.finish(2);
        assert_eq!(
            (host.error(2).kind(), host.error(2).retry()),
            (ErrorKind::Connect, Retry::Safe)
        );
        assert_eq!(host.left("session.sendMessage"), 0);
    }
}

#[test]
fn a_message_that_left_once_never_leaves_again_wherever_the_answer_breaks() {
    let some = event("e1", "tool.call", "{}");
    let before_head: Vec<Act> = vec![];
    let in_head = vec![Act::Send(b"HTTP/1.1 200".to_vec())];
    let after_head = vec![head()];
    let in_body = vec![head(), line(&some)];
    let in_line = vec![head(), Act::Send(b"40\r\n{\"jsonrpc\":".to_vec())];
    for why in RESETS {
        for acts in [&before_head, &in_head, &after_head, &in_body, &in_line] {
            let mut acts = acts.clone();
            acts.push(Act::Close(why));
            let mut host = broken(&acts);
            host.finish(2);
            host.advance(100_000);
            assert_eq!(host.error(2).retry(), Retry::Unknown, "{acts:?}");
            assert!(matches!(host.error(2).kind(), ErrorKind::Io | ErrorKind::StreamEndedEarly));
            assert_eq!(host.left("session.sendMessage"), 1, "{acts:?}");
        }
    }
}

#[test]
fn the_reason_of_the_end_is_named() {
    let mut host = broken(&[Act::Close(CloseReason::Reset)]);
    host.finish(2);
    assert!(host.error(2).message().contains("reset"), "{}", host.error(2));
}

#[test]
fn a_body_that_is_cut_after_its_terminal_line_is_a_success() {
    for why in RESETS {
        let service = move |r: &Request| vec![head(), line(&reply(r, "hi")), Act::Close(why)];
        let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), service);
        host.command(2, say("go"));
        host.finish(2);
        assert!(matches!(host.outcome(2), Some(Ok(_))), "{:?}", host.said(2));
        assert_eq!(host.left("session.sendMessage"), 1);
    }
}

#[test]
fn a_message_on_a_kept_connection_that_turns_out_dead_is_not_repeated() {
    let service = |_: &Request| vec![Act::Close(CloseReason::Reset)];
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), service);
    let kept = host.open_connections();
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(host.rpcs("session.sendMessage")[0].conn, kept[0]);
    assert_eq!((host.left("session.sendMessage"), host.error(2).retry()), (1, Retry::Unknown));
}

#[test]
fn a_silent_service_times_out_with_an_unknown_outcome() {
    let mut host = broken(&[]);
    host.finish(2);
    assert_eq!((host.error(2).kind(), host.error(2).retry()), (ErrorKind::Timeout, Retry::Unknown));
    assert_eq!(host.left("session.sendMessage"), 1);
}

#[test]
fn a_driver_the_service_has_forgotten_registers_and_sends_once_more() {
    for always in [false, true] {
        let mut sent = 0;
        let service = move |r: &Request| match r.rpc() {
            "session.registerDriver" => stream(&[result(r, "{}")]),
            _ => {
                sent += 1;
                if sent == 1 || always {
                    let text = "call session.registerDriver before session.sendMessage";
                    return stream(&[failure(r, -32001, text)]);
                }
                stream(&[reply(r, "hi")])
            }
        };
        let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), service);
        host.command(2, say("go"));
        host.finish(2);
        host.advance(10_000);
        let order: Vec<&str> = host.requests.iter().map(Request::rpc).collect();
        let expected = ["session.sendMessage", "session.registerDriver", "session.sendMessage"];
        assert_eq!(order, expected);
        assert_eq!(host.requests[0].body["params"], host.requests[2].body["params"]);
        assert_ne!(host.requests[0].id(), host.requests[2].id());
        if always {
            assert_eq!(host.error(2).kind(), ErrorKind::DriverNotRegistered);
        } else {
            assert!(matches!(host.outcome(2), Some(Ok(_))));
        }
    }
}

#[test]
fn a_continuation_is_never_sent_again_and_its_results_are_kept() {
    let mut sent = 0;
    let service = move |r: &Request| match r.rpc() {
        "session.registerDriver" => stream(&[result(r, "{}")]),
        _ => {
            sent += 1;
            match sent {
                1 => stream(&[pause(r, &[("a", "x")])]),
                2 => stream(&[failure(r, -32001, "call session.registerDriver before it")]),
                _ => stream(&[reply(r, "hi")]),
            }
        }
    };
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], service);
    host.application = Box::new(complete);
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(host.error(2).kind(), ErrorKind::DriverNotRegistered);
    assert_eq!(host.left("session.registerDriver"), 1, "only when the session was opened");
    host.command(3, say("more"));
    host.finish(3);
    let sent = host.rpcs("session.sendMessage");
    assert_eq!(results(sent[2]), [("a".into(), false)]);
    assert_eq!(blocks(sent[2])[1]["text"], "more");
}

fn complete(_: broca::engine::OpId, step: &Step) -> Option<(broca::engine::CallId, Answer)> {
    match step {
        Step::ToolCall(call) => Some((call.call, Answer::Complete(Json::string("R")))),
        _ => None,
    }
}

#[test]
fn a_continuation_that_cannot_connect_keeps_its_results_for_the_next_message() {
    let mut sent = 0;
    let service = move |r: &Request| {
        sent += 1;
        if sent == 1 { stream(&[pause(r, &[("a", "x")])]) } else { stream(&[reply(r, "hi")]) }
    };
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], service);
    host.command(2, say("go"));
    host.settle();
    let Some(Step::ToolCall(call)) = host.said(2).last().cloned() else { panic!() };
    host.advance(10_000);
    host.dialler = Box::new(|_| Dial::Fail(CloseReason::Refused));
    host.answer(call.call, Answer::Complete(Json::string("R"))).unwrap();
    host.finish(2);
    assert_eq!((host.error(2).kind(), host.error(2).retry()), (ErrorKind::Connect, Retry::Safe));
    host.dialler = Box::new(|_| Dial::Open);
    host.command(3, say("more"));
    host.finish(3);
    assert_eq!(results(host.rpcs("session.sendMessage")[1]), [("a".into(), false)]);
}

#[test]
fn results_that_nobody_waits_for_any_more_are_left_out_and_the_message_goes_again() {
    let mut sent = 0;
    let service = move |r: &Request| {
        sent += 1;
        match sent {
            1 => stream(&[pause(r, &[("a", "x")])]),
            2 => stream(&[failure(
                r,
                -32000,
                "tool result merge invalid: no paused turn is awaiting tool results (it may have timed out and been retired)",
            )]),
            _ => stream(&[reply(r, "hi")]),
        }
    };
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], service);
    host.command(2, say("go"));
    host.settle();
    host.cancel(2);
    host.finish(2);
    host.command(3, say("more"));
    host.finish(3);
    assert!(matches!(host.outcome(3), Some(Ok(_))));
    let sent = host.rpcs("session.sendMessage");
    assert_eq!(results(sent[1]), [("a".into(), true)]);
    assert_eq!(sent[2].body["params"]["message"]["content"], "more");
    let noticed = |s: &Step| matches!(s, Step::Warning(w) if w.class == WarningClass::Notice);
    assert!(host.said(3).iter().any(noticed));
}

#[test]
fn a_refusal_of_another_kind_is_not_tried_again() {
    for (code, message, kind) in [
        (-32000, "session is closed, not open", ErrorKind::SessionClosed),
        (-32602, "Invalid params: x", ErrorKind::InvalidParams),
        (-32603, "Internal error", ErrorKind::Rpc),
    ] {
        let service = move |r: &Request| stream(&[failure(r, code, message)]);
        let mut host = Host::opened(|_| (), 0, FULL, Vec::new(), service);
        host.command(2, say("go"));
        host.finish(2);
        host.advance(60_000);
        assert_eq!((host.error(2).kind(), host.left("session.sendMessage")), (kind, 1));
    }
}

#[test]
fn a_lagged_turn_says_that_its_outcome_is_unknown() {
    let lag = r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"lagged; reconnect with since_event_id"}}"#;
    let acts = vec![head(), line(&event("e7", "tool.call", "{}")), line(lag), end()];
    let mut host = broken(&acts);
    host.finish(2);
    let error = host.error(2);
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Lagged, Retry::Unknown));
    let last = error.details().unwrap().member("last_event_id").unwrap();
    assert_eq!(last.to_text().as_deref(), Some("e7"));
    assert_eq!(host.left("session.sendMessage"), 1);
}

#[test]
fn tools_are_declared_again_to_a_service_that_had_forgotten_the_driver() {
    let mut asked = 0;
    let mut host = Host::opened(
        |_| (),
        0,
        PLAIN,
        vec![tool("x")],
        move |request| match request.rpc() {
            "session.registerDriver" => stream(&[result(request, r#"{"registered":true}"#)]),
            "session.updateClientTools" => {
                asked += 1;
                match asked {
                    1 | 3 | 4 => stream(&[failure(request, -32001, "call session.registerDriver")]),
                    _ => stream(&[result(request, r#"{"updated":true}"#)]),
                }
            }
            other => panic!("{other}"),
        },
    );
    host.command(2, Command::UpdateTools { tools: vec![tool("y")] });
    host.finish(2);
    assert!(matches!(host.outcome(2), Some(Ok(Outcome::Updated))));
    let methods: Vec<&str> = host.requests.iter().map(Request::rpc).collect();
    let update = "session.updateClientTools";
    assert_eq!(methods, [update, "session.registerDriver", update]);
    // One that is forgotten again and again is not asked for ever.
    host.command(3, Command::UpdateTools { tools: vec![tool("z")] });
    host.finish(3);
    assert_eq!(host.error(3).kind(), ErrorKind::DriverNotRegistered);
    assert_eq!(host.engine.save().unwrap().tools, ["y"]);
}
