//! `session.approve` (feature `approve`): a person is asked before the service runs a tool of its own.

use crate::harness::*;
use broca_proto::session::approval::Ask;
use serde_json::{Value, json};
use std::time::Duration;

const METHOD: &str = "session.approve";
const REQUESTED: &str = "session.approval.requested";
const RESOLVED: &str = "session.approval.resolved";

/// A session whose calls of the clock are asked for.
async fn asking(world: &World) -> Driver {
    let narrow = json!({"clock": {"/timezone": "one_of_prefix"}});
    let body = json!({"approvals": {"ask": ["clock"], "narrow": narrow}});
    world.open_with("approve", &body).await.unwrap()
}

/// The model calls the clock.
fn call_clock(world: &World, id: &str) {
    let input = json!({"timezone": "U"});
    world.main.blocks(json!([{"type": "tool_use", "id": id, "name": "clock", "input": input}]));
}

async fn send(driver: &Driver) -> Lines {
    driver.send_with("approve,cancel", 7, "what time is it").await
}

async fn approve(driver: &Driver, said: Value) -> Value {
    driver.call_with("approve", METHOD, said).await
}

fn said(id: &str, decision: &str) -> Value {
    json!({"tool_use_id": id, "decision": decision})
}

/// The last result that the model was given.
fn result(world: &World) -> Value {
    let messages = world.main.messages(world.main.calls() - 1);
    messages.as_array().unwrap().last().unwrap()["content"][0].clone()
}

fn log_of<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let events = lines.iter().filter(|line| line["params"]["event_type"] == kind);
    events.map(|line| &line["params"]["payload"]).collect()
}

/// All events, as a request that asked for `approve` sees them.
async fn whole_log(driver: &Driver) -> Vec<Value> {
    let mut watching = driver.subscribe_with("approve", Some("")).await;
    let mut seen = Vec::new();
    while let Ok(Some(line)) = tokio::time::timeout(SILENCE, watching.next()).await {
        seen.push(line);
    }
    seen
}

#[tokio::test]
async fn an_allowed_call_runs_and_those_who_did_not_ask_see_nothing_of_it() {
    let world = World::new().await;
    let driver = asking(&world).await;
    let mut plain = driver.subscribe(None).await;
    plain.stays_silent().await;
    call_clock(&world, "s1");
    world.main.say("noon");
    let mut running = send(&driver).await;
    let asked = running.until(REQUESTED).await;
    assert_eq!(
        asked["params"]["payload"],
        json!({"tool_use_id": "s1", "name": "clock", "input": {"timezone": "U"},
               "narrow": {"/timezone": "one_of_prefix"}, "expires_in_ms": 600_000,
               "owner_client_key_id": driver.key_id})
    );
    running.stays_silent().await;
    let answer = approve(&driver, said("s1", "allow")).await;
    let held = json!({"approved": true, "decision": "allow", "by": "person", "was": "waiting"});
    assert_eq!(answer["result"], held);
    let rest = running.rest().await;
    let types = types(&rest);
    assert_eq!(types[..3], [RESOLVED, "mcp.request", "mcp.response"]);
    let terminal = rest.last().unwrap();
    assert_eq!(terminal["result"]["message"]["content"][0]["text"], "noon");
    let events = terminal["result"]["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["event_type"] == REQUESTED));
    // Asked once: whoever answers again is told what holds.
    let again = approve(&driver, said("s1", "deny")).await;
    let held = json!({"approved": true, "decision": "allow", "by": "person", "was": "resolved"});
    assert_eq!(again["result"], held);
    driver.close().await;
    let seen = json!(plain.rest().await).to_string();
    assert!(seen.contains("mcp.request") && !seen.contains("approval"), "{seen}");
    assert!(!json!(driver.log().await).to_string().contains("approval"));
}

#[tokio::test]
async fn a_narrowed_input_is_what_runs_and_a_wider_one_is_refused() {
    let world = World::new().await;
    let driver = asking(&world).await;
    call_clock(&world, "s1");
    let mut running = send(&driver).await;
    running.until(REQUESTED).await;
    for (input, pointer) in
        [(json!({"timezone": "GMT"}), "/timezone"), (json!({"timezone": "UTC", "more": 1}), "\"\"")]
    {
        let wider = json!({"tool_use_id": "s1", "decision": "allow_narrowed", "input": input});
        let refused = approve(&driver, wider).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        let words = refused["error"]["message"].as_str().unwrap();
        assert!(words.contains(pointer) && !words.contains("GMT"), "{words}");
    }
    running.stays_silent().await;
    let narrowed = json!({"timezone": "UTC"});
    let said = json!({"tool_use_id": "s1", "decision": "allow_narrowed", "input": narrowed});
    let answer = approve(&driver, said).await;
    assert_eq!(answer["result"]["decision"], "allow_narrowed");
    let rest = running.rest().await;
    assert_eq!(log_of(&rest, RESOLVED)[0]["input"], narrowed);
    assert_eq!(log_of(&rest, "mcp.request")[0]["input"], narrowed);
    assert_eq!(result(&world)["content"][0]["text"], "2026-07-06T18:26:10.500Z");
    let messages = world.main.messages(1);
    assert_eq!(messages[1]["content"][0]["input"], json!({"timezone": "U"}));
}

#[tokio::test]
async fn a_denied_call_runs_nothing_and_the_model_is_told_why() {
    let world = World::new().await;
    let driver = asking(&world).await;
    call_clock(&world, "s1");
    let mut running = send(&driver).await;
    running.until(REQUESTED).await;
    let no = json!({"tool_use_id": "s1", "decision": "deny", "reason": "not now"});
    let answer = approve(&driver, no).await;
    assert_eq!(
        (&answer["result"]["approved"], &answer["result"]["was"]),
        (&json!(false), &json!("waiting"))
    );
    let rest = running.rest().await;
    assert_eq!(log_of(&rest, RESOLVED)[0]["reason"], "not now");
    assert!(log_of(&rest, "mcp.request").is_empty());
    let result = result(&world);
    assert_eq!(result["is_error"], true);
    assert_eq!(result["content"][0]["text"], "The call was denied and not run: not now");
    assert!(rest.last().unwrap()["result"].is_object());
}

#[tokio::test]
async fn where_the_request_cannot_be_asked_the_call_does_not_run() {
    let world = World::new().await;
    let driver = asking(&world).await;
    call_clock(&world, "s1");
    let rest = driver.send("what time is it").await.rest().await;
    assert!(log_of(&rest, "mcp.request").is_empty());
    assert!(result(&world)["content"][0]["text"].as_str().unwrap().contains("approval"));
    assert!(rest.last().unwrap()["result"].is_object());
    let plain = driver.call(METHOD, said("s1", "allow")).await;
    let not_found = json!({"code": -32601, "message": "Method not found: session.approve"});
    assert_eq!(plain["error"], not_found);
    // A session that was opened without the feature asks for nothing.
    let body = json!({"approvals": {"ask": "*"}});
    let unasked = world.open_with("", &body).await.unwrap();
    call_clock(&world, "s2");
    assert!(!log_of(&send(&unasked).await.rest().await, "mcp.request").is_empty());
}

#[tokio::test]
async fn only_the_owner_of_the_turn_answers_and_only_what_was_asked() {
    let world = World::new().await;
    let driver = asking(&world).await;
    let other = world.join(&driver, &[]).await;
    let observer = world.join(&driver, &[]).await;
    other.register().await;
    call_clock(&world, "s1");
    let mut running = send(&driver).await;
    running.until(REQUESTED).await;
    assert_eq!(approve(&observer, said("s1", "allow")).await["error"]["code"], -32001);
    for (who, what) in [
        (&other, said("s1", "allow")),
        (&driver, said("s2", "allow")),
        (&driver, said("s1", "perhaps")),
        (&driver, json!({"decision": "allow"})),
    ] {
        let refused = approve(who, what).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    running.stays_silent().await;
    let both =
        tokio::join!(approve(&driver, said("s1", "allow")), approve(&driver, said("s1", "deny")));
    assert_eq!(both.0["result"]["decision"], both.1["result"]["decision"]);
    let was = [both.0["result"]["was"].as_str(), both.1["result"]["was"].as_str()];
    assert!(was.contains(&Some("waiting")) && was.contains(&Some("resolved")), "{was:?}");
    assert_eq!(log_of(&running.rest().await, RESOLVED).len(), 1);
    assert_eq!(approve(&other, said("s1", "allow")).await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_question_that_nobody_answers_in_time_is_a_deny() {
    let set = |c: &mut broca_server::Config| c.approval_timeout = Duration::from_millis(100);
    let world = World::with(set).await;
    let meta = world.get("/api/v1/meta", "").await.json();
    assert_eq!(meta["limits"]["approval_timeout_ms"], 100);
    let driver = asking(&world).await;
    call_clock(&world, "s1");
    let rest = send(&driver).await.rest().await;
    let resolved = log_of(&rest, RESOLVED)[0];
    assert_eq!((&resolved["by"], &resolved["decision"]), (&json!("deadline"), &json!("deny")));
    assert_eq!(result(&world)["is_error"], true);
    let late = approve(&driver, said("s1", "allow")).await;
    let held = json!({"approved": false, "decision": "deny", "by": "deadline", "was": "resolved"});
    assert_eq!(late["result"], held);
}

#[tokio::test]
async fn a_stream_that_waits_for_a_person_shows_that_it_lives() {
    let set = |c: &mut broca_server::Config| {
        (c.heartbeat_notice, c.turn_timeout) =
            (Duration::from_millis(30), Duration::from_millis(1));
    };
    let world = World::with(set).await;
    let driver = asking(&world).await;
    call_clock(&world, "s1");
    let mut running = driver.send_with("approve,heartbeat", 7, "x").await;
    running.until(REQUESTED).await;
    for _ in 0..3 {
        running.until_method("session.heartbeat").await;
    }
    assert_eq!(approve(&driver, said("s1", "allow")).await["result"]["was"], "waiting");
    assert!(running.rest().await.pop().unwrap()["result"].is_object());
}

#[tokio::test]
async fn several_calls_are_asked_for_one_after_the_other() {
    let world = World::new().await;
    let driver = asking(&world).await;
    world.main.call(&[("s1", "clock"), ("s2", "clock")]);
    let mut running = send(&driver).await;
    running.until(REQUESTED).await;
    assert_eq!(approve(&driver, said("s2", "allow")).await["error"]["code"], -32602);
    approve(&driver, said("s1", "deny")).await;
    assert_eq!(running.until(REQUESTED).await["params"]["payload"]["tool_use_id"], "s2");
    assert_eq!(approve(&driver, said("s2", "allow")).await["result"]["was"], "waiting");
    let rest = running.rest().await;
    assert_eq!(log_of(&rest, "mcp.request").len(), 1);
    let messages = world.main.messages(1);
    let results = messages.as_array().unwrap().last().unwrap()["content"].as_array().unwrap();
    let ids: Vec<&str> = results.iter().map(|r| r["tool_use_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["s1", "s2"]);
}

#[tokio::test]
async fn a_cancel_withdraws_the_question_and_the_next_message_starts_at_once() {
    let world = World::new().await;
    let driver = asking(&world).await;
    call_clock(&world, "s1");
    let mut running = send(&driver).await;
    running.until(REQUESTED).await;
    let cancelled = driver.call_with("cancel", "session.cancel", json!({})).await;
    assert_eq!(cancelled["result"]["was"], "running");
    let rest = running.rest().await;
    let resolved = log_of(&rest, RESOLVED)[0];
    assert_eq!(*resolved, json!({"by": "cancel", "decision": "withdrawn", "tool_use_id": "s1"}));
    assert_eq!(log_of(&rest, "tool.result").len(), 1);
    assert_eq!(rest.last().unwrap()["error"]["code"], -32021);
    let late = approve(&driver, said("s1", "allow")).await;
    let held =
        json!({"approved": false, "decision": "withdrawn", "by": "cancel", "was": "resolved"});
    assert_eq!(late["result"], held);
    assert!(driver.ask("next").await["result"].is_object());
}

#[tokio::test]
async fn a_session_that_is_closed_withdraws_its_question() {
    let world = World::new().await;
    let driver = asking(&world).await;
    call_clock(&world, "s1");
    let mut running = send(&driver).await;
    running.until(REQUESTED).await;
    assert_eq!(driver.close().await.status, 200);
    let rest = running.rest().await;
    assert_eq!(log_of(&rest, RESOLVED)[0]["by"], "close");
    assert!(rest.last().unwrap()["error"]["message"].as_str().unwrap().contains("closed"));
}

#[tokio::test]
async fn a_service_that_goes_down_waits_for_no_person() {
    let world = World::new().await;
    let driver = asking(&world).await;
    call_clock(&world, "s1");
    let mut running = send(&driver).await;
    running.until(REQUESTED).await;
    let began = std::time::Instant::now();
    let (rest, world) = tokio::join!(running.rest(), world.restart());
    assert!(began.elapsed() < Duration::from_secs(15), "the whole drain time was used");
    assert_eq!(log_of(&rest, RESOLVED)[0]["by"], "shutdown");
    assert!(rest.last().unwrap()["error"]["message"].as_str().unwrap().contains("shutting down"));
    let driver = driver.at(&world);
    let late = approve(&driver, said("s1", "allow")).await;
    assert_eq!(late["result"]["decision"], "withdrawn");
    // What was settled when the session was opened holds for the service that comes after.
    call_clock(&world, "s2");
    let mut running = send(&driver).await;
    running.until(REQUESTED).await;
    approve(&driver, said("s2", "allow")).await;
    assert!(running.rest().await.pop().unwrap()["result"].is_object());
}

#[tokio::test]
async fn a_question_that_died_with_its_service_is_withdrawn_by_the_next_one() {
    let world = World::new().await;
    let driver = asking(&world).await;
    // What a service that was killed leaves: a question in the log, and nobody who waits.
    let asked = broca_server::store::NewEvent {
        id: "evt_left".to_owned(),
        client_key_id: Some(driver.key_id.clone()),
        event_type: REQUESTED.to_owned(),
        payload: json!({"tool_use_id": "s1", "name": "clock", "input": {}}).to_string(),
        elided: None,
    };
    let now = broca_server::store::WallTime(1);
    world.service.store().append(&driver.session, None, vec![asked], now).await.unwrap();
    let world = world.restart().await;
    let driver = driver.at(&world);
    for _ in 0..2 {
        let late = approve(&driver, said("s1", "allow")).await;
        let held = json!({"approved": false, "decision": "withdrawn", "by": "shutdown",
                          "was": "resolved"});
        assert_eq!(late["result"], held);
    }
    assert_eq!(log_of(&whole_log(&driver).await, RESOLVED).len(), 1);
    assert!(driver.ask("next").await["result"].is_object());
}

#[tokio::test]
async fn the_operator_can_require_it_for_every_session() {
    let world = World::with(|c| c.ask_approval = Ask::parse("*")).await;
    let driver = world.driver(&["read"]).await;
    call_clock(&world, "s1");
    let mut running = send(&driver).await;
    running.until(REQUESTED).await;
    approve(&driver, said("s1", "allow")).await;
    assert!(!log_of(&running.rest().await, "mcp.request").is_empty());
    // A client that knows nothing of it gets an answer, and nothing runs. Its own tools are its own affair.
    world.main.call(&[("s2", "clock"), ("c1", "read")]);
    let plain = driver.send("x").await.rest().await;
    assert!(log_of(&plain, "mcp.request").is_empty());
    let paused = &plain.last().unwrap()["result"]["message"];
    assert_eq!(paused["content"][1]["dispatch"], "client");
}

#[tokio::test]
async fn a_driver_whose_key_is_revoked_is_not_waited_for() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = asking(&world).await;
    let other = world.join(&driver, &[]).await;
    other.register().await;
    call_clock(&world, "s1");
    let mut running = send(&driver).await;
    running.until(REQUESTED).await;
    assert_eq!(admin.delete(&format!("/keys/{}", driver.key_id)).await.status, 204);
    assert!(other.ask("next").await["result"].is_object(), "the gate is free again");
    assert_eq!(log_of(&whole_log(&other).await, RESOLVED)[0]["decision"], "deny");
}

#[tokio::test]
async fn what_could_never_apply_is_refused_when_the_session_is_opened() {
    let world = World::new().await;
    for (approvals, name) in [
        (json!({"ask": ["clok"]}), "clok"),
        (json!({"ask": "clock"}), "approvals.ask"),
        (json!({"ask": "*", "narrow": {"clock": {"/timezone": "at_most"}}}), "/timezone"),
        (json!({"ask": [], "narrow": {"clock": {"/timezone": "one_of_prefix"}}}), "clock"),
    ] {
        let body = json!({"approvals": approvals});
        let refused = world.open_with("approve", &body).await.err().unwrap();
        assert_eq!((refused.status, &refused.json()["type"]), (400, &json!("bad_request")));
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(name), "{approvals}: {detail}");
    }
    let mut config = broca_server::Config::default();
    config.ask_approval = Ask::parse("clok");
    config.db_path = "/nonexistent/never.db".into();
    let store = std::sync::Arc::clone(world.service.store());
    let opened =
        broca_server::Service::over(config, store, broca_server::Models::new(), Vec::new());
    let refused = opened.await.err().unwrap().to_string();
    assert!(refused.starts_with("BROCA_ASK_APPROVAL") && refused.contains("clok"), "{refused}");
}
