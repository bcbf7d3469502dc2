//! What client keys may use, and what they are told beyond it.

use crate::harness::*;
use serde_json::{Value, json};

/// Sets the limits of a driver's key.
async fn limit(admin: &Admin, driver: &Driver, limits: Value) {
    let path = format!("/keys/{}", driver.key_id);
    let body = json!({"name": "limited", "limits": limits});
    let changed = admin.call("PUT", &path, Some(body)).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_eq!(changed.json()["limits"], limits);
}

fn refused(answer: &Value) -> String {
    assert_eq!(answer["error"]["code"], -32026, "{answer}");
    answer["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn requests_beyond_the_limit_are_told_when_to_come_again() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&[]).await;
    limit(&admin, &driver, json!({"requests_per_minute": 2})).await;
    assert_eq!(driver.get("/events").await.status, 200);
    assert!(driver.ask("hello").await["result"].is_object());
    let answer = driver.get("/events").await;
    assert_eq!((answer.status, &answer.json()["type"]), (429, &json!("limit_exceeded")));
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    let words = refused(&driver.ask("hello").await);
    assert!(words.contains("limited to 2 requests per minute; try again in"), "{words}");
    let opened = world.post("/api/v1/sessions", &driver.client_key, &json!({})).await;
    assert_eq!(opened.status, 429, "every key of the client counts");
    // Others, and the same key once its limit is lifted, go on.
    let other = world.driver(&[]).await;
    assert!(other.ask("hello").await["result"].is_object());
    let path = format!("/keys/{}", driver.key_id);
    assert_eq!(admin.call("PUT", &path, Some(json!({"name": "free"}))).await.status, 200);
    assert!(driver.ask("hello").await["result"].is_object());
}

#[tokio::test]
async fn turns_at_the_same_time_are_counted_until_their_answer() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&["clock"]).await;
    let elsewhere = world.post("/api/v1/sessions", &driver.client_key, &json!({})).await.json();
    limit(&admin, &driver, json!({"concurrent_turns": 1})).await;
    let release = world.main.hold("slow");
    let mut running = driver.send("one").await;
    world.main.was_asked(1).await;
    let words = refused(&driver.ask("two").await);
    assert_eq!(
        words,
        "limit exceeded: this client key is limited to 1 turns at the same time; end one first"
    );
    let id = "0190a7c2";
    let params = json!({"message_id": id, "message": {"role": "user", "content": "two"}});
    let named = driver.call_with("message-id", "session.sendMessage", params.clone()).await;
    refused(&named);
    assert!(elsewhere["session_id"].is_string());
    release.send(()).unwrap();
    running.rest().await;
    // One after the other, each may begin as soon as the answer before it is there.
    for _ in 0..20 {
        assert!(driver.ask("again").await["result"].is_object());
    }
    let mut named = driver.open_stream("message-id", 1, "session.sendMessage", params).await;
    let last = named.rest().await.pop().unwrap();
    assert!(last["result"].is_object(), "what was refused had no effect: {last}");
    // A turn that waits for its results does not count.
    world.main.call(&[("tu_0", "clock")]);
    driver.ask("pause").await;
    assert!(driver.ask("instead").await["result"].is_object());
}

#[tokio::test]
async fn open_sessions_are_counted_also_when_they_are_opened_at_once() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&[]).await;
    limit(&admin, &driver, json!({"open_sessions": 3})).await;
    let body = json!({});
    let open = || world.post("/api/v1/sessions", &driver.client_key, &body);
    let (a, b, c, d) = tokio::join!(open(), open(), open(), open());
    let mut statuses = [a.status, b.status, c.status, d.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 201, 429, 429]);
    let told = [a, b, c, d].into_iter().find(|answer| answer.status == 429).unwrap().json();
    assert_eq!(told["detail"], "this client key is limited to 3 open sessions; end one first");
    driver.close().await;
    assert_eq!(open().await.status, 201);
}

#[tokio::test]
async fn tokens_of_a_day_are_remembered_across_a_restart() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&[]).await;
    // The model says that it took 3 and gave 2.
    limit(&admin, &driver, json!({"tokens_per_day": 6})).await;
    assert!(driver.ask("one").await["result"].is_object());
    let world = world.restart().await;
    let admin = world.admin_with(admin.key).await;
    let driver = driver.at(&world);
    assert!(driver.ask("two").await["result"].is_object(), "5 of 6 are used");
    let words = refused(&driver.ask("three").await);
    assert!(words.contains("6 tokens per day; try again in"), "{words}");
    assert_eq!(world.main.calls(), 2);
    limit(&admin, &driver, json!({"tokens_per_day": 11})).await;
    assert!(driver.ask("three").await["result"].is_object());
}

#[tokio::test]
async fn limits_of_a_profile_hold_for_each_of_its_keys() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&[]).await;
    let other = world.driver(&[]).await;
    limit(&admin, &other, json!({"open_sessions": 2})).await;
    let path = format!("/profiles/{}", world.profile);
    let body = json!({"name": "main", "primary_provider": "main", "limits": {"open_sessions": 1}});
    let changed = admin.call("PUT", &path, Some(body)).await.json();
    assert_eq!(changed["limits"], json!({"open_sessions": 1}));
    let mut status = Vec::new();
    for key in [&driver.client_key, &other.client_key] {
        status.push(world.post("/api/v1/sessions", key, &json!({})).await.status);
    }
    assert_eq!(status, [429, 201], "the key's own limit stands before that of its profile");
    let late = json!({"name": "late", "profile_id": world.profile, "limits": {"open_sessions": 2}});
    let late = admin.post("/keys", late).await.json();
    let key = late["key"].as_str().unwrap();
    for expected in [201, 201, 429] {
        assert_eq!(world.post("/api/v1/sessions", key, &json!({})).await.status, expected);
    }
    for wrong in [json!([]), json!({"x": 1}), json!({"open_sessions": 0})] {
        for (method, path) in [("PUT", &path[..]), ("POST", "/keys"), ("POST", "/profiles")] {
            let body = json!({"name": "n", "primary_provider": "p", "profile_id": world.profile, "limits": wrong});
            let refused = admin.call(method, path, Some(body)).await;
            assert_eq!((refused.status, &refused.json()["type"]), (400, &json!("bad_request")));
        }
    }
}
