//! The FIFO gate, sentence by sentence (session service §7 and the wire page's section on it).

use crate::harness::*;
use serde_json::{Value, json};

async fn two(world: &World) -> (Driver, Driver) {
    let a = world.driver(&["read"]).await;
    let b = world.join(&a, &[]).await;
    b.register().await;
    (a, b)
}

/// The texts of the drivers' messages, in the order of the log.
async fn order(driver: &Driver) -> Vec<Value> {
    let log = driver.log().await;
    let sent = log.iter().filter(|event| event["event_type"] == "client.message.send");
    sent.map(|event| event["payload"]["content"].clone()).collect()
}

#[tokio::test]
async fn a_queued_call_gets_its_head_at_once_and_not_a_byte_until_its_turn() {
    let world = World::new().await;
    let (a, b) = two(&world).await;
    let release = world.main.hold("a is done");
    let mut first = a.send("a").await;
    world.main.was_asked(1).await;
    let mut second = b.send("b").await;
    assert_eq!(second.stream.status, 200);
    assert!(second.stream.is_chunked());
    second.stays_silent().await;
    release.send(()).unwrap();
    assert!(first.rest().await.pop().unwrap()["result"].is_object());
    let lines = second.rest().await;
    assert_eq!(lines[0]["params"]["event_type"], "provider.request");
    assert_eq!(lines[0]["params"]["client_key_id"], json!(b.key_id));
}

#[tokio::test]
async fn calls_go_in_the_order_of_their_arrival_also_those_of_one_client() {
    let world = World::new().await;
    let (a, b) = two(&world).await;
    let release = world.main.hold("1");
    let mut streams = vec![a.send("1").await];
    world.main.was_asked(1).await;
    for (driver, text) in [(&b, "2"), (&a, "3"), (&a, "4"), (&b, "5")] {
        streams.push(driver.send(text).await);
    }
    release.send(()).unwrap();
    for stream in &mut streams {
        assert!(stream.rest().await.pop().unwrap()["result"].is_object());
    }
    assert_eq!(order(&a).await, ["1", "2", "3", "4", "5"]);
    let owners: Vec<Value> =
        a.log().await[4..].iter().map(|event| event["client_key_id"].clone()).collect();
    let turns: Vec<&[Value]> = owners.chunks(4).collect();
    assert!(turns.iter().all(|turn| turn.iter().all(|owner| *owner == turn[0])), "interleaved");
}

#[tokio::test]
async fn the_owners_continuation_overtakes_a_queued_driver() {
    let world = World::new().await;
    let (a, b) = two(&world).await;
    world.main.call(&[("c1", "read")]);
    a.ask("a").await;
    let mut waiting = b.send("b").await;
    waiting.stays_silent().await;
    world.main.say("a again");
    let continued = a.results(&["c1"]).await.rest().await.pop().unwrap();
    assert_eq!(continued["result"]["message"]["content"][0]["text"], "a again");
    assert!(waiting.rest().await.pop().unwrap()["result"].is_object());
    let last = order(&a).await.pop().unwrap();
    assert_eq!(last, "b");
}

#[tokio::test]
async fn joining_and_registering_do_not_wait_for_the_turn() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("x");
    let mut stream = driver.send("x").await;
    world.main.was_asked(1).await;
    let guest = world.join(&driver, &[]).await;
    guest.register().await;
    guest.call("session.updateClientTools", json!({"tools": []})).await;
    let mut queued = guest.send("y").await;
    queued.stays_silent().await;
    drop(release);
    stream.rest().await;
    assert!(queued.rest().await.pop().unwrap()["result"].is_object());
}

#[tokio::test]
async fn a_queued_caller_that_goes_away_leaves_the_queue() {
    let world = World::new().await;
    let (a, b) = two(&world).await;
    let release = world.main.hold("1");
    let mut first = a.send("1").await;
    world.main.was_asked(1).await;
    let gone = b.send("gone").await;
    let mut stays = b.send("stays").await;
    drop(gone);
    tokio::time::sleep(SILENCE).await;
    release.send(()).unwrap();
    first.rest().await;
    assert!(stays.rest().await.pop().unwrap()["result"].is_object());
    assert_eq!(order(&a).await, ["1", "stays"]);
}

#[tokio::test]
async fn closing_answers_the_waiters_and_the_running_call() {
    let world = World::new().await;
    let (a, b) = two(&world).await;
    let _never = world.main.hold("never");
    let mut running = a.send("1").await;
    world.main.was_asked(1).await;
    let mut waiting = b.send("2").await;
    waiting.stays_silent().await;
    assert_eq!(b.close().await.status, 200);
    let closed = json!({"code": -32000, "message": "session is closed, not open"});
    let terminal = running.rest().await.pop().unwrap();
    assert_eq!(terminal["error"], closed);
    assert_eq!(terminal["id"], 7);
    let lines = waiting.rest().await;
    assert_eq!((lines.len(), &lines[0]["error"]), (1, &closed));
    assert_eq!(a.log_types().await.last().unwrap(), "session.close");
}

#[tokio::test]
async fn a_call_that_waited_for_a_turn_which_ended_the_session_is_told_so() {
    let world = World::new().await;
    let (a, b) = two(&world).await;
    let release = world.main.hold("unused");
    let mut running = a.send("1").await;
    world.main.was_asked(1).await;
    let mut waiting = b.send("2").await;
    waiting.stays_silent().await;
    for i in 0..8 {
        world.main.call(&[(&format!("t{i}"), "clock")]);
    }
    drop(release);
    running.rest().await;
    // The first answer was text; the waiter's turn now runs into the limit and ends the session.
    let terminal = waiting.rest().await.pop().unwrap();
    let events = terminal["result"]["events"].as_array().unwrap();
    assert_eq!(events.last().unwrap()["payload"]["reason"], "loop_limit");
    assert_eq!(b.ask("3").await["error"]["message"], "session is error, not open");
}

#[tokio::test]
async fn a_notification_that_waits_is_served_in_its_turn() {
    let world = World::new().await;
    let (a, b) = two(&world).await;
    let release = world.main.hold("1");
    let mut first = a.send("1").await;
    world.main.was_asked(1).await;
    let body = json!({"jsonrpc":"2.0","method":"session.sendMessage",
                      "params":{"message":{"content":"quiet"}}});
    let quiet = {
        let b = b.clone();
        tokio::spawn(async move { b.raw(&body.to_string()).await.lines() })
    };
    tokio::time::sleep(SILENCE).await;
    release.send(()).unwrap();
    first.rest().await;
    let lines = soon("the notification", quiet).await.unwrap();
    assert_eq!(types(&lines).len(), lines.len());
    assert_eq!(order(&a).await, ["1", "quiet"]);
}

#[tokio::test]
async fn a_queue_that_is_full_turns_the_next_call_away() {
    let world = World::with(|c| c.max_waiters = 1).await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("1");
    let mut first = driver.send("1").await;
    world.main.was_asked(1).await;
    let mut second = driver.send("2").await;
    second.stays_silent().await;
    let refused = driver.ask("3").await["error"].clone();
    assert_eq!(refused["code"], -32000);
    assert!(refused["message"].as_str().unwrap().contains("too many calls"), "{refused}");
    release.send(()).unwrap();
    first.rest().await;
    assert!(second.rest().await.pop().unwrap()["result"].is_object());
}
