//! The endpoint table, auth, open, join, pages and close (session service §3).

use crate::harness::*;
use broca_proto::session::feature::Features;
use serde_json::{Value, json};

fn auth(value: &str) -> Vec<(String, String)> {
    vec![
        ("Authorization".to_owned(), value.to_owned()),
        ("Content-Type".to_owned(), "application/json".to_owned()),
    ]
}

#[tokio::test]
async fn the_open_routes_answer_and_unknown_ones_are_empty() {
    let world = World::new().await;
    let at =
        |method: &'static str, path: &'static str| exchange(world.addr, method, path, &[], None);
    let health = at("GET", "/healthz").await;
    assert_eq!((health.status, health.body.len()), (200, 0));
    assert_eq!(at("HEAD", "/healthz").await.status, 200);
    let meta = at("GET", "/api/v1/meta").await;
    assert_eq!(meta.header("content-type"), Some("application/json"));
    let meta = meta.json();
    assert_eq!(meta["version"], "0.1.0");
    assert_eq!(meta["api_versions"], json!(["v1"]));
    assert_eq!(meta["features"], json!(Features::OFFERED.words()));
    let limits = json!({
        "turn_timeout_ms": 120_000,
        "max_request_bytes": 16 << 20,
        "max_rounds": 8,
        "ring_events": 256,
        "max_page": 200,
        "heartbeat_ms": 10_000,
        "max_hold_ms": 86_400_000,
        "message_ids": 1024,
        "max_metadata_bytes": 16 << 10,
        "max_metadata_keys": 64,
        "approval_timeout_ms": 600_000,
    });
    assert_eq!(meta["limits"], limits);
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/admin/v1/profiles", 404),
        ("POST", "/api/v1/nope", 404),
        ("GET", "/api/v1/sessions/ses_1/nope", 404),
        ("POST", "/healthz", 405),
        ("POST", "/api/v1/meta", 405),
        ("GET", "/api/v1/sessions", 405),
        ("GET", "/api/v1/sessions/ses_1", 405),
        ("PATCH", "/api/v1/sessions/ses_1", 405),
        ("GET", "/api/v1/sessions/ses_1/rpc", 405),
        ("POST", "/api/v1/sessions/ses_1/events", 405),
    ] {
        let answer = at(method, path).await;
        assert_eq!((answer.status, answer.body.len()), (status, 0), "{method} {path}");
    }
}

#[tokio::test]
async fn every_auth_row_is_a_problem_document_and_nothing_is_said_about_sessions() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let other = world.driver(&[]).await;
    let events = driver.path("/events");
    let header = "Authorization header must be a Bearer token";
    let bad = format!("Bearer bae_ses_{}", "0".repeat(48));
    let client = format!("Bearer {}", driver.client_key);
    let foreign = format!("Bearer {}", other.session_key);
    let own = format!("Bearer {}", driver.session_key);
    let rows: Vec<(&str, &str, String, Option<&str>, &str)> = vec![
        ("POST", "/api/v1/sessions", "/".into(), None, "missing Authorization header"),
        ("POST", "/api/v1/sessions", "/".into(), Some("Basic eA=="), header),
        ("POST", "/api/v1/sessions", "/".into(), Some("BEARER x"), header),
        ("POST", "/api/v1/sessions", "/".into(), Some("Bearer"), "empty bearer token"),
        ("POST", "/api/v1/sessions", "/".into(), Some("Bearer x"), "invalid client key"),
        ("POST", "/api/v1/sessions", "/".into(), Some(&own), "invalid client key"),
        ("POST", "/api/v1/sessions/ses_x/join", "/".into(), Some(&own), "invalid client key"),
        ("GET", "", events.clone(), None, "missing Authorization header"),
        ("GET", "", events.clone(), Some(&client), "invalid session key"),
        ("GET", "", events.clone(), Some(&foreign), "invalid session key"),
        ("GET", "", events.clone(), Some(&bad), "invalid session key"),
        ("GET", "", driver.path("/participants"), Some(&foreign), "invalid session key"),
        ("POST", "", driver.path("/rpc"), Some(&foreign), "invalid session key"),
        ("DELETE", "", driver.path(""), Some(&foreign), "invalid session key"),
        ("GET", "/api/v1/sessions/ses_none/events", "/".into(), Some(&own), "invalid session key"),
        ("POST", "/api/v1/sessions/%ff/rpc", "/".into(), None, "missing Authorization header"),
        ("POST", "/api/v1/sessions/%ff/rpc", "/".into(), Some(&own), "invalid session key"),
    ];
    for (method, fixed, path, value, detail) in rows {
        let path = if fixed.is_empty() { path.as_str() } else { fixed };
        let headers = value.map(auth).unwrap_or_default();
        let answer = exchange(world.addr, method, path, &headers, Some("{")).await;
        let expected =
            json!({"type":"unauthorized","title":"Unauthorized","status":401,"detail":detail});
        assert_eq!((answer.status, answer.json()), (401, expected), "{method} {path} {value:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("www-authenticate"), None);
    }
}

#[tokio::test]
async fn the_checks_of_an_open_come_in_order() {
    let world = World::new().await;
    let strict = broca_server::NewProfile {
        allowed_tools: vec!["clock".to_owned()],
        ..broca_server::NewProfile::permissive("strict", "main")
    };
    let strict = world.service.create_profile(strict).await.unwrap();
    let key = world.service.create_client_key("k", &strict).await.unwrap().key;
    let lost = broca_server::NewProfile::permissive("lost", "nowhere");
    let lost = world.service.create_profile(lost).await.unwrap();
    let lost = world.service.create_client_key("k", &lost).await.unwrap().key;
    let reserved = json!({"tools":[{"name":"evil"},{"name":"remote_subagent_status"}]});
    let rows: Vec<(&str, Value, u16, &str, &str)> = vec![
        (
            key.expose(),
            json!({"tools":[{"name":"evil"}]}),
            403,
            "tool_not_allowed",
            "tool \"evil\" is not in the profile's allowlist",
        ),
        (key.expose(), reserved, 422, "reserved_tool_name", "remote_subagent_status is reserved"),
        (
            key.expose(),
            json!({"compaction":{"mode":"auto","size":999},"tools":[{"name":"evil"}]}),
            400,
            "bad_request",
            "compaction size 999 is below the minimum of 1000 tokens",
        ),
        (
            lost.expose(),
            json!({"tools":[{"name":"remote_subagent_status"}]}),
            422,
            "primary_provider_unavailable",
            "the profile's primary provider \"nowhere\" is not configured",
        ),
        (
            key.expose(),
            json!({"subagent_tools":[{"name":"launch","image":""}]}),
            422,
            "invalid_subagent_tools",
            "image and non-empty subagents are required",
        ),
    ];
    for (key, body, status, slug, detail) in rows {
        let answer = world.post("/api/v1/sessions", key, &body).await;
        let problem = answer.json();
        assert_eq!(answer.status, status, "{problem}");
        assert_eq!((&problem["type"], &problem["detail"]), (&json!(slug), &json!(detail)));
    }
    for (kind, body) in [("application/json", "{"), ("text/plain", "{}"), ("", "{}")] {
        let mut headers = vec![("Authorization".to_owned(), format!("Bearer {}", key.expose()))];
        if !kind.is_empty() {
            headers.push(("Content-Type".to_owned(), kind.to_owned()));
        }
        let answer = exchange(world.addr, "POST", "/api/v1/sessions", &headers, Some(body)).await;
        assert_eq!((answer.status, &answer.json()["type"]), (400, &json!("bad_request")), "{kind}");
    }
}

#[tokio::test]
async fn an_open_answers_what_clients_need_and_a_refused_one_mints_nothing() {
    let world = World::new().await;
    let (_, key) = world.key().await;
    let body =
        json!({"tools":[{"name":"clock"}],"client_version":"x","unknown":1,"compaction":null});
    let answer = world.post("/api/v1/sessions", &key, &body).await;
    assert_eq!(answer.status, 201);
    let opened = answer.json();
    let length = |name: &str| opened[name].as_str().unwrap().len();
    assert_eq!((length("session_id"), length("session_key")), (36, 56));
    assert_eq!(
        opened["profile"],
        json!({"id": world.profile, "name": "main", "allowed_tools": ["*"], "mcp_servers": [],
               "provider": {"provider": "main", "model": "stub-1"}})
    );
}

#[tokio::test]
async fn joins_are_checked_and_mint_keys_that_are_all_valid() {
    let world = World::new().await;
    let first = world.driver(&["a"]).await;
    let joined = world.join(&first, &["b"]).await;
    let path = first.path("/join");
    let again = world.post(&path, &first.client_key, &json!({})).await;
    assert_eq!(again.status, 201);
    let third_key = again.json()["session_key"].as_str().unwrap().to_owned();
    for key in [&first.session_key, &joined.session_key, &third_key] {
        assert_eq!(world.get(&first.path("/events"), key).await.status, 200);
    }
    // The creator stays a driver; its tools were replaced by the empty list of its second join.
    let drivers = first.get("/participants").await.json();
    assert_eq!(drivers, json!({"drivers": [first.key_id]}));
    let stranger = broca_server::NewProfile::permissive("other", "main");
    let stranger = world.service.create_profile(stranger).await.unwrap();
    let stranger = world.service.create_client_key("k", &stranger).await.unwrap().key;
    let compaction = json!({"compaction": null});
    let rows = [
        (path.clone(), stranger.expose(), json!({}), 403, "profile_mismatch"),
        (path.clone(), &*joined.client_key, compaction, 400, "bad_request"),
        ("/api/v1/sessions/ses_no/join".into(), &*joined.client_key, json!({}), 404, "not_found"),
    ];
    let before = first.log().await.len();
    for (path, key, body, status, slug) in rows {
        let answer = world.post(&path, key, &body).await;
        assert_eq!((answer.status, &answer.json()["type"]), (status, &json!(slug)));
    }
    assert_eq!(first.log().await.len(), before);
    assert_eq!(first.close().await.json(), json!({"session_id": first.session, "state": "closed"}));
    let late = world.post(&path, &joined.client_key, &json!({})).await;
    let problem = late.json();
    assert_eq!((late.status, &problem["detail"]), (409, &json!("session is already closed")));
    assert_eq!(problem["type"], "session_closed");
}

#[tokio::test]
async fn pages_hold_the_whole_log_in_order_with_opaque_cursors() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    driver.ask("one").await;
    let all = driver.get("/events").await.json();
    assert_eq!(all["next_cursor"], Value::Null);
    let all = all["items"].as_array().unwrap().clone();
    assert_eq!(
        types(&all),
        [
            "session.open",
            "session.driver.register",
            "client.message.send",
            "provider.request",
            "provider.response",
            "server.message.send"
        ]
    );
    let mut found = Vec::new();
    let mut cursor = String::new();
    for _ in 0..6 {
        let page = driver.get(&format!("/events?limit=1&cursor={cursor}")).await.json();
        found.extend(page["items"].as_array().unwrap().clone());
        cursor = page["next_cursor"].as_str().unwrap_or_default().to_owned();
    }
    assert_eq!((found, cursor.as_str()), (all.clone(), ""));
    for event in &all {
        let keys: Vec<&String> = event.as_object().unwrap().keys().collect();
        let expected = ["client_key_id", "created_at", "event_type", "id", "payload", "session_id"];
        assert_eq!(keys, expected);
        assert!(event["created_at"].as_str().unwrap().ends_with('Z'));
    }
    for (query, detail) in [
        ("limit=0", "limit must be a positive integer"),
        ("limit=-1", "limit must be a positive integer"),
        ("limit=x", "limit must be a positive integer"),
        ("cursor=zz", "invalid cursor: \"zz\""),
        ("cursor=-1", "invalid cursor: \"-1\""),
    ] {
        let answer = driver.get(&format!("/events?{query}")).await;
        let problem = answer.json();
        assert_eq!((answer.status, &problem["detail"]), (400, &json!(detail)), "{query}");
        assert_eq!(problem["type"], "bad_request");
    }
    assert_eq!(driver.get("/events?limit=99999&cursor=").await.status, 200);
}

#[tokio::test]
async fn a_closed_session_can_be_read_and_not_closed_again() {
    let world = World::new().await;
    let creator = world.driver(&[]).await;
    let other = world.join(&creator, &[]).await;
    assert_eq!(other.close().await.status, 200);
    let again = creator.close().await;
    let problem = json!({"type":"session_closed","title":"Conflict","status":409,"detail":"session is already closed"});
    assert_eq!((again.status, again.json()), (409, problem));
    let log = creator.log().await;
    let last = log.last().unwrap();
    assert_eq!(last["event_type"], "session.close");
    assert_eq!(last["payload"], json!({"reason": "client_close"}));
    assert_eq!(last["client_key_id"], json!(creator.key_id));
    assert_eq!(creator.get("/participants").await.json(), json!({"drivers": []}));
}

#[tokio::test]
async fn trace_headers_are_accepted_whatever_they_say_and_never_echoed() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for value in [None, Some(valid), Some("00-zz"), Some(""), Some("ff-1-2-3")] {
        let mut headers = bearer(&driver.session_key);
        if let Some(value) = value {
            headers.push(("traceparent".to_owned(), value.to_owned()));
            headers.push(("tracestate".to_owned(), "a=b".to_owned()));
        }
        let path = driver.path("/events");
        let answer = exchange(world.addr, "GET", &path, &headers, None).await;
        assert_eq!(answer.status, 200, "{value:?}");
        assert_eq!(answer.header("traceparent"), None);
        let answer = exchange(world.addr, "GET", "/api/v1/meta", &headers, None).await;
        assert_eq!(answer.status, 200);
    }
}
