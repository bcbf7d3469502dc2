//! The configuration file and the admin port of `broca serve`, as an operator meets them.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use command::{Talk, broca, run};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A service with a database and a configuration of its own.
struct Place {
    state: tempfile::TempDir,
}

impl Place {
    fn new(config: &str) -> Self {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join("broca.toml"), config).unwrap();
        Self { state }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.state.path().join(name)
    }

    fn serve(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = broca(self.state.path());
        command.args(["serve", "--json"]).args(arguments);
        command.env("BROCA_DB_PATH", self.path("broca.db"));
        command.env("BROCA_CONFIG", self.path("broca.toml")).env("BROCA_ADDR", "127.0.0.1:0");
        command
    }

    fn start(&self, arguments: &[&str]) -> (Talk, Value) {
        let mut talk = Talk::begin(&mut self.serve(arguments));
        let ready = talk.object("listening");
        (talk, ready)
    }

    fn admin_key(&self) -> String {
        fs::read_to_string(self.path("admin-key.pem")).unwrap().trim().to_owned()
    }
}

fn stop(talk: Talk) {
    talk.signal(rustix::process::Signal::TERM);
    let ended = talk.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Asks the admin port.
fn ask(ready: &Value, key: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let addr = ready["admin_url"].as_str().unwrap().strip_prefix("http://").unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(
        stream,
        "{method} /admin/v1{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1;
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

fn chat(state: &Path, url: &Value, key: &str) -> command::Ended {
    let mut command = broca(state);
    command.args(["chat", "hello", "--url", url.as_str().unwrap()]).env("BROCA_CLIENT_KEY", key);
    run(&mut command)
}

#[test]
fn providers_of_the_file_answer_by_the_names_that_profiles_use() {
    let script = r#"{"rules":[{"then":{"text":"from the file"}}]}"#;
    let place = Place::new("");
    fs::write(place.path("script.json"), script).unwrap();
    let entry = |name: &str, provider: &str, model: &str| {
        format!(
            "[[providers.entries]]\nname = \"{name}\"\nprovider = \"{provider}\"\nmodel = \"{model}\"\n"
        )
    };
    let script = place.path("script.json").display().to_string();
    let config = [
        entry("good", "scripted", &script),
        entry("unbuilt", "anthropic", "m-1"),
        entry("keyless", "openai", "m-2") + "auth_token = \"${NO_SUCH_KEY}\"\n",
    ];
    fs::write(place.path("broca.toml"), config.concat()).unwrap();
    let (talk, ready) = place.start(&[]);
    let key = place.admin_key();
    let (_, providers) = ask(&ready, &key, "GET", "/providers", &Value::Null);
    let names: Vec<_> = providers["items"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
    assert_eq!(names, ["good", "keyless", "unbuilt"]);
    let (_, shown) = ask(&ready, &key, "GET", "/config", &Value::Null);
    assert_eq!(shown["providers"]["entries"][1]["auth_token"], "••••••••");

    for (primary, fallbacks, code, words) in [
        ("good", json!([]), 0, "from the file"),
        ("unbuilt", json!(["good"]), 0, "from the file"),
        ("unbuilt", json!([]), 1, "provider"),
        ("keyless", json!([]), 1, "provider"),
    ] {
        let body = json!({"name": format!("{primary}{code}{fallbacks}"), "primary_provider": primary,
                          "fallback_providers": fallbacks, "allowed_tools": ["*"]});
        let (status, profile) = ask(&ready, &key, "POST", "/profiles", &body);
        assert_eq!(status, 201, "{profile}");
        let body = json!({"name": "x", "profile_id": profile["id"]});
        let (status, made) = ask(&ready, &key, "POST", "/keys", &body);
        assert_eq!(status, 201, "{made}");
        let chatted = chat(place.state.path(), &ready["url"], made["key"].as_str().unwrap());
        assert_eq!(chatted.code, Some(code), "{chatted:?}");
        assert!(chatted.out.contains(words) || chatted.err.contains(words), "{chatted:?}");
    }
    // Why an attempt failed is in the log of its session.
    let (_, sessions) = ask(&ready, &key, "GET", "/sessions?state=error", &Value::Null);
    let mut errors = String::new();
    for session in sessions["items"].as_array().unwrap() {
        let path = format!("/sessions/{}/events", session["id"].as_str().unwrap());
        errors.push_str(&ask(&ready, &key, "GET", &path, &Value::Null).1.to_string());
    }
    assert!(errors.contains("is not built into this service"), "{errors}");
    assert!(errors.contains("environment variable NO_SUCH_KEY is not set"), "{errors}");
    talk.signal(rustix::process::Signal::TERM);
    let ended = talk.end();
    assert!(ended.err.contains("NO_SUCH_KEY is not set, so provider keyless"), "{ended:?}");
}

#[test]
fn a_development_service_uses_the_first_provider_of_the_file() {
    let place = Place::new("[[providers.entries]]\nname = \"mine\"\nprovider = \"scripted\"\n");
    for (arguments, primary) in [(&[][..], "mine"), (&["--model", "scripted"], "primary")] {
        let (talk, ready) = place.start(&[&["--dev", "--addr", "127.0.0.1:0"], arguments].concat());
        let file = ready["admin_key_file"].as_str().unwrap();
        let key = fs::read_to_string(file).unwrap();
        let (_, profiles) = ask(&ready, key.trim(), "GET", "/profiles", &Value::Null);
        assert_eq!(profiles["items"][0]["primary_provider"], primary);
        let client = fs::read_to_string(place.path("broca/client-key")).unwrap();
        assert_eq!(chat(place.state.path(), &ready["url"], client.trim()).code, Some(0));
        stop(talk);
    }
    let needless = run(&mut place.serve(&["--base-url", "http://127.0.0.1:1"]));
    assert_eq!(needless.code, Some(2));
    assert!(needless.error_line().contains("without --model"), "{needless:?}");
}

#[test]
fn options_win_over_variables_and_those_over_the_file() {
    let place = Place::new("[service]\nturn_timeout = 5\nshutdown_timeout = 6\nmax_rounds = 7\n");
    let limits = |place: &Place, arguments: &[&str], variable: Option<&str>| {
        let mut serve = place.serve(arguments);
        serve.envs(variable.map(|seconds| ("BAE_TURN_TIMEOUT", seconds)));
        let mut talk = Talk::begin(&mut serve);
        let ready = talk.object("listening");
        let addr = ready["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        let mut stream = TcpStream::connect(addr).unwrap();
        write!(stream, "GET /api/v1/meta HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        stop(talk);
        let meta: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        (meta["limits"]["turn_timeout_ms"].clone(), meta["limits"]["max_rounds"].clone())
    };
    assert_eq!(limits(&place, &[], None), (json!(5_000), json!(7)));
    assert_eq!(limits(&place, &[], Some("8")), (json!(8_000), json!(7)));
    assert_eq!(limits(&place, &["--turn-timeout", "9"], Some("8")), (json!(9_000), json!(7)));
}

#[test]
fn a_configuration_can_be_checked_before_it_is_used() {
    let place = Place::new("[[providers.entries]]\nname = \"a\"\nprovider = \"scripted\"\n");
    let checked = run(&mut place.serve(&["--check-config"]));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let expected = json!({"type": "configuration", "providers": 1, "mcp_servers": 0});
    assert_eq!(checked.objects(), [expected]);
    assert!(!place.path("broca.db").exists(), "nothing was made");
    for (config, parts) in [
        ("a = 1\nb = \n", &["broca.toml, line 2"][..]),
        ("[telemetry]\nhunter2 = 1\n", &["line 2", "unknown key"]),
        (
            "[[providers.entries]]\nname = \"a\"\nprovider = \"openai\"\nmodel = \"m\"\nauth_token = 5\n",
            &["line 5"],
        ),
        ("[service]\nturn_timout = 5\n", &["line 2", "no such setting"]),
        ("[service]\nmax_rounds = 0\n", &["BROCA_MAX_ROUNDS", "must be from 1"]),
        ("[service]\nadmin_addr = \"0.0.0.0:1\"\n", &["BROCA_ADMIN_ADDR", "this machine alone"]),
        (
            "[[providers.entries]]\nname = \"a\"\nprovider = \"scripted\"\nmodel = \"/no/such.json\"\n",
            &["/no/such.json"],
        ),
        (
            "[[providers.entries]]\nname = \"a\"\nprovider = \"openai\"\nmodel = \"m\"\nbase_url = \"x\"\n",
            &["provider \"a\"", "base_url"],
        ),
    ] {
        fs::write(place.path("broca.toml"), config).unwrap();
        for arguments in [&["--check-config"][..], &[]] {
            let ended = run(&mut place.serve(arguments));
            assert_eq!(ended.code, Some(2), "{config}: {ended:?}");
            let line = ended.error_line();
            assert!(parts.iter().all(|part| line.contains(part)), "{config}: {line}");
        }
    }
    assert!(!place.path("broca.db").exists(), "nothing was made");
    fs::remove_file(place.path("broca.toml")).unwrap();
    assert_eq!(run(&mut place.serve(&["--check-config"])).code, Some(0), "no file is an empty one");
    fs::create_dir(place.path("broca.toml")).unwrap();
    assert_eq!(run(&mut place.serve(&["--check-config"])).code, Some(2));
}

#[test]
fn the_admin_key_outlives_restarts_and_can_be_rotated() {
    let place = Place::new("");
    let (talk, ready) = place.start(&[]);
    let file = place.path("admin-key.pem");
    assert_eq!(ready["admin_key_file"], json!(file));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("bae_admin_") && text.len() == 59 && text.ends_with('\n'));
    let first = place.admin_key();
    assert_eq!(ask(&ready, &first, "GET", "/keys", &Value::Null).0, 200);
    stop(talk);

    let (talk, ready) = place.start(&[]);
    assert_eq!(ready["admin_key_file"], Value::Null, "nothing was made");
    assert_eq!(ask(&ready, &first, "GET", "/keys", &Value::Null).0, 200);
    stop(talk);

    let (talk, ready) = place.start(&["--rotate-admin-key"]);
    assert_eq!(ask(&ready, &first, "GET", "/keys", &Value::Null).0, 401);
    assert_eq!(ask(&ready, &place.admin_key(), "GET", "/keys", &Value::Null).0, 200);
    stop(talk);

    let (talk, ready) = place.start(&["--dangerously-disable-admin-auth"]);
    assert_eq!(ask(&ready, "none", "GET", "/keys", &Value::Null).0, 200);
    talk.signal(rustix::process::Signal::TERM);
    assert!(talk.end().err.contains("asks for no key"));

    let (talk, ready) = place.start(&["--admin-addr", "off"]);
    assert_eq!(ready["admin_url"], Value::Null);
    stop(talk);
}

#[test]
fn a_hash_file_that_is_wrong_is_a_wrong_use() {
    let place = Place::new("");
    fs::write(place.path("admin-key-hash.pem"), "{\"key_hash\":\"hunter2\",\"prefix\":\"x\"}")
        .unwrap();
    let ended = run(&mut place.serve(&[]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("admin-key-hash.pem cannot be used"), "{ended:?}");
    assert!(!ended.err.contains("hunter2"), "{ended:?}");
    let elsewhere = place.path("no/such/folder/key");
    fs::remove_file(place.path("admin-key-hash.pem")).unwrap();
    let ended = run(&mut place.serve(&["--admin-key-file", elsewhere.to_str().unwrap()]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("cannot be written"), "{ended:?}");
}

#[test]
fn a_development_service_makes_a_new_admin_key_when_the_old_one_is_lost() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("broca/admin-key");
    let mut keys = Vec::new();
    for round in 0..3 {
        let mut talk = Talk::begin(broca(state.path()).args([
            "serve",
            "--dev",
            "--json",
            "--addr",
            "127.0.0.1:0",
        ]));
        let ready = talk.object("listening");
        let key = fs::read_to_string(&file).unwrap().trim().to_owned();
        assert_eq!(ask(&ready, &key, "GET", "/keys", &Value::Null).0, 200);
        let url = fs::read_to_string(state.path().join("broca/admin-url")).unwrap();
        assert_eq!(json!(url.trim()), ready["admin_url"]);
        keys.push(key);
        stop(talk);
        assert!(!state.path().join("broca/admin-url").exists());
        if round == 1 {
            fs::remove_file(&file).unwrap();
        }
    }
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[1], keys[2]);
}
