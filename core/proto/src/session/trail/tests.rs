use super::*;
use bytes::Bytes;
use proptest::prelude::*;

const OPENED: (&str, &str) = ("session.open", "{}");
const ASKED: (&str, &str) = ("provider.request", "{}");
const ANSWERED: (&str, &str) = ("server.message.send", r#"{"role":"assistant","content":"hi"}"#);

fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).unwrap()
}

fn event_of(key: &str, (kind, payload): (&str, &str)) -> Event {
    let text = format!(
        r#"{{"id":"e","event_type":"{kind}","client_key_id":"{key}","payload":{payload}}}"#
    );
    Event::parse(&Bytes::from(text)).unwrap()
}

fn event(kind_and_payload: (&str, &str)) -> Event {
    event_of("key_a", kind_and_payload)
}

fn saying(text: &str) -> Trail {
    let params = json(&format!(r#"{{"message":{{"role":"user","content":"{text}"}}}}"#));
    Trail::new(&params, None)
}

fn said(text: &str) -> String {
    format!(r#"{{"role":"user","content":"{text}"}}"#)
}

fn result(id: &str, content: &str) -> String {
    format!(r#"{{"type":"tool_result","tool_use_id":"{id}","content":"{content}"}}"#)
}

fn answering(results: &[String]) -> Trail {
    let content = results.join(",");
    Trail::new(&json(&format!(r#"{{"message":{{"role":"user","content":[{content}]}}}}"#)), None)
}

fn answered(content: &str) -> String {
    format!(r#"{{"content":[{content}],"role":"user"}}"#)
}

#[test]
fn a_message_is_found_and_then_its_answer() {
    let mut trail = saying("go");
    assert_eq!(trail.event(&event(OPENED)), Told::Other);
    assert_eq!(trail.event(&event(ANSWERED)), Told::Other, "an answer before it is another's");
    assert_eq!(trail.event(&event(("client.message.send", &said("stop")))), Told::Other);
    assert!(!trail.has_arrived());
    assert_eq!(trail.event(&event(("client.message.send", &said("go")))), Told::Own);
    assert!(trail.has_arrived());
    assert_eq!(trail.event(&event(ASKED)), Told::Part);
    for foreign in ["session.join", EventType::METADATA_UPDATED] {
        assert_eq!(trail.event(&event((foreign, "{}"))), Told::Other, "{foreign} is of no turn");
    }
    let Told::Answered(message) = trail.event(&event(ANSWERED)) else { panic!() };
    assert_eq!(message.text(), "hi");
}

#[test]
fn a_message_behind_synthetic_results_and_in_blocks_is_the_same() {
    let merged = answered(&format!(r#"{},{{"text":"go","type":"text"}}"#, result("a", "gone")));
    assert_eq!(saying("go").event(&event(("client.message.send", &merged))), Told::Own);
}

#[test]
fn the_same_words_of_another_key_are_another_message() {
    let params = json(&format!(r#"{{"message":{}}}"#, said("go")));
    let mut trail = Trail::new(&params, Some("key_a".to_owned()));
    let theirs = event_of("key_b", ("client.message.send", &said("go")));
    assert_eq!(trail.event(&theirs), Told::Other);
    let ours = event_of("key_a", ("client.message.send", &said("go")));
    assert_eq!(trail.event(&ours), Told::Own);
}

#[test]
fn a_message_id_says_more_than_words() {
    let params = json(&format!(r#"{{"message":{},"message_id":"m1"}}"#, said("go")));
    let with = |id: &str| format!(r#"{{"role":"user","content":"go","message_id":"{id}"}}"#);
    let mut trail = Trail::new(&params, None);
    assert_eq!(trail.event(&event(("client.message.send", &with("m0")))), Told::Other);
    assert_eq!(trail.event(&event(("client.message.send", &with("m1")))), Told::Own);
}

#[test]
fn results_are_found_in_any_order_and_beside_those_of_the_service() {
    let merged = answered(&[result("b", "2"), result("s", "server"), result("a", "1")].join(","));
    let mut trail = answering(&[result("a", "1"), result("b", "2")]);
    assert_eq!(trail.event(&event(("client.message.send", &merged))), Told::Own);
    for (id, told) in [("a", Told::Own), ("b", Told::Own), ("s2", Told::Part)] {
        let payload = format!(r#"{{"tool_use_id":"{id}","content":"1"}}"#);
        assert_eq!(trail.event(&event(("tool.result", &payload))), told, "{id}");
    }
    assert!(matches!(trail.event(&event(ANSWERED)), Told::Answered(_)));
}

#[test]
fn results_whose_pause_has_ended_without_them_are_too_late() {
    let ends = [
        ("client.message.send", answered(&result("a", "abandoned"))),
        ("session.error", r#"{"reason":"driver_turn_abandoned"}"#.to_owned()),
        ("session.turn.cancelled", "{}".to_owned()),
    ];
    for (kind, payload) in &ends {
        let mut trail = answering(&[result("a", "1")]);
        assert_eq!(trail.event(&event((kind, payload))), Told::TooLate, "{kind}");
    }
}

#[test]
fn another_message_before_the_answer_means_that_the_turn_was_broken_off() {
    let mut trail = saying("go");
    trail.event(&event(("client.message.send", &said("go"))));
    assert_eq!(trail.event(&event(("client.message.send", &said("next")))), Told::BrokenOff);
}

#[test]
fn how_a_turn_fails_is_told_and_an_attempt_that_fails_is_not_its_end() {
    for (reason, expected) in [
        ("provider_call_failed", Told::Part),
        ("all_providers_failed", Told::Failed),
        ("loop_limit", Told::Failed),
        ("provider_config", Told::Failed),
        ("tool_result_merge_invalid", Told::Closed),
        ("moon_phase", Told::Part),
    ] {
        let mut trail = saying("go");
        trail.arrived();
        let payload = format!(r#"{{"reason":"{reason}"}}"#);
        assert_eq!(trail.event(&event(("session.error", &payload))), expected, "{reason}");
    }
    let mut trail = saying("go");
    trail.arrived();
    assert_eq!(trail.event(&event(("session.turn.cancelled", "{}"))), Told::Cancelled);
    assert_eq!(trail.event(&event(("session.close", "{}"))), Told::Closed);
}

#[test]
fn what_the_service_says_in_somebodys_name_is_no_answer() {
    let mut trail = saying("go");
    trail.arrived();
    for payload in [
        r#"{"role":"user","content":[],"synthetic":"compaction_preamble"}"#,
        r#"{"role":"assistant","content":[],"synthetic":"x"}"#,
        r#"{"role":"user","content":[]}"#,
    ] {
        assert_eq!(trail.event(&event(("server.message.send", payload))), Told::Part);
    }
}

proptest! {
    /// Turns of others before it, their failures, and events that belong to no turn change nothing.
    #[test]
    fn the_outcome_is_that_of_our_own_turn(before in prop::collection::vec(0..6_u8, 0..20), during in prop::collection::vec(0..3_u8, 0..20)) {
        let noise = |kind: u8| match kind {
            0 => event(("session.join", "{}")),
            1 => event(("session.driver.register", "{}")),
            2 => event(("session.error", r#"{"reason":"provider_call_failed"}"#)),
            3 => event(("client.message.send", &said("other"))),
            4 => event(ANSWERED),
            _ => event(("session.turn.cancelled", "{}")),
        };
        let mut trail = saying("go");
        for kind in before {
            prop_assert_eq!(trail.event(&noise(kind)), Told::Other);
        }
        prop_assert_eq!(trail.event(&event(("client.message.send", &said("go")))), Told::Own);
        for kind in during {
            prop_assert!(matches!(trail.event(&noise(kind)), Told::Other | Told::Part));
        }
        prop_assert!(matches!(trail.event(&event(ANSWERED)), Told::Answered(_)));
    }
}
