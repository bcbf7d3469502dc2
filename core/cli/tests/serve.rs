//! `broca serve` and `broca key`: what is told, kept and refused.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use command::{Service, Talk, broca, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_first_start_makes_a_key_that_later_ones_use_and_none_shows_it() {
    let state = tempfile::tempdir().unwrap();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let serve = ["serve", "--dev", "--addr", "127.0.0.1:0"];
        let mut talk = Talk::begin(broca(state.path()).args(serve));
        let ready = talk.line(|_| true);
        assert!(ready.starts_with("broca: listening on http://127.0.0.1:"), "{ready}");
        let pasted = talk.line(|line| line.contains("BROCA_CLIENT_KEY"));
        let key = fs::read_to_string(state.path().join("broca/client-key")).unwrap();
        assert!(pasted.contains("$(cat '") && !pasted.contains(key.trim()), "{pasted}");
        let paste = format!("{pasted}; printf %s \"$BROCA_CLIENT_KEY\"");
        let pasted = run(std::process::Command::new("/bin/sh").args(["-c", &paste]));
        assert_eq!(pasted.out, key.trim());
        assert!(key.starts_with("bae_") && key.trim().len() == 52);
        keys.push(key);
        let chatted = run(broca(state.path()).args(["chat", "hello"]));
        assert_eq!(chatted.code, Some(0), "{chatted:?}");
        talk.signal(rustix::process::Signal::TERM);
        assert_eq!(talk.end().code, Some(0));
    }
    assert_eq!(keys[0], keys[1]);
}

#[test]
fn what_is_kept_is_for_the_owner_alone() {
    let service = Service::start(&[]);
    let folder = service.state.path().join("broca");
    assert_eq!(mode(&folder), 0o700);
    for name in ["broca.db", "client-key", "watch-key", "admin-key", "url", "admin-url"] {
        assert_eq!(mode(&folder.join(name)), 0o600, "{name}");
    }
}

#[test]
fn programs_are_told_when_it_listens_and_no_key() {
    let state = tempfile::tempdir().unwrap();
    let serve = ["serve", "--dev", "--json", "--addr", "127.0.0.1:0", "--log", "trace"];
    let mut talk = Talk::begin(broca(state.path()).args(serve));
    let ready = talk.object("listening");
    let file = ready["key_file"].as_str().unwrap();
    let key = fs::read_to_string(file).unwrap();
    let chatted = run(broca(state.path()).args(["chat", "hello"]));
    assert_eq!(chatted.code, Some(0), "{chatted:?}");
    talk.signal(rustix::process::Signal::INT);
    let ended = talk.end();
    assert_eq!(ended.code, Some(0));
    assert!(!ended.out.contains(key.trim()) && !ended.err.contains(key.trim()));
}

#[test]
fn a_port_in_use_is_told_with_the_cure() {
    let first = Service::start(&[]);
    let state = tempfile::tempdir().unwrap();
    let second = run(broca(state.path()).args(["serve", "--dev", "--addr", first.addr()]));
    assert_eq!(second.code, Some(1));
    let line = second.error_line();
    assert!(line.contains("port in use") && line.contains("choose another"), "{line}");
}

#[test]
fn a_database_in_use_is_told_with_the_cure() {
    let first = Service::start(&[]);
    let second = run(&mut first.broca(&["serve", "--dev", "--addr", "127.0.0.1:0"]));
    assert_eq!(second.code, Some(1));
    assert!(second.error_line().contains("in use by another service"), "{second:?}");
    let database = first.state.path().join("broca/broca.db");
    let third = run(first.broca(&["key", "create", "x", "--db"]).arg(database));
    assert_eq!(third.code, Some(1));
    assert!(third.error_line().contains("in use by another service"), "{third:?}");
}

#[test]
fn a_database_that_cannot_be_used_is_told_and_left_alone() {
    let (ended, state) = Service::start(&[]).stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let newer = state.path().join("broca/broca.db");
    let mut bytes = fs::read(&newer).unwrap();
    bytes[60..64].copy_from_slice(&1_000_000_u32.to_be_bytes()); // SQLite's user_version
    fs::write(&newer, &bytes).unwrap();
    let foreign = state.path().join("notes.txt");
    fs::write(&foreign, "not a database, and worth keeping\n".repeat(99)).unwrap();
    let missing = state.path().join("no/such/folder/broca.db");
    for (path, part) in
        [(&newer, "1000000"), (&foreign, "not a database"), (&missing, "cannot open")]
    {
        let before = fs::read(path).ok();
        let serve = ["serve", "--dev", "--addr", "127.0.0.1:0", "--db"];
        let ended = run(broca(state.path()).args(serve).arg(path));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.error_line().contains(part), "{ended:?}");
        assert_eq!(fs::read(path).ok(), before, "{}", path.display());
    }
}

#[test]
fn a_wrong_use_is_told_before_anything_is_made() {
    let state = tempfile::tempdir().unwrap();
    let script = state.path().join("bad.json");
    fs::write(&script, "{\n  \"rules\": [nonsense]\n}").unwrap();
    let script = format!("scripted:{}", script.display());
    for (arguments, part) in [
        (&["--model", "gpt"][..], "openai:NAME"),
        (&["--model", &script], "line 2"),
        (&["--model", "scripted:/no/such.json"], "/no/such.json"),
        (&["--base-url", "http://127.0.0.1:1"], "--base-url"),
        (&["--log", "=]["], "log filter"),
        (&["--addr", "nowhere"], "--addr"),
        (&["--admin-addr", "0.0.0.0:0"], "BROCA_ADMIN_ADDR"),
        (&["--rotate-admin-key", "--dangerously-disable-admin-auth"], "--rotate-admin-key"),
        (&["--turn-timeout", "soon"], "--turn-timeout"),
    ] {
        let ended = run(broca(state.path()).args(["serve", "--dev"]).args(arguments));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.error_line().contains(part), "{ended:?}");
        assert!(!state.path().join("broca").exists(), "{arguments:?}");
    }
}

#[test]
fn a_database_in_no_folder_is_told_with_the_options_that_name_another() {
    let state = tempfile::tempdir().unwrap();
    let missing = state.path().join("no/such/folder/broca.db");
    for (arguments, asked) in [
        (&["serve", "--addr", "127.0.0.1:0"][..], true),
        (&["key", "create", "ada"], true),
        (&["key", "create", "ada", "--db", missing.to_str().unwrap()], false),
    ] {
        let mut command = broca(state.path());
        let ended = run(command.args(arguments).env("BROCA_DB_PATH", &missing));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let line = ended.error_line();
        assert!(line.contains("its folder does not exist"), "{line}");
        assert_eq!(line.contains("--db PATH") && line.contains("--dev"), asked, "{line}");
    }
}

#[test]
fn a_model_without_its_key_is_warned_of_at_the_start() {
    for (arguments, key, warned) in [
        (&["--model", "openai:x"][..], None, true),
        (&["--model", "openai:x"], Some(("OPENAI_API_KEY", " ")), true),
        (&["--model", "openai:x"], Some(("OPENAI_API_KEY", "sk")), false),
        (&["--model", "openai:x", "--base-url", "http://127.0.0.1:1/v1"], None, false),
        (
            &["--model", "openai:x", "--model-key-env", "OTHER"],
            Some(("OPENAI_API_KEY", "sk")),
            true,
        ),
        (&["--model", "scripted"], None, false),
    ] {
        let state = tempfile::tempdir().unwrap();
        let mut serve = broca(state.path());
        serve.args(["serve", "--dev", "--addr", "127.0.0.1:0"]).args(arguments).envs(key);
        let mut talk = Talk::begin(&mut serve);
        talk.line(|line| line.contains("listening on"));
        talk.signal(rustix::process::Signal::TERM);
        let ended = talk.end();
        if warned {
            let line = ended.error_line();
            assert!(line.contains("is not set") && line.contains("start again"), "{line}");
            assert!(line.contains("openai:x"), "{line}");
        } else {
            assert_eq!(ended.err, "", "{arguments:?}");
        }
    }
}

#[test]
fn listening_beyond_this_machine_with_dev_is_warned_of() {
    let state = tempfile::tempdir().unwrap();
    let mut talk = Talk::begin(broca(state.path()).args(["serve", "--dev", "--addr", "0.0.0.0:0"]));
    talk.line(|line| line.contains("listening on http://127.0.0.1:"));
    talk.signal(rustix::process::Signal::TERM);
    let ended = talk.end();
    assert!(ended.error_line().contains("beyond this machine"), "{ended:?}");
}

#[test]
fn the_original_variables_and_a_key_made_before_are_enough() {
    let state = tempfile::tempdir().unwrap();
    let database = state.path().join("team.db");
    let set = |command: &mut std::process::Command| {
        command.env("BAE_ADDR", "127.0.0.1:0").env("BAE_DB_PATH", &database);
    };
    let mut serve = broca(state.path());
    set(serve.args(["serve", "--json"]));
    let mut service = Talk::begin(&mut serve);
    service.object("listening");
    service.signal(rustix::process::Signal::TERM);
    let without_keys = service.end();
    assert!(without_keys.error_line().contains("broca key create"), "{without_keys:?}");

    let mut create = broca(state.path());
    set(create.args(["key", "create", "ada"]));
    let made = run(&mut create);
    assert_eq!((made.code, made.err.as_str()), (Some(0), ""));
    let key = made.out.trim();

    let mut serve = broca(state.path());
    set(serve.args(["serve", "--json"]));
    let mut service = Talk::begin(&mut serve);
    let url = service.object("listening")["url"].as_str().unwrap().to_owned();
    let mut chat = broca(state.path());
    chat.args(["chat", "hello"]).env("BAE_SERVER_URL", &url).env("BAE_CLIENT_KEY", key);
    let chatted = run(&mut chat);
    assert_eq!(chatted.code, Some(0), "{chatted:?}");
    assert!(!state.path().join("broca").exists());
}

#[test]
fn fallbacks_are_those_of_this_start() {
    let state = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let file = state.path().join(name);
        fs::write(&file, text).unwrap();
        format!("scripted:{}", file.display())
    };
    let down =
        script("down.json", r#"{"rules":[{"then":{"fail":{"status":500,"error":"down"}}}]}"#);
    let up = script("up.json", r#"{"rules":[{"then":{"text":"second choice"}}]}"#);
    let service = Service::start_in(state, "127.0.0.1:0", &["--model", &down, "--model", &up]);
    let ended = run(&mut service.broca(&["chat", "hello"]));
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "second choice\n"));

    let (_, state) = service.stop();
    let service = Service::start_in(state, "127.0.0.1:0", &["--model", &down]);
    let ended = run(&mut service.broca(&["chat", "hello"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
}
