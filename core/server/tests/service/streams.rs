//! Subscriptions: live, replayed, ended, lagging (session service §5.4, §10).

use crate::harness::*;
use serde_json::{Value, json};

fn ids(events: &[Value]) -> Vec<String> {
    let id = |event: &Value| {
        let view = event.get("params").unwrap_or(event);
        view["id"].as_str().unwrap().to_owned()
    };
    events.iter().map(id).collect()
}

#[tokio::test]
async fn an_observer_sees_the_whole_turn_live_the_message_included() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let observer = world.join(&driver, &[]).await;
    let mut watching = observer.subscribe(None).await;
    watching.stays_silent().await;
    driver.ask("x").await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(watching.next().await.unwrap());
    }
    assert_eq!(
        types(&seen),
        ["client.message.send", "provider.request", "provider.response", "server.message.send"]
    );
    assert!(seen.iter().all(|line| line.get("id").is_none()));
}

#[tokio::test]
async fn replay_starts_after_the_event_and_goes_on_live_without_gap_or_repetition() {
    let world = World::with(|c| c.replay_page = 2).await;
    let driver = world.driver(&[]).await;
    driver.ask("one").await;
    let log = driver.log().await;
    let all = ids(&log);
    let mut from_third = driver.subscribe(Some(&all[2])).await;
    let mut from_unknown = driver.subscribe(Some("evt_unknown")).await;
    let mut from_empty = driver.subscribe(Some("")).await;
    let mut seen = Vec::new();
    for _ in 3..all.len() {
        seen.push(from_third.next().await.unwrap());
    }
    assert_eq!(ids(&seen), all[3..]);
    driver.ask("two").await;
    driver.close().await;
    let everything = ids(&driver.log().await);
    seen.extend(from_third.rest().await);
    assert_eq!(ids(&seen), everything[3..]);
    assert_eq!(ids(&from_unknown.rest().await), everything);
    assert_eq!(ids(&from_empty.rest().await), everything);
}

#[tokio::test]
async fn a_subscription_made_while_a_turn_writes_misses_and_repeats_nothing() {
    let world = World::with(|c| c.replay_page = 3).await;
    let driver = world.driver(&[]).await;
    let turns = {
        let driver = driver.clone();
        tokio::spawn(async move {
            for i in 0..12 {
                driver.ask(format!("m{i}")).await;
            }
            driver.close().await;
        })
    };
    let mut watching = Vec::new();
    for _ in 0..6 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        watching.push(driver.subscribe(Some("")).await);
    }
    soon("the turns", turns).await.unwrap();
    let everything = ids(&driver.log().await);
    for stream in &mut watching {
        assert_eq!(ids(&stream.rest().await), everything);
    }
}

#[tokio::test]
async fn a_close_is_shown_before_the_stream_ends() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let mut live = driver.subscribe(None).await;
    let mut replayed = driver.subscribe(Some("")).await;
    replayed.until("session.driver.register").await;
    driver.close().await;
    assert_eq!(types(&live.rest().await), ["session.close"]);
    assert_eq!(types(&replayed.rest().await), ["session.close"]);
}

#[tokio::test]
async fn subscribing_to_a_session_that_is_over_replays_and_ends() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    driver.close().await;
    let mut replayed = driver.subscribe(Some("")).await;
    let expected = ["session.open", "session.driver.register", "session.close"];
    assert_eq!(types(&replayed.rest().await), expected);
    assert_eq!(driver.subscribe(None).await.rest().await, Vec::<Value>::new());
}

#[tokio::test]
async fn what_happens_in_one_session_is_shown_in_no_other() {
    let world = World::new().await;
    let (one, other) = (world.driver(&[]).await, world.driver(&[]).await);
    let mut ours = one.subscribe_with("display", None).await;
    let mut theirs = other.subscribe_with("display", None).await;
    world.main.say("for one alone");
    world.main.showing(&["for one ", "alone"]);
    one.ask("x").await;
    one.close().await;
    other.close().await;
    let seen = ours.rest().await;
    assert_eq!(seen.iter().filter(|line| line["method"] == "session.display").count(), 1);
    assert_eq!(types(&seen).len(), 5);
    let seen = theirs.rest().await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0]["params"]["session_id"], json!(other.session));
    assert_eq!(types(&seen), ["session.close"]);
}

#[tokio::test]
async fn unsubscribe_ends_every_subscription_of_the_session_without_a_line() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let other = world.join(&driver, &[]).await;
    let elsewhere = world.driver(&[]).await;
    let mut first = driver.subscribe(None).await;
    let mut second = other.subscribe(None).await;
    let mut foreign = elsewhere.subscribe(None).await;
    first.stays_silent().await;
    let observer = other.call("session.unsubscribe", json!({})).await;
    assert_eq!(observer["result"], json!({"unsubscribed": true}));
    assert!(first.rest().await.is_empty());
    assert!(second.rest().await.is_empty());
    foreign.stays_silent().await;
    let again = other.call("session.unsubscribe", json!({})).await;
    assert_eq!(again["result"], json!({"unsubscribed": true}));
}

#[tokio::test]
async fn a_since_id_that_is_no_string_means_no_replay() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let params = json!({"since_event_id": 5});
    let mut stream = driver.open_stream("", 1, "session.subscribe", params).await;
    stream.stays_silent().await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_gets_the_lag_line_and_holds_nobody_up() {
    let world = World::with(|c| {
        c.hub.ring_events = 8;
        c.hub.stream_lines = 2;
    })
    .await;
    let driver = world.driver(&[]).await;
    let mut watching = driver.subscribe(None).await;
    // The history grows with each turn: enough to fill a socket that nobody reads.
    let long = "x".repeat(200_000);
    for _ in 0..12 {
        let terminal = driver.ask(json!([{"type":"note","text":long.clone()}])).await;
        assert!(terminal["result"].is_object(), "{terminal}");
    }
    let lines = watching.rest().await;
    let (last, events) = lines.split_last().unwrap();
    assert_eq!(
        *last,
        json!({"jsonrpc":"2.0","error":{"code":-32000,"message":"lagged; reconnect with since_event_id"}})
    );
    assert!(last.get("id").is_none());
    assert!(!events.is_empty());
    let log = ids(&driver.log().await);
    assert_eq!(ids(events), log[2..2 + events.len()], "a prefix, in order");
    let mut resumed = driver.subscribe(Some(ids(events).last().unwrap())).await;
    driver.close().await;
    let rest = ids(&resumed.rest().await);
    assert_eq!(rest[..log.len() - 2 - events.len()], log[2 + events.len()..]);
}

#[tokio::test]
async fn lines_that_are_ready_together_come_in_one_chunk() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    for _ in 0..5 {
        driver.ask("x").await;
    }
    let mut stream = driver.subscribe(Some("")).await;
    let first = soon("the first chunk", stream.stream.piece()).await.unwrap();
    assert_eq!(first.iter().filter(|b| **b == b'\n').count(), 22);
}

#[tokio::test]
async fn a_heartbeat_is_a_bare_newline_and_only_on_request_of_the_operator() {
    let world = World::with(|c| c.heartbeat = Some(std::time::Duration::from_millis(50))).await;
    let driver = world.driver(&[]).await;
    let mut stream = driver.subscribe(None).await;
    for _ in 0..3 {
        assert_eq!(soon("a heartbeat", stream.stream.piece()).await.unwrap(), b"\n");
    }
}
