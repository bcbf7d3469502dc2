//! Results that repeat nothing (feature `lean-result`).

use crate::harness::*;
use serde_json::{Value, json};

#[tokio::test]
async fn nothing_that_the_stream_carried_stands_in_the_result_again() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("t1", "clock"), ("t2", "read")]);
    let mut lines = driver.send_with("lean-result", 7, "x").await.rest().await;
    let result = lines.pop().unwrap()["result"].clone();
    assert_eq!(types(result["events"].as_array().unwrap()), ["client.message.send"]);
    assert_eq!((&result["lean"], &result["message"]["role"]), (&json!(true), &json!("assistant")));
    world.main.call(&[("t3", "clock")]);
    world.main.say("done");
    let mut more = driver.send_with("lean-result", 7, tool_results(&["t2"])).await.rest().await;
    let result = more.pop().unwrap()["result"].clone();
    let kept = result["events"].as_array().unwrap();
    assert_eq!(types(kept), ["client.message.send", "tool.result"]);
    assert_eq!(kept[1]["payload"]["tool_use_id"], "t2");
    // Two answers of three and two tokens each.
    assert_eq!(result["usage"], json!({"input_tokens": 6, "output_tokens": 4}));
    // Stream and result together are the log, each event once.
    let id = |event: &Value| event["id"].clone();
    let mut seen: Vec<Value> = lines.iter().chain(&more).map(|line| id(&line["params"])).collect();
    seen.extend(kept.iter().map(id));
    let log = driver.log().await;
    let turn: Vec<Value> = log.iter().skip(2).skip(1).map(id).collect();
    assert_eq!(seen.len(), turn.len());
    assert!(turn.iter().all(|id| seen.contains(id)));
}

#[tokio::test]
async fn a_plain_caller_gets_the_plain_result() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let result = driver.ask("x").await["result"].clone();
    let members: Vec<&String> = result.as_object().unwrap().keys().collect();
    assert_eq!(members, ["events", "message"]);
    let meta = world.get("/api/v1/meta", "").await.json();
    assert!(meta["features"].as_array().unwrap().contains(&json!("lean-result")));
}
