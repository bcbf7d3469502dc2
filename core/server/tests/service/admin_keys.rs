//! Client keys on the admin port, and what becomes of sessions when one is revoked (session service §11, §13).

use crate::harness::*;
use serde_json::{Value, json};

async fn make(admin: &Admin, name: &str, profile: &str) -> Value {
    let made = admin.post("/keys", json!({"name": name, "profile_id": profile})).await;
    assert_eq!(made.status, 201, "{}", made.text());
    made.json()
}

#[tokio::test]
async fn a_key_is_shown_once_and_opens_sessions_until_it_is_revoked() {
    let world = World::new().await;
    let admin = world.admin().await;
    let made = make(&admin, "laptop", &world.profile).await;
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert!(key.starts_with("bae_") && key.len() == 52);
    assert_eq!(made["prefix"], key[..8]);
    let members: Vec<_> = made.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, ["created_at", "id", "key", "name", "prefix", "profile_id"]);

    let mut shown = json!({
        "id": id, "name": "laptop", "prefix": made["prefix"], "profile_id": world.profile,
        "created_at": made["created_at"], "last_used_at": null,
    });
    assert_eq!(admin.list("/keys", 50).await, [shown.clone()]);
    let opened = world.post("/api/v1/sessions", key, &json!({})).await;
    assert_eq!(opened.status, 201);
    let used = admin.get(&format!("/keys/{id}")).await;
    assert!(used["last_used_at"].is_string());
    shown["last_used_at"] = used["last_used_at"].clone();
    assert_eq!(used, shown);

    assert_eq!(admin.delete(&format!("/keys/{id}")).await.status, 204);
    assert_eq!(admin.list("/keys", 50).await, Vec::<Value>::new());
    let refused = world.post("/api/v1/sessions", key, &json!({})).await;
    assert_eq!((refused.status, &refused.json()["detail"]), (401, &json!("invalid client key")));
    for answer in [
        admin.delete(&format!("/keys/{id}")).await,
        admin.call("GET", &format!("/keys/{id}"), None).await,
        admin.post(&format!("/keys/{id}/rotate"), json!({})).await,
    ] {
        assert_eq!((answer.status, &answer.json()["type"]), (404, &json!("not_found")));
        assert_eq!(answer.json()["detail"], format!("no client key {id}"));
    }
}

#[tokio::test]
async fn what_a_key_cannot_be_is_told() {
    let world = World::new().await;
    let admin = world.admin().await;
    for (body, status, kind, detail) in [
        (json!({"profile_id": "p"}), 400, "bad_request", "name must be a string"),
        (json!({"name": "", "profile_id": "p"}), 400, "bad_request", "name must not be empty"),
        (json!({"name": "n"}), 400, "bad_request", "profile_id must be a string"),
        (
            json!({"name": "n", "profile_id": " "}),
            400,
            "bad_request",
            "profile_id must not be empty",
        ),
        (
            json!({"name": "n", "profile_id": "pro_x"}),
            422,
            "profile_unavailable",
            "no active profile pro_x",
        ),
    ] {
        let answer = admin.post("/keys", body).await;
        let problem = answer.json();
        assert_eq!(answer.status, status, "{problem}");
        assert_eq!((&problem["type"], &problem["detail"]), (&json!(kind), &json!(detail)));
    }
}

#[tokio::test]
async fn a_rotated_key_is_the_same_client_and_the_old_one_is_good_for_a_while() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&[]).await;
    let path = format!("/keys/{}", driver.key_id);
    let rotated = admin.post(&format!("{path}/rotate"), json!({})).await;
    assert_eq!(rotated.status, 200, "{}", rotated.text());
    let rotated = rotated.json();
    let new = rotated["key"].as_str().unwrap();
    assert_ne!(new, driver.client_key);
    assert_eq!((&rotated["id"], &rotated["prefix"]), (&json!(driver.key_id), &json!(new[..8])));
    assert!(rotated["previous_until"].is_string());
    assert_eq!(admin.get(&path).await["previous_until"], rotated["previous_until"]);

    let join = driver.path("/join");
    for key in [new, &driver.client_key] {
        let joined = world.post(&join, key, &json!({})).await;
        assert_eq!(joined.status, 201, "{}", joined.text());
    }
    // It is a driver as before, under the session key from before.
    assert!(driver.ask("hello").await["result"].is_object());

    let last = admin.post(&format!("{path}/rotate"), json!({"overlap_seconds": 0})).await.json();
    assert_eq!(last["previous_until"], Value::Null);
    for (key, status) in
        [(&driver.client_key[..], 401), (new, 401), (last["key"].as_str().unwrap(), 201)]
    {
        assert_eq!(world.post(&join, key, &json!({})).await.status, status);
    }
    for wrong in [json!(-1), json!("1"), json!(1.5), json!(u64::MAX)] {
        let refused =
            admin.post(&format!("{path}/rotate"), json!({"overlap_seconds": wrong})).await;
        assert_eq!((refused.status, &refused.json()["type"]), (400, &json!("bad_request")));
    }
}

#[tokio::test]
async fn the_last_key_closes_the_session_and_its_watchers_see_it() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&[]).await;
    let other = world.join(&driver, &[]).await;
    let mut theirs = driver.subscribe(None).await;
    let mut others = other.subscribe(None).await;
    assert_eq!(admin.delete(&format!("/keys/{}", driver.key_id)).await.status, 204);

    assert!(theirs.rest().await.is_empty(), "whose key is revoked sees no more");
    let refused = driver.get("/events").await;
    assert_eq!((refused.status, &refused.json()["detail"]), (401, &json!("invalid session key")));
    others.stays_silent().await;
    other.register().await;
    assert!(other.ask("hello").await["result"].is_object(), "the session goes on for others");
    let open = admin.list("/sessions?state=open", 50).await;
    assert_eq!(open.len(), 1);

    assert_eq!(admin.delete(&format!("/keys/{}", other.key_id)).await.status, 204);
    let seen = others.rest().await;
    assert_eq!(types(&seen).last().unwrap(), "session.close");
    let close = &seen.last().unwrap()["params"];
    assert_eq!(close["payload"], json!({"reason": "client_key_revoked"}));
    assert_eq!(close["client_key_id"], json!(driver.key_id), "its creator's");
    let closed = admin.list("/sessions?state=closed", 50).await;
    assert_eq!(closed[0]["id"], json!(driver.session));
    assert_eq!(other.get("/events").await.status, 401);
}

#[tokio::test]
async fn a_revoked_key_starts_no_turn_and_leaves_other_sessions_alone() {
    let world = World::new().await;
    let admin = world.admin().await;
    let driver = world.driver(&[]).await;
    let other = world.join(&driver, &[]).await;
    other.register().await;
    let elsewhere = world.driver(&[]).await;
    let release = world.main.hold("slow");
    let running = driver.send("one").await;
    world.main.was_asked(1).await;
    let mut queued = other.send("two").await;
    assert_eq!(admin.delete(&format!("/keys/{}", other.key_id)).await.status, 204);
    let lines = queued.rest().await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["error"]["message"], "the client key was revoked");
    drop(release);
    drop(running);
    assert!(elsewhere.ask("hello").await["result"].is_object());
}

#[tokio::test]
async fn closes_that_a_restart_cut_off_are_made_up_for() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let other = world.driver(&[]).await;
    // The verb of the store alone, as if the service had been killed right after it.
    let now = broca_server::store::WallTime(1);
    let store = std::sync::Arc::clone(world.service.store());
    let left = store.revoke_client_key(&driver.key_id, now).await.unwrap();
    assert_eq!(left, std::slice::from_ref(&driver.session));
    drop(store);
    let admin_key = world.admin().await.key;
    let world = world.restart().await;
    let admin = world.admin_with(admin_key).await;
    let closed = admin.list("/sessions?state=closed", 50).await;
    assert_eq!(closed.len(), 1);
    assert_eq!(closed[0]["id"], json!(driver.session));
    let events = admin.list(&format!("/sessions/{}/events", driver.session), 50).await;
    assert_eq!(events.last().unwrap()["payload"], json!({"reason": "client_key_revoked"}));
    assert!(other.at(&world).get("/events").await.status == 200);
}

#[tokio::test]
async fn an_admin_key_is_kept_ingested_made_or_rotated() {
    use broca_server::AdminKey;
    use broca_server::keys::{NewKey, Role};
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (file, hash_file) = (folder.path().join("key.pem"), folder.path().join("hash.pem"));
    let world = World::with(|config| {
        config.admin.key_file = Some(file.clone());
        config.admin.key_hash_file = Some(hash_file.clone());
    })
    .await;
    let establish = async |rotate| world.service.establish_admin_key(rotate).await;
    for bad in [
        "{",
        "[]",
        r#"{"prefix":"bae_admi"}"#,
        r#"{"key_hash":"$argon2id$v=19$m=65536,t=3,p=1$x$y","prefix":"bae_admi"}"#,
        r#"{"key_hash":"ABCDEF","prefix":"bae_admi"}"#,
    ] {
        std::fs::write(&hash_file, bad).unwrap();
        let words = establish(false).await.unwrap_err().to_string();
        assert!(words.contains("hash.pem cannot be used"), "{bad}: {words}");
    }
    let given = NewKey::mint(Role::Admin).unwrap();
    let whole =
        json!({"key_hash": given.hash.as_hex(), "prefix": given.display_prefix, "name": "ops"});
    std::fs::write(&hash_file, whole.to_string()).unwrap();
    assert_eq!(establish(false).await.unwrap(), AdminKey::Ingested(hash_file.clone()));
    assert!(!file.exists(), "nobody made a key");
    let admin = world.admin_with(given.plaintext.expose().to_owned()).await;
    assert_eq!(admin.call("GET", "/keys", None).await.status, 200);

    // From now on there is one, whatever the file says.
    std::fs::write(&hash_file, "{").unwrap();
    assert_eq!(establish(false).await.unwrap(), AdminKey::Kept);
    assert_eq!(establish(true).await.unwrap(), AdminKey::Written(file.clone()));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("bae_admin_") && text.ends_with('\n') && text.len() == 59);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(admin.call("GET", "/keys", None).await.status, 401, "the old one has ended");
    let admin = Admin { addr: admin.addr, key: text.trim().to_owned() };
    assert_eq!(admin.call("GET", "/keys", None).await.status, 200);

    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(establish(true).await.unwrap_err().to_string().contains("cannot be written"));
}
