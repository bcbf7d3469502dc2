//! `broca key`: on a database that nobody has open, and on the admin port of a service that runs.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use command::{Ended, Service, broca, run};
use serde_json::Value;
use std::fs;

fn good(ended: Ended) -> Ended {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
}

/// Makes, lists, rotates and revokes a key with these arguments; gives the keys that were printed.
fn whole_life(key: impl Fn(&[&str]) -> Ended) -> Vec<String> {
    let made = good(key(&["create", "ada", "--json"])).objects().remove(0);
    let text = |object: &Value, name: &str| object[name].as_str().unwrap().to_owned();
    let id = text(&made, "id");
    let plain = good(key(&["create", "bob"])).out.trim().to_owned();
    let listed = good(key(&["list", "--json"])).objects();
    let names: Vec<_> = listed.iter().map(|key| text(key, "name")).collect();
    assert!(names.contains(&"ada".to_owned()) && names.contains(&"bob".to_owned()));
    let shown = good(key(&["list"])).out;
    assert!(shown.lines().any(|line| line.starts_with(&id) && line.ends_with("ada")), "{shown}");
    assert!(!shown.contains(&plain), "{shown}");
    let rotated = good(key(&["rotate", &id, "--overlap", "0"])).out.trim().to_owned();
    assert_eq!(good(key(&["revoke", &id])).out, "");
    for arguments in [&["revoke", &id][..], &["rotate", &id]] {
        let again = key(arguments);
        assert_eq!(again.code, Some(1), "{again:?}");
        assert!(again.error_line().contains(&format!("no client key {id}")), "{again:?}");
    }
    let wrong = key(&["revoke", "a/b"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    let unknown = key(&["create", "x", "--profile", "other"]);
    assert!(unknown.error_line().contains("there is no profile other"), "{unknown:?}");
    vec![text(&made, "key"), rotated, plain]
}

#[test]
fn keys_of_a_database_that_nobody_has_open() {
    let state = tempfile::tempdir().unwrap();
    let database = state.path().join("team.db");
    let keys = whole_life(|arguments| {
        run(broca(state.path()).arg("key").args(arguments).arg("--db").arg(&database))
    });
    assert!(keys.iter().all(|key| key.len() == 52));
    let mut serve = broca(state.path());
    serve.args(["serve", "--json", "--addr", "127.0.0.1:0", "--db"]).arg(&database);
    let mut talk = command::Talk::begin(&mut serve);
    let url = talk.object("listening")["url"].as_str().unwrap().to_owned();
    for (key, code) in keys.iter().zip([4, 4, 0]) {
        let mut chat = broca(state.path());
        chat.args(["chat", "hello", "--url", &url]).env("BROCA_CLIENT_KEY", key);
        let chatted = run(&mut chat);
        assert_eq!(chatted.code, Some(code), "{chatted:?}");
    }
}

#[test]
fn keys_of_a_service_that_runs() {
    let service = Service::start(&[]);
    whole_life(|arguments| run(service.broca(&["key"]).args(arguments).arg("--dev")));
    let folder = service.state.path().join("broca");
    let url = fs::read_to_string(folder.join("admin-url")).unwrap();
    let file = folder.join("admin-key");
    whole_life(|arguments| {
        let mut command = service.broca(&["key"]);
        command.args(arguments).args(["--admin-url", url.trim(), "--admin-key-file"]).arg(&file);
        run(&mut command)
    });
    let wrong = run(&mut service.broca(&[
        "key",
        "list",
        "--admin-url",
        url.trim(),
        "--admin-key-file",
        service.key_file().to_str().unwrap(),
    ]));
    assert_eq!(wrong.code, Some(4), "{wrong:?}");
    assert!(wrong.error_line().contains("invalid admin key"), "{wrong:?}");
    let without = run(&mut service.broca(&["key", "list", "--admin-url", url.trim()]));
    assert_eq!(without.code, Some(2), "{without:?}");
    let (_, state) = service.stop();
    let mut gone = broca(state.path());
    gone.args(["key", "list", "--admin-url", url.trim()]).env("BROCA_ADMIN_KEY", "bae_admin_x");
    let gone = run(&mut gone);
    assert_eq!(gone.code, Some(3), "{gone:?}");
    // Now the database is free.
    good(run(broca(state.path()).args(["key", "create", "late", "--dev"])));
}

#[test]
fn a_port_that_a_killed_service_left_noted_is_no_way() {
    let state = Service::start(&[]).kill();
    assert!(state.path().join("broca/admin-url").exists());
    good(run(broca(state.path()).args(["key", "list", "--dev"])));
}
