//! Turns that fail and sessions that go on (feature `keep-open`).

use crate::harness::*;
use serde_json::{Value, json};
use std::time::Duration;

const KEEP: &str = "keep-open";

/// A service whose waits between tries are short.
async fn patient(retries: u32) -> World {
    World::with(|c| {
        c.provider_retries = retries;
        c.provider_retry_base = Duration::from_millis(1);
        c.provider_retry_cap = Duration::from_millis(20);
    })
    .await
}

async fn send(driver: &Driver, content: impl Into<Value>) -> (Vec<Value>, Value) {
    let mut lines = driver.send_with(KEEP, 7, content).await.rest().await;
    let terminal = lines.pop().unwrap();
    (lines, terminal)
}

fn kinds(lines: &[Value]) -> Vec<String> {
    let requests = lines.iter().filter(|l| l["params"]["event_type"] == "provider.request");
    requests.map(|l| l["params"]["payload"]["kind"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_provider_that_comes_back_is_asked_again_and_nothing_is_an_error() {
    let world = patient(2).await;
    let driver = world.driver(&[]).await;
    world.main.fail(503);
    world.main.showing(&["half a"]);
    // Asks for an hour: the cap is what counts.
    world.main.refuse(429, Duration::from_secs(3600));
    world.main.say("here");
    let (lines, terminal) = send(&driver, "x").await;
    assert_eq!(terminal["result"]["message"]["content"][0]["text"], "here");
    assert_eq!(kinds(&lines), ["primary", "primary", "primary"]);
    assert!(!types(&lines).contains(&"session.error".to_owned()));
    let attempts: Vec<&Value> =
        lines.iter().map(|l| &l["params"]["payload"]["attempt"]).filter(|a| !a.is_null()).collect();
    assert_eq!(attempts, [0, 0, 1, 1, 2, 2].map(Value::from).iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn when_nobody_answers_the_turn_ends_and_the_next_message_follows_in_the_same_session() {
    let world = patient(1).await;
    let driver = world.driver(&[]).await;
    world.main.fail(500);
    world.main.fail(500);
    world.spare.fail_for_good(404);
    let (lines, terminal) = send(&driver, "lost").await;
    let words = "providers failed: attempts: 3, the last one: no such model";
    assert_eq!(terminal["error"], json!({"code": -32024, "message": words}));
    assert_eq!(kinds(&lines), ["primary", "primary", "fallback"]);
    let last = &lines.last().unwrap()["params"]["payload"];
    assert_eq!(*last, json!({"reason": "all_providers_failed", "attempts": 3}));
    world.main.say("found");
    let (_, terminal) = send(&driver, "again").await;
    assert_eq!(terminal["result"]["message"]["content"][0]["text"], "found");
    assert_eq!(
        world.main.messages(2),
        json!([{"role": "user", "content": "lost"}, {"role": "user", "content": "again"}])
    );
}

#[tokio::test]
async fn too_many_rounds_are_the_end_of_the_turn_alone() {
    let world = World::with(|c| c.max_rounds = 2).await;
    let driver = world.driver(&[]).await;
    world.main.call(&[("t1", "clock")]);
    world.main.call(&[("t2", "clock")]);
    let (lines, terminal) = send(&driver, "x").await;
    let words = "loop limit: no answer after 2 model rounds";
    assert_eq!(terminal["error"], json!({"code": -32025, "message": words}));
    assert_eq!(types(&lines).iter().filter(|kind| *kind == "tool.result").count(), 2);
    assert!(driver.ask("y").await["result"].is_object());
}

#[tokio::test]
async fn a_wrong_result_is_refused_and_the_right_one_continues_the_paused_turn() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("c1", "read"), ("s1", "clock")]);
    driver.ask("x").await;
    let before = driver.log().await.len();
    for (content, reason) in [
        (tool_results(&["zz"]), "tool_result id \"zz\" is not in the paused assistant turn"),
        (json!([]), "no tool_result for tool_use id \"c1\""),
    ] {
        let (lines, terminal) = send(&driver, content).await;
        let words = format!("tool result merge invalid: {reason}");
        assert_eq!(terminal["error"], json!({"code": -32000, "message": words}));
        assert!(lines.is_empty());
    }
    assert_eq!(driver.log().await.len(), before);
    assert_eq!(world.main.calls(), 1);
    world.main.say("done");
    let (_, terminal) = send(&driver, tool_results(&["c1"])).await;
    assert_eq!(terminal["result"]["message"]["content"][0]["text"], "done");
    let asked = world.main.messages(1);
    let ids: Vec<&Value> =
        asked[2]["content"].as_array().unwrap().iter().map(|b| &b["tool_use_id"]).collect();
    assert_eq!(ids, ["c1", "s1"]);
}

#[tokio::test]
async fn a_refused_take_over_leaves_the_pause_to_the_next_arrival() {
    let world = World::with(|c| c.turn_timeout = Duration::from_millis(1)).await;
    let a = world.driver(&["read"]).await;
    let b = world.join(&a, &[]).await;
    b.register().await;
    world.main.call(&[("c1", "read")]);
    a.ask("x").await;
    let before = a.log().await.len();
    let (_, refused) = send(&b, tool_results(&["c1"])).await;
    assert!(refused["error"]["message"].as_str().unwrap().starts_with("tool result merge invalid"));
    assert_eq!(a.log().await.len(), before);
    // The owner can still bring its result.
    let done = a.results(&["c1"]).await.rest().await.pop().unwrap();
    assert_eq!(done["result"]["message"]["content"][0]["text"], "ok");
}

#[tokio::test]
async fn a_turn_that_waits_for_its_next_try_can_be_cancelled() {
    let world = World::with(|c| {
        c.provider_retry_base = Duration::from_secs(600);
        c.provider_retry_cap = Duration::from_secs(600);
    })
    .await;
    let driver = world.driver(&[]).await;
    world.main.fail(503);
    let mut stream = driver.send_with(KEEP, 7, "x").await;
    stream.until("provider.response").await;
    let cancelled = driver.call_with("cancel", "session.cancel", json!({})).await;
    assert_eq!(cancelled["result"], json!({"cancelled": true, "was": "running"}));
    let terminal = stream.rest().await.pop().unwrap();
    assert_eq!(terminal["error"]["code"], -32021);
    assert!(driver.ask("next").await["result"].is_object());
}

#[tokio::test]
async fn a_plain_turn_is_tried_once_and_its_failure_ends_the_session() {
    let world = patient(2).await;
    let driver = world.driver(&[]).await;
    world.main.fail(503);
    world.spare.fail(503);
    let terminal = driver.ask("x").await;
    let text = "The provider is currently unavailable.";
    assert_eq!(terminal["result"]["message"]["content"][0]["text"], text);
    assert_eq!((world.main.calls(), world.spare.calls()), (1, 1));
    let (_, late) = send(&driver, "y").await;
    assert_eq!(late["error"]["message"], "session is error, not open");
}
