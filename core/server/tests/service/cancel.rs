//! `session.cancel` (feature `cancel`).

use crate::harness::*;
use serde_json::{Value, json};

const METHOD: &str = "session.cancel";

fn cancelled(was: &str) -> Value {
    json!({"cancelled": was != "idle", "was": was})
}

#[tokio::test]
async fn without_the_feature_the_method_does_not_exist() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let plain = driver.call(METHOD, json!({})).await;
    assert_eq!(
        plain["error"],
        json!({"code": -32601, "message": "Method not found: session.cancel"})
    );
    let idle = driver.call_with("cancel", METHOD, json!({})).await;
    assert_eq!(idle["result"], cancelled("idle"));
    let observer = world.join(&driver, &[]).await;
    let refused = observer.call_with("cancel", METHOD, json!({})).await;
    assert_eq!(refused["error"]["code"], -32001);
}

#[tokio::test]
async fn a_running_model_call_stops_at_once_and_the_gate_is_free() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let mut watcher = driver.subscribe_with("cancel", None).await;
    let mut plain = driver.subscribe(None).await;
    let _never = world.main.hold("never");
    let mut running = driver.send("x").await;
    world.main.was_asked(1).await;
    let answer = driver.call_with("cancel", METHOD, json!({})).await;
    assert_eq!(answer["result"], cancelled("running"));
    let terminal = running.rest().await.pop().unwrap();
    assert_eq!(terminal["error"], json!({"code": -32021, "message": "turn cancelled"}));
    let event = watcher.until("session.turn.cancelled").await;
    assert_eq!(
        event["params"]["payload"],
        json!({"owner_client_key_id": driver.key_id, "was": "running"})
    );
    assert!(driver.ask("next").await["result"].is_object());
    driver.close().await;
    let seen = types(&plain.rest().await);
    assert!(!seen.contains(&"session.turn.cancelled".to_owned()), "{seen:?}");
    assert!(!driver.log_types().await.contains(&"session.turn.cancelled".to_owned()));
}

#[tokio::test]
async fn a_paused_turn_ends_with_the_results_given_and_no_further_round() {
    let world = World::new().await;
    let driver = world.driver(&["read", "other"]).await;
    world.main.call(&[("c1", "read"), ("c2", "other")]);
    driver.ask("x").await;
    let bad = json!({"results": tool_results(&["zz"])});
    let refused = driver.call_with("cancel", METHOD, bad).await;
    assert_eq!(refused["error"]["code"], -32602);
    let params = json!({"results": tool_results(&["c1"])});
    let answer = driver.call_with("cancel", METHOD, params).await;
    assert_eq!(answer["result"], cancelled("paused"));
    assert_eq!(world.main.calls(), 1);
    let log = driver.log().await;
    let message = log.iter().rev().find(|e| e["event_type"] == "client.message.send").unwrap();
    let content = &message["payload"]["content"];
    assert_eq!((&content[0]["content"], &content[1]["is_error"]), (&json!("r-c1"), &json!(true)));
    let late = driver.results(&["c1", "c2"]).await.rest().await.pop().unwrap();
    assert!(late["error"]["message"].as_str().unwrap().contains("no paused turn"));
    assert!(driver.ask("next").await["result"].is_object());
}

#[tokio::test]
async fn a_queued_call_is_taken_out_of_the_queue_by_its_id() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("1");
    let mut running = driver.send_with("", 1, "1").await;
    world.main.was_asked(1).await;
    let mut second = driver.send_with("", 2, "2").await;
    let mut third = driver.send_with("", 3, "3").await;
    second.stays_silent().await;
    // An id is a number or a string, and never both.
    let other = driver.call_with("cancel", METHOD, json!({"request_id": "2"})).await;
    assert_eq!(other["result"], cancelled("idle"));
    let answer = driver.call_with("cancel", METHOD, json!({"request_id": 2})).await;
    assert_eq!(answer["result"], cancelled("queued"));
    let lines = second.rest().await;
    let error = json!({"code": -32021, "message": "turn cancelled"});
    assert_eq!(lines, [json!({"jsonrpc":"2.0","id":2,"error":error})]);
    let unknown = driver.call_with("cancel", METHOD, json!({"request_id": 99})).await;
    assert_eq!(unknown["result"], cancelled("idle"));
    release.send(()).unwrap();
    assert!(running.rest().await.pop().unwrap()["result"].is_object());
    assert!(third.rest().await.pop().unwrap()["result"].is_object());
}

#[tokio::test]
async fn nobody_cancels_somebody_elses_turn() {
    let world = World::new().await;
    let a = world.driver(&[]).await;
    let b = world.join(&a, &[]).await;
    b.register().await;
    let release = world.main.hold("done");
    let mut running = a.send("x").await;
    world.main.was_asked(1).await;
    let answer = b.call_with("cancel", METHOD, json!({})).await;
    assert_eq!(answer["result"], cancelled("idle"));
    release.send(()).unwrap();
    assert!(running.rest().await.pop().unwrap()["result"].is_object());
}

#[tokio::test]
async fn a_cancelled_turn_hands_the_gate_to_the_next_in_the_queue() {
    let world = World::new().await;
    let a = world.driver(&["read"]).await;
    let b = world.join(&a, &[]).await;
    b.register().await;
    world.main.call(&[("c1", "read")]);
    a.ask("x").await;
    let mut waiting = b.send("y").await;
    waiting.stays_silent().await;
    let answer = a.call_with("cancel", METHOD, json!({})).await;
    assert_eq!(answer["result"], cancelled("paused"));
    assert!(waiting.rest().await.pop().unwrap()["result"].is_object());
}
