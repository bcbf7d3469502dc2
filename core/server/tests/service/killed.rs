//! A service that is killed while turns run, and what its successor says of them.
#![cfg(unix)]

use crate::harness::*;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

const FOLDER: &str = "BROCA_TEST_KILLED_FOLDER";

/// Not a test by itself: the process that is killed. It serves a session with the client tool `read`, whose model calls that
/// first and never says anything after it, and writes down how to drive it.
#[tokio::test]
async fn served_process() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let world = World::with(|c| c.db_path = std::path::Path::new(&folder).join("broca.db")).await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("c1", "read")]);
    let _never = world.main.hold("never");
    let mut out = std::io::stderr();
    writeln!(out, "driver {}", driver.written()).unwrap();
    std::future::pending::<()>().await;
}

/// Starts the process on this folder, and says how to drive its session.
fn serve(folder: &std::path::Path) -> (Child, Driver) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::served_process", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut written = lines.map_while(Result::ok).filter_map(|line| {
        line.strip_prefix("driver ").map(|json| serde_json::from_str::<Value>(json).unwrap())
    });
    let driver = Driver::read(&written.next().expect("a driver"));
    (child, driver)
}

async fn send(driver: &Driver, id: &str, content: Value) -> Lines {
    let params = json!({"message_id": id, "message": {"role": "user", "content": content}});
    driver.open_stream("message-id", 1, "session.sendMessage", params).await
}

#[tokio::test]
async fn a_turn_that_was_killed_is_known_as_interrupted_and_the_session_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, driver) = serve(folder.path());
    let paused = send(&driver, "m-1", json!("x")).await.rest().await.pop().unwrap();
    assert_eq!(paused["result"]["message"]["content"][0]["id"], "c1", "{paused}");
    let mut running = send(&driver, "m-2", tool_results(&["c1"])).await;
    running.until("provider.request").await;
    let mut queued = send(&driver, "m-3", json!("y")).await;
    queued.stays_silent().await;
    child.kill().unwrap();
    child.wait().unwrap();

    let world = World::on(folder).await;
    let driver = driver.at(&world);
    let ask = async |id: &str, content: Value| {
        send(&driver, id, content).await.rest().await.pop().unwrap()
    };
    let replayed = ask("m-1", json!("x")).await;
    assert_eq!(replayed["result"]["message"], paused["result"]["message"]);
    assert_eq!(replayed["result"]["events"], paused["result"]["events"]);
    for _ in 0..2 {
        let interrupted = ask("m-2", tool_results(&["c1"])).await;
        assert_eq!(interrupted["error"]["code"], -32022, "{interrupted}");
    }
    let other = ask("m-2", json!("z")).await;
    assert_eq!(other["error"]["code"], -32023);
    assert_eq!(world.main.calls(), 0, "nothing ran a second time");
    // What only waited has never begun: it runs now, on a history in which every call has its result.
    world.main.say("at last");
    let done = ask("m-3", json!("y")).await;
    assert_eq!(done["result"]["message"]["content"][0]["text"], "at last", "{done}");
    let messages = world.main.messages(0);
    let roles: Vec<&str> =
        messages.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "user"]);
    assert_eq!(messages[1]["content"][0]["id"], "c1");
    assert_eq!(messages[2]["content"][0]["tool_use_id"], "c1");
}
