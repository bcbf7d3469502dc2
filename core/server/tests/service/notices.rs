//! What streams say of themselves: signs of life (feature `heartbeat`) and places in the queue (feature `queue`).

use crate::harness::*;
use serde_json::{Value, json};
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(50);

fn heartbeat() -> Value {
    json!({"jsonrpc": "2.0", "method": "session.heartbeat"})
}

#[tokio::test]
async fn every_silent_stream_that_asked_for_it_shows_that_it_lives() {
    let world = World::with(|c| c.heartbeat_notice = EVERY).await;
    let meta = world.get("/api/v1/meta", "").await.json();
    assert_eq!(meta["limits"]["heartbeat_ms"], 50);
    let driver = world.driver(&[]).await;
    let release = world.main.hold("done");
    let mut running = driver.send_with("heartbeat", 1, "x").await;
    world.main.was_asked(1).await;
    let mut queued = driver.send_with("heartbeat", 2, "y").await;
    let mut watching = driver.subscribe_with("heartbeat", None).await;
    let mut plain = driver.subscribe(None).await;
    assert_eq!(running.until_method("session.heartbeat").await, heartbeat());
    for _ in 0..2 {
        assert_eq!(queued.next().await.unwrap(), heartbeat());
        assert_eq!(watching.next().await.unwrap(), heartbeat());
    }
    plain.stays_silent().await;
    release.send(()).unwrap();
    for (id, stream) in [(1, &mut running), (2, &mut queued)] {
        let terminal = stream.rest().await.pop().unwrap();
        assert_eq!(terminal["id"], id);
        assert!(terminal["result"].is_object(), "{terminal}");
    }
    driver.close().await;
    let seen = watching.rest().await;
    assert_eq!(seen.iter().filter(|line| line.get("id").is_some()).count(), 0);
    assert_eq!(types(&seen).last().unwrap(), "session.close");
}

#[tokio::test]
async fn a_call_that_waits_is_told_its_place_when_it_comes_and_when_it_moves_up() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let place = |position, waiting| {
        let params = json!({"position": position, "waiting": waiting});
        json!({"jsonrpc": "2.0", "method": "session.queued", "params": params})
    };
    let release = world.main.hold("1");
    let mut running = driver.send_with("queue", 1, "1").await;
    world.main.was_asked(1).await;
    let next = world.main.hold("2");
    let mut second = driver.send_with("queue", 2, "2").await;
    assert_eq!(second.next().await.unwrap(), place(1, 1));
    let mut plain = driver.send_with("", 3, "3").await;
    let mut fourth = driver.send_with("queue", 4, "4").await;
    assert_eq!(fourth.next().await.unwrap(), place(3, 3));
    let mut fifth = driver.send_with("queue", 5, "5").await;
    assert_eq!(fifth.next().await.unwrap(), place(4, 4));
    driver.call_with("cancel", "session.cancel", json!({"request_id": 4})).await;
    assert_eq!(fourth.rest().await.pop().unwrap()["error"]["code"], -32021);
    assert_eq!(fifth.next().await.unwrap(), place(3, 3));
    second.stays_silent().await;
    release.send(()).unwrap();
    world.main.was_asked(2).await;
    assert_eq!(fifth.next().await.unwrap(), place(2, 2));
    drop(next);
    assert_eq!(fifth.next().await.unwrap(), place(1, 1));
    for stream in [&mut running, &mut second, &mut plain, &mut fifth] {
        let lines = stream.rest().await;
        let told = lines.iter().filter(|line| line["method"] == "session.queued").count();
        assert_eq!(told, 0, "{lines:?}");
        assert!(lines.last().unwrap()["result"].is_object());
    }
}

#[tokio::test]
async fn blank_lines_stay_for_the_others_where_the_operator_wants_them() {
    let set = |c: &mut broca_server::Config| {
        (c.heartbeat, c.heartbeat_notice) = (Some(EVERY), EVERY);
    };
    let world = World::with(set).await;
    let driver = world.driver(&[]).await;
    let mut plain = driver.subscribe(None).await;
    let mut asked = driver.subscribe_with("heartbeat", None).await;
    assert_eq!(soon("a blank line", plain.stream.piece()).await.unwrap(), b"\n");
    assert_eq!(asked.next().await.unwrap(), heartbeat());
}

#[tokio::test]
async fn a_heartbeat_that_is_turned_off_is_not_announced_and_not_given() {
    let world = World::with(|c| c.heartbeat_notice = Duration::ZERO).await;
    let meta = world.get("/api/v1/meta", "").await.json();
    assert!(!meta["features"].as_array().unwrap().contains(&json!("heartbeat")), "{meta}");
    assert_eq!(meta["limits"].get("heartbeat_ms"), None);
    let driver = world.driver(&[]).await;
    driver.subscribe_with("heartbeat", None).await.stays_silent().await;
}
