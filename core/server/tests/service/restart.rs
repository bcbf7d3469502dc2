//! What survives a restart, and how a service goes down (design §6, session service §11).

use crate::harness::*;
use std::time::{Duration, Instant};

#[tokio::test]
async fn drivers_sessions_and_a_paused_turn_survive() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("c1", "read"), ("s1", "clock")]);
    driver.ask("go").await;
    let before = driver.log().await;
    let world = world.restart().await;
    let driver = driver.at(&world);
    assert_eq!(driver.log().await, before);
    world.main.say("after the restart");
    let terminal = driver.results(&["c1"]).await.rest().await.pop().unwrap();
    let message = &terminal["result"]["message"]["content"][0]["text"];
    assert_eq!(*message, "after the restart");
    let content = &terminal["result"]["events"][0]["payload"]["content"];
    assert_eq!(content[1]["tool_use_id"], "s1");
}

#[tokio::test]
async fn a_pause_that_expired_meanwhile_is_taken_over_by_the_next_arrival() {
    let world = World::with(|c| c.turn_timeout = Duration::from_millis(100)).await;
    let owner = world.driver(&["read"]).await;
    let other = world.join(&owner, &[]).await;
    other.register().await;
    world.main.call(&[("c1", "read")]);
    owner.ask("go").await;
    let world = world.restart().await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    let other = other.at(&world);
    assert!(other.ask("mine").await["result"].is_object());
    let log = other.log().await;
    assert!(log.iter().any(|event| event["payload"]["reason"] == "driver_turn_abandoned"));
}

#[tokio::test]
async fn a_waiter_after_a_restart_is_woken_by_the_timer() {
    let world = World::with(|c| c.turn_timeout = Duration::from_secs(3)).await;
    let owner = world.driver(&["read"]).await;
    let other = world.join(&owner, &[]).await;
    other.register().await;
    world.main.call(&[("c1", "read")]);
    owner.ask("go").await;
    let world = world.restart().await;
    let mut waiting = other.at(&world).send("mine").await;
    assert!(waiting.rest().await.pop().unwrap()["result"].is_object());
}

#[tokio::test]
async fn a_shutdown_ends_subscriptions_at_once_and_lets_the_turn_finish() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let mut watching = driver.subscribe(None).await;
    watching.stays_silent().await;
    let release = world.main.hold("finished");
    let mut running = driver.send("x").await;
    world.main.was_asked(1).await;
    let mut queued = driver.send("y").await;
    queued.stays_silent().await;
    let began = Instant::now();
    world.service.shutdown();
    let seen = watching.rest().await;
    assert!(types(&seen).starts_with(&["client.message.send".to_owned()]));
    let refused = queued.rest().await.pop().unwrap();
    assert!(refused["error"]["message"].as_str().unwrap().contains("shutting down"));
    release.send(()).unwrap();
    assert!(running.rest().await.pop().unwrap()["result"].is_object());
    world.stop().await;
    assert!(began.elapsed() < Duration::from_secs(15), "the whole drain time was used");
}

#[tokio::test]
async fn a_turn_that_does_not_end_is_cut_at_the_shutdown_timeout() {
    let world = World::with(|c| c.shutdown_timeout = Duration::from_millis(200)).await;
    let driver = world.driver(&[]).await;
    let _never = world.main.hold("never");
    let _running = driver.send("x").await;
    world.main.was_asked(1).await;
    world.stop().await;
}

#[tokio::test]
async fn connections_that_have_asked_nothing_do_not_hold_up_a_shutdown() {
    use tokio::io::AsyncWriteExt;
    let world = World::new().await;
    let _silent = tokio::net::TcpStream::connect(world.addr).await.unwrap();
    let mut half = tokio::net::TcpStream::connect(world.addr).await.unwrap();
    half.write_all(b"GET /healthz HTT").await.unwrap();
    assert_eq!(world.get("/healthz", "").await.status, 200);
    let began = Instant::now();
    world.stop().await;
    assert!(began.elapsed() < Duration::from_secs(15), "the whole drain time was used");
}

#[tokio::test]
async fn a_turn_that_is_cut_still_tells_its_caller_that_the_service_goes_down() {
    let world = World::with(|c| c.shutdown_timeout = Duration::from_millis(2000)).await;
    let driver = world.driver(&[]).await;
    let _never = world.main.hold("never");
    let mut running = driver.send("x").await;
    world.main.was_asked(1).await;
    let stopping = world.stop();
    let (seen, _service) = tokio::join!(running.rest(), stopping);
    let told = seen.last().unwrap()["error"]["message"].as_str().unwrap();
    assert!(told.contains("shutting down"), "{told}");
}

#[tokio::test]
async fn a_shutdown_waits_for_a_turn_whose_caller_has_gone() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("finished");
    let running = driver.send("x").await;
    world.main.was_asked(1).await;
    drop(running);
    tokio::spawn(async move {
        tokio::time::sleep(SILENCE).await;
        let _ = release.send(());
    });
    let service = world.stop().await;
    let limit = broca_server::store::PageLimit::events(50);
    let start = broca_server::store::Seq::START;
    let page = service.store().page(&driver.session, start, limit).await.unwrap();
    assert_eq!(page.events.last().unwrap().event_type, "server.message.send");
}
