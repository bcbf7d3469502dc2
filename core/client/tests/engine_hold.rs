//! A paused turn is held while its tools run or a person decides (guarantee 3).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{Answer, CallId, Command, Config, Step};
use broca::{ErrorKind, Json};
use engine_host::service::{
    PLAIN, failure, head, pause, reply, result, results, say, stream, tool,
};
use engine_host::{Act, Host, Request};

const HOLDS: &[&str] = &["cancel", "hold"];

type Said = fn(&Request) -> Vec<Act>;

fn held(request: &Request) -> Vec<Act> {
    stream(&[result(request, r#"{"held":true,"expires_in_ms":120000}"#)])
}

fn gone(request: &Request) -> Vec<Act> {
    stream(&[result(request, r#"{"held":false}"#)])
}

/// A program in a turn that has paused with one call of `x`.
fn paused(change: impl FnOnce(&mut Config), features: &[&str], hold: Said) -> Host {
    let mut first = true;
    let mut asks = tool("x");
    asks.approval = features.contains(&"approval");
    let mut host =
        Host::opened(change, 0, features, vec![asks], move |request| match request.rpc() {
            "session.hold" => hold(request),
            "session.cancel" => stream(&[result(request, r#"{"cancelled":true,"was":"paused"}"#)]),
            "session.subscribe" => vec![head()],
            "session.sendMessage" if std::mem::take(&mut first) => {
                stream(&[pause(request, &[("a", "x")])])
            }
            _ => stream(&[reply(request, "done")]),
        });
    host.command(2, say("go"));
    host.settle();
    host
}

fn call(host: &Host) -> CallId {
    let call = |step: &Step| match step {
        Step::ToolCall(call) | Step::Approval(call) => Some(call.call),
        _ => None,
    };
    host.said(2).iter().rev().find_map(call).unwrap_or_else(|| panic!("{:?}", host.said(2)))
}

fn complete(host: &mut Host) {
    let call = call(host);
    host.answer(call, Answer::Complete(Json::string("A"))).unwrap();
    host.finish(2);
    assert!(matches!(host.outcome(2), Some(Ok(_))), "{:?}", host.said(2));
}

/// Whether the one result that was sent says that its call failed.
fn has_failed(host: &Host) -> bool {
    let sent = host.rpcs("session.sendMessage");
    assert_eq!(sent.len(), 2);
    results(sent[1])[0].1
}

#[test]
fn a_tool_may_take_an_hour_where_the_service_holds_its_turn() {
    let mut host = paused(|_| (), HOLDS, held);
    assert_eq!(host.left("session.hold"), 0, "a quick tool costs nothing");
    host.advance(3_600_000);
    assert_eq!(host.left("session.sendMessage"), 1);
    assert!((30..120).contains(&host.left("session.hold")), "{}", host.left("session.hold"));
    complete(&mut host);
    assert!(!has_failed(&host));
    let left = host.left("session.hold");
    host.advance(600_000);
    assert_eq!(host.left("session.hold"), left, "nothing is open any more");
}

#[test]
fn a_person_may_take_an_hour_too() {
    let mut host = paused(|_| (), &["hold", "approval"], held);
    host.advance(3_600_000);
    let asked = call(&host);
    host.answer(asked, Answer::Allow).unwrap();
    host.settle();
    complete(&mut host);
    assert!(!has_failed(&host));
}

#[test]
fn a_service_that_cannot_hold_is_never_asked() {
    let mut host = paused(|_| (), PLAIN, held);
    host.advance(109_000);
    assert_eq!(host.left("session.hold"), 0);
    assert!(has_failed(&host));
}

#[test]
fn holding_has_a_bound_of_the_programs_own() {
    let mut host = paused(|c| c.hold_ms = Some(600_000), HOLDS, held);
    host.advance(599_000);
    assert_eq!(host.left("session.sendMessage"), 1);
    host.advance(110_000);
    assert!(has_failed(&host));
    let mut host = paused(|c| c.hold_ms = None, HOLDS, held);
    host.advance(109_000);
    assert_eq!(host.left("session.hold"), 0);
    assert!(has_failed(&host));
}

#[test]
fn a_pause_that_is_gone_is_not_asked_for_again() {
    for hold in [gone as Said, |r: &Request| stream(&[failure(r, -32601, "Method not found")])] {
        let mut host = paused(|_| (), HOLDS, hold);
        host.advance(109_000);
        assert_eq!(host.left("session.hold"), 1);
        assert!(has_failed(&host), "the deadline that was known holds");
    }
}

#[test]
fn a_hold_that_nobody_answers_is_tried_again_and_then_the_deadline_counts() {
    let mut host = paused(|c| c.head_timeout_ms = 3_000, HOLDS, |_| Vec::new());
    host.advance(109_000);
    assert!(host.left("session.hold") > 2, "{}", host.left("session.hold"));
    assert!(has_failed(&host));
}

#[test]
fn a_hold_does_not_queue_behind_streams() {
    let mut host = paused(|c| c.max_connections = 1, HOLDS, held);
    host.command(3, Command::Subscribe { from: None });
    host.settle();
    assert_eq!(host.left("session.subscribe"), 1);
    host.advance(200_000);
    assert!(host.left("session.hold") >= 3);
    assert_eq!(host.left("session.sendMessage"), 1);
}

#[test]
fn a_cancel_does_not_queue_behind_a_hold() {
    let mut host = paused(|c| c.max_connections = 1, HOLDS, |_| Vec::new());
    host.command(3, Command::Subscribe { from: None });
    host.advance(60_000);
    assert!(host.left("session.hold") > 0);
    host.cancel(2);
    host.advance(2_100);
    assert_eq!(host.left("session.cancel"), 1);
    host.finish(2);
    assert_eq!(host.error(2).kind(), ErrorKind::Cancelled);
}

#[test]
fn what_the_service_says_of_a_pause_counts_for_it() {
    let mut first = true;
    let mut host = Host::opened(
        |_| (),
        0,
        HOLDS,
        vec![tool("x")],
        move |request| match request.rpc() {
            "session.hold" => gone(request),
            _ if std::mem::take(&mut first) => {
                let paused = pause(request, &[("a", "x")]);
                let paused = paused
                    .replace("\"events\":[]", "\"events\":[],\"pause\":{\"expires_in_ms\":10000}");
                stream(&[paused])
            }
            _ => stream(&[reply(request, "done")]),
        },
    );
    host.command(2, say("go"));
    host.settle();
    host.advance(8_100);
    assert!(has_failed(&host));
}
