//! `session.hold` (feature `hold`): a paused turn waits for as long as its owner says.

use crate::harness::*;
use serde_json::json;
use std::time::Duration;

const METHOD: &str = "session.hold";

/// The deadline of the session's paused turn on disk.
async fn deadline(world: &World, driver: &Driver) -> i64 {
    let parked = world.service.store().pause(&driver.session).await.unwrap();
    parked.expect("a paused turn").pause.deadline.0
}

#[tokio::test]
async fn without_the_feature_the_method_does_not_exist() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    let plain = driver.call(METHOD, json!({})).await;
    assert_eq!(
        plain["error"],
        json!({"code": -32601, "message": "Method not found: session.hold"})
    );
    let observer = world.join(&driver, &[]).await;
    let refused = observer.call_with("hold", METHOD, json!({})).await;
    assert_eq!(refused["error"]["code"], -32001);
    world.main.call(&[("c1", "read")]);
    let paused = driver.ask("x").await;
    assert_eq!(paused["result"].get("pause"), None, "{paused}");
    driver.close().await;
    let closed = driver.call_with("hold", METHOD, json!({})).await;
    assert!(closed["error"]["code"].is_i64(), "{closed}");
}

#[tokio::test]
async fn a_pause_says_how_long_it_lasts_and_is_renewed_by_its_owner_alone() {
    let world = World::with(|c| c.turn_timeout = Duration::from_secs(100)).await;
    let meta = world.get("/api/v1/meta", "").await.json();
    assert_eq!(meta["limits"]["max_hold_ms"], 86_400_000);
    let driver = world.driver(&["read"]).await;
    let other = world.join(&driver, &[]).await;
    other.register().await;
    let nothing = json!({"held": false});
    assert_eq!(driver.call_with("hold", METHOD, json!({})).await["result"], nothing);
    world.main.call(&[("c1", "read")]);
    let terminal = driver.send_with("hold", 7, "x").await.rest().await.pop().unwrap();
    assert_eq!(terminal["result"]["pause"], json!({"expires_in_ms": 100_000}));
    let before = deadline(&world, &driver).await;
    assert_eq!(other.call_with("hold", METHOD, json!({})).await["result"], nothing);
    assert_eq!(deadline(&world, &driver).await, before);
    tokio::time::sleep(Duration::from_millis(2)).await;
    let held = driver.call_with("hold", METHOD, json!({})).await["result"].clone();
    assert_eq!(held["held"], true);
    let left = held["expires_in_ms"].as_u64().unwrap();
    assert!(0 < left && left <= 100_000, "{held}");
    assert!(deadline(&world, &driver).await > before, "the new deadline is on disk");
    let done = driver.send_with("hold", 8, tool_results(&["c1"])).await.rest().await.pop().unwrap();
    assert!(done["result"].is_object() && done["result"].get("pause").is_none(), "{done}");
    assert_eq!(driver.call_with("hold", METHOD, json!({})).await["result"], nothing);
}

#[tokio::test]
async fn who_waits_gets_nothing_as_long_as_the_owner_holds() {
    let world = World::with(|c| c.turn_timeout = Duration::from_secs(3)).await;
    let owner = world.driver(&["read"]).await;
    let other = world.join(&owner, &[]).await;
    other.register().await;
    world.main.call(&[("c1", "read")]);
    owner.ask("x").await;
    let began = std::time::Instant::now();
    let mut waiting = other.send("y").await;
    while began.elapsed() < Duration::from_secs(4) {
        let held = owner.call_with("hold", METHOD, json!({})).await;
        assert_eq!(held["result"]["held"], true, "{held}");
        waiting.stays_silent().await;
    }
    world.main.say("after a long while");
    let done = owner.results(&["c1"]).await.rest().await.pop().unwrap();
    assert_eq!(done["result"]["message"]["content"][0]["text"], "after a long while");
    assert!(waiting.rest().await.pop().unwrap()["result"].is_object());
}

#[tokio::test]
async fn a_pause_that_is_not_held_any_more_goes_to_who_waits() {
    let world = World::with(|c| {
        (c.turn_timeout, c.max_hold) = (Duration::from_millis(200), Duration::from_millis(400));
    });
    let world = world.await;
    let owner = world.driver(&["read"]).await;
    let other = world.join(&owner, &[]).await;
    other.register().await;
    world.main.call(&[("c1", "read")]);
    owner.ask("x").await;
    owner.call_with("hold", METHOD, json!({})).await;
    assert!(other.ask("y").await["result"].is_object());
    let late = owner.call_with("hold", METHOD, json!({})).await;
    assert_eq!(late["result"], json!({"held": false}));
}

#[tokio::test]
async fn a_pause_is_held_no_longer_than_the_service_allows_but_stays_its_owners() {
    let set = |c: &mut broca_server::Config| {
        (c.turn_timeout, c.max_hold) = (Duration::from_millis(1), Duration::ZERO);
    };
    let world = World::with(set).await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("c1", "read")]);
    driver.ask("x").await;
    let before = deadline(&world, &driver).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let held = driver.call_with("hold", METHOD, json!({})).await;
    assert_eq!(held["result"], json!({"held": true, "expires_in_ms": 0}));
    assert_eq!(deadline(&world, &driver).await, before);
    assert!(driver.results(&["c1"]).await.rest().await.pop().unwrap()["result"].is_object());
}

#[tokio::test]
async fn a_held_pause_and_its_bound_survive_a_restart() {
    let world = World::with(|c| c.turn_timeout = Duration::from_secs(50)).await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("c1", "read")]);
    driver.ask("x").await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    driver.call_with("hold", METHOD, json!({})).await;
    let before = world.service.store().pause(&driver.session).await.unwrap().unwrap();
    assert!(before.pause.deadline.0 > before.pause.began.0 + 50_000);
    let mut world = world.restart().await;
    assert_eq!(world.service.store().pause(&driver.session).await.unwrap().unwrap(), before);
    let again = driver.at(&world).call_with("hold", METHOD, json!({})).await;
    assert_eq!(again["result"]["held"], true);
    // A service that allows less counts from when the pause began, not from its restart.
    world.config.max_hold = Duration::ZERO;
    let world = world.restart().await;
    let held = deadline(&world, &driver).await;
    driver.at(&world).call_with("hold", METHOD, json!({})).await;
    assert_eq!(deadline(&world, &driver).await, held);
}
