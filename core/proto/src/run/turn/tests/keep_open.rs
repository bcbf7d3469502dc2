//! Turns of callers that asked for `keep-open`: tries after a wait, and ends that are the turn's alone.

use super::*;

/// Waits of half a second to thirty.
pub(super) fn retries(retries: u32) -> RetryPolicy {
    RetryPolicy { retries, base_ms: 500, cap_ms: 30_000, jitter: 0x0123_4567_89ab_cdef }
}

fn kept_open(providers: &[&str], policy: RetryPolicy) -> Turn {
    let start = TurnStart { keep_open: Some(policy), ..start(Message::user("hi"), providers) };
    Turn::start(start).unwrap()
}

fn failed(ran: &Ran) -> (i64, String) {
    let Effect::Finish { answer: Err(failure), ends_session: false, .. } = &ran.end else {
        panic!("{:?}", ran.end)
    };
    (failure.code, failure.message.clone())
}

/// Attempt and kind of each request.
fn requests(ran: &Ran) -> Vec<String> {
    let requests = ran.events.iter().filter(|e| e.event_type == EventType::ProviderRequest);
    let member = |e: &LogEvent, name: &str| e.payload.member(name).unwrap().as_str().to_owned();
    requests.map(|e| format!("{} {}", member(e, "attempt"), member(e, "kind"))).collect()
}

#[test]
fn an_attempt_that_may_go_well_next_time_is_made_again_after_a_wait() {
    let busy = || failure(Some(529), "overloaded", None);
    let ran = run(kept_open(&["a"], retries(2)), vec![busy(), busy(), reply(vec![text("x")])]);
    assert_eq!(
        ran.types(),
        [
            "client.message.send",
            "provider.request",
            "provider.response",
            "provider.request",
            "provider.response",
            "provider.request",
            "provider.response",
            "server.message.send"
        ]
    );
    assert_eq!(requests(&ran), ["0 \"primary\"", "1 \"primary\"", "2 \"primary\""]);
    assert_eq!(ran.answer().1, Outcome::Completed);
    let [first, second] = ran.waits[..] else { panic!("{:?}", ran.waits) };
    assert!((250..500).contains(&first) && (500..1000).contains(&second), "{:?}", ran.waits);
}

#[test]
fn a_wait_is_as_long_as_the_provider_asks_up_to_the_cap() {
    let asks = |ms| {
        let failure = ModelFailure { status: Some(429), ..ModelFailure::passing("slow down") };
        Err(ModelFailure { retry_after_ms: Some(ms), ..failure })
    };
    let script = vec![asks(7_000), asks(3_600_000), reply(Vec::new())];
    let ran = run(kept_open(&["a"], retries(2)), script);
    assert_eq!(ran.waits, [7_000, 30_000]);
}

#[test]
fn each_provider_has_its_own_tries_and_what_lasts_gets_none() {
    let lasting = || Err(ModelFailure { status: Some(401), ..ModelFailure::lasting("no key") });
    let down = || failure(Some(503), "down", None);
    let script = vec![lasting(), down(), down()];
    let ran = run(kept_open(&["a", "b"], retries(1)), script);
    assert_eq!(requests(&ran), ["0 \"primary\"", "1 \"fallback\"", "2 \"fallback\""]);
    assert_eq!(ran.waits.len(), 1);
    let errors: Vec<String> =
        ran.lines().into_iter().filter(|l| l.starts_with("session.error")).collect();
    assert_eq!(
        errors,
        [
            r#"session.error {"detail":"no key","provider":"a","reason":"provider_call_failed"}"#,
            r#"session.error {"attempts":3,"reason":"all_providers_failed"}"#,
        ]
    );
    let words = "providers failed: attempts: 3, the last one: down";
    assert_eq!(failed(&ran), (-32024, words.to_owned()));
}

#[test]
fn a_plain_caller_gets_one_try_for_each_provider() {
    let ran = run(turn(), vec![failure(Some(503), "down", None)]);
    assert!(ran.waits.is_empty() && ran.ends_session());
}

#[test]
fn the_end_of_a_turn_without_providers_or_rounds_is_not_the_end_of_the_session() {
    let ran = run(kept_open(&[], retries(2)), Vec::new());
    let words = "providers failed: the profile names no provider that is configured";
    assert_eq!(failed(&ran), (-32024, words.to_owned()));
    let looped: Vec<_> = (0..8).map(|n| reply(vec![call(&format!("t{n}"), "search")])).collect();
    let ran = run(kept_open(&["a"], retries(2)), looped);
    assert_eq!(failed(&ran), (-32025, "loop limit: no answer after 8 model rounds".to_owned()));
    assert_eq!(ran.types().iter().filter(|t| **t == "tool.result").count(), 8);
}

#[test]
fn a_refused_continuation_leaves_no_trace_and_the_pause_stays() {
    let pause = Pause {
        owner: KeyId::from("key_a"),
        expected: vec!["t".to_owned()],
        stash: Vec::new(),
        generation: Generation::default(),
    };
    for entry in [Entry::Resumed, Entry::Reclaimed { from: KeyId::from("key_b") }] {
        let content = json(r#"[{"type":"tool_result","tool_use_id":"z","content":""}]"#);
        let message = Message { role: Role::User, content: Content::read(&content) };
        let start = TurnStart {
            entry,
            paused: Some(pause.clone()),
            keep_open: Some(retries(2)),
            ..start(message, &["p"])
        };
        let rejected = Turn::start(start).unwrap_err();
        assert!(!rejected.ends_session && rejected.events.is_empty());
        assert_eq!(rejected.failure.code, -32000);
        assert!(rejected.failure.message.starts_with("tool result merge invalid: "));
    }
}

#[test]
fn a_turn_cancelled_while_it_waits_makes_no_further_attempt() {
    let mut turn = kept_open(&["a"], retries(2));
    until_model(&mut turn);
    turn.handle_model_failure(ModelFailure::passing("down"));
    let mut effects = Vec::new();
    while let Some(effect) = turn.poll_effect() {
        effects.push(effect);
    }
    assert!(matches!(effects[..], [Effect::Log(_), Effect::Wait { .. }]), "{effects:?}");
    assert_eq!(cancelled(&mut turn), [WAS_RUNNING]);
    turn.handle_wait_over();
    assert_eq!(turn.poll_effect(), None);
}
