//! The display lane (feature `display`).

use crate::harness::*;
use serde_json::Value;

fn displayed(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|l| l["method"] == "session.display").map(|l| &l["params"]).collect()
}

#[tokio::test]
async fn words_come_before_their_message_and_only_to_those_who_asked() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let mut shown = driver.subscribe_with("display", None).await;
    let mut plain = driver.subscribe(None).await;
    world.main.say("Hello you");
    world.main.showing(&["Hello", " ", "you"]);
    let lines = driver.send_with("display", 7, "x").await.rest().await;
    let deltas = displayed(&lines);
    let text: String = deltas.iter().map(|d| d["delta"].as_str().unwrap()).collect();
    assert_eq!(text, "Hello you");
    assert!(deltas.iter().all(|d| d["type"] == "text_delta"));
    let place = |test: &dyn Fn(&Value) -> bool| lines.iter().position(test).unwrap();
    let last_delta = lines.iter().rposition(|l| l["method"] == "session.display").unwrap();
    let request = place(&|l| l["params"]["event_type"] == "provider.request");
    let message = place(&|l| l["params"]["event_type"] == "server.message.send");
    assert!(request < last_delta && last_delta < message);
    // The deltas carry the id under which the message is logged.
    assert_eq!(deltas[0]["message_id"], lines[message]["params"]["id"]);
    driver.close().await;
    let observed = shown.rest().await;
    let text: String = displayed(&observed).iter().map(|d| d["delta"].as_str().unwrap()).collect();
    assert_eq!(text, "Hello you");
    assert!(displayed(&plain.rest().await).is_empty());
    let log = driver.log().await;
    assert!(log.iter().all(|event| event["event_type"] != "session.display"));
}

#[tokio::test]
async fn words_are_shown_while_the_model_still_works() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("Hello");
    world.main.showing(&["Hel"]);
    let mut stream = driver.send_with("display", 7, "x").await;
    stream.until("provider.request").await;
    let delta = stream.next().await.unwrap();
    assert_eq!(delta["params"]["delta"], "Hel");
    stream.stays_silent().await;
    release.send(()).unwrap();
    stream.until("server.message.send").await;
}

#[tokio::test]
async fn a_failed_attempt_takes_back_what_it_showed() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let mut watching = driver.subscribe_with("display", None).await;
    world.main.fail(500);
    world.main.showing(&["half a"]);
    world.spare.say("whole");
    world.spare.showing(&["whole"]);
    driver.ask("x").await;
    driver.close().await;
    let lines = watching.rest().await;
    let kinds: Vec<&str> = displayed(&lines).iter().map(|d| d["type"].as_str().unwrap()).collect();
    let reset = kinds.iter().position(|kind| *kind == "display_reset").unwrap();
    assert_eq!(kinds[reset + 1..], ["text_delta"], "{kinds:?}");
}

#[tokio::test]
async fn a_flood_of_words_is_joined_or_shed_and_events_come_whole() {
    let world = World::with(|c| {
        c.hub.display_bytes = 4096;
        c.hub.display_join = 512;
    })
    .await;
    let driver = world.driver(&[]).await;
    world.main.say("end");
    let word = "w".repeat(10);
    world.main.showing(&vec![word.as_str(); 20_000]);
    let mut lines = driver.send_with("display", 7, "x").await.rest().await;
    let terminal = lines.pop().unwrap();
    assert!(terminal["result"].is_object());
    let shown: usize =
        displayed(&lines).iter().map(|d| d["delta"].as_str().map_or(0, str::len) / 10).sum();
    let dropped: u64 = displayed(&lines).iter().filter_map(|d| d["dropped"].as_u64()).sum();
    assert_eq!(shown as u64 + dropped, 20_000);
    assert!(dropped > 0);
    let events = types(&lines);
    assert_eq!(events, ["provider.request", "provider.response", "server.message.send"]);
}
