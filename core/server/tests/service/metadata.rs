//! How sessions stand, and what their participants keep with them (feature `metadata`).

use crate::harness::*;
use serde_json::{Value, json};
use std::time::Duration;

async fn asking(
    world: &World,
    method: &str,
    path: &str,
    key: &str,
    body: Option<&Value>,
) -> Answer {
    let mut headers = bearer(key);
    headers.push(("Broca-Features".to_owned(), "metadata".to_owned()));
    let body = body.map(Value::to_string);
    exchange(world.addr, method, path, &headers, body.as_deref()).await
}

/// How the session stands.
async fn info(world: &World, driver: &Driver) -> Value {
    let answer = asking(world, "GET", &driver.path(""), &driver.session_key, None).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn patch(world: &World, driver: &Driver, body: Value) -> Answer {
    asking(world, "PATCH", &driver.path(""), &driver.session_key, Some(&body)).await
}

/// The status of a problem document, its slug and what it says.
fn problem(answer: &Answer) -> (u16, String, String) {
    let body = answer.json();
    let text = |name: &str| body[name].as_str().unwrap().to_owned();
    assert_eq!(body["status"], answer.status);
    (answer.status, text("type"), text("detail"))
}

fn refused(status: u16, slug: &str, detail: &str) -> (u16, String, String) {
    (status, slug.to_owned(), detail.to_owned())
}

#[tokio::test]
async fn a_session_tells_how_it_stands_and_what_is_kept_with_it() {
    let world = World::new().await;
    let body = json!({"metadata": {"title": "first", "n": 1.5, "gone": null}});
    let driver = world.open_with("metadata", &body).await.unwrap();
    let told = info(&world, &driver).await;
    let log = driver.log().await;
    let last = &log[log.len() - 1];
    let expected = json!({
        "session_id": driver.session,
        "state": "open",
        "created_at": log[0]["created_at"],
        "updated_at": last["created_at"],
        "closed_at": null,
        "created_by": driver.key_id,
        "drivers": [driver.key_id],
        "turn": {"status": "idle", "owner": null, "expires_in_ms": null, "waiting": 0},
        "profile": {"id": world.profile, "name": "main", "allowed_tools": ["*"], "mcp_servers": [],
                    "provider": {"model": "stub-1", "provider": "main"}},
        "compaction": "client",
        "metadata": {"title": "first", "n": 1.5},
        "metadata_version": 0,
        "events": log.len(),
        "last_event_id": last["id"],
    });
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_turn_that_runs_or_is_paused_is_told_with_its_owner() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    let other = world.join(&driver, &[]).await;
    other.register().await;
    let release = world.main.hold("done");
    let mut running = driver.send("x").await;
    world.main.was_asked(1).await;
    let mut queued = other.send("y").await;
    queued.stays_silent().await;
    let turn = info(&world, &other).await["turn"].clone();
    let expected = json!({"status": "running", "owner": driver.key_id, "expires_in_ms": null,
                          "waiting": 1});
    assert_eq!(turn, expected);
    world.main.call(&[("c1", "read")]);
    release.send(()).unwrap();
    running.rest().await;
    queued.rest().await;
    world.main.call(&[("c2", "read")]);
    driver.ask("z").await;
    let turn = info(&world, &driver).await["turn"].clone();
    assert_eq!((&turn["status"], &turn["owner"]), (&json!("paused"), &json!(driver.key_id)));
    let left = turn["expires_in_ms"].as_u64().unwrap();
    assert!(left > 60_000 && left <= 120_000, "{left}");
    // A pause survives a restart, and so does what is told of it.
    let world = world.restart().await;
    let turn = info(&world, &driver.at(&world)).await["turn"].clone();
    assert_eq!((&turn["status"], &turn["owner"]), (&json!("paused"), &json!(driver.key_id)));
}

#[tokio::test]
async fn a_change_is_merged_logged_and_shown_to_those_who_asked_for_it() {
    let world = World::new().await;
    let body = json!({"metadata": {"title": "a", "tags": {"x": 1, "y": 2}}});
    let driver = world.open_with("metadata", &body).await.unwrap();
    let mut watching = driver.subscribe_with("metadata", None).await;
    let mut plain = driver.subscribe(None).await;
    let change = json!({"metadata": {"title": null, "tags": {"x": null, "z": 3}, "new": [null]}});
    let answer = patch(&world, &driver, change).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let told = answer.json();
    let metadata = json!({"tags": {"y": 2, "z": 3}, "new": [null]});
    assert_eq!((&told["metadata"], &told["metadata_version"]), (&metadata, &json!(1)));
    assert_eq!(told, info(&world, &driver).await, "the answer tells how the session stands");
    let event = loop {
        let line = watching.next().await.unwrap();
        if line["params"]["event_type"] == "session.metadata.updated" {
            break line["params"].clone();
        }
    };
    assert_eq!(event["payload"], json!({"metadata": metadata, "version": 1}));
    assert_eq!(
        (&event["client_key_id"], &event["id"]),
        (&json!(driver.key_id), &told["last_event_id"])
    );
    // What says what is there already changes nothing, and a plain reader is never shown a change.
    let same = patch(&world, &driver, json!({"metadata": {"tags": {"z": 3}}})).await.json();
    assert_eq!(same, told);
    assert!(!driver.log_types().await.contains(&"session.metadata.updated".to_owned()));
    driver.close().await;
    let seen = types(&plain.rest().await);
    assert_eq!(seen, ["session.close"]);
}

#[tokio::test]
async fn a_change_that_means_another_version_is_refused_and_others_are_never_lost() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..12 {
        let (driver, addr) = (driver.clone(), world.addr);
        writers.spawn(async move {
            let mut headers = bearer(&driver.session_key);
            headers.push(("Broca-Features".to_owned(), "metadata".to_owned()));
            let body = json!({"metadata": {format!("k{n}"): n}}).to_string();
            exchange(addr, "PATCH", &driver.path(""), &headers, Some(&body)).await.status
        });
    }
    while let Some(status) = writers.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    let told = info(&world, &driver).await;
    assert_eq!(told["metadata"].as_object().unwrap().len(), 12);
    assert_eq!(told["metadata_version"], 12);
    let late = patch(&world, &driver, json!({"metadata": {"k0": 9}, "version": 11})).await;
    let why = "the metadata has version 12, not 11: read it again, then change it";
    assert_eq!(problem(&late), refused(409, "version_conflict", why));
    let right = patch(&world, &driver, json!({"metadata": {"k0": 9}, "version": 12})).await;
    assert_eq!((right.status, &right.json()["metadata"]["k0"]), (200, &json!(9)));
}

#[tokio::test]
async fn drivers_of_an_open_session_change_it_and_every_participant_reads_it() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let observer = world.join(&driver, &[]).await;
    assert_eq!(info(&world, &observer).await["session_id"], json!(driver.session));
    let change = json!({"metadata": {"a": 1}});
    let why = "call session.registerDriver before changing the session's metadata";
    let answer = patch(&world, &observer, change.clone()).await;
    assert_eq!(problem(&answer), refused(403, "driver_not_registered", why));
    let foreign = world.driver(&[]).await;
    let answer = asking(&world, "GET", &driver.path(""), &foreign.session_key, None).await;
    assert_eq!(problem(&answer), refused(401, "unauthorized", "invalid session key"));
    let answer = asking(&world, "PATCH", &driver.path(""), &driver.client_key, Some(&change)).await;
    assert_eq!(problem(&answer), refused(401, "unauthorized", "invalid session key"));
    driver.close().await;
    let told = info(&world, &driver).await;
    assert_eq!((&told["state"], &told["drivers"]), (&json!("closed"), &json!([])));
    assert_eq!(told["closed_at"], told["updated_at"]);
    let answer = patch(&world, &driver, change).await;
    assert_eq!(problem(&answer), refused(409, "session_closed", "session is already closed"));
}

#[tokio::test]
async fn what_is_too_much_or_no_object_is_refused_and_nothing_is_logged() {
    let world = World::with(|config| {
        config.max_metadata = 40;
        config.max_metadata_keys = 2;
    })
    .await;
    let driver = world.open_with("metadata", &json!({"metadata": {"a": 1}})).await.unwrap();
    let before = info(&world, &driver).await;
    let long = "x".repeat(40);
    for (body, why) in [
        (json!({}), "metadata is missing"),
        (json!({"metadata": null}), "metadata must be a JSON object"),
        (json!({"metadata": {"b": long}}), "metadata has 54 bytes, the limit is 40; keep less"),
        (
            json!({"metadata": {"b": 1, "c": 1}}),
            "metadata has 3 members, the limit is 2; keep fewer",
        ),
        (
            json!({"metadata": {}, "version": "1"}),
            "version must be a whole number that is not negative",
        ),
    ] {
        let answer = patch(&world, &driver, body).await;
        let why = format!("invalid request body: {why}");
        assert_eq!(problem(&answer), refused(400, "bad_request", &why));
    }
    assert_eq!(info(&world, &driver).await, before);
    for metadata in [json!([]), json!({"a": 1, "b": 1, "c": 1})] {
        let opened = world.open_with("metadata", &json!({"metadata": metadata})).await;
        assert_eq!(problem(&opened.err().unwrap()).0, 400);
    }
    let limits = world.get("/api/v1/meta", "").await.json()["limits"].clone();
    assert_eq!(
        (&limits["max_metadata_bytes"], &limits["max_metadata_keys"]),
        (&json!(40), &json!(2))
    );
}

#[tokio::test]
async fn a_client_lists_the_sessions_in_which_it_took_part_newest_first() {
    let world = World::new().await;
    let (_, key) = world.key().await;
    let list = async |world: &World, query: &str| {
        let path = format!("/api/v1/sessions{query}");
        asking(world, "GET", &path, &key, None).await
    };
    let open = async |body: Value| {
        let answer = asking(&world, "POST", "/api/v1/sessions", &key, Some(&body)).await;
        answer.json()["session_id"].as_str().unwrap().to_owned()
    };
    assert_eq!(list(&world, "").await.json(), json!({"items": [], "next_cursor": null}));
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(open(json!({"metadata": {"n": n}})).await);
    }
    let other = world.driver(&[]).await;
    world.post(&other.path("/join"), &key, &json!({})).await;
    ids.push(other.session.clone());
    // Somebody else's session is not among them.
    world.driver(&[]).await;
    ids.reverse();
    let page = list(&world, "?limit=3").await.json();
    let shown = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap();
        items.iter().map(|item| item["session_id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(shown(&page), ids[..3]);
    assert_eq!(page["items"][1]["metadata"], json!({"n": 2}));
    let cursor = page["next_cursor"].as_str().unwrap().to_owned();
    let world = world.restart().await;
    let rest = list(&world, &format!("?limit=3&cursor={cursor}")).await.json();
    assert_eq!((shown(&rest), &rest["next_cursor"]), (ids[3..].to_vec(), &Value::Null));
    for (query, why) in [
        ("?limit=0", "limit must be a positive integer"),
        ("?cursor=ses_none", "invalid cursor: \"ses_none\""),
    ] {
        assert_eq!(problem(&list(&world, query).await), refused(400, "bad_request", why));
    }
    let answer = asking(&world, "GET", "/api/v1/sessions", &other.session_key, None).await;
    assert_eq!(problem(&answer), refused(401, "unauthorized", "invalid client key"));
}

#[tokio::test]
async fn metadata_is_there_after_a_restart_and_closed_sessions_tell_of_it() {
    let world = World::new().await;
    let driver = world.open_with("metadata", &json!({"metadata": {"a": 1}})).await.unwrap();
    patch(&world, &driver, json!({"metadata": {"b": 2}})).await;
    driver.close().await;
    let before = info(&world, &driver).await;
    let world = world.restart().await;
    assert_eq!(info(&world, &driver.at(&world)).await, before);
    assert_eq!(before["metadata"], json!({"a": 1, "b": 2}));
}

#[tokio::test]
async fn a_plain_request_finds_no_such_methods_and_opens_without_metadata() {
    let world = World::new().await;
    let (_, key) = world.key().await;
    let body = json!({"metadata": "is an unknown member here"});
    assert_eq!(world.post("/api/v1/sessions", &key, &body).await.status, 201);
    let driver = world.driver(&[]).await;
    for (method, path, key, allow) in [
        ("GET", "/api/v1/sessions".to_owned(), &driver.client_key, "POST"),
        ("GET", driver.path(""), &driver.session_key, "DELETE"),
        ("PATCH", driver.path(""), &driver.session_key, "DELETE"),
    ] {
        let body = (method == "PATCH").then_some(r#"{"metadata":{}}"#);
        let answer = exchange(world.addr, method, &path, &bearer(key), body).await;
        assert_eq!((answer.status, answer.body.len()), (405, 0), "{method} {path}");
        assert_eq!(answer.header("allow"), Some(allow));
    }
    assert_eq!(info(&world, &driver).await["metadata"], json!({}));
}

#[tokio::test]
async fn a_change_during_a_turn_is_shown_in_the_stream_of_the_caller_that_asked_for_it() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("done");
    let mut running = driver.send_with("metadata,lean-result", 7, "x").await;
    world.main.was_asked(1).await;
    patch(&world, &driver, json!({"metadata": {"a": 1}})).await;
    tokio::time::timeout(Duration::from_secs(20), async {
        while running.next().await.unwrap()["params"]["event_type"] != "session.metadata.updated" {}
    })
    .await
    .unwrap();
    release.send(()).unwrap();
    let terminal = running.rest().await.pop().unwrap();
    assert_eq!(types(terminal["result"]["events"].as_array().unwrap()), ["client.message.send"]);
}
