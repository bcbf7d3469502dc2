//! `broca proxy` before a real service, and a service that ends with its input.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use command::{Service, Talk, broca, run};
use serde_json::{Value, json};
use std::process::Stdio;

/// A proxy before a service, and its address.
fn before(service: &Service) -> (Talk, String) {
    let mut command = service.broca(&["proxy", "--upstream", service.addr()]);
    let mut talk = Talk::begin(command.stdin(Stdio::piped()));
    let ready = talk.object("listening");
    let url = ready["url"].as_str().unwrap().to_owned();
    assert_eq!(url, format!("http://{}", ready["address"].as_str().unwrap()));
    (talk, url)
}

fn told(talk: &mut Talk, command: Value) -> Value {
    talk.say(&command.to_string());
    serde_json::from_str(&talk.line(|_| true)).unwrap()
}

/// Says something through the proxy; the status of `broca chat`.
fn chat(service: &Service, url: &str) -> Option<i32> {
    run(&mut service.broca(&["chat", "--url", url, "hello"])).code
}

#[test]
fn a_session_passes_until_it_is_told_to_break_and_again_when_healed() {
    let service = Service::start(&[]);
    let (mut talk, url) = before(&service);
    assert_eq!(chat(&service, &url), Some(0));
    assert_eq!(told(&mut talk, json!({"id": 1, "listen": false})), json!({"id": 1, "ok": true}));
    assert_eq!(chat(&service, &url), Some(3));
    assert_eq!(told(&mut talk, json!({"id": "b", "heal": true}))["ok"], true);
    assert_eq!(chat(&service, &url), Some(0));
    let status = told(&mut talk, json!({"status": true}));
    assert!(status["connections"].as_u64().unwrap() >= 2, "{status}");
    let ended = talk.end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
}

#[test]
fn a_repeated_line_is_seen_by_nobody_and_a_cut_stream_is_told_and_survived() {
    let service = Service::start(&[]);
    let (mut talk, url) = before(&service);
    for (knob, told_of) in [
        (json!({"duplicate_line": 1, "request": "session.sendMessage"}), ""),
        (json!({"cut_after_lines": 1, "request": "session.sendMessage"}), "connection lost"),
    ] {
        assert_eq!(told(&mut talk, json!({"id": 1, "next": knob}))["ok"], true);
        let ended = run(&mut service.broca(&["chat", "--url", &url, "hello"]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.err.contains(told_of), "{ended:?}");
        // The fault has come to pass.
        assert_eq!(told(&mut talk, json!({"status": true}))["planned"], 0);
    }
}

#[test]
fn a_command_that_cannot_be_read_is_answered_and_does_no_harm() {
    let service = Service::start(&[]);
    let (mut talk, url) = before(&service);
    talk.say("{");
    let answer: Value = serde_json::from_str(&talk.line(|_| true)).unwrap();
    assert!(answer["error"].as_str().unwrap().contains("JSON"), "{answer}");
    let refused = told(&mut talk, json!({"id": 2, "next": {"explode": 1}}));
    assert!(refused["id"] == 2 && refused["error"].as_str().unwrap().contains("explode"));
    assert_eq!(chat(&service, &url), Some(0));
    talk.signal(rustix::process::Signal::TERM);
    assert_eq!(talk.wait().code, Some(0));
}

#[test]
fn an_address_that_cannot_be_used_is_told_with_the_cure() {
    let state = tempfile::tempdir().unwrap();
    for (arguments, status, cure) in [
        (&["--upstream", "nowhere"][..], 2, "such as 127.0.0.1:8080"),
        (&["--upstream", "127.0.0.1:1", "--listen", "192.0.2.1:1"], 1, "port 0 takes a free one"),
    ] {
        let ended = run(broca(state.path()).arg("proxy").args(arguments));
        assert_eq!(ended.code, Some(status), "{ended:?}");
        assert!(ended.error_line().contains(cure), "{ended:?}");
    }
}

#[test]
fn a_service_ends_with_its_input_if_that_is_asked_for() {
    let state = tempfile::tempdir().unwrap();
    for (option, is_input_open) in [(Some("--end-with-input"), true), (None, false)] {
        let mut command = broca(state.path());
        command.args(["serve", "--dev", "--json", "--addr", "127.0.0.1:0"]).args(option);
        // Without the option an input that is closed from the start changes nothing.
        if is_input_open {
            command.stdin(Stdio::piped());
        }
        let mut talk = Talk::begin(&mut command);
        talk.object("listening");
        if !is_input_open {
            assert_eq!(run(broca(state.path()).args(["chat", "hello"])).code, Some(0));
            talk.signal(rustix::process::Signal::TERM);
        }
        assert_eq!(talk.end().code, Some(0));
    }
}
