//! Every tool call gets exactly one result, in call order, in time, whatever happens (guarantees 1-3 and 10).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::ErrorKind;
use broca::Json;
use broca::engine::{Accepted, Answer, CallId, Command, Environment, Step, ToolCall, ToolOutcome};
use broca::proto::session::narrow::{NarrowRule, NarrowRules};
use broca::proto::session::tool::Tool;
use engine_host::service::{FULL, PLAIN, blocks, pause, reply, results, say, stream, tool};
use engine_host::{Host, Request, SECRET};
use proptest::prelude::*;

fn calls(host: &Host, op: u64) -> Vec<ToolCall> {
    let call = |step: &Step| match step {
        Step::ToolCall(call) => Some(call.clone()),
        _ => None,
    };
    host.said(op).iter().filter_map(call).collect()
}

fn text(text: &str) -> Answer {
    Answer::Complete(Json::string(text))
}

/// A service whose first messages pause with these calls, one pause after the other.
fn pausing(pauses: &[&[(&str, &str)]]) -> impl FnMut(&Request) -> Vec<engine_host::Act> + 'static {
    let pauses: Vec<Vec<(String, String)>> = pauses
        .iter()
        .map(|calls| calls.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect())
        .collect();
    let mut round = 0;
    move |request| {
        assert_eq!(request.rpc(), "session.sendMessage");
        round += 1;
        match pauses.get(round - 1) {
            Some(calls) => {
                let calls: Vec<(&str, &str)> =
                    calls.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
                stream(&[pause(request, &calls)])
            }
            None => stream(&[reply(request, "done")]),
        }
    }
}

#[test]
fn results_leave_in_call_order_whatever_the_order_of_answers() {
    let service = pausing(&[&[("a", "x"), ("b", "nobody"), ("c", "x")]]);
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], service);
    host.command(2, say("go"));
    host.settle();
    let open = calls(&host, 2);
    assert_eq!(open.len(), 2);
    assert_eq!(open[0].idempotency_key, "ses_1/a");
    assert_eq!(open[0].input.as_str(), format!("{{\"q\":\"{SECRET}\"}}"));
    host.answer(open[1].call, text("C")).unwrap();
    assert_eq!(host.left("session.sendMessage"), 1);
    host.answer(open[0].call, Answer::Fail(format!("{SECRET} disk"))).unwrap();
    host.settle();
    let sent = host.rpcs("session.sendMessage");
    let expected = [("a".into(), true), ("b".into(), true), ("c".into(), false)];
    assert_eq!(results(sent[1]), expected);
    assert!(matches!(host.outcome(2), Some(Ok(_))));
}

#[test]
fn a_turn_may_pause_again_and_an_id_used_again_is_another_call() {
    let service = pausing(&[&[("a", "x")], &[("a", "x"), ("b", "x")], &[("c", "x")]]);
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], service);
    host.application = Box::new(|_, step| match step {
        Step::ToolCall(call) => Some((call.call, text(&call.tool_use_id))),
        _ => None,
    });
    host.command(2, say("go"));
    host.settle();
    let ran: Vec<String> = calls(&host, 2).iter().map(|c| c.tool_use_id.clone()).collect();
    // Some servers number their calls anew in every answer.
    assert_eq!(ran, ["a", "a", "b", "c"]);
    let sent: Vec<_> = host.rpcs("session.sendMessage").into_iter().map(results).collect();
    assert_eq!(sent[2], [("a".into(), false), ("b".into(), false)]);
    let Some(Step::Done(done)) = host.said(2).iter().find(|s| matches!(s, Step::Done(_))) else {
        panic!()
    };
    assert_eq!((done.rounds, done.text().as_str()), (4, "done"));
}

#[test]
fn an_answer_that_comes_late_or_twice_changes_nothing() {
    let mut slow = tool("x");
    slow.timeout_ms = Some(50);
    let service = pausing(&[&[("a", "x")]]);
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![slow], service);
    host.command(2, say("go"));
    host.settle();
    let call = calls(&host, 2)[0].call;
    host.advance(60);
    assert!(host.said(2).iter().any(|s| matches!(s, Step::ToolCancel { call: c } if *c == call)));
    assert_eq!(host.answer(call, text("late")).unwrap(), Accepted::TooLate);
    host.finish(2);
    assert_eq!(host.answer(call, text("later")).unwrap(), Accepted::TooLate);
    let sent = host.rpcs("session.sendMessage");
    assert_eq!((sent.len(), results(sent[1])), (2, vec![("a".into(), true)]));
    for never in [CallId(0), CallId(99)] {
        assert_eq!(host.answer(never, text("?")).unwrap_err().kind(), ErrorKind::Usage);
    }
}

#[test]
fn what_became_of_a_call_is_told_with_the_name_of_its_tool() {
    let service = pausing(&[&[("a", "x"), ("b", "nobody")]]);
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], service);
    host.command(2, say("go"));
    host.settle();
    host.answer(calls(&host, 2)[0].call, text("A")).unwrap();
    host.finish(2);
    let mut settled: Vec<(String, String, ToolOutcome)> = Vec::new();
    for step in host.said(2) {
        if let Step::ToolSettled { tool_use_id, name, outcome } = step {
            settled.push((tool_use_id.clone(), name.clone(), *outcome));
        }
    }
    let expected = [
        ("b".into(), "nobody".into(), ToolOutcome::NotStarted),
        ("a".into(), "x".into(), ToolOutcome::Done),
    ];
    assert_eq!(settled, expected);
}

#[test]
fn a_narrowing_rule_that_can_never_apply_is_refused_before_anything_leaves() {
    let schema = r#"{"type":"object","properties":{"paths":{"type":"array"}}}"#;
    let mut rm = Tool::new("rm", "", Json::parse(schema).unwrap());
    rm.narrow = NarrowRules::new([("/pahts".to_owned(), NarrowRule::RemoveElements)]);
    let mut host = Host::new(engine_host::config(), Environment::none(), 0);
    let refused =
        host.try_command(1, Command::Open { tools: vec![rm], metadata: None }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.message().contains("/pahts"), "{refused}");
    assert!(host.effects.is_empty());
}

#[test]
fn two_calls_with_one_id_run_nothing() {
    let service = pausing(&[&[("a", "x"), ("a", "x")]]);
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x")], service);
    host.command(2, say("go"));
    host.settle();
    assert!(calls(&host, 2).is_empty());
    assert_eq!(host.error(2).kind(), ErrorKind::Protocol);
}

#[test]
fn no_more_calls_run_at_once_than_allowed_and_sequential_ones_wait_for_each_other() {
    let mut one = tool("one");
    one.sequential = true;
    let four = &[("a", "x"), ("b", "one"), ("c", "one"), ("d", "x")];
    let service = pausing(&[four]);
    let tools = vec![tool("x"), one];
    let mut host = Host::opened(|c| c.calls.concurrent = 3, 0, PLAIN, tools, service);
    host.command(2, say("go"));
    host.settle();
    let started = |host: &Host| -> Vec<String> {
        calls(host, 2).iter().map(|c| c.tool_use_id.clone()).collect()
    };
    assert_eq!(started(&host), ["a", "b", "d"]);
    host.answer(calls(&host, 2)[0].call, text("A")).unwrap();
    host.settle();
    assert_eq!(started(&host), ["a", "b", "d"]);
    host.answer(calls(&host, 2)[1].call, text("B")).unwrap();
    host.settle();
    assert_eq!(started(&host), ["a", "b", "d", "c"]);
}

#[test]
fn the_continuation_leaves_before_the_service_gives_up() {
    let service = pausing(&[&[("a", "x"), ("b", "ask")]]);
    let mut asks = tool("ask");
    asks.approval = true;
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x"), asks], service);
    host.command(2, say("go"));
    host.settle();
    host.advance(107_000);
    assert_eq!(host.left("session.sendMessage"), 1);
    host.advance(1_100);
    assert_eq!(host.left("session.sendMessage"), 2);
    let sent = host.rpcs("session.sendMessage");
    assert_eq!(results(sent[1]), [("a".into(), true), ("b".into(), true)]);
    assert!(host.said(2).iter().any(|s| matches!(s, Step::ApprovalWithdrawn { .. })));
}

#[test]
fn an_approval_narrows_and_never_widens() {
    let mut guarded = tool("rm");
    guarded.approval = true;
    let service = pausing(&[&[("a", "rm"), ("b", "rm"), ("c", "rm")]]);
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![guarded], service);
    host.command(2, say("go"));
    host.settle();
    let asked: Vec<CallId> = host
        .said(2)
        .iter()
        .filter_map(|s| if let Step::Approval(call) = s { Some(call.call) } else { None })
        .collect();
    assert_eq!(asked.len(), 3);
    assert!(calls(&host, 2).is_empty());
    // Not started yet: there is nothing to complete.
    assert_eq!(host.answer(asked[0], text("x")).unwrap_err().kind(), ErrorKind::Usage);
    let wider = Json::parse(r#"{"q":"pLaNtEd","r":1}"#).unwrap();
    host.answer(asked[0], Answer::AllowNarrowed(wider)).unwrap();
    host.answer(asked[1], Answer::Deny("no".into())).unwrap();
    host.answer(asked[2], Answer::Allow).unwrap();
    assert_eq!(host.answer(asked[2], Answer::Deny("".into())).unwrap(), Accepted::TooLate);
    host.settle();
    let ran = calls(&host, 2);
    assert_eq!(ran.len(), 1);
    host.answer(ran[0].call, text("ok")).unwrap();
    host.settle();
    let sent = host.rpcs("session.sendMessage");
    assert_eq!(results(sent[1]), [("a".into(), true), ("b".into(), true), ("c".into(), false)]);
}

#[test]
fn a_call_that_needs_nobody_runs_while_another_waits_and_keeps_its_result() {
    let mut guarded = tool("rm");
    guarded.approval = true;
    let service = pausing(&[&[("a", "x"), ("b", "rm"), ("c", "x")]]);
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![tool("x"), guarded], service);
    host.command(2, say("go"));
    host.settle();
    let ran = |host: &Host| -> Vec<String> {
        calls(host, 2).iter().map(|call| call.tool_use_id.clone()).collect()
    };
    assert_eq!(ran(&host), ["a", "c"]);
    for (call, said) in [(calls(&host, 2)[0].call, "A"), (calls(&host, 2)[1].call, "C")] {
        host.answer(call, text(said)).unwrap();
    }
    host.advance(60_000);
    assert_eq!(host.left("session.sendMessage"), 1, "the results wait for the third");
    let asked = |s: &Step| if let Step::Approval(call) = s { Some(call.call) } else { None };
    let asked = host.said(2).iter().find_map(asked).unwrap();
    host.answer(asked, Answer::Allow).unwrap();
    host.settle();
    assert_eq!(ran(&host), ["a", "c", "b"], "nothing starts again");
    host.answer(calls(&host, 2)[2].call, text("B")).unwrap();
    host.settle();
    let sent = blocks(host.rpcs("session.sendMessage")[1]);
    let said: Vec<&str> = sent.iter().filter_map(|block| block["content"].as_str()).collect();
    assert_eq!(said, ["A", "B", "C"]);
}

#[test]
fn an_approval_is_for_one_call_and_for_one_time() {
    let mut guarded = tool("rm");
    guarded.approval = true;
    let service = pausing(&[&[("a", "rm")], &[("a", "rm")]]);
    let mut host = Host::opened(|_| (), 0, PLAIN, vec![guarded], service);
    let asked = |host: &Host| -> Vec<CallId> {
        let asked = |s: &Step| if let Step::Approval(call) = s { Some(call.call) } else { None };
        host.said(2).iter().filter_map(asked).collect()
    };
    host.command(2, say("go"));
    host.settle();
    host.answer(asked(&host)[0], Answer::Allow).unwrap();
    host.settle();
    host.answer(calls(&host, 2)[0].call, text("gone")).unwrap();
    host.settle();
    // The same id in a later answer of the model is another call.
    assert_eq!((asked(&host).len(), calls(&host, 2).len()), (2, 1));
    host.answer(asked(&host)[1], Answer::Deny(String::new())).unwrap();
    host.settle();
    assert!(matches!(host.outcome(2), Some(Ok(_))));
    host.command(3, say("thanks"));
    host.finish(3);
    assert!(calls(&host, 3).is_empty());
    let sent: Vec<_> = host.rpcs("session.sendMessage").into_iter().map(results).collect();
    assert_eq!(sent[1..], [vec![("a".into(), false)], vec![("a".into(), true)], vec![]]);
}

#[test]
fn a_wrong_kind_of_answer_is_refused_and_the_call_stays_open() {
    let service = pausing(&[&[("a", "x")]]);
    let mut host = Host::opened(|_| (), 0, FULL, vec![tool("x")], service);
    host.command(2, say("go"));
    host.settle();
    let call = calls(&host, 2)[0].call;
    let refused = host.answer(call, Answer::Refuse("?".into()));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(host.answer(call, text("A")).unwrap(), Accepted::Taken);
    host.finish(2);
    assert!(matches!(host.outcome(2), Some(Ok(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Any answers in any order, at any times, over any cuts: each pause is answered once and whole.
    #[test]
    fn whatever_the_application_does_each_pause_gets_one_set_of_results(
        seed in 1..u64::MAX,
        acts in prop::collection::vec((0..8_usize, 0..4_u8, 0..40_000_u64), 0..30),
    ) {
        let ids = ["a", "b", "c", "d", "e"];
        let names = ["x", "ask", "one", "nobody", "x"];
        let all: Vec<(&str, &str)> = ids.into_iter().zip(names).collect();
        let service = pausing(&[&all, &all[..2], &[("z", "one")]]);
        let (mut ask, mut one) = (tool("ask"), tool("one"));
        ask.approval = true;
        one.sequential = true;
        one.timeout_ms = Some(30_000);
        let mut host = Host::opened(|c| c.calls.concurrent = 2, seed, PLAIN, vec![tool("x"), ask, one], service);
        host.command(2, say("go"));
        host.settle();
        for (which, kind, wait) in acts {
            let questions: Vec<CallId> = host.said(2).iter().filter_map(|s| match s {
                Step::ToolCall(c) | Step::Approval(c) => Some(c.call),
                _ => None,
            }).collect();
            if let Some(call) = questions.get(which) {
                let answer = match kind {
                    0 => text("ok"),
                    1 => Answer::Fail("no".into()),
                    2 => Answer::Allow,
                    _ => Answer::Deny("no".into()),
                };
                let _ = host.answer(*call, answer);
            }
            host.advance(wait);
        }
        host.advance(400_000);
        prop_assert!(matches!(host.outcome(2), Some(Ok(_))), "{:?}", host.said(2));
        let sent = host.rpcs("session.sendMessage");
        prop_assert_eq!(sent.len(), 4);
        let answered = |i: usize| -> Vec<String> { results(sent[i]).into_iter().map(|(id, _)| id).collect() };
        prop_assert_eq!(answered(1), ["a", "b", "c", "d", "e"]);
        prop_assert_eq!(answered(2), ["a", "b"]);
        prop_assert_eq!(answered(3), ["z"]);
        let asked = |name: &str| host.said(2).iter().filter(|s| matches!(s, Step::ToolCall(c) if c.tool_use_id == name)).count();
        for (i, id) in ids.into_iter().enumerate() {
            let pauses = if i < 2 { 2 } else { 1 };
            prop_assert!(asked(id) <= pauses);
        }
    }
}
