//! Consent to calls of the service's own tools (feature `approve`).

use super::*;
use crate::session::approval::{Approvals, Approve, Ask, Consent, Question};
use crate::session::narrow::{NarrowRule, NarrowRules};

/// Everything is asked for, and an argument may become smaller.
pub(super) fn terms(wait_ms: Option<u64>) -> ConsentTerms {
    let rules = NarrowRules::new([("/q".to_owned(), NarrowRule::AtMost)]);
    let approvals = Approvals { ask: Ask::Everything, narrow: vec![("search".to_owned(), rules)] };
    ConsentTerms { approvals, wait_ms }
}

/// One of the answers that there are; nothing for none.
pub(super) fn said(id: &str, which: u8) -> Option<Approve> {
    let consent = match which {
        0 => Consent::Allow,
        1 => Consent::Narrowed(json(r#"{"q":0.5}"#)),
        2 => Consent::Deny,
        _ => return None,
    };
    Some(Approve { tool_use_id: id.to_owned(), consent, reason: None })
}

/// Checks that each question is settled once before the next one is asked.
pub(super) fn check_questions(events: &[LogEvent]) {
    let mut open: Option<String> = None;
    for event in events {
        let id = || event.payload.member("tool_use_id").and_then(|id| id.to_text());
        match event.event_type.as_str() {
            EventType::APPROVAL_REQUESTED => assert_eq!(std::mem::replace(&mut open, id()), None),
            EventType::APPROVAL_RESOLVED => assert_eq!(open.take(), id()),
            _ => {}
        }
    }
    assert_eq!(open, None);
}

fn asking(wait_ms: Option<u64>) -> Turn {
    let start = start(Message::user("hi"), &["anthropic"]);
    Turn::start(TurnStart { consent: terms(wait_ms), ..start }).unwrap()
}

/// Up to the first question, after a response with these calls.
fn asked(calls: Vec<Block>) -> (Turn, Vec<LogEvent>, Question) {
    let mut turn = asking(Some(9000));
    until_model(&mut turn);
    turn.handle_model_reply(reply(calls).unwrap());
    let Some(Effect::Ask { events, question }) = turn.poll_effect() else { panic!() };
    assert_eq!(turn.poll_effect(), None, "it waits");
    (turn, events, question)
}

fn lines(events: &[LogEvent]) -> Vec<String> {
    events.iter().map(|e| format!("{} {}", e.event_type, e.payload.as_str())).collect()
}

fn answer(turn: &mut Turn, question: &Question, which: u8) -> Option<Effect> {
    turn.handle_answer(question.accept(said(&question.tool_use_id, which).unwrap()).unwrap());
    turn.poll_effect()
}

#[test]
fn a_call_is_asked_for_before_anything_runs() {
    let (_, events, question) = asked(vec![call("t1", "search")]);
    assert_eq!(
        lines(&events)[1..],
        [
            r#"tool.call {"dispatch":"mcp","id":"t1","input":{"q":1.0},"name":"search","server_name":"echo"}"#,
            r#"session.approval.requested {"expires_in_ms":9000,"input":{"q":1.0},"name":"search","narrow":{"/q":"at_most"},"owner_client_key_id":"key_a","tool_use_id":"t1"}"#,
        ]
    );
    assert_eq!((question.tool_use_id.as_str(), question.name.as_str()), ("t1", "search"));
}

#[test]
fn an_allowed_call_runs_as_it_was_asked_for() {
    let (mut turn, _, question) = asked(vec![call("t1", "search")]);
    let Some(Effect::Log(events)) = answer(&mut turn, &question, 0) else { panic!() };
    assert_eq!(
        lines(&events),
        [
            r#"session.approval.resolved {"by":"person","decision":"allow","tool_use_id":"t1"}"#,
            r#"mcp.request {"input":{"q":1.0},"method":"tools/call","server_name":"echo","tool":"search"}"#,
        ]
    );
    let Some(Effect::CallTool(run)) = turn.poll_effect() else { panic!() };
    assert_eq!((run.id.as_str(), run.input.as_str()), ("t1", r#"{"q":1.0}"#));
    // It was answered: what comes late changes nothing.
    turn.handle_approval_deadline();
    assert_eq!(turn.poll_effect(), None);
}

#[test]
fn a_narrowed_input_is_what_runs_and_the_history_keeps_what_was_called() {
    let (mut turn, _, question) = asked(vec![call("t1", "search")]);
    let Some(Effect::Log(events)) = answer(&mut turn, &question, 1) else { panic!() };
    assert_eq!(
        lines(&events),
        [
            r#"session.approval.resolved {"by":"person","decision":"allow_narrowed","input":{"q":0.5},"tool_use_id":"t1"}"#,
            r#"mcp.request {"input":{"q":0.5},"method":"tools/call","server_name":"echo","tool":"search"}"#,
        ]
    );
    let Some(Effect::CallTool(run)) = turn.poll_effect() else { panic!() };
    assert_eq!(run.input.as_str(), r#"{"q":0.5}"#);
    turn.handle_tool_outcome(ToolOutcome::of_content(&json("[]"), false));
    assert!(matches!(turn.poll_effect(), Some(Effect::Log(_))));
    let Some(Effect::CallModel(asked)) = turn.poll_effect() else { panic!() };
    let (_, called) = asked.messages[1].tool_uses().next().unwrap();
    assert_eq!(called.input.as_str(), r#"{"q":1.0}"#);
}

#[test]
fn a_denied_call_gets_an_error_result_with_the_reason_and_runs_nothing() {
    for (reason, told) in [(Some("too \"risky\""), "too \"risky\""), (None, "no reason was given")]
    {
        let (mut turn, _, question) = asked(vec![call("t1", "search")]);
        let said = Approve { reason: reason.map(str::to_owned), ..said("t1", 2).unwrap() };
        turn.handle_answer(question.accept(said).unwrap());
        let Some(Effect::Log(events)) = turn.poll_effect() else { panic!() };
        assert_eq!(events[0].payload.member("reason").and_then(|r| r.to_text()).as_deref(), reason);
        assert_eq!(events[1].event_type, EventType::ToolResult);
        let result = &events[1].payload;
        assert_eq!(result.member("is_error").unwrap().as_str(), "true");
        let text = result.member("content").unwrap().elements().unwrap()[0].member("text").unwrap();
        assert_eq!(text.to_text().unwrap(), format!("The call was denied and not run: {told}"));
        assert!(matches!(turn.poll_effect(), Some(Effect::CallModel(_))));
    }
}

#[test]
fn nobody_who_answers_in_time_is_a_deny() {
    let (mut turn, _, _) = asked(vec![call("t1", "search")]);
    turn.handle_approval_deadline();
    let Some(Effect::Log(events)) = turn.poll_effect() else { panic!() };
    assert_eq!(
        lines(&events)[0],
        r#"session.approval.resolved {"by":"deadline","decision":"deny","reason":"nobody answered in time","tool_use_id":"t1"}"#
    );
    assert!(lines(&events)[1].contains("denied and not run: nobody answered in time"));
    assert!(matches!(turn.poll_effect(), Some(Effect::CallModel(_))));
}

#[test]
fn a_cancelled_turn_withdraws_its_question_and_gives_each_call_a_result() {
    let (mut turn, _, _) = asked(vec![call("t1", "search"), call("t2", "clock")]);
    assert!(turn.handle_cancel());
    let Some(Effect::Finish { events, outcome, .. }) = turn.poll_effect() else { panic!() };
    assert_eq!(outcome, Outcome::Cancelled);
    let types: Vec<&str> = events.iter().map(|e| e.event_type.as_str()).collect();
    let results = ["tool.result", "tool.result", "session.turn.cancelled"];
    assert_eq!(types, [&["session.approval.resolved"][..], &results].concat());
    assert_eq!(
        events[0].payload.as_str(),
        r#"{"by":"cancel","decision":"withdrawn","tool_use_id":"t1"}"#
    );
    turn.handle_approval_deadline();
    assert_eq!(turn.poll_effect(), None);
}

#[test]
fn a_cancel_before_the_question_is_taken_up_loses_no_event() {
    let mut turn = asking(Some(9000));
    until_model(&mut turn);
    turn.handle_model_reply(reply(vec![call("t1", "search")]).unwrap());
    assert!(turn.handle_cancel());
    let Some(Effect::Finish { events, .. }) = turn.poll_effect() else { panic!() };
    check_questions(&events);
    let types: Vec<&str> = events.iter().map(|e| e.event_type.as_str()).collect();
    assert_eq!(types[..2], ["provider.response", "tool.call"]);
}

#[test]
fn the_calls_of_one_response_are_asked_for_in_order_and_the_drivers_own_not_at_all() {
    let calls =
        vec![call("t0", "clock"), call("t1", "search"), call("t2", "nope"), call("t3", "search")];
    let (mut turn, events, first) = asked(calls);
    assert_eq!(events.iter().filter(|e| e.event_type == EventType::ToolCall).count(), 4);
    assert_eq!(first.tool_use_id, "t1");
    // A name that no server has runs nothing, so that there is nothing to consent to.
    let Some(Effect::Ask { events, question }) = answer(&mut turn, &first, 2) else { panic!() };
    let told: Vec<&str> = events.iter().map(|e| e.event_type.as_str()).collect();
    let missing = ["mcp.request", "mcp.response", "tool.result"];
    let denied = ["session.approval.resolved", "tool.result"];
    assert_eq!(told, [&denied[..], &missing, &["session.approval.requested"]].concat());
    assert_eq!(question.tool_use_id, "t3");
    assert!(matches!(answer(&mut turn, &question, 0), Some(Effect::Log(_))));
    assert!(matches!(turn.poll_effect(), Some(Effect::CallTool(_))));
    turn.handle_tool_outcome(ToolOutcome::of_content(&json("[]"), false));
    let Some(Effect::Pause { pause, .. }) = turn.poll_effect().and_then(|effect| match effect {
        Effect::Log(_) => turn.poll_effect(),
        effect => Some(effect),
    }) else {
        panic!()
    };
    assert_eq!(pause.open_calls().collect::<Vec<_>>(), ["t0"]);
    assert_eq!(pause.stash.len(), 3);
}

#[test]
fn where_nobody_can_be_asked_the_call_does_not_run() {
    let script = vec![reply(vec![call("t1", "search")]), reply(vec![text("done")])];
    let ran = run(asking(None), script);
    assert!(ran.tools.is_empty());
    assert_eq!(
        ran.types()[3..5],
        ["tool.call", "tool.result"],
        "nothing is said to the tool's server, and nothing to those who did not ask"
    );
    assert!(ran.lines()[4].contains("needs a person's approval"));
    assert!(ran.lines()[4].contains(r#""is_error":true"#));
}

#[test]
fn a_tool_that_is_not_named_runs_unasked() {
    let mut consent = terms(Some(9));
    consent.approvals = Approvals { ask: Ask::parse("other"), ..Approvals::default() };
    let start = start(Message::user("hi"), &["anthropic"]);
    let turn = Turn::start(TurnStart { consent, ..start }).unwrap();
    let ran = run(turn, vec![reply(vec![call("t1", "search")]), reply(vec![text("done")])]);
    assert_eq!(ran.tools.len(), 1);
}
