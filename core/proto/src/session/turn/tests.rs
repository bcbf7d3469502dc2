//! Whatever happens to the calls of a pause, each has one result.

use super::*;
use crate::session::content::BlockKind;
use proptest::prelude::*;

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn tool(name: &str) -> Tool {
    Tool::new(name, "", Json::empty_object())
}

fn call(id: &str, name: &str, dispatch: Option<Dispatch>) -> Block {
    Block::of_tool_use(ToolUse {
        id: id.to_owned(),
        name: name.to_owned(),
        input: Json::empty_object(),
        dispatch,
    })
}

fn message(calls: &[(&str, &str)]) -> Message {
    Message::assistant(
        calls.iter().map(|(id, name)| call(id, name, Some(Dispatch::Client))).collect(),
    )
}

fn drain(calls: &mut Calls) -> Vec<CallsOutput> {
    std::iter::from_fn(|| calls.poll()).collect()
}

fn results(outputs: &[CallsOutput]) -> Option<Vec<(String, bool)>> {
    outputs.iter().find_map(|o| match o {
        CallsOutput::Results { blocks, .. } => Some(
            blocks
                .iter()
                .map(|b| match b.kind() {
                    BlockKind::ToolResult(r) => (r.tool_use_id.clone(), r.is_error == Some(true)),
                    other => panic!("{other:?}"),
                })
                .collect(),
        ),
        _ => None,
    })
}

#[test]
fn results_come_in_call_order_not_in_order_of_completion() {
    let mut calls = Calls::new(vec![tool("a"), tool("b")], CallLimits::default());
    assert!(calls.pause(&message(&[("1", "a"), ("2", "b"), ("3", "nobody")]), at(0)).unwrap());
    calls.complete("2", Json::string("B"), at(1)).unwrap();
    assert!(results(&drain(&mut calls)).is_none());
    calls.fail("1", "disk is full", at(2)).unwrap();
    let results = results(&drain(&mut calls)).unwrap();
    assert_eq!(results, [("1".into(), true), ("2".into(), false), ("3".into(), true)]);
    assert!(!calls.is_open());
}

#[test]
fn the_same_id_twice_runs_nothing() {
    let mut calls = Calls::new(vec![tool("a")], CallLimits::default());
    let error = calls.pause(&message(&[("1", "a"), ("1", "a")]), at(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(drain(&mut calls).is_empty());
}

#[test]
fn untagged_calls_are_ours_only_when_we_have_the_tool() {
    let mut calls = Calls::new(vec![tool("a")], CallLimits::default());
    let message = Message::assistant(vec![
        call("1", "a", None),
        call("2", "b", None),
        call("3", "a", Some(Dispatch::Mcp)),
    ]);
    assert!(calls.pause(&message, at(0)).unwrap());
    let started: Vec<_> = drain(&mut calls)
        .into_iter()
        .filter_map(|o| if let CallsOutput::Start(c) = o { Some(c.id) } else { None })
        .collect();
    assert_eq!(started, ["1"]);
}

#[test]
fn a_late_answer_changes_nothing() {
    let mut slow = tool("a");
    slow.timeout_ms = Some(10);
    let mut calls = Calls::new(vec![slow], CallLimits::default());
    calls.pause(&message(&[("1", "a")]), at(0)).unwrap();
    assert_eq!(calls.poll_timeout(), Some(at(10)));
    calls.handle_timeout(at(10));
    let outputs = drain(&mut calls);
    assert!(outputs.contains(&CallsOutput::Stop { id: "1".into() }));
    assert_eq!(results(&outputs).unwrap(), [("1".into(), true)]);
    assert_eq!(calls.complete("1", Json::string("x"), at(11)).unwrap(), Accepted::TooLate);
    assert_eq!(calls.outcome("1"), Some(ToolOutcome::TimedOutMayHaveRun));
    assert!(calls.complete("9", Json::string("x"), at(11)).is_err());
}

#[test]
fn the_continuation_leaves_before_the_service_gives_up() {
    let limits = CallLimits::default();
    assert_eq!(limits.continuation_ms(), 108_000);
    let mut calls = Calls::new(vec![tool("a")], limits);
    calls.pause(&message(&[("1", "a")]), at(0)).unwrap();
    calls.handle_timeout(at(107_999));
    assert!(results(&drain(&mut calls)).is_none());
    calls.handle_timeout(at(108_000));
    assert!(results(&drain(&mut calls)).is_some());
    assert_eq!(calls.outcome("1"), Some(ToolOutcome::TimedOutMayHaveRun));
    assert_eq!(CallLimits { pause_ms: 1_000, ..limits }.continuation_ms(), 500);
}

#[test]
fn cancel_tells_apart_what_ran_what_did_not_and_what_may_have() {
    let mut quick = tool("quick");
    quick.sequential = false;
    let mut long = tool("long");
    long.sequential = true;
    let mut queued = tool("queued");
    queued.sequential = true;
    let mut calls = Calls::new(vec![quick, long, queued], CallLimits::default());
    calls.pause(&message(&[("1", "quick"), ("2", "long"), ("3", "queued")]), at(0)).unwrap();
    calls.complete("1", Json::string("Q"), at(1)).unwrap();
    calls.cancel(at(50));
    assert!(results(&drain(&mut calls)).is_none());
    assert_eq!(calls.poll_timeout(), Some(at(2_050)));
    calls.handle_timeout(at(2_050));
    let outputs = drain(&mut calls);
    assert!(matches!(outputs.last(), Some(CallsOutput::Results { cancelled: true, .. })));
    assert_eq!(calls.outcome("1"), Some(ToolOutcome::Done));
    assert_eq!(calls.outcome("2"), Some(ToolOutcome::InterruptedMayHaveRun));
    assert_eq!(calls.outcome("3"), Some(ToolOutcome::NotStarted));
}

#[test]
fn the_same_id_in_a_later_round_is_another_call() {
    let mut calls = Calls::new(vec![tool("a")], CallLimits::default());
    for round in 0..2 {
        calls.pause(&message(&[("call_0", "a")]), at(round)).unwrap();
        assert!(drain(&mut calls).iter().any(|o| matches!(o, CallsOutput::Start(_))));
        calls.complete("call_0", Json::string("A"), at(round)).unwrap();
        drain(&mut calls);
        calls.delivered();
    }
}

#[test]
fn results_too_large_for_one_message_give_way_largest_first() {
    let limits = CallLimits { results_bytes: 1_000, ..CallLimits::default() };
    let mut calls = Calls::new(vec![tool("a")], limits);
    calls.pause(&message(&[("1", "a"), ("2", "a"), ("3", "a")]), at(0)).unwrap();
    for (id, bytes) in [("1", 300), ("2", 5_000), ("3", 300)] {
        calls.complete(id, Json::string(&"x".repeat(bytes)), at(1)).unwrap();
    }
    let outputs = drain(&mut calls);
    let sent = results(&outputs).unwrap();
    assert_eq!(sent, [("1".into(), false), ("2".into(), true), ("3".into(), false)]);
    assert_eq!(calls.outcome("2"), Some(ToolOutcome::Done));
}

#[test]
fn calls_of_a_turn_that_is_to_end_never_start() {
    let mut calls = Calls::new(vec![tool("a")], CallLimits::default());
    assert!(calls.decline(&message(&[("1", "a"), ("2", "nobody")]), at(0)).unwrap());
    let outputs = drain(&mut calls);
    assert!(!outputs.iter().any(|o| matches!(o, CallsOutput::Start(_) | CallsOutput::Stop { .. })));
    assert!(matches!(outputs.last(), Some(CallsOutput::Results { cancelled: true, .. })));
    assert_eq!(calls.outcome("1"), Some(ToolOutcome::NotStarted));
    assert!(!calls.is_open());
}

#[test]
fn in_the_grace_of_a_cancel_a_result_counts_and_a_failure_is_an_interruption() {
    let mut calls = Calls::new(vec![tool("a"), tool("b")], CallLimits::default());
    calls.pause(&message(&[("1", "a"), ("2", "b")]), at(0)).unwrap();
    calls.cancel(at(1));
    calls.complete("1", Json::string("paid"), at(2)).unwrap();
    calls.fail("2", "cancelled", at(3)).unwrap();
    assert_eq!(calls.outcome("1"), Some(ToolOutcome::Done));
    assert_eq!(calls.outcome("2"), Some(ToolOutcome::InterruptedMayHaveRun));
    assert!(matches!(drain(&mut calls).last(), Some(CallsOutput::Results { cancelled: true, .. })));
}

#[test]
fn a_result_that_is_no_content_is_refused_and_the_call_stays_open() {
    let mut calls = Calls::new(vec![tool("a")], CallLimits::default());
    calls.pause(&message(&[("1", "a")]), at(0)).unwrap();
    drain(&mut calls);
    for wrong in ["5", "null", "{}", "[5]", r#"[{"type":"text","text":"x"},"y"]"#] {
        let refused = calls.complete("1", Json::parse(wrong.to_owned()).unwrap(), at(1));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong}");
    }
    let blocks = Json::parse(r#"[{"type":"text","text":"x"}]"#.to_owned()).unwrap();
    assert_eq!(calls.complete("1", blocks, at(2)).unwrap(), Accepted::Taken);
}

#[test]
fn an_approval_that_nobody_answers_is_a_deny() {
    let mut guarded = tool("rm");
    guarded.approval = true;
    let mut calls = Calls::new(vec![guarded], CallLimits::default());
    calls.pause(&message(&[("1", "rm")]), at(0)).unwrap();
    assert!(matches!(drain(&mut calls)[..], [CallsOutput::Ask(_)]));
    assert!(calls.complete("1", Json::string("x"), at(1)).is_err());
    calls.handle_timeout(at(108_000));
    let outputs = drain(&mut calls);
    assert!(outputs.contains(&CallsOutput::Withdraw { id: "1".into() }));
    assert_eq!(calls.outcome("1"), Some(ToolOutcome::NotStarted));
    assert_eq!(calls.decide("1", Verdict::Allow, at(108_001)).unwrap(), Accepted::TooLate);
}

#[test]
fn a_call_shown_again_is_answered_from_memory() {
    let mut calls = Calls::new(vec![tool("a")], CallLimits::default());
    calls.pause(&message(&[("1", "a")]), at(0)).unwrap();
    calls.complete("1", Json::string("A"), at(1)).unwrap();
    drain(&mut calls);
    calls.pause(&message(&[("1", "a")]), at(2)).unwrap();
    let outputs = drain(&mut calls);
    assert!(!outputs.iter().any(|o| matches!(o, CallsOutput::Start(_))));
    assert_eq!(results(&outputs).unwrap(), [("1".into(), false)]);
}

fn result(id: &str, text: &str) -> (ToolOutcome, Block) {
    let content = Json::string(text);
    let result = ToolResult { tool_use_id: id.to_owned(), content, is_error: None };
    (ToolOutcome::Done, Block::of_tool_result(result))
}

#[test]
fn a_pause_that_another_program_left_goes_on_with_the_results_it_had() {
    let mut calls = Calls::new(vec![tool("a"), tool("b")], CallLimits::default());
    let left = message(&[("1", "a"), ("2", "b"), ("3", "nobody")]);
    assert!(calls.take_up(&left, [result("1", "A"), result("9", "?")], None, at(0)).unwrap());
    let outputs = drain(&mut calls);
    let started: Vec<&str> = outputs
        .iter()
        .filter_map(|o| if let CallsOutput::Start(c) = o { Some(c.id.as_str()) } else { None })
        .collect();
    assert_eq!(started, ["2"]);
    assert!(calls.may_have_run("2") && !calls.may_have_run("1"));
    // The tool is missing here; there it was not.
    assert_eq!(calls.outcome("3"), Some(ToolOutcome::InterruptedMayHaveRun));
    calls.complete("2", Json::string("B"), at(1)).unwrap();
    let sent = results(&drain(&mut calls)).unwrap();
    assert_eq!(sent, [("1".into(), false), ("2".into(), false), ("3".into(), true)]);
    // The next pause is this program's own.
    calls.delivered();
    calls.pause(&message(&[("2", "b")]), at(2)).unwrap();
    assert!(!calls.may_have_run("2"));
}

#[test]
fn a_pause_that_was_left_ends_before_the_services_own_deadline() {
    let mut guarded = tool("rm");
    guarded.approval = true;
    let mut calls = Calls::new(vec![tool("a"), guarded], CallLimits::default());
    let left = message(&[("1", "a"), ("2", "rm")]);
    calls.take_up(&left, [], Some(10_000), at(0)).unwrap();
    assert_eq!(calls.poll_timeout(), Some(at(8_000)));
    calls.handle_timeout(at(8_000));
    assert!(results(&drain(&mut calls)).is_some());
    // Nobody allowed it here, but somebody may have there.
    assert_eq!(calls.outcome("2"), Some(ToolOutcome::InterruptedMayHaveRun));
}

fn holding(hold_ms: u64) -> CallLimits {
    CallLimits { hold_ms: Some(hold_ms), ..CallLimits::default() }
}

fn asks_to_hold(calls: &mut Calls) -> bool {
    drain(calls).contains(&CallsOutput::Hold)
}

#[test]
fn a_pause_is_held_as_long_as_something_is_open() {
    let mut guarded = tool("rm");
    guarded.approval = true;
    let mut calls = Calls::new(vec![tool("a"), guarded], holding(86_400_000));
    calls.pause(&message(&[("1", "a"), ("2", "rm")]), at(0)).unwrap();
    let mut now = 0;
    for _ in 0..100 {
        assert!(!asks_to_hold(&mut calls));
        now = calls.poll_timeout().unwrap().as_millis();
        calls.handle_timeout(at(now));
        assert!(asks_to_hold(&mut calls), "at {now}");
        calls.held(Some(120_000), at(now));
    }
    assert!(now > 5_000_000, "long past the first deadline: {now}");
    calls.complete("1", Json::string("A"), at(now)).unwrap();
    assert_eq!(calls.decide("2", Verdict::Allow, at(now)).unwrap(), Accepted::Taken);
    calls.complete("2", Json::string("B"), at(now)).unwrap();
    let sent = results(&drain(&mut calls)).unwrap();
    assert_eq!(sent, [("1".into(), false), ("2".into(), false)]);
    assert_eq!(calls.poll_timeout(), None);
}

#[test]
fn a_tools_own_time_limit_stays_when_its_pause_is_held() {
    let mut slow = tool("a");
    slow.timeout_ms = Some(200_000);
    let mut calls = Calls::new(vec![slow], holding(86_400_000));
    calls.pause(&message(&[("1", "a")]), at(0)).unwrap();
    while let Some(next) = calls.poll_timeout() {
        calls.handle_timeout(next);
        if asks_to_hold(&mut calls) {
            calls.held(Some(120_000), next);
        } else {
            assert_eq!(next, at(200_000));
        }
    }
    assert_eq!(calls.outcome("1"), Some(ToolOutcome::TimedOutMayHaveRun));
}

#[test]
fn a_pause_that_cannot_be_held_ends_as_if_nobody_had_tried() {
    // No answer, whoever is at fault: tried again, then the deadline holds.
    let mut calls = Calls::new(vec![tool("a")], holding(86_400_000));
    calls.pause(&message(&[("1", "a")]), at(0)).unwrap();
    let mut asked = 0;
    while let Some(next) = calls.poll_timeout() {
        assert!(next <= at(108_000));
        calls.handle_timeout(next);
        asked += usize::from(asks_to_hold(&mut calls));
        calls.held(None, next);
    }
    assert!((3..60).contains(&asked), "{asked}");
    assert_eq!(calls.outcome("1"), Some(ToolOutcome::TimedOutMayHaveRun));
    // The pause is gone, or the service holds it no longer: what is left is all there is.
    let mut calls = Calls::new(vec![tool("a")], holding(86_400_000));
    calls.pause(&message(&[("1", "a")]), at(0)).unwrap();
    calls.handle_timeout(at(54_000));
    calls.held(Some(0), at(54_000));
    assert_eq!(calls.poll_timeout(), Some(at(108_000)));
}

#[test]
fn a_pause_is_held_no_longer_than_allowed() {
    let mut calls = Calls::new(vec![tool("a")], holding(300_000));
    calls.pause(&message(&[("1", "a")]), at(0)).unwrap();
    let mut last = at(0);
    while let Some(next) = calls.poll_timeout() {
        last = next;
        calls.handle_timeout(next);
        if asks_to_hold(&mut calls) {
            assert!(next < at(300_000));
            calls.held(Some(120_000), next);
        }
    }
    assert!(last > at(300_000) && last < at(420_000), "{last:?}");
}

#[test]
fn a_program_that_was_away_past_the_deadline_asks_before_it_gives_up() {
    let mut calls = Calls::new(vec![tool("a")], holding(86_400_000));
    calls.pause(&message(&[("1", "a")]), at(0)).unwrap();
    drain(&mut calls);
    calls.handle_timeout(at(500_000));
    assert_eq!(drain(&mut calls), [CallsOutput::Hold]);
    calls.held(Some(120_000), at(500_100));
    calls.handle_timeout(at(510_000));
    assert_eq!(calls.outcome("1"), None);
    // Once more, and this time nobody answers.
    calls.handle_timeout(at(900_000));
    assert_eq!(drain(&mut calls), [CallsOutput::Hold]);
    calls.handle_timeout(at(905_000));
    assert_eq!(calls.outcome("1"), Some(ToolOutcome::TimedOutMayHaveRun));
}

#[test]
fn a_cancelled_pause_is_not_held() {
    let mut calls = Calls::new(vec![tool("a")], holding(86_400_000));
    calls.pause(&message(&[("1", "a")]), at(0)).unwrap();
    calls.cancel(at(53_000));
    drain(&mut calls);
    assert_eq!(calls.poll_timeout(), Some(at(55_000)));
    calls.handle_timeout(at(54_500));
    assert_eq!(drain(&mut calls), []);
}

#[test]
fn what_the_service_says_of_its_patience_counts() {
    let mut calls = Calls::new(vec![tool("a")], CallLimits::default());
    calls.pause_for(&message(&[("1", "a")]), Some(10_000), at(0)).unwrap();
    assert_eq!(calls.poll_timeout(), Some(at(8_000)));
}

#[test]
fn results_can_be_saved_in_call_order_while_others_are_open() {
    let mut calls = Calls::new(vec![tool("a")], CallLimits::default());
    calls.pause(&message(&[("1", "a"), ("2", "a"), ("3", "a")]), at(0)).unwrap();
    for id in ["3", "1"] {
        calls.complete(id, Json::string("x"), at(1)).unwrap();
    }
    let ids: Vec<&str> = calls
        .settled()
        .filter_map(|(_, block)| block.tool_result().map(|r| r.tool_use_id.as_str()))
        .collect();
    assert_eq!(ids, ["1", "3"]);
}

#[derive(Debug, Clone)]
enum Input {
    Complete(usize),
    Fail(usize),
    Decide(usize, bool),
    Cancel,
    Wait(u64),
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        (0..6_usize).prop_map(Input::Complete),
        (0..6_usize).prop_map(Input::Fail),
        (0..6_usize, any::<bool>()).prop_map(|(i, b)| Input::Decide(i, b)),
        Just(Input::Cancel),
        (0..60_000_u64).prop_map(Input::Wait),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_each_call_gets_exactly_one_result_in_order(
        shapes in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 1..6),
        concurrent in 1..4_usize,
        inputs in prop::collection::vec(input(), 0..40),
    ) {
        let tools: Vec<Tool> = shapes.iter().enumerate().map(|(i, (sequential, approval, timed))| {
            let mut t = tool(&format!("t{i}"));
            t.sequential = *sequential;
            t.approval = *approval;
            t.timeout_ms = timed.then_some(30_000);
            t
        }).collect();
        let names: Vec<(String, String)> = (0..shapes.len()).map(|i| (format!("c{i}"), format!("t{i}"))).collect();
        let pairs: Vec<(&str, &str)> = names.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let mut calls = Calls::new(tools.clone(), CallLimits { concurrent, ..CallLimits::default() });
        calls.pause(&message(&pairs), at(0)).unwrap();
        let mut now = 0;
        let mut outputs = drain(&mut calls);
        for input in inputs {
            match input {
                Input::Complete(i) => { let _ = calls.complete(&format!("c{i}"), Json::string("x"), at(now)); }
                Input::Fail(i) => { let _ = calls.fail(&format!("c{i}"), "x", at(now)); }
                Input::Decide(i, allow) => {
                    let verdict = if allow { Verdict::Allow } else { Verdict::Deny("no".into()) };
                    let _ = calls.decide(&format!("c{i}"), verdict, at(now));
                }
                Input::Cancel => calls.cancel(at(now)),
                Input::Wait(ms) => { now += ms; calls.handle_timeout(at(now)); }
            }
            outputs.extend(drain(&mut calls));
        }
        calls.handle_timeout(at(now + 200_000));
        outputs.extend(drain(&mut calls));
        // Every call once in the results, in order, and only one set of results.
        let sets = outputs.iter().filter(|o| matches!(o, CallsOutput::Results { .. })).count();
        prop_assert_eq!(sets, 1);
        let ids: Vec<String> = results(&outputs).unwrap().into_iter().map(|(id, _)| id).collect();
        let wanted: Vec<String> = names.iter().map(|(id, _)| id.clone()).collect();
        prop_assert_eq!(ids, wanted);
        // No call starts twice; the bound on concurrency and sequence holds at every moment.
        let mut running: Vec<&str> = Vec::new();
        for output in &outputs {
            match output {
                CallsOutput::Start(call) => {
                    prop_assert!(!running.contains(&call.id.as_str()));
                    running.push(&call.id);
                    prop_assert!(running.len() <= concurrent);
                    let sequential = running.iter().filter(|id| {
                        tools[id[1..].parse::<usize>().unwrap()].sequential
                    }).count();
                    prop_assert!(sequential <= 1);
                }
                CallsOutput::Settled { id, .. } => running.retain(|r| r != id),
                _ => {}
            }
        }
        prop_assert_eq!(calls.poll_timeout(), None);
    }
}
