//! Turns and sessions keep to their budgets, and say what they have spent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{Answer, Config, Reply, Spent, Step};
use broca::{ErrorKind, Json, Retry};
use engine_host::service::{
    FULL, PLAIN, blocks, event, pause, reply, result, results, results_of, say, stream, tool,
};
use engine_host::{Act, Host, Request};

/// A model that calls `x` in every answer but those to messages that say so, and counts tokens. What it counted for one message is
/// told twice.
fn looping() -> impl FnMut(&Request) -> Vec<Act> + 'static {
    let mut round = 0;
    move |request| {
        if request.rpc() == "session.cancel" {
            return stream(&[result(request, r#"{"cancelled":true,"was":"paused"}"#)]);
        }
        round += 1;
        let usage = format!(
            r#"{{"ok":true,"body":{{"id":"msg_{round}"}},"usage":{{"input_tokens":100,"output_tokens":10}}}}"#
        );
        let told = event(&format!("evt_{round}a"), "provider.response", &usage);
        let again = event(&format!("evt_{round}b"), "provider.response", &usage);
        let text = request.body.to_string();
        let last = if text.contains("stop") {
            reply(request, "done")
        } else {
            let (a, b) = (format!("a{round}"), format!("b{round}"));
            pause(request, &[(&a, "x"), (&b, "x")])
        };
        stream(&[told, again, last])
    }
}

fn host(features: &[&str], change: impl FnOnce(&mut Config)) -> Host {
    let mut host = Host::opened(change, 0, features, vec![tool("x")], looping());
    host.application = Box::new(|_, step| match step {
        Step::ToolCall(call) => Some((call.call, Answer::Complete(Json::string("ok")))),
        _ => None,
    });
    host
}

/// How often a tool ran.
fn ran(host: &Host, op: u64) -> usize {
    host.said(op).iter().filter(|step| matches!(step, Step::ToolCall(_))).count()
}

/// The limit that ended the turn, as the error's details name it.
fn excess(host: &Host, op: u64) -> String {
    let error = host.error(op);
    assert_eq!((error.kind(), error.retry()), (ErrorKind::LoopLimit, Retry::Unsafe), "{error}");
    error.details().unwrap().as_str().to_owned()
}

fn done(host: &Host, op: u64) -> &Reply {
    let done = host.said(op).iter().find_map(|step| match step {
        Step::Done(reply) => Some(&**reply),
        _ => None,
    });
    done.unwrap_or_else(|| panic!("{:?}", host.said(op)))
}

#[test]
fn a_turn_over_its_rounds_ends_with_results_for_its_open_calls() {
    let mut host = host(FULL, |c| c.turn_budget.rounds = Some(3));
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(excess(&host, 2), r#"{"scope":"turn","limit":"rounds","allowed":3,"spent":3}"#);
    assert_eq!((host.left("session.sendMessage"), ran(&host, 2)), (3, 4));
    // The last calls never ran, and the service got results that say why, without another round.
    let cancel = host.rpcs("session.cancel")[0];
    let sent = cancel.body["params"]["results"].as_array().unwrap();
    assert_eq!(results_of(sent), [("a3".into(), true), ("b3".into(), true)]);
    assert!(sent[0]["content"].as_str().unwrap().contains("rounds are limited to 3"));
    assert_eq!(
        host.engine.spent(),
        Spent { rounds: 3, input_tokens: 300, output_tokens: 30, tool_calls: 6 }
    );
    // The next turn has a budget of its own.
    host.command(3, say("stop"));
    host.finish(3);
    assert_eq!(done(&host, 3).rounds, 1);
}

#[test]
fn on_a_plain_service_the_results_lead_the_next_message() {
    let mut host = host(PLAIN, |c| c.turn_budget.tool_calls = Some(3));
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(excess(&host, 2), r#"{"scope":"turn","limit":"tool_calls","allowed":3,"spent":4}"#);
    assert_eq!((host.left("session.sendMessage"), ran(&host, 2)), (2, 2));
    host.command(3, say("stop"));
    host.finish(3);
    let led = host.rpcs("session.sendMessage")[2];
    assert_eq!(results(led), [("a2".into(), true), ("b2".into(), true)]);
    assert_eq!(blocks(led).len(), 3);
    assert!(matches!(host.outcome(3), Some(Ok(_))));
}

#[test]
fn tokens_are_counted_once_for_each_message_of_the_provider() {
    let mut limited = host(FULL, |c| c.turn_budget.tokens = Some(200));
    limited.command(2, say("go"));
    limited.finish(2);
    assert_eq!(
        excess(&limited, 2),
        r#"{"scope":"turn","limit":"tokens","allowed":200,"spent":220}"#
    );
    assert_eq!(limited.left("session.sendMessage"), 2);
}

#[test]
fn a_session_over_its_budget_sends_nothing_more() {
    let mut host = host(FULL, |c| c.session_budget.rounds = Some(2));
    host.command(2, say("stop"));
    host.finish(2);
    let reply = done(&host, 2);
    assert_eq!(reply.usage.unwrap().input_tokens, 100);
    assert_eq!(
        reply.session,
        Spent { rounds: 1, input_tokens: 100, output_tokens: 10, tool_calls: 0 }
    );
    host.command(3, say("go"));
    host.finish(3);
    assert_eq!(excess(&host, 3), r#"{"scope":"session","limit":"rounds","allowed":2,"spent":2}"#);
    assert_eq!((host.left("session.sendMessage"), ran(&host, 3)), (2, 0));
    host.command(4, say("stop"));
    host.finish(4);
    assert_eq!(excess(&host, 4), r#"{"scope":"session","limit":"rounds","allowed":2,"spent":2}"#);
    assert_eq!(host.left("session.sendMessage"), 2, "refused before it leaves");
    assert_eq!(host.engine.spent().rounds, 2);
    assert_eq!(host.engine.save().unwrap().spent.rounds, 2, "the next program goes on counting");
}

#[test]
fn without_limits_everything_is_counted_and_nothing_ends() {
    let mut host = host(FULL, |_| ());
    host.application = Box::new(|_, step| match step {
        Step::ToolCall(call) => {
            let said = if call.tool_use_id == "b5" { "stop" } else { "ok" };
            Some((call.call, Answer::Complete(Json::string(said))))
        }
        _ => None,
    });
    host.command(2, say("go"));
    host.finish(2);
    let reply = done(&host, 2);
    assert_eq!((reply.rounds, reply.tool_calls), (6, 10));
    assert_eq!(reply.session.input_tokens, 600);
}

#[test]
fn a_turn_that_was_cancelled_has_spent_what_it_has() {
    let mut host = Host::opened(|_| (), 0, FULL, vec![tool("x")], looping());
    host.command(2, say("go"));
    host.settle();
    assert_eq!(host.engine.spent().rounds, 1, "while the turn runs");
    host.cancel(2);
    host.finish(2);
    assert_eq!(
        host.engine.spent(),
        Spent { rounds: 1, input_tokens: 100, output_tokens: 10, tool_calls: 2 }
    );
}
