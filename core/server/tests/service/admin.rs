//! The admin port, row by row (session service §13).

use crate::harness::*;
use serde_json::{Value, json};

fn problem(answer: &Answer) -> (u16, String, String) {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["status"], answer.status);
    let text = |name: &str| body[name].as_str().unwrap().to_owned();
    (answer.status, text("type"), text("detail"))
}

fn bad(detail: &str) -> (u16, String, String) {
    (400, "bad_request".to_owned(), detail.to_owned())
}

#[tokio::test]
async fn only_the_admin_key_opens_the_admin_port() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&[]).await;
    let invented = format!("bae_admin_{}", "0".repeat(48));
    let path = "/admin/v1/keys";
    for (key, detail) in [
        (None, "missing Authorization header"),
        (Some("Basic eA==".to_owned()), "Authorization header must be a Bearer token"),
        (Some("Bearer ".to_owned()), "empty bearer token"),
        (Some(format!("Bearer {}", driver.client_key)), "invalid admin key"),
        (Some(format!("Bearer {}", driver.session_key)), "invalid admin key"),
        (Some(format!("Bearer {invented}")), "invalid admin key"),
    ] {
        let headers: Vec<_> =
            key.into_iter().map(|key| ("Authorization".to_owned(), key)).collect();
        for (method, path) in [("GET", path), ("POST", path), ("DELETE", "/admin/v1/keys/key_x")] {
            let answer = exchange(admin.addr, method, path, &headers, None).await;
            let expected = (401, "unauthorized".to_owned(), detail.to_owned());
            assert_eq!(problem(&answer), expected, "{method}");
        }
    }
    assert_eq!(admin.call("GET", "/keys", None).await.status, 200);
    // The admin key is no client key.
    let refused = world.post("/api/v1/sessions", &admin.key, &json!({})).await;
    assert_eq!(problem(&refused).2, "invalid client key");
    let unknown = admin.call("GET", "/nothing", None).await;
    assert_eq!((unknown.status, unknown.body.len()), (404, 0));
    let wrong = admin.call("PUT", "/keys", Some(json!({}))).await;
    assert_eq!((wrong.status, wrong.body.len()), (405, 0));
    let client = exchange(admin.addr, "GET", "/api/v1/meta", &[], None).await;
    assert_eq!(client.status, 404, "the client port is another one");
}

#[tokio::test]
async fn an_operator_can_turn_the_key_off() {
    let world = World::with(|config| config.admin.auth_disabled = true).await;
    let made = world.service.establish_admin_key(false).await.unwrap();
    assert_eq!(made, broca_server::AdminKey::Disabled);
    let admin = world.admin_with("anything".to_owned()).await;
    let open = exchange(admin.addr, "GET", "/admin/v1/keys", &[], None).await;
    assert_eq!(open.status, 200);
    assert_eq!(world.service.store().has_admin_key().await, Ok(false));
}

#[tokio::test]
async fn profiles_are_made_listed_replaced_and_deleted() {
    let world = World::new().await;
    let admin = world.admin().await;
    let body = json!({
        "name": "team", "primary_provider": "ghost", "fallback_providers": ["spare"],
        "mcp_servers": ["echo"], "allowed_tools": ["clock"], "available_sandboxes": ["img:1"],
        "ignored": {"by": "everybody"},
    });
    let made = admin.post("/profiles", body.clone()).await;
    assert_eq!(made.status, 201);
    let made = made.json();
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!(
        made,
        json!({"id": id, "name": "team", "created_at": made["created_at"]}),
        "the answer is short"
    );
    let path = format!("/profiles/{id}");
    let read = admin.get(&path).await;
    let mut expected = body;
    expected.as_object_mut().unwrap().remove("ignored");
    expected["id"] = json!(id);
    expected["created_at"] = made["created_at"].clone();
    expected["updated_at"] = made["created_at"].clone();
    assert_eq!(read, expected);

    let lean = json!({"name": "team", "primary_provider": "main"});
    let replaced = admin.call("PUT", &path, Some(lean)).await;
    assert_eq!(replaced.status, 200);
    let replaced = replaced.json();
    assert_eq!(replaced, admin.get(&path).await);
    for list in ["fallback_providers", "mcp_servers", "allowed_tools", "available_sandboxes"] {
        assert_eq!(replaced[list], json!([]), "a list that is not named is empty: {list}");
    }
    assert_eq!(replaced["created_at"], made["created_at"]);

    let names = |items: &[Value]| -> Vec<String> {
        items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&admin.list("/profiles", 1).await), ["main", "team"]);
    assert_eq!(admin.list("/profiles", 1).await[1], replaced);

    assert_eq!(admin.delete(&path).await.status, 204);
    for (method, body) in [
        ("GET", None),
        ("DELETE", None),
        ("PUT", Some(json!({"name": "n", "primary_provider": "p"}))),
    ] {
        let gone = problem(&admin.call(method, &path, body).await);
        assert_eq!(gone, (404, "not_found".to_owned(), format!("no profile {id}")), "{method}");
    }
    assert_eq!(names(&admin.list("/profiles", 50).await), ["main"]);
    let again = json!({"name": "team", "primary_provider": "main"});
    let (status, kind, _) = problem(&admin.post("/profiles", again).await);
    assert_eq!((status, &kind[..]), (409, "duplicate_name"), "the name stays taken");
}

#[tokio::test]
async fn what_a_profile_cannot_be_is_told() {
    let world = World::new().await;
    let admin = world.admin().await;
    let path = format!("/profiles/{}", world.profile);
    for (body, detail) in [
        (json!({"primary_provider": "p"}), "name must be a string"),
        (json!({"name": 5, "primary_provider": "p"}), "name must be a string"),
        (json!({"name": " ", "primary_provider": "p"}), "name must not be empty"),
        (json!({"name": "n"}), "primary_provider must be a string"),
        (json!({"name": "n", "primary_provider": ""}), "primary_provider must not be empty"),
        (
            json!({"name": "n", "primary_provider": "p", "allowed_tools": "clock"}),
            "allowed_tools must be an array of strings",
        ),
        (
            json!({"name": "n", "primary_provider": "p", "mcp_servers": [1]}),
            "mcp_servers must be an array of strings",
        ),
        (
            json!({"name": "n", "primary_provider": "p", "fallback_providers": null}),
            "fallback_providers must be an array of strings",
        ),
        (
            json!({"name": "n", "primary_provider": "p", "available_sandboxes": {}}),
            "available_sandboxes must be an array of strings",
        ),
    ] {
        assert_eq!(problem(&admin.post("/profiles", body.clone()).await), bad(detail));
        assert_eq!(problem(&admin.call("PUT", &path, Some(body)).await), bad(detail));
    }
    for (body, kind) in
        [("{", "application/json"), ("[]", "application/json"), ("{}", "text/plain")]
    {
        let headers = vec![
            ("Authorization".to_owned(), format!("Bearer {}", admin.key)),
            ("Content-Type".to_owned(), kind.to_owned()),
        ];
        let answer = exchange(admin.addr, "POST", "/admin/v1/profiles", &headers, Some(body)).await;
        assert_eq!(problem(&answer).0, 400, "{body} {kind}");
    }
    let taken = json!({"name": "main", "primary_provider": "p"});
    assert_eq!(problem(&admin.post("/profiles", taken).await).1, "duplicate_name");
}

#[tokio::test]
async fn lists_are_paged_and_bad_pages_are_told() {
    let world = World::new().await;
    let admin = world.admin().await;
    for _ in 0..3 {
        world.key().await;
    }
    let whole = admin.get("/keys").await;
    assert_eq!(whole["next_cursor"], Value::Null);
    assert_eq!(admin.list("/keys", 2).await, *whole["items"].as_array().unwrap());
    for list in ["/keys", "/profiles", "/sessions"] {
        for (query, detail) in [
            ("limit=0", "limit must be a positive integer"),
            ("limit=-1", "limit must be a positive integer"),
            ("limit=many", "limit must be a positive integer"),
            ("cursor=zz", "invalid cursor: \"zz\""),
        ] {
            let answer = admin.call("GET", &format!("{list}?{query}"), None).await;
            assert_eq!(problem(&answer), bad(detail), "{list} {query}");
        }
        let beyond = admin.get(&format!("{list}?cursor=18446744073709551615&limit=900")).await;
        assert_eq!(beyond, json!({"items": [], "next_cursor": null}));
    }
}

#[tokio::test]
async fn sessions_are_listed_by_state_and_their_events_are_those_of_the_client_port() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&["clock"]).await;
    driver.ask("hello").await;
    let closed = world.open(&[]).await;
    closed.close().await;
    let failed = world.driver(&[]).await;
    world.main.fail(500);
    world.spare.fail(500);
    failed.ask("hello").await;

    let all = admin.list("/sessions", 1).await;
    let ids: Vec<_> = all.iter().map(|item| item["id"].clone()).collect();
    assert_eq!(ids, [&driver, &closed, &failed].map(|d| json!(d.session)), "oldest first");
    let item = &all[0];
    let expected = json!({
        "id": driver.session, "profile_id": world.profile, "state": "open",
        "client_version": "t/1", "created_at": item["created_at"], "closed_at": null,
    });
    assert_eq!(*item, expected);
    assert!(all[1]["closed_at"].is_string());
    for (state, session) in [("open", &driver), ("closed", &closed), ("error", &failed)] {
        let found = admin.list(&format!("/sessions?state={state}"), 50).await;
        assert_eq!(found.len(), 1, "{state}");
        assert_eq!(found[0]["id"], json!(session.session));
    }
    let refused = admin.call("GET", "/sessions?state=zz", None).await;
    let detail = "invalid state filter \"zz\"; expected one of open, closed, error";
    assert_eq!(problem(&refused), bad(detail));

    for session in [&driver, &closed, &failed] {
        let path = format!("/sessions/{}/events", session.session);
        let seen = admin.call("GET", &path, None).await;
        assert_eq!(seen.body, session.get("/events").await.body, "byte for byte");
        let paged = admin.call("GET", &format!("{path}?limit=1"), None).await;
        assert_eq!(paged.body, session.get("/events?limit=1").await.body);
    }
    let unknown = admin.call("GET", "/sessions/ses_x/events", None).await;
    assert_eq!(problem(&unknown), (404, "not_found".to_owned(), "no session ses_x".to_owned()));
}

#[tokio::test]
async fn what_the_service_was_started_with_is_shown() {
    let world = World::new().await;
    let admin = world.admin().await;
    let providers = admin.get("/providers").await;
    let shown = |name: &str| json!({"name": name, "provider": name, "model": "stub-1", "base_url": format!("stub://{name}")});
    assert_eq!(providers, json!({"items": [shown("main"), shown("spare")]}));
    assert_eq!(admin.get("/mcp-servers").await, json!({"items": []}));
    let config = admin.get("/config").await;
    assert_eq!(config["mcp"], json!({"servers": []}));
    assert_eq!(config["providers"], json!({"entries": []}));
    assert_eq!(config["telemetry"]["enabled"], false);
    let body = json!({"name": "boxed", "primary_provider": "main", "available_sandboxes": ["b", "a", "b"]});
    let boxed = admin.post("/profiles", body).await.json();
    let status = admin.get("/sandbox-status").await;
    let detail = "sandboxes are not built into this service";
    let image = |name: &str| json!({"name": name, "status": "error", "detail": detail});
    let mut expected = vec![
        json!({"profile_id": world.profile, "images": []}),
        json!({"profile_id": boxed["id"], "images": [image("a"), image("b")]}),
    ];
    expected.sort_by_key(|item| item["profile_id"].as_str().unwrap().to_owned());
    assert_eq!(status, json!({"items": expected}));
}

#[tokio::test]
async fn a_profile_that_changes_changes_what_its_sessions_may_do() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&["clock"]).await;
    let path = format!("/profiles/{}", world.profile);
    let strict = json!({"name": "main", "primary_provider": "spare", "allowed_tools": ["other"]});
    assert_eq!(admin.call("PUT", &path, Some(strict)).await.status, 200);
    // The tools of a session that is open are checked when they are declared, its models when they are asked.
    let refused =
        driver.call("session.updateClientTools", json!({"tools": [{"name": "clock"}]})).await;
    assert_eq!(refused["error"]["code"], -32015);
    driver.ask("hello").await;
    assert_eq!((world.main.calls(), world.spare.calls()), (0, 1));
    let (_, key) = world.key().await;
    let join = driver.path("/join");
    let refused = world.post(&join, &key, &json!({"tools": [{"name": "clock"}]})).await;
    assert_eq!(problem(&refused).1, "tool_not_allowed");

    let ghost = json!({"name": "main", "primary_provider": "ghost"});
    assert_eq!(admin.call("PUT", &path, Some(ghost)).await.status, 200);
    let refused = world.post("/api/v1/sessions", &key, &json!({})).await;
    assert_eq!(problem(&refused).1, "primary_provider_unavailable");
    let refused = world.post(&join, &key, &json!({})).await;
    assert_eq!(problem(&refused).1, "primary_provider_unavailable");
    driver.ask("hello").await;
    let log = driver.log().await;
    assert_eq!(log.last().unwrap()["payload"]["reason"], "provider_config");
}

#[tokio::test]
async fn a_deleted_profile_ends_its_session_with_the_next_message() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&[]).await;
    let path = format!("/profiles/{}", world.profile);
    let in_use = problem(&admin.delete(&path).await);
    let detail = "profile has 1 active client key(s); revoke them before deleting";
    assert_eq!(in_use, (409, "profile_in_use".to_owned(), detail.to_owned()));
    // A second participant, of a profile that is deleted under it by another way than the admin port allows.
    let mut gone = world.service.store().profile(&world.profile).await.unwrap().unwrap();
    gone.deleted = true;
    let now = broca_server::store::WallTime(1);
    world.service.store().put_profile(gone, now).await.unwrap();
    let refused = world.post(&driver.path("/join"), &driver.client_key, &json!({})).await;
    assert_eq!(problem(&refused).1, "profile_unavailable");
    let key = json!({"name": "late", "profile_id": world.profile});
    let refused = problem(&admin.post("/keys", key).await);
    assert_eq!((refused.0, &refused.1[..]), (422, "profile_unavailable"));
    let answer = driver.ask("hello").await;
    assert_eq!(answer["error"]["code"], -32000);
    let log = driver.log().await;
    assert_eq!(log.last().unwrap()["payload"]["reason"], "profile_unavailable");
}
