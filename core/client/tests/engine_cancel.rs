//! Cancelling ends a turn once, whatever it was doing, and the next message can start at once
//! (guarantee 5).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{Answer, CallId, CloseReason, Command, Step};
use broca::{ErrorKind, Json, Retry};
use engine_host::service::{
    FULL, PLAIN, blocks, end, failure, head, line, pause, reply, result, results, results_of, say,
    stream, tool,
};
use engine_host::{Act, Dial, Host, Request};
use proptest::prelude::*;

/// A service whose messages answer as `acts` say, by number; the rest get a reply. `session.cancel`
/// is confirmed.
fn scripted(acts: Vec<fn(&Request) -> Vec<Act>>) -> impl FnMut(&Request) -> Vec<Act> {
    let mut sent = 0;
    move |r| match r.rpc() {
        "session.cancel" => stream(&[result(r, "{\"cancelled\":true}")]),
        "session.registerDriver" => stream(&[result(r, "{}")]),
        _ => {
            sent += 1;
            acts.get(sent - 1).map_or_else(|| stream(&[reply(r, "next")]), |act| act(r))
        }
    }
}

fn silent(_: &Request) -> Vec<Act> {
    vec![head()]
}

fn paused(r: &Request) -> Vec<Act> {
    stream(&[pause(r, &[("a", "x"), ("b", "x")])])
}

/// Operation 2 was cancelled; operation 3 goes through.
fn ends_well(host: &mut Host) {
    host.advance(20_000);
    assert_eq!(host.error(2).kind(), ErrorKind::Cancelled, "{:?}", host.said(2));
    host.cancel(2);
    host.command(3, say("next"));
    host.finish(3);
    assert!(matches!(host.outcome(3), Some(Ok(_))), "{:?}", host.said(3));
}

fn first_call(host: &Host) -> CallId {
    let call = |s: &Step| if let Step::ToolCall(call) = s { Some(call.call) } else { None };
    host.said(2).iter().find_map(call).unwrap()
}

#[test]
fn a_queued_turn_never_leaves() {
    for features in [PLAIN, FULL] {
        let mut host = Host::opened(|_| (), 0, features, Vec::new(), scripted(vec![silent]));
        host.command(4, say("first"));
        host.command(2, say("go"));
        host.settle();
        host.cancel(2);
        host.settle();
        assert_eq!(host.error(2).retry(), Retry::Safe);
        assert_eq!(host.left("session.sendMessage"), 1);
        host.cancel(4);
        ends_well(&mut host);
    }
}

#[test]
fn a_turn_that_is_still_dialling_never_leaves() {
    for features in [PLAIN, FULL] {
        let mut host = Host::opened(|_| (), 0, features, Vec::new(), scripted(vec![]));
        host.advance(10_000);
        host.dialler = Box::new(|_| Dial::Hang);
        host.command(2, say("go"));
        host.settle();
        host.cancel(2);
        host.settle();
        assert_eq!((host.left("session.sendMessage"), host.error(2).retry()), (0, Retry::Safe));
        assert_eq!(host.dialling(), 0);
        host.dialler = Box::new(|_| Dial::Open);
        ends_well(&mut host);
    }
}

#[test]
fn a_turn_at_its_hook_never_leaves() {
    let hooks = |c: &mut broca::engine::Config| c.hooks = true;
    let mut host = Host::opened(hooks, 0, FULL, Vec::new(), scripted(vec![]));
    host.command(2, say("go"));
    host.settle();
    let Some(Step::Sending { call, .. }) = host.said(2).last().cloned() else { panic!() };
    host.cancel(2);
    host.settle();
    let late = host.answer(call, Answer::Send { message: None, trace: None }).unwrap();
    assert_eq!(late, broca::engine::Accepted::TooLate);
    assert_eq!(host.left("session.sendMessage"), 0);
    host.application = Box::new(|_, step| match step {
        Step::Sending { call, .. } => Some((*call, Answer::Send { message: None, trace: None })),
        _ => None,
    });
    ends_well(&mut host);
}

#[test]
fn a_stream_of_a_plain_service_is_dropped_at_once() {
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), scripted(vec![silent]));
    host.command(2, say("go"));
    host.settle();
    host.cancel(2);
    host.settle();
    assert_eq!(host.error(2).retry(), Retry::Unknown);
    assert_eq!(host.left("session.cancel"), 0);
    assert!(host.open_connections().is_empty());
    ends_well(&mut host);
}

#[test]
fn a_stream_is_cancelled_by_name_where_the_service_can() {
    let mut host = Host::opened(|_| (), 0, FULL, Vec::new(), scripted(vec![silent]));
    host.command(2, say("go"));
    host.settle();
    let sent = host.rpcs("session.sendMessage")[0].clone();
    host.cancel(2);
    host.cancel(2);
    host.settle();
    assert_eq!(host.left("session.cancel"), 1);
    let cancel = host.rpcs("session.cancel")[0];
    assert_eq!(cancel.body["params"]["request_id"], sent.body["id"]);
    assert_ne!(cancel.conn, sent.conn);
    assert!(host.outcome(2).is_none(), "the stream's own end follows");
    host.act(sent.conn, line(&failure(&sent, -32021, "turn cancelled")));
    host.act(sent.conn, end());
    host.settle();
    assert_eq!(host.error(2).retry(), Retry::Safe);
    ends_well(&mut host);
}

#[test]
fn a_cancel_that_overtook_its_message_is_asked_again_once_the_message_is_heard() {
    for early in [true, false] {
        let mut host = Host::opened(
            |_| (),
            0,
            FULL,
            Vec::new(),
            |r| match r.rpc() {
                "session.cancel" => stream(&[result(r, r#"{"cancelled":false,"was":"idle"}"#)]),
                "session.registerDriver" => stream(&[result(r, "{}")]),
                _ => Vec::new(),
            },
        );
        host.command(2, say("go"));
        host.settle();
        let sent = host.rpcs("session.sendMessage")[0].clone();
        if early {
            host.act(sent.conn, head());
            host.settle();
        }
        host.cancel(2);
        host.settle();
        assert!(host.outcome(2).is_none(), "nothing has ended yet");
        if !early {
            assert_eq!(host.left("session.cancel"), 1, "the service does not know the message");
            host.act(sent.conn, head());
            host.settle();
        }
        assert_eq!(host.left("session.cancel"), 2);
        let cancel = host.rpcs("session.cancel")[1];
        assert_eq!(cancel.body["params"]["request_id"], sent.body["id"]);
        host.act(sent.conn, line(&failure(&sent, -32021, "turn cancelled")));
        host.act(sent.conn, end());
        host.settle();
        assert_eq!(host.left("session.cancel"), 2, "asked again once");
        assert_eq!(host.error(2).kind(), ErrorKind::Cancelled);
    }
}

#[test]
fn a_cancelled_turn_is_safe_to_repeat_only_when_the_service_says_that_it_ended() {
    let cut = |_: &Request| Act::Close(CloseReason::Reset);
    let ended: fn(&Request) -> Act = |r| line(&failure(r, -32021, "turn cancelled"));
    for (last, retry) in [(ended, Retry::Safe), (cut, Retry::Unknown)] {
        let mut host = Host::opened(
            |_| (),
            0,
            FULL,
            Vec::new(),
            |r| match r.rpc() {
                "session.cancel" => Vec::new(),
                _ => vec![head()],
            },
        );
        host.command(2, say("go"));
        host.settle();
        let sent = host.rpcs("session.sendMessage")[0].clone();
        host.cancel(2);
        host.settle();
        host.act(sent.conn, last(&sent));
        host.act(sent.conn, end());
        host.settle();
        assert_eq!((host.error(2).kind(), host.error(2).retry()), (ErrorKind::Cancelled, retry));
    }
}

#[test]
fn a_turn_that_was_faster_has_its_reply() {
    let mut host = Host::opened(|_| (), 0, FULL, Vec::new(), scripted(vec![silent]));
    host.command(2, say("go"));
    host.settle();
    let sent = host.rpcs("session.sendMessage")[0].clone();
    host.cancel(2);
    host.act(sent.conn, line(&reply(&sent, "fast")));
    host.act(sent.conn, end());
    host.settle();
    assert!(matches!(host.outcome(2), Some(Ok(_))));
    assert!(host.said(2).iter().any(|s| matches!(s, Step::Done(d) if d.text() == "fast")));
}

#[test]
fn a_turn_that_paused_while_it_was_cancelled_starts_no_tool() {
    let mut host = Host::opened(|_| (), 0, FULL, vec![tool("x")], scripted(vec![silent]));
    host.command(2, say("go"));
    host.settle();
    let sent = host.rpcs("session.sendMessage")[0].clone();
    host.cancel(2);
    host.act(sent.conn, line(&pause(&sent, &[("a", "x")])));
    host.act(sent.conn, end());
    ends_well(&mut host);
    assert!(!host.said(2).iter().any(|s| matches!(s, Step::ToolCall(_))));
    let next = host.rpcs("session.sendMessage")[1];
    assert_eq!(results(next), [("a".into(), true)]);
}

#[test]
fn a_service_that_does_not_answer_the_cancel_is_left_after_a_bound() {
    let mut host = Host::opened(
        |_| (),
        0,
        FULL,
        Vec::new(),
        |r| match r.rpc() {
            "session.cancel" => Vec::new(),
            _ if r.body["params"]["message"]["content"] == "next" => stream(&[reply(r, "n")]),
            _ => vec![head()],
        },
    );
    host.command(2, say("go"));
    host.settle();
    let before = host.now;
    host.cancel(2);
    host.finish(2);
    assert_eq!(host.now - before, 5_000);
    assert_eq!(host.error(2).retry(), Retry::Unknown);
    ends_well(&mut host);
}

#[test]
fn a_cancelled_pause_gives_tools_their_grace_and_its_results_lead_the_next_message() {
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], scripted(vec![paused]));
    host.command(2, say("go"));
    host.settle();
    host.answer(first_call(&host), Answer::Complete(Json::string("A"))).unwrap();
    host.cancel(2);
    host.settle();
    assert!(host.outcome(2).is_none());
    assert_eq!(host.said(2).iter().filter(|s| matches!(s, Step::ToolCancel { .. })).count(), 1);
    host.advance(1_999);
    assert!(host.outcome(2).is_none());
    host.advance(1);
    assert_eq!(host.error(2).kind(), ErrorKind::Cancelled);
    assert_eq!(host.left("session.sendMessage"), 1, "sending them would buy a model round");
    ends_well(&mut host);
    let next = host.rpcs("session.sendMessage")[1];
    assert_eq!(results(next), [("a".into(), false), ("b".into(), true)]);
    assert_eq!(blocks(next)[2]["text"], "next");
    host.command(5, say("once"));
    host.finish(5);
    assert_eq!(host.rpcs("session.sendMessage")[2].body["params"]["message"]["content"], "once");
}

#[test]
fn a_cancelled_pause_ends_as_soon_as_its_tools_have_stopped() {
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], scripted(vec![paused]));
    host.command(2, say("go"));
    host.settle();
    host.application = Box::new(|_, step| match step {
        Step::ToolCancel { call } => Some((*call, Answer::Fail("stopped".into()))),
        _ => None,
    });
    let before = host.now;
    host.cancel(2);
    host.finish(2);
    assert_eq!(host.now, before);
    ends_well(&mut host);
}

#[test]
fn a_service_that_can_cancel_gets_the_results_with_it() {
    let mut host = Host::opened(|_| (), 0, FULL, vec![tool("x")], scripted(vec![paused]));
    host.command(2, say("go"));
    host.settle();
    host.answer(first_call(&host), Answer::Complete(Json::string("A"))).unwrap();
    host.cancel(2);
    ends_well(&mut host);
    let cancel = host.rpcs("session.cancel")[0];
    let sent = cancel.body["params"]["results"].as_array().unwrap();
    assert_eq!(results_of(sent), [("a".into(), false), ("b".into(), true)]);
    assert_eq!(host.rpcs("session.sendMessage")[1].body["params"]["message"]["content"], "next");
}

#[test]
fn a_continuation_that_has_not_left_loses_no_result_when_it_is_cancelled() {
    for features in [PLAIN, FULL] {
        let mut host = Host::opened(|_| (), 0, features, vec![tool("x")], scripted(vec![paused]));
        host.command(2, say("go"));
        host.settle();
        host.advance(10_000);
        host.dialler = Box::new(|_| Dial::Hang);
        host.application = Box::new(|_, _| None);
        let calls: Vec<CallId> = host
            .said(2)
            .iter()
            .filter_map(|s| if let Step::ToolCall(c) = s { Some(c.call) } else { None })
            .collect();
        for call in calls {
            host.answer(call, Answer::Complete(Json::string("R"))).unwrap();
        }
        host.settle();
        assert_eq!(host.left("session.sendMessage"), 1);
        host.dialler = Box::new(|_| Dial::Open);
        host.cancel(2);
        ends_well(&mut host);
        let expected = [("a".into(), false), ("b".into(), false)];
        if features.is_empty() {
            assert_eq!(results(host.rpcs("session.sendMessage")[1]), expected);
        } else {
            let cancel = &host.rpcs("session.cancel")[0].body["params"]["results"];
            assert_eq!(results_of(cancel.as_array().unwrap()), expected);
        }
    }
}

#[test]
fn a_cancel_does_not_queue_behind_streams() {
    let one = |c: &mut broca::engine::Config| c.max_connections = 2;
    let mut host = Host::opened(one, 0, FULL, Vec::new(), |r| match r.rpc() {
        "session.cancel" => stream(&[result(r, "{}")]),
        _ => vec![head()],
    });
    host.command(4, Command::Subscribe { from: None });
    host.command(2, say("go"));
    host.settle();
    host.command(5, Command::Participants);
    host.settle();
    assert_eq!(host.open_connections().len(), 2);
    host.cancel(2);
    host.settle();
    assert_eq!(host.left("session.cancel"), 1);
    // The connection that is always there for cancelling stays free for the next one.
    assert!(!host.requests.iter().any(|r| r.target.ends_with("/participants")));
}

#[test]
fn cancelling_a_registration_keeps_what_led_the_message() {
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], {
        let mut sent = 0;
        move |r| match r.rpc() {
            "session.registerDriver" => vec![head()],
            _ => {
                sent += 1;
                match sent {
                    1 => paused(r),
                    2 => stream(&[failure(r, -32001, "call session.registerDriver before it")]),
                    _ => stream(&[reply(r, "x")]),
                }
            }
        }
    });
    host.command(4, say("first"));
    host.settle();
    host.cancel(4);
    host.finish(4);
    host.command(2, say("go"));
    host.settle();
    assert_eq!(host.requests.last().unwrap().rpc(), "session.registerDriver");
    host.cancel(2);
    ends_well(&mut host);
    let next = host.rpcs("session.sendMessage")[2];
    assert_eq!(results(next).len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// At any moment, over any network: one `Finished`, and the next message goes through.
    #[test]
    fn a_turn_cancelled_at_any_moment_ends_once(
        seed in 1..u64::MAX,
        cancel in any::<bool>(),
        hooks in any::<bool>(),
        steps in 0..60_usize,
        again in 0..4_000_u64,
        fate in 0..5_u8,
    ) {
        let features = if cancel { FULL } else { PLAIN };
        let set = |c: &mut broca::engine::Config| c.hooks = hooks;
        let mut sent = 0;
        let mut host = Host::opened(set, seed, features, vec![tool("x")], move |r| match r.rpc() {
            "session.cancel" => match fate {
                0 => Vec::new(),
                1 => stream(&[failure(r, -32601, "Method not found: session.cancel")]),
                2 => vec![Act::Close(CloseReason::Reset)],
                _ => stream(&[result(r, "{}")]),
            },
            _ if r.body["params"]["message"]["content"].to_string().contains("next") => {
                stream(&[reply(r, "next")])
            }
            _ => {
                sent += 1;
                let mut acts = vec![head(), Act::Wait(700)];
                acts.push(line(&if sent < 3 { pause(r, &[("a", "x"), ("b", "x")]) } else { reply(r, "done") }));
                acts.push(if fate == 3 { Act::Close(CloseReason::Eof) } else { end() });
                acts
            }
        });
        host.application = Box::new(|_, step| match step {
            Step::ToolCall(call) if call.tool_use_id == "a" => Some((call.call, Answer::Complete(Json::string("A")))),
            Step::Sending { call, .. } => Some((*call, Answer::Send { message: None, trace: None })),
            _ => None,
        });
        host.command(2, say("go"));
        for _ in 0..steps { host.advance(50); }
        host.cancel(2);
        host.advance(again);
        host.cancel(2);
        host.advance(10_000);
        let finished = host.said(2).iter().filter(|s| matches!(s, Step::Finished(_))).count();
        prop_assert_eq!(finished, 1);
        host.command(3, say("next"));
        host.advance(10_000);
        prop_assert!(matches!(host.outcome(3), Some(Ok(_))), "{:?}", host.said(3));
    }
}
