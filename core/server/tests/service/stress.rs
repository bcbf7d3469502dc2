//! Many sessions, drivers and observers at once on several threads: nothing is lost, doubled or mixed.

use crate::harness::*;
use serde_json::Value;
use std::collections::HashSet;

fn seen(lines: &[Value]) -> Vec<String> {
    lines.iter().map(|line| line["params"]["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn observers_see_exactly_the_log_and_turns_are_never_interleaved() {
    let world = World::with(|c| c.replay_page = 7).await;
    let mut sessions = Vec::new();
    for _ in 0..6 {
        let owner = world.driver(&[]).await;
        let mut drivers = vec![owner.clone()];
        for _ in 0..2 {
            let other = world.join(&owner, &[]).await;
            other.register().await;
            drivers.push(other);
        }
        sessions.push(tokio::spawn(run(drivers)));
    }
    for session in sessions {
        soon("a session", session).await.unwrap();
    }
}

async fn run(drivers: Vec<Driver>) {
    let owner = drivers[0].clone();
    let mut live = owner.subscribe(None).await;
    let from_here = owner.log().await.len();
    let turns: Vec<_> = drivers
        .iter()
        .cloned()
        .map(|driver| {
            tokio::spawn(async move {
                for i in 0..8 {
                    let mut lines = driver.send(format!("m{i}")).await.rest().await;
                    let terminal = lines.pop().unwrap();
                    let events = terminal["result"]["events"].as_array().unwrap();
                    assert_eq!(events.len(), 4);
                    // The stream is the call's own events but its message; nobody else's turn.
                    assert_eq!(types(&lines), types(&events[1..]));
                }
            })
        })
        .collect();
    let mut replays = Vec::new();
    for _ in 0..4 {
        tokio::task::yield_now().await;
        replays.push(owner.subscribe(Some("")).await);
    }
    for turn in turns {
        turn.await.unwrap();
    }
    assert_eq!(owner.close().await.status, 200);
    let log = owner.log().await;
    let ids: Vec<String> = log.iter().map(|e| e["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(seen(&live.rest().await), ids[from_here..]);
    for replay in &mut replays {
        assert_eq!(seen(&replay.rest().await), ids);
    }
    let turns = &log[from_here..log.len() - 1];
    assert_eq!(turns.len(), 3 * 8 * 4);
    for turn in turns.chunks(4) {
        assert_eq!(turn[0]["event_type"], "client.message.send");
        assert!(turn.iter().all(|event| event["client_key_id"] == turn[0]["client_key_id"]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cancels_at_any_moment_leave_a_session_that_works_and_a_valid_history() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    for i in 0..30u64 {
        match i % 3 {
            0 => world.main.call(&[("c1", "read"), ("s1", "clock")]),
            1 => world.main.call(&[("s1", "clock")]),
            _ => world.main.say("text"),
        }
        let turn = {
            let driver = driver.clone();
            tokio::spawn(async move { driver.ask("go").await })
        };
        tokio::time::sleep(std::time::Duration::from_micros(i * 150)).await;
        let answer = driver.call_with("cancel", "session.cancel", serde_json::json!({})).await;
        assert!(answer["result"]["was"].is_string(), "{answer}");
        soon("the end of the turn", turn).await.unwrap();
        let again = driver.call_with("cancel", "session.cancel", serde_json::json!({})).await;
        assert!(again["result"].is_object(), "{again}");
    }
    // Whatever was left over: the next plain message gets its answer.
    let last = driver.ask("still there?").await;
    assert!(last["result"].is_object(), "{last}");
    driver.call_with("cancel", "session.cancel", serde_json::json!({})).await;
    let log = driver.log().await;
    let ids = |kind: &str, name: &str| -> Vec<String> {
        let of = log.iter().filter(|event| event["event_type"] == kind);
        of.map(|event| event["payload"][name].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("tool.call", "id").len(), ids("tool.result", "tool_use_id").len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn events_of_many_callers_are_shown_in_the_order_of_the_log() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let mut live = driver.subscribe(None).await;
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let driver = driver.clone();
            tokio::spawn(async move {
                for _ in 0..15 {
                    let report = serde_json::json!({"state": "running", "unsandboxed": true});
                    let answer = driver.call("session.reportLocalSandbox", report).await;
                    assert_eq!(answer["result"]["reported"], true);
                }
            })
        })
        .collect();
    for caller in callers {
        soon("the reports", caller).await.unwrap();
    }
    driver.close().await;
    let log = driver.log().await;
    let ids: Vec<String> = log.iter().map(|e| e["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 2 + 16 * 15 + 1);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "an id is for one event");
    assert_eq!(seen(&live.rest().await), ids[2..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn messages_sent_many_times_at_once_run_once_each_and_everybody_gets_the_same_answer() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let senders: Vec<_> = (0..60_u64)
        .map(|n| {
            let (driver, message) = (driver.clone(), n % 12);
            tokio::spawn(async move {
                let params = serde_json::json!({"message_id": format!("m-{message}"),
                    "message": {"content": format!("message {message}")}});
                let mut answers = Vec::new();
                for round in 0..4_u64 {
                    tokio::time::sleep(std::time::Duration::from_micros(n * round * 37)).await;
                    let features = "message-id, queue";
                    let method = "session.sendMessage";
                    let mut stream = driver.open_stream(features, 1, method, params.clone()).await;
                    if (n + round) % 3 == 0 {
                        stream.next().await;
                        continue; // The connection breaks somewhere.
                    }
                    let terminal = stream.rest().await.pop().unwrap();
                    let result = &terminal["result"];
                    assert!(result.is_object(), "{terminal}");
                    answers.push(serde_json::json!([result["message"], result["events"]]));
                }
                (message, answers)
            })
        })
        .collect();
    let mut first: Vec<Option<Value>> = vec![None; 12];
    for sender in senders {
        let (message, answers) = soon("a sender", sender).await.unwrap();
        for answer in answers {
            let known =
                first[usize::try_from(message).unwrap()].get_or_insert_with(|| answer.clone());
            assert_eq!(*known, answer);
        }
    }
    assert!(first.iter().all(Option::is_some));
    let log = driver.log().await;
    let sent = log.iter().filter(|event| event["event_type"] == "client.message.send");
    assert_eq!(sent.count(), 12);
}
