//! Pauses, continuations and abandonment (session service §7).

use crate::harness::*;
use serde_json::{Value, json};
use std::time::Duration;

const ABANDONED: &str = "Client tool call was abandoned before returning a result.";

/// A session with a paused turn: `read` is the driver's, `clock` the service's.
async fn paused(world: &World) -> Driver {
    let driver = world.driver(&["read", "other"]).await;
    world.main.call(&[("c1", "read"), ("s1", "clock"), ("c2", "other")]);
    let terminal = driver.ask("go").await;
    let content = terminal["result"]["message"]["content"].as_array().unwrap();
    let dispatch: Vec<&Value> = content.iter().map(|block| &block["dispatch"]).collect();
    assert_eq!(dispatch, ["client", "mcp", "client"]);
    driver
}

#[tokio::test]
async fn a_mixed_turn_logs_calls_first_and_the_merge_keeps_the_order_of_the_calls() {
    let world = World::new().await;
    let driver = paused(&world).await;
    assert_eq!(
        driver.log_types().await[2..],
        [
            "client.message.send",
            "provider.request",
            "provider.response",
            "tool.call",
            "tool.call",
            "tool.call",
            "mcp.request",
            "mcp.response",
            "tool.result",
            "server.message.send"
        ]
    );
    let results = json!([
        {"type":"tool_result","tool_use_id":"c2","content":"two"},
        {"type":"text","text":"extra"},
        {"type":"tool_result","tool_use_id":"c1","content":"one","is_error":true},
        {"type":"tool_result","tool_use_id":"s1","content":"the client's own idea"},
    ]);
    world.main.say("done");
    let terminal = driver.ask(results).await;
    let events = terminal["result"]["events"].as_array().unwrap();
    assert_eq!(
        types(events),
        [
            "client.message.send",
            "tool.result",
            "tool.result",
            "provider.request",
            "provider.response",
            "server.message.send"
        ]
    );
    let content = &events[0]["payload"]["content"];
    let ids: Vec<&Value> =
        content.as_array().unwrap().iter().map(|block| &block["tool_use_id"]).collect();
    assert_eq!(ids, [&json!("c1"), &json!("s1"), &json!("c2"), &Value::Null]);
    assert_eq!(content[1]["content"][0]["text"], "2026-07-06T18:26:10.500Z");
    assert_eq!(content[3]["text"], "extra");
    assert_eq!(
        events[1]["payload"],
        json!({"tool_use_id":"c1","dispatch":"client","content":"one"})
    );
    let upstream = world.main.messages(1);
    assert!(!upstream.to_string().contains("dispatch"), "{upstream}");
    let roles: Vec<&Value> =
        upstream.as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
}

#[tokio::test]
async fn every_malformed_continuation_is_refused_and_ends_the_session() {
    let result = |id: &str| json!({"type":"tool_result","tool_use_id":id,"content":"x"});
    let rows = [
        (json!([result("c1")]), "no tool_result for tool_use id \"c2\""),
        (
            json!([result("c1"), result("c2"), result("zz")]),
            "tool_result id \"zz\" is not in the paused assistant turn",
        ),
        (
            json!([result("c1"), result("c1"), result("c2")]),
            "client returned a duplicate tool_result for id \"c1\"",
        ),
        (json!([]), "no tool_result for tool_use id \"c1\""),
        (json!(""), "no tool_result for tool_use id \"c1\""),
    ];
    let world = World::new().await;
    for (content, reason) in rows {
        let driver = paused(&world).await;
        let asked = world.main.calls();
        let error = driver.ask(content).await["error"].clone();
        let message = format!("tool result merge invalid: {reason}");
        assert_eq!(error, json!({"code": -32000, "message": message}));
        assert_eq!(world.main.calls(), asked);
        let log = driver.log().await;
        assert_eq!(
            log.last().unwrap()["payload"],
            json!({"reason":"tool_result_merge_invalid","detail":reason})
        );
        let next = driver.ask("x").await["error"]["message"].clone();
        assert_eq!(next, "session is error, not open");
    }
    let driver = paused(&world).await;
    let params = json!({"message":{"role":"assistant","content":tool_results(&["c1","c2"])}});
    let answer = driver.call("session.sendMessage", params).await;
    let reason = "paused tool continuation must have role \"user\", got \"assistant\"";
    assert_eq!(answer["error"]["message"], format!("tool result merge invalid: {reason}"));
}

#[tokio::test]
async fn results_while_nothing_is_paused_are_refused_and_leave_no_trace() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    let before = driver.log().await.len();
    let error = driver.results(&["c1"]).await.rest().await.pop().unwrap()["error"].clone();
    let message = "tool result merge invalid: no paused turn is awaiting tool results (it may have timed out and been retired)";
    assert_eq!(error, json!({"code": -32000, "message": message}));
    assert_eq!(driver.log().await.len(), before);
    assert!(driver.ask("x").await["result"].is_object());
}

#[tokio::test]
async fn a_plain_message_of_the_owner_abandons_its_calls_and_keeps_the_history_valid() {
    let world = World::new().await;
    for content in [json!("never mind"), json!([{"type":"text","text":"never mind"}])] {
        let driver = paused(&world).await;
        let terminal = driver.ask(content).await;
        let events = terminal["result"]["events"].as_array().unwrap();
        let sent = &events[0]["payload"]["content"];
        assert_eq!(sent[0]["content"], ABANDONED);
        assert_eq!(sent[0]["is_error"], true);
        assert_eq!(sent[1]["tool_use_id"], "s1");
        assert_eq!(sent[3], json!({"type":"text","text":"never mind"}));
        assert!(!types(events).contains(&"session.error".to_owned()));
    }
}

#[tokio::test]
async fn a_turn_abandoned_at_its_deadline_is_handed_to_the_waiter_by_the_timer() {
    let world = World::with(|c| c.turn_timeout = Duration::from_millis(1500)).await;
    let owner = paused(&world).await;
    let mut watcher = owner.subscribe(None).await;
    let other = world.join(&owner, &[]).await;
    other.register().await;
    let mut queued = other.send("my turn").await;
    queued.stays_silent().await;
    let mut lines = queued.rest().await;
    let terminal = lines.pop().unwrap();
    assert_eq!(types(&lines), ["provider.request", "provider.response", "server.message.send"]);
    let events = terminal["result"]["events"].as_array().unwrap();
    let content = events[0]["payload"]["content"].as_array().unwrap();
    let kinds: Vec<&Value> = content.iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["tool_result", "tool_result", "tool_result", "text"]);
    assert_eq!(content[2]["content"], ABANDONED);
    let abandoned = watcher.until("session.error").await["params"].clone();
    assert_eq!(
        abandoned["payload"],
        json!({"reason":"driver_turn_abandoned","owner_client_key_id":owner.key_id})
    );
    assert_eq!(abandoned["client_key_id"], json!(owner.key_id));
    let late = owner.results(&["c1", "c2"]).await.rest().await.pop().unwrap();
    assert!(late["error"]["message"].as_str().unwrap().contains("no paused turn"), "{late}");
    assert!(owner.ask("x").await["result"].is_object());
}

#[tokio::test]
async fn without_waiters_the_owner_may_be_late_and_the_next_arrival_takes_over() {
    let world = World::with(|c| c.turn_timeout = Duration::from_millis(50)).await;
    let owner = paused(&world).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let terminal = owner.results(&["c1", "c2"]).await.rest().await.pop().unwrap();
    assert!(terminal["result"].is_object(), "{terminal}");
    let second = paused(&world).await;
    let other = world.join(&second, &[]).await;
    other.register().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let terminal = other.ask("mine").await;
    assert!(terminal["result"].is_object(), "{terminal}");
    let log = second.log().await;
    let reasons: Vec<&Value> = log.iter().map(|event| &event["payload"]["reason"]).collect();
    assert!(reasons.contains(&&json!("driver_turn_abandoned")));
}

#[tokio::test]
async fn results_in_a_message_that_takes_over_are_invalid() {
    let world = World::with(|c| c.turn_timeout = Duration::from_millis(50)).await;
    let owner = paused(&world).await;
    let other = world.join(&owner, &[]).await;
    other.register().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let error = other.results(&["c1", "c2"]).await.rest().await.pop().unwrap()["error"].clone();
    assert!(error["message"].as_str().unwrap().starts_with("tool result merge invalid: "));
    let kinds = owner.log_types().await;
    assert_eq!(kinds[kinds.len() - 2..], ["session.error", "session.error"]);
    assert_eq!(owner.ask("x").await["error"]["message"], "session is error, not open");
}
