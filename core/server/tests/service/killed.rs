//! A service that is killed while turns run, and what its successor says of them.
#![cfg(unix)]

use crate::harness::*;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

const FOLDER: &str = "BROCA_TEST_KILLED_FOLDER";
const SILENT: &str = "BROCA_TEST_KILLED_SILENT";

/// Not a test by itself: the process that is killed. It serves a session with the client tool `read`, and writes down how to
/// drive it. Its model answers at once; a silent one calls the tool first and never says anything after that.
#[tokio::test]
async fn served_process() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let world = World::with(|c| c.db_path = std::path::Path::new(&folder).join("broca.db")).await;
    let driver = world.driver(&["read"]).await;
    let _never = std::env::var(SILENT).is_ok().then(|| {
        world.main.call(&[("c1", "read")]);
        world.main.hold("never")
    });
    let mut out = std::io::stderr();
    writeln!(out, "driver {}", driver.written()).unwrap();
    std::future::pending::<()>().await;
}

/// Starts the process on this folder, and says how to drive its session.
fn serve(folder: &std::path::Path, silent: bool) -> (Child, Driver) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::served_process", "--nocapture"])
        .env(FOLDER, folder)
        .envs(silent.then_some((SILENT, "1")))
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
    let (mut child, driver) = serve(folder.path(), true);
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

#[tokio::test]
async fn whenever_the_service_is_killed_each_message_is_logged_once_and_what_was_answered_is_so_again()
 {
    for round in 1..=4_u64 {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, driver) = serve(folder.path(), false);
        let sending = {
            let driver = driver.clone();
            tokio::spawn(async move {
                let mut answered = Vec::new();
                for n in 0.. {
                    // The process is killed while one of these is under way.
                    let one = tokio::spawn(say(driver.clone(), n));
                    let Ok(Some(terminal)) = one.await else { return (answered, n) };
                    answered.push(terminal);
                }
                unreachable!("the process is killed")
            })
        };
        tokio::time::sleep(std::time::Duration::from_millis(40 * round)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        let (answered, last) = soon("the end of the sender", sending).await.unwrap();

        let world = World::on(folder).await;
        let driver = driver.at(&world);
        for (n, before) in answered.iter().enumerate() {
            let again = say(driver.clone(), n).await.unwrap();
            for name in ["message", "events"] {
                assert_eq!(again["result"][name], before["result"][name]);
            }
        }
        assert_eq!(world.main.calls(), 0, "nothing that was answered ran again");
        let cut = say(driver.clone(), last).await.unwrap();
        assert!(cut["result"].is_object() || cut["error"]["code"] == -32022, "{cut}");
        let log = driver.log().await;
        let sent = log.iter().filter(|event| event["event_type"] == "client.message.send");
        let texts: Vec<&str> =
            sent.map(|event| event["payload"]["content"].as_str().unwrap()).collect();
        let expected: Vec<String> = (0..=last).map(|n| format!("message {n}")).collect();
        assert_eq!(texts, expected);
    }
}

/// Sends the `n`th message; nothing when the connection breaks first.
async fn say(driver: Driver, n: usize) -> Option<Value> {
    let text = json!(format!("message {n}"));
    send(&driver, &format!("m-{n}"), text)
        .await
        .rest()
        .await
        .pop()
        .filter(|line| line.get("id").is_some())
}
