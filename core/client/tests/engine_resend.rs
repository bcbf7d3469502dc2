//! Where the service knows messages by their ids, a request whose answer broke off is sent again, and only there
//! (guarantee 4).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{Answer, CloseReason, Config, Environment, OpId, Reply, Step};
use broca::{ErrorKind, Json, Retry};
use engine_host::service::{
    PLAIN, bare_event, end, failure, head, line, result, results, say, service, stream, tool,
};
use engine_host::{Act, Dial, Host, Request};
use std::cell::RefCell;
use std::rc::Rc;

const IDS: &[&str] = &["message-id", "cancel"];
const HI: &str = r#"{"role":"assistant","content":[{"type":"text","text":"hi"}]}"#;
const PAUSED: &str = r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"x","input":{},"dispatch":"client"}]}"#;

fn cut() -> Vec<Act> {
    vec![Act::Close(CloseReason::Reset)]
}

/// A turn of these events ends with this message; the log's numbers begin with `first`.
fn answered(request: &Request, first: usize, events: &[(&str, &str)], message: &str) -> Vec<Act> {
    stream(&[terminal(request, first, events, message)])
}

fn terminal(request: &Request, first: usize, events: &[(&str, &str)], message: &str) -> String {
    let events: Vec<String> = events
        .iter()
        .enumerate()
        .map(|(i, (kind, payload))| bare_event(&format!("e{}", first + i), kind, payload))
        .collect();
    result(request, &format!(r#"{{"message":{message},"events":[{}]}}"#, events.join(",")))
}

fn event_line(id: &str, kind: &str, payload: &str) -> String {
    engine_host::service::event(id, kind, payload)
}

/// A service that says nothing in subscriptions and answers the messages that come, counted from 1, like this.
fn host(features: &[&str], mut answer: impl FnMut(usize, &Request) -> Vec<Act> + 'static) -> Host {
    let mut sent = 0;
    let service = move |r: &Request| match r.rpc() {
        "session.subscribe" => vec![head()],
        "session.registerDriver" => stream(&[result(r, "{}")]),
        "session.cancel" => stream(&[result(r, r#"{"cancelled":true,"was":"running"}"#)]),
        _ => {
            sent += 1;
            answer(sent, r)
        }
    };
    Host::opened(|_| (), 0, features, vec![tool("x")], service)
}

fn done(host: &Host, op: u64) -> &Reply {
    let found = host.said(op).iter().find_map(|step| match step {
        Step::Done(reply) => Some(&**reply),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no reply: {:?}", host.said(op)))
}

fn ids(host: &Host) -> Vec<serde_json::Value> {
    let sent = host.rpcs("session.sendMessage");
    sent.iter().map(|r| r.body["params"]["message_id"].clone()).collect()
}

fn complete(_: OpId, step: &Step) -> Option<(broca::engine::CallId, Answer)> {
    match step {
        Step::ToolCall(call) => Some((call.call, Answer::Complete(Json::string("R")))),
        _ => None,
    }
}

#[test]
fn every_message_has_an_id_of_its_own_where_the_service_has_them() {
    for (features, has) in [(IDS, true), (PLAIN, false)] {
        let mut host =
            host(features, |sent, r| answered(r, 1, &[], if sent == 1 { PAUSED } else { HI }));
        host.application = Box::new(complete);
        host.command(2, say("go"));
        host.finish(2);
        host.command(3, say("go"));
        host.finish(3);
        let ids = ids(&host);
        assert_eq!(ids.len(), 3);
        assert!(ids.iter().all(|id| id.as_str().is_some_and(|id| id.len() == 32) == has));
        assert!(!has || (ids[0] != ids[1] && ids[1] != ids[2]), "{ids:?}");
    }
}

#[test]
fn a_request_whose_answer_breaks_off_is_sent_again_as_it_was() {
    let breaks = [cut(), [vec![head()], cut()].concat(), vec![head(), end()]];
    for ends in breaks {
        let mut host = host(IDS, move |sent, r| {
            if sent == 1 { ends.clone() } else { answered(r, 1, &[("tool.call", "{}")], HI) }
        });
        host.command(2, say("go"));
        host.finish(2);
        assert_eq!(done(&host, 2).text(), "hi");
        let sent = host.rpcs("session.sendMessage");
        assert_eq!(sent.len(), 2);
        assert_eq!(sent[0].body["params"], sent[1].body["params"]);
        assert_ne!(sent[0].id(), sent[1].id());
        assert_eq!(host.event_ids(2), ["e1"], "what the result has is delivered");
    }
}

#[test]
fn what_was_seen_before_is_not_delivered_again_with_the_recorded_answer() {
    let events: &[(&str, &str)] = &[
        ("client.message.send", r#"{"role":"user","content":"go"}"#),
        ("provider.request", "{}"),
        ("tool.call", r#"{"id":"t","name":"x","input":{}}"#),
        ("server.message.send", HI),
    ];
    for shown in 0..=3 {
        let mut host = host(IDS, move |sent, r| {
            if sent > 1 {
                return answered(r, 1, events, HI);
            }
            let mut acts = vec![head()];
            for (i, (kind, payload)) in events.iter().enumerate().skip(1).take(shown) {
                acts.push(line(&event_line(&format!("e{}", i + 1), kind, payload)));
            }
            [acts, cut()].concat()
        });
        host.command(2, say("go"));
        host.finish(2);
        assert_eq!(host.event_ids(2), ["e2", "e3", "e4"], "{shown} shown");
        assert_eq!(done(&host, 2).turn_events().len(), 4);
    }
}

#[test]
fn a_continuation_is_sent_again_too_and_its_tools_run_once() {
    let mut host = host(IDS, |sent, r| match sent {
        1 => answered(r, 1, &[("server.message.send", PAUSED)], PAUSED),
        2 => cut(),
        _ => answered(r, 2, &[], HI),
    });
    host.application = Box::new(complete);
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(done(&host, 2).rounds, 2);
    let sent = host.rpcs("session.sendMessage");
    assert_eq!(results(sent[2]), [("a".into(), false)]);
    assert_eq!(sent[1].body["params"], sent[2].body["params"]);
    let calls = host.said(2).iter().filter(|step| matches!(step, Step::ToolCall(_))).count();
    assert_eq!(calls, 1);
}

#[test]
fn a_request_goes_out_again_with_growing_pauses_until_the_service_is_back() {
    let mut host = host(IDS, |sent, r| if sent < 5 { cut() } else { answered(r, 1, &[], HI) });
    let begun = host.now;
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(host.left("session.sendMessage"), 5);
    assert!((350..1_000).contains(&(host.now - begun)), "{}", host.now - begun);
}

#[test]
fn a_service_that_does_not_come_back_leaves_the_outcome_unknown() {
    let mut host = host(IDS, |_, _| cut());
    host.command(2, say("go"));
    host.dialler = Box::new(|_| Dial::Fail(CloseReason::Refused));
    let begun = host.now;
    host.finish(2);
    assert_eq!((host.error(2).kind(), host.error(2).retry()), (ErrorKind::Io, Retry::Unknown));
    assert_eq!(host.now - begun, 10_000);
}

#[test]
fn a_long_silence_of_a_service_that_holds_the_line_is_waited_for() {
    let mut host = host(IDS, |sent, r| {
        if sent == 1 {
            return cut();
        }
        vec![head(), Act::Wait(3_600_000), line(&terminal(r, 1, &[], HI)), end()]
    });
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(done(&host, 2).text(), "hi");
}

#[test]
fn a_driver_that_was_forgotten_meanwhile_registers_and_sends_again() {
    for first in [true, false] {
        let forgotten = |r: &Request| stream(&[failure(r, -32001, "call session.registerDriver")]);
        let mut host = host(IDS, move |sent, r| match sent {
            1 if first => forgotten(r),
            1 => cut(),
            2 if !first => forgotten(r),
            _ => answered(r, 1, &[], HI),
        });
        host.command(2, say("go"));
        host.finish(2);
        assert_eq!(done(&host, 2).text(), "hi");
        assert_eq!(host.rpcs("session.registerDriver").len(), 1);
        let ids = ids(&host);
        assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
    }
}

#[test]
fn results_of_a_driver_that_was_forgotten_are_sent_again_under_their_id() {
    let mut host = host(IDS, |sent, r| match sent {
        1 => answered(r, 1, &[("server.message.send", PAUSED)], PAUSED),
        2 => stream(&[failure(r, -32001, "call session.registerDriver before it")]),
        _ => answered(r, 2, &[], HI),
    });
    host.application = Box::new(complete);
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(done(&host, 2).text(), "hi");
    assert_eq!(results(host.rpcs("session.sendMessage")[2]), [("a".into(), false)]);
}

#[test]
fn a_turn_that_a_restart_broke_off_is_looked_up_in_the_log() {
    let interrupted = "turn interrupted: the service restarted while it ran";
    for logged in [true, false] {
        let message = Rc::new(RefCell::new(String::new()));
        let mut sent = 0;
        let service = service(IDS, move |r: &Request| match r.rpc() {
            "session.subscribe" => {
                let said = event_line("e1", "client.message.send", &message.borrow());
                let mut acts = vec![head(), Act::Wait(500), line(&said)];
                if logged {
                    acts.push(line(&event_line("e2", "server.message.send", HI)));
                }
                acts
            }
            _ => {
                sent += 1;
                *message.borrow_mut() = r.body["params"]["message"].to_string();
                if sent == 1 { cut() } else { stream(&[failure(r, -32022, interrupted)]) }
            }
        });
        let mut host = Host::new(engine_host::config(), Environment::none(), 0);
        host.pull = usize::MAX;
        host.script = service;
        host.command(1, broca::engine::Command::Open { tools: Vec::new(), metadata: None });
        host.finish(1);
        host.command(2, say("go"));
        let begun = host.now;
        host.finish(2);
        if logged {
            assert_eq!(done(&host, 2).text(), "hi");
        } else {
            assert_eq!(
                (host.error(2).kind(), host.error(2).retry()),
                (ErrorKind::Rpc, Retry::Unknown)
            );
            assert!(host.error(2).message().contains("interrupted"), "{}", host.error(2));
            assert!(host.now - begun < 5_000);
        }
        assert_eq!(host.left("session.sendMessage"), 2);
    }
}

#[test]
fn other_answers_are_final() {
    for (code, message, kind, retry) in [
        (-32023, "message_id was used for another message", ErrorKind::Rpc, Retry::Unsafe),
        (-32021, "turn cancelled", ErrorKind::Cancelled, Retry::Safe),
        (-32000, "session is closed, not open", ErrorKind::SessionClosed, Retry::Unsafe),
    ] {
        let mut host =
            host(
                IDS,
                move |sent, r| {
                    if sent == 1 { cut() } else { stream(&[failure(r, code, message)]) }
                },
            );
        host.command(2, say("go"));
        host.finish(2);
        assert_eq!((host.error(2).kind(), host.error(2).retry()), (kind, retry), "{code}");
        assert_eq!(host.left("session.sendMessage"), 2);
    }
}

#[test]
fn a_service_that_ends_is_found_again() {
    let text = "the service is shutting down; connect again";
    for first in [1, 2] {
        let mut host = host(IDS, move |sent, r| match sent {
            1 if first == 2 => cut(),
            n if n <= first => stream(&[failure(r, -32000, text)]),
            _ => answered(r, 1, &[], HI),
        });
        host.command(2, say("go"));
        host.finish(2);
        assert_eq!(done(&host, 2).text(), "hi");
    }
}

#[test]
fn a_proxys_page_in_place_of_an_answer_is_passed_over() {
    let mut host = host(IDS, |sent, r| {
        if sent == 1 {
            return engine_host::service::answer(502, "text/html", "<html>");
        }
        answered(r, 1, &[], HI)
    });
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(done(&host, 2).text(), "hi");
}

#[test]
fn a_joined_session_of_which_nothing_was_seen_is_no_hindrance() {
    let mut sent = 0;
    let mut host = Host::new(engine_host::config(), Environment::none(), 0);
    host.script = service(IDS, move |r: &Request| {
        if r.rpc() == "session.registerDriver" {
            return stream(&[result(r, "{}")]);
        }
        sent += 1;
        if sent == 1 { cut() } else { answered(r, 7, &[("tool.call", "{}")], HI) }
    });
    host.pull = usize::MAX;
    let join = broca::engine::Command::Join { session_id: "ses_1".into(), tools: Vec::new() };
    host.command(1, join);
    host.finish(1);
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(host.event_ids(2), ["e7"]);
    assert_eq!(host.left("session.subscribe"), 0);
}

#[test]
fn cancelling_while_a_request_is_sent_again_ends_the_turn() {
    let mut host = host(IDS, |sent, _| if sent == 1 { cut() } else { vec![head()] });
    host.command(2, say("go"));
    host.advance(1_000);
    host.cancel(2);
    host.finish(2);
    assert_eq!((host.error(2).kind(), host.error(2).retry()), (ErrorKind::Cancelled, Retry::Safe));
    let cancel = host.rpcs("session.cancel")[0];
    assert!(cancel.body["params"].get("request_id").is_none(), "whichever request it answers");
    host.advance(100_000);
    assert_eq!(host.left("session.sendMessage"), 2);
}

#[test]
fn nothing_is_sent_again_when_the_search_is_switched_off() {
    let change = |config: &mut Config| config.recovery_timeout_ms = 0;
    let mut host = Host::opened(change, 0, IDS, Vec::new(), |_| cut());
    host.command(2, say("go"));
    host.finish(2);
    host.advance(60_000);
    assert_eq!((host.left("session.sendMessage"), host.error(2).retry()), (1, Retry::Unknown));
}
