//! Messages that have an id (feature `message-id`): sent again, they are the same message.

use crate::harness::*;
use serde_json::{Value, json};
use std::time::Duration;

const INTERRUPTED: i64 = -32022;
const USED: i64 = -32023;

/// Sends a message under an id.
async fn send(driver: &Driver, features: &str, request: i64, id: &str, content: &Value) -> Lines {
    let params = json!({"message_id": id, "message": {"role": "user", "content": content}});
    let features = format!("message-id, {features}");
    driver.open_stream(&features, request, "session.sendMessage", params).await
}

/// Sends a message under an id and gives the terminal line.
async fn ask(driver: &Driver, id: &str, content: impl Into<Value>) -> Value {
    let mut stream = send(driver, "", 1, id, &content.into()).await;
    stream.rest().await.pop().unwrap()
}

/// How often the message is in the log.
async fn logged(driver: &Driver, content: &str) -> usize {
    let log = driver.log().await;
    let sent = log.iter().filter(|event| event["event_type"] == "client.message.send");
    sent.filter(|event| event["payload"]["content"] == content).count()
}

#[tokio::test]
async fn a_message_that_was_answered_is_answered_the_same_way_again() {
    let world = World::new().await;
    let meta = world.get("/api/v1/meta", "").await.json();
    assert_eq!(meta["limits"]["message_ids"], 1024);
    let driver = world.driver(&[]).await;
    world.main.call(&[("t1", "clock")]);
    world.main.say("done");
    let first = ask(&driver, "m-1", "x").await;
    driver.ask("something else").await;
    let world = world.restart().await;
    let driver = driver.at(&world);
    let calls = world.main.calls();
    let mut again = send(&driver, "lean-result", 9, "m-1", &json!("x")).await;
    let lines = again.rest().await;
    assert_eq!(lines.len(), 1, "nothing is streamed a second time");
    let (result, before) = (&lines[0]["result"], &first["result"]);
    assert_eq!(lines[0]["id"], 9);
    assert_eq!(result["replayed"], true);
    assert_eq!(result.get("lean"), None, "it holds all events");
    assert_eq!((&result["message"], &result["events"]), (&before["message"], &before["events"]));
    assert!(before.get("replayed").is_none());
    assert_eq!((world.main.calls(), logged(&driver, "x").await), (calls, 1));
}

#[tokio::test]
async fn without_the_feature_an_id_means_nothing() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let params = json!({"message_id": 5, "message": {"content": "x"}});
    for _ in 0..2 {
        let answer = driver.call("session.sendMessage", params.clone()).await;
        assert!(answer["result"].is_object(), "{answer}");
    }
    assert_eq!(logged(&driver, "x").await, 2);
    for bad in [json!(5), json!(""), json!("a b"), json!("é"), json!("x".repeat(129)), json!(null)]
    {
        let params = json!({"message_id": bad, "message": {"content": "x"}});
        let refused = driver.call_with("message-id", "session.sendMessage", params).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let nobody = world.join(&driver, &[]).await;
    assert_eq!(ask(&nobody, "m", "x").await["error"]["code"], -32001);
    assert_eq!(logged(&driver, "x").await, 2);
}

#[tokio::test]
async fn the_same_id_for_another_message_is_refused_while_it_runs_and_later() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("done");
    let mut running = send(&driver, "", 1, "m", &json!("x")).await;
    world.main.was_asked(1).await;
    let text = "message_id was used for another message";
    let used = json!({"code": USED, "message": text});
    assert_eq!(ask(&driver, "m", "y").await["error"], used);
    release.send(()).unwrap();
    assert!(running.rest().await.pop().unwrap()["result"].is_object());
    assert_eq!(ask(&driver, "m", "y").await["error"], used);
    assert_eq!(logged(&driver, "y").await, 0);
    // Another client key's ids are its own.
    let other = world.join(&driver, &[]).await;
    other.register().await;
    assert!(ask(&other, "m", "y").await["result"].is_object());
    assert_eq!(logged(&driver, "y").await, 1);
}

#[tokio::test]
async fn a_message_sent_again_while_it_runs_is_one_turn_with_two_streams() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("done");
    let mut first = send(&driver, "lean-result", 1, "m", &json!("x")).await;
    first.until("provider.request").await;
    world.main.was_asked(1).await;
    let mut second = send(&driver, "lean-result", 2, "m", &json!("x")).await;
    second.stays_silent().await;
    release.send(()).unwrap();
    let (first, second) = (first.rest().await, second.rest().await);
    let shown = ["provider.response", "server.message.send"];
    assert_eq!(
        (types(&first), types(&second)),
        (shown.map(str::to_owned).to_vec(), shown.map(str::to_owned).to_vec())
    );
    let (one, two) = (first.last().unwrap(), second.last().unwrap());
    assert_eq!((&one["id"], &two["id"]), (&json!(1), &json!(2)));
    assert_eq!(one["result"]["message"], two["result"]["message"]);
    assert_eq!(two["result"].get("replayed"), None);
    // The one that came late gets all events, because its stream has missed some.
    assert_eq!((&one["result"]["lean"], two["result"].get("lean")), (&json!(true), None));
    assert_eq!(two["result"]["events"].as_array().unwrap().len(), 4);
    assert_eq!((world.main.calls(), logged(&driver, "x").await), (1, 1));
}

#[tokio::test]
async fn a_message_sent_again_while_it_waits_keeps_its_place_and_shows_what_the_first_would() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("1");
    let mut running = driver.send("1").await;
    world.main.was_asked(1).await;
    let first = send(&driver, "queue", 2, "m", &json!("2")).await;
    let mut behind = driver.send("3").await;
    behind.stays_silent().await;
    let mut again = send(&driver, "queue", 4, "m", &json!("2")).await;
    let place = again.next().await.unwrap();
    assert_eq!(place["params"]["position"], 1, "{place}");
    drop(first);
    release.send(()).unwrap();
    running.rest().await;
    let lines = again.rest().await;
    assert_eq!(types(&lines), ["provider.request", "provider.response", "server.message.send"]);
    assert_eq!(lines.last().unwrap()["id"], 4);
    behind.rest().await;
    let log = driver.log().await;
    let sent = log.iter().filter(|event| event["event_type"] == "client.message.send");
    let order: Vec<&Value> = sent.map(|event| &event["payload"]["content"]).collect();
    assert_eq!(order, ["1", "2", "3"]);
}

#[tokio::test]
async fn a_sender_that_comes_back_in_time_finds_its_place_in_the_queue() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("1");
    let mut running = driver.send("1").await;
    world.main.was_asked(1).await;
    drop(send(&driver, "queue", 2, "m", &json!("2")).await);
    let mut behind = driver.send("3").await;
    // The service has noticed that the stream is gone.
    behind.stays_silent().await;
    let mut again = send(&driver, "queue", 4, "m", &json!("2")).await;
    assert_eq!(again.next().await.unwrap()["params"], json!({"position": 1, "waiting": 2}));
    release.send(()).unwrap();
    running.rest().await;
    assert!(again.rest().await.pop().unwrap()["result"].is_object());
    behind.rest().await;
    assert_eq!(logged(&driver, "2").await, 1);
}

#[tokio::test]
async fn a_message_whose_sender_stays_away_does_not_begin() {
    for grace in [Duration::ZERO, Duration::from_secs(600)] {
        let world = World::with(|c| c.queue_grace = grace).await;
        let driver = world.driver(&[]).await;
        let release = world.main.hold("1");
        let mut running = driver.send("1").await;
        world.main.was_asked(1).await;
        drop(send(&driver, "", 2, "m", &json!("2")).await);
        let mut behind = driver.send("3").await;
        behind.stays_silent().await;
        release.send(()).unwrap();
        running.rest().await;
        assert!(behind.rest().await.pop().unwrap()["result"].is_object());
        assert_eq!(logged(&driver, "2").await, 0);
        assert!(ask(&driver, "m", "2").await["result"].is_object(), "it is new");
        assert_eq!(logged(&driver, "2").await, 1);
    }
}

#[tokio::test]
async fn a_pause_that_nobody_took_over_goes_on_when_the_waiter_at_its_end_is_gone() {
    let world = World::with(|c| c.turn_timeout = Duration::from_millis(400)).await;
    let owner = world.driver(&["read"]).await;
    let other = world.join(&owner, &[]).await;
    other.register().await;
    world.main.call(&[("c1", "read")]);
    owner.ask("x").await;
    drop(send(&other, "", 2, "m", &json!("gone")).await);
    let mut behind = other.send("behind").await;
    assert!(behind.rest().await.pop().unwrap()["result"].is_object());
    assert_eq!(logged(&owner, "gone").await, 0);
    let log = owner.log().await;
    let abandoned = log.iter().filter(|e| e["payload"]["reason"] == "driver_turn_abandoned");
    assert_eq!(abandoned.count(), 1);
}

#[tokio::test]
async fn a_continuation_sent_again_is_no_second_round() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("c1", "read")]);
    let features = "hold";
    let paused = send(&driver, features, 1, "m-1", &json!("x")).await.rest().await.pop().unwrap();
    let mut again = send(&driver, features, 1, "m-1", &json!("x")).await;
    let again = again.rest().await.pop().unwrap();
    assert_eq!(again["result"]["message"], paused["result"]["message"]);
    let left = again["result"]["pause"]["expires_in_ms"].as_u64().unwrap();
    assert!(0 < left && left <= 120_000, "{again}");
    world.main.say("done");
    let results = tool_results(&["c1"]);
    let done = ask(&driver, "m-2", results.clone()).await;
    let repeated = ask(&driver, "m-2", results).await;
    assert_eq!(repeated["result"]["message"], done["result"]["message"]);
    assert_eq!(repeated["result"]["events"], done["result"]["events"]);
    let mut late = send(&driver, features, 1, "m-1", &json!("x")).await;
    let late = late.rest().await.pop().unwrap();
    assert_eq!(late["result"]["replayed"], true);
    assert_eq!(late["result"].get("pause"), None, "that pause is over");
    assert_eq!(world.main.calls(), 2);
}

#[tokio::test]
async fn errors_come_again_too_and_also_when_the_session_is_over() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let _never = world.main.hold("never");
    let mut running = send(&driver, "", 1, "m-1", &json!("x")).await;
    world.main.was_asked(1).await;
    driver.call_with("cancel", "session.cancel", json!({})).await;
    let cancelled = running.rest().await.pop().unwrap()["error"].clone();
    assert_eq!(cancelled, json!({"code": -32021, "message": "turn cancelled"}));
    assert_eq!(ask(&driver, "m-1", "x").await["error"], cancelled);
    world.main.fail(500);
    world.spare.fail(500);
    let failed = ask(&driver, "m-2", "y").await;
    let text = &failed["result"]["message"]["content"][0]["text"];
    assert_eq!(*text, "The provider is currently unavailable.");
    assert_eq!(driver.ask("z").await["error"]["message"], "session is error, not open");
    let again = ask(&driver, "m-2", "y").await;
    assert_eq!(again["result"]["message"], failed["result"]["message"]);
    assert_eq!(again["result"]["events"], failed["result"]["events"]);
    assert_eq!(ask(&driver, "m-3", "z").await["error"]["message"], "session is error, not open");
}

#[tokio::test]
async fn a_refused_continuation_that_ended_the_session_is_refused_the_same_way_again() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("c1", "read")]);
    ask(&driver, "m-1", "x").await;
    let refused = ask(&driver, "m-2", tool_results(&["other"])).await["error"].clone();
    assert_eq!(refused["code"], -32000);
    assert!(refused["message"].as_str().unwrap().starts_with("tool result merge invalid"));
    assert_eq!(ask(&driver, "m-2", tool_results(&["other"])).await["error"], refused);
}

#[tokio::test]
async fn a_message_that_was_cancelled_in_the_queue_never_runs() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("1");
    let mut running = driver.send("1").await;
    world.main.was_asked(1).await;
    let mut queued = send(&driver, "", 2, "m", &json!("2")).await;
    queued.stays_silent().await;
    let answer = driver.call_with("cancel", "session.cancel", json!({"request_id": 2})).await;
    assert_eq!(answer["result"]["was"], "queued");
    let error = queued.rest().await.pop().unwrap()["error"].clone();
    assert_eq!(error["code"], -32021);
    release.send(()).unwrap();
    running.rest().await;
    assert_eq!(ask(&driver, "m", "2").await["error"], error);
    let world = world.restart().await;
    assert_eq!(ask(&driver.at(&world), "m", "2").await["error"], error);
    assert_eq!(logged(&driver.at(&world), "2").await, 0);
}

#[tokio::test]
async fn any_request_that_sent_the_message_names_its_turn_for_a_cancel() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let _never = world.main.hold("never");
    let mut first = send(&driver, "", 1, "m", &json!("x")).await;
    world.main.was_asked(1).await;
    let mut second = send(&driver, "", 2, "m", &json!("x")).await;
    second.stays_silent().await;
    let answer = driver.call_with("cancel", "session.cancel", json!({"request_id": 2})).await;
    assert_eq!(answer["result"]["was"], "running");
    for (id, stream) in [(1, &mut first), (2, &mut second)] {
        let terminal = stream.rest().await.pop().unwrap();
        assert_eq!((&terminal["id"], &terminal["error"]["code"]), (&json!(id), &json!(-32021)));
    }
}

#[tokio::test]
async fn a_message_whose_session_was_closed_under_it_says_so_again() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let _never = world.main.hold("never");
    let mut running = send(&driver, "", 1, "m", &json!("x")).await;
    world.main.was_asked(1).await;
    let mut queued = send(&driver, "", 2, "q", &json!("y")).await;
    queued.stays_silent().await;
    driver.close().await;
    let closed = json!({"code": -32000, "message": "session is closed, not open"});
    assert_eq!(running.rest().await.pop().unwrap()["error"], closed);
    assert_eq!(queued.rest().await.pop().unwrap()["error"], closed);
    assert_eq!(ask(&driver, "m", "x").await["error"], closed);
}

#[tokio::test]
async fn only_the_newest_ids_are_remembered() {
    let world = World::with(|c| c.message_ids = 2).await;
    let driver = world.driver(&[]).await;
    for id in ["m-1", "m-2", "m-3"] {
        ask(&driver, id, "x").await;
    }
    assert_eq!(ask(&driver, "m-2", "x").await["result"]["replayed"], true);
    assert_eq!(ask(&driver, "m-3", "x").await["result"]["replayed"], true);
    assert_eq!(logged(&driver, "x").await, 3);
    let forgotten = ask(&driver, "m-1", "x").await;
    assert_eq!(forgotten["result"].get("replayed"), None);
    assert_eq!(logged(&driver, "x").await, 4);
}

#[tokio::test]
async fn a_notification_with_an_id_runs_once() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let body = json!({"jsonrpc": "2.0", "method": "session.sendMessage",
                      "params": {"message_id": "m", "message": {"content": "x"}}});
    let mut headers = bearer(&driver.session_key);
    headers.push(("Broca-Features".to_owned(), "message-id".to_owned()));
    for expected in [3, 0] {
        let path = driver.path("/rpc");
        let body = body.to_string();
        let answer = exchange(world.addr, "POST", &path, &headers, Some(&body)).await;
        assert_eq!(answer.lines().len(), expected);
    }
    assert_eq!(logged(&driver, "x").await, 1);
}

#[tokio::test]
async fn a_shutdown_lets_a_waiting_message_run_as_new_and_says_of_a_cut_turn_that_it_was() {
    let world = World::with(|c| c.shutdown_timeout = Duration::from_millis(500)).await;
    let driver = world.driver(&[]).await;
    let _never = world.main.hold("never");
    let running = send(&driver, "", 1, "m", &json!("x")).await;
    world.main.was_asked(1).await;
    let mut waiting = send(&driver, "", 2, "q", &json!("y")).await;
    waiting.stays_silent().await;
    let reading = tokio::spawn(async move { (running, waiting.rest().await) });
    let world = world.restart().await;
    let (_, told) = reading.await.unwrap();
    assert!(told[0]["error"]["message"].as_str().unwrap().contains("shutting down"));
    let driver = driver.at(&world);
    assert_eq!(ask(&driver, "m", "x").await["error"]["code"], INTERRUPTED);
    assert!(ask(&driver, "q", "y").await["result"].is_object());
    assert_eq!((logged(&driver, "x").await, logged(&driver, "y").await), (1, 1));
}
