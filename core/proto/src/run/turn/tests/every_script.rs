//! What holds for every script of models and tools.

use super::keep_open::retries;
use super::*;
use crate::run::view;
use proptest::prelude::*;
use std::collections::HashMap;

/// A block of a random response; ids may clash.
fn block() -> impl Strategy<Value = Block> {
    let names = ["clock", "shell", "launch", "search", "nope"];
    prop_oneof![
        2 => Just(text("x")),
        1 => Just(Block::read(json(r#"{"type":"thinking"}"#))),
        4 => (0usize..40, 0usize..5).prop_map(move |(id, name)| call(&format!("t{id}"), names[name])),
    ]
}

fn answer() -> impl Strategy<Value = Result<ModelReply, ModelFailure>> {
    prop_oneof![
        1 => Just(failure(None, "e", None)),
        6 => proptest::collection::vec(block(), 0..6).prop_map(reply),
    ]
}

/// Checks that each `provider.request` is the same text live and written out from what is stored.
fn check_requests(history: &[Json], events: &[LogEvent]) {
    let mut stored = history.to_vec();
    for event in events {
        let whole = event.whole_payload();
        let logged = view::reduced_logged_payloads(event.event_type.as_str(), &whole);
        assert_eq!(view::reduced_payloads(event, &whole), logged);
        match &event.elided {
            Some(elided) => {
                let composed = compose_request(&event.payload, &stored, &elided.tail);
                assert_eq!(event.whole_payload().as_str(), composed.as_str());
            }
            None if event.event_type == EventType::ClientMessageSend
                || event.event_type == EventType::ServerMessageSend =>
            {
                stored.push(provider_message(&event.payload, &event.event_type));
            }
            None => assert_eq!(event.whole_payload(), event.payload),
        }
    }
}

/// Checks what holds in the log of any turn: order, and one result for each call.
fn check_log(events: &[LogEvent], open: &HashMap<String, String>) {
    assert_eq!(events[0].event_type, EventType::ClientMessageSend);
    let mut results: HashMap<String, usize> = HashMap::new();
    let (mut calls, mut since_response) = (HashMap::new(), Vec::new());
    for event in events {
        let text = |name: &str| event.payload.member(name).and_then(|v| v.to_text());
        match event.event_type {
            EventType::ProviderResponse => since_response.clear(),
            EventType::ToolCall => {
                assert!(
                    since_response.iter().all(|kind| *kind == EventType::ToolCall),
                    "all calls come before any exchange"
                );
                let round = text("id").unwrap();
                *calls.entry(round).or_insert(0usize) += 1;
                since_response.push(EventType::ToolCall);
            }
            EventType::ToolResult => {
                *results.entry(text("tool_use_id").unwrap()).or_default() += 1;
                since_response.push(EventType::ToolResult);
            }
            _ => since_response.push(event.event_type.clone()),
        }
    }
    for (id, count) in &calls {
        let answered = results.get(id).copied().unwrap_or(0);
        let waiting = usize::from(open.contains_key(id));
        assert_eq!(answered + waiting, *count, "{id}");
    }
}

proptest! {
    #[test]
    fn whatever_the_model_says_every_call_gets_one_result_and_rounds_are_bounded(
        script in proptest::collection::vec(answer(), 50),
        cancel_after in 0usize..30,
        keep_open in proptest::option::of((0u32..3).prop_map(retries)),
        asks in proptest::option::of(proptest::option::of(1u64..9)),
        mut answers in proptest::collection::vec(0u8..4, 60),
    ) {
        let consent = asks.map(consent::terms).unwrap_or_default();
        let start_of = |message| TurnStart {
            keep_open,
            consent: consent.clone(),
            ..start(message, &["a", "b"])
        };
        let mut turn = Turn::start(start_of(Message::user("hi"))).unwrap();
        let mut failed_in_a_row = 0;
        let (mut events, mut script, mut step, mut asked) = (Vec::new(), script.into_iter(), 0, 0);
        let end = loop {
            step += 1;
            if step == cancel_after {
                turn.handle_cancel();
            }
            match turn.poll_effect() {
                None => prop_assert!(false, "the turn hangs"),
                Some(Effect::Log(batch)) => events.extend(batch),
                Some(Effect::CallModel(call)) => {
                    asked = call.round + 1;
                    match script.next() {
                        Some(Ok(reply)) => {
                            failed_in_a_row = 0;
                            turn.handle_model_reply(reply);
                        }
                        Some(Err(failure)) => {
                            failed_in_a_row += 1;
                            turn.handle_model_failure(failure);
                        }
                        None => prop_assert!(false, "more than 8 rounds of 6 attempts"),
                    }
                }
                Some(Effect::Wait { ms }) => {
                    prop_assert!(keep_open.is_some_and(|policy| ms <= policy.cap_ms));
                    turn.handle_wait_over();
                }
                Some(Effect::Ask { events: batch, question }) => {
                    prop_assert!(consent.wait_ms == Some(question.expires_in_ms));
                    events.extend(batch);
                    let said = consent::said(&question.tool_use_id, answers.pop().unwrap_or(0));
                    match said {
                        Some(said) => turn.handle_answer(question.accept(said).unwrap()),
                        None => turn.handle_approval_deadline(),
                    }
                }
                Some(Effect::CallTool(run)) => {
                    let resolved = || events.iter().rev().find(|event| {
                        event.event_type.as_str() == EventType::APPROVAL_RESOLVED
                    });
                    if asks.is_some() {
                        let text = resolved().unwrap().payload.as_str();
                        prop_assert!(text.contains(r#""decision":"allow"#) && text.contains(&run.id));
                    }
                    turn.handle_tool_outcome(ToolOutcome::Failed("e".to_owned()));
                }
                Some(end) => break end,
            }
        };
        prop_assert!(asked <= 8);
        let tries = keep_open.map_or(1, |policy| policy.retries + 1);
        prop_assert!(failed_in_a_row <= 2 * tries);
        let mut open = HashMap::new();
        match &end {
            Effect::Pause { events: last, pause, message } => {
                events.extend(last.iter().cloned());
                open.extend(pause.open_calls().map(|id| (id.to_owned(), String::new())));
                prop_assert!(!open.is_empty());
                prop_assert!(message.tool_uses().all(|(_, call)| call.dispatch.is_some()));
                prop_assert_eq!(message.tool_uses().count(), pause.expected.len());
            }
            Effect::Finish { events: last, answer, ends_session, .. } => {
                events.extend(last.iter().cloned());
                prop_assert!(!(*ends_session && keep_open.is_some()));
                if let Ok(message) = answer {
                    prop_assert_eq!(message.tool_uses().count(), 0);
                }
            }
            _ => prop_assert!(false, "no end"),
        }
        check_log(&events, &open);
        check_requests(&[], &events);
        consent::check_questions(&events);
        // Whatever the owner sends next, each open call gets its result.
        if let Effect::Pause { pause, message, .. } = end {
            let next = Turn::start(TurnStart {
                entry: Entry::Resumed,
                paused: Some(pause),
                history: vec![Message::user("hi"), message],
                ..start(Message::user("never mind"), &["a"])
            }).unwrap();
            let ran = run(next, vec![reply(Vec::new())]);
            let history = events
                .iter()
                .filter(|e| e.event_type.as_str().ends_with(".message.send"))
                .map(|e| provider_message(&e.payload, &e.event_type))
                .collect::<Vec<_>>();
            check_requests(&history, &ran.events);
            let answered = ran.types().iter().filter(|t| **t == "tool.result").count();
            prop_assert_eq!(answered, open.len());
            let asked = &ran.calls[0].messages;
            let results = asked.last().unwrap().content.blocks().iter();
            let ids: Vec<&str> =
                results.filter_map(|b| Some(b.tool_result()?.tool_use_id.as_str())).collect();
            let wanted: Vec<&str> = asked[1].tool_uses().map(|(_, c)| c.id.as_str()).collect();
            prop_assert_eq!(ids, wanted);
        }
    }
}
