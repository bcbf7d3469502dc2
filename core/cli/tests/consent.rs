//! `broca chat` asks before it calls a tool.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use command::{Ended, Service, Talk, run, run_with_input};
use std::fs;
use std::process::Stdio;

const CHAT: [&str; 6] = ["chat", "--tool", "probe=echo ran", "--ask", "probe", "probe \"x\""];

/// What the model reads of a call that this input decides.
fn decided(service: &Service, input: &[u8]) -> Ended {
    let ended = run_with_input(&mut service.broca(&CHAT), input);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains(r#"[allow probe {"input":"x"}? y, n, or why not]"#), "{ended:?}");
    ended
}

#[test]
fn a_line_of_the_input_allows_a_call_or_says_why_not() {
    let service = Service::start(&[]);
    for (input, part) in [
        ("y\n", "probe says:\nran"),
        ("\nyes\n", "probe says:\nran"),
        ("n\n", "not allowed"),
        ("not on a Friday\n", "not on a Friday"),
    ] {
        let ended = decided(&service, input.as_bytes());
        assert!(ended.out.contains(part), "{input:?}: {ended:?}");
        let ran = ended.err.contains("[tool probe ok, ");
        assert_eq!(ran, input.contains('y') && !input.contains("not"), "{ended:?}");
    }
}

#[test]
fn without_anybody_to_ask_the_answer_is_no() {
    let service = Service::start(&[]);
    for ended in [run(&mut service.broca(&CHAT)), decided(&service, b"\n")] {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.out.contains("nobody to ask"), "{ended:?}");
        assert!(!ended.out.contains("ran") && !ended.err.contains("[tool probe ok"), "{ended:?}");
    }
}

#[test]
fn a_conversation_takes_answers_from_its_lines_and_goes_on() {
    let service = Service::start(&[]);
    let mut chat = service.broca(&["chat", "-i", "--json", "--ask", "*", "--tool", "probe=cat"]);
    let mut chat = Talk::begin(chat.stdin(Stdio::piped()));
    for (answer, part) in [("y", r#"{"input":"x"}"#), ("too dear", "too dear")] {
        chat.say("probe \"x\"");
        let asked = chat.object("approval");
        assert_eq!((&asked["name"], &asked["input"]["input"]), (&"probe".into(), &"x".into()));
        chat.say(answer);
        let reply = chat.object("reply")["text"].as_str().unwrap().to_owned();
        assert!(reply.contains(part), "{reply}");
    }
    // A turn that is ended while it asks takes its question along: the next line is a message.
    chat.say("probe \"x\"");
    chat.object("approval");
    chat.interrupt();
    assert_eq!(chat.object("error")["kind"], "cancelled");
    chat.say("hello");
    chat.object("reply");
    assert_eq!(chat.end().code, Some(0));
}

#[test]
fn the_tool_file_can_say_that_a_tool_asks_and_a_name_must_be_known() {
    let service = Service::start(&[]);
    let file = service.state.path().join("tools.json");
    fs::write(&file, r#"[{"name":"probe","command":"echo ran","ask":true}]"#).unwrap();
    let ended = run(service.broca(&["chat", "probe \"x\"", "--tool-file"]).arg(&file));
    assert!(ended.out.contains("nobody to ask"), "{ended:?}");
    let ended = run(&mut service.broca(&["chat", "--ask", "prob", "--tool", "probe=cat", "hi"]));
    assert!(ended.code != Some(0) && ended.error_line().contains("\"prob\""), "{ended:?}");
}

#[test]
fn the_tools_of_the_service_are_asked_for_too() {
    let service = Service::start(&[]);
    for asked in ["clock", "*"] {
        for (input, ran) in [("y\n", true), ("not today\n", false)] {
            let mut chat = service.broca(&["chat", "--ask", asked, "What time is it? clock"]);
            let ended = run_with_input(&mut chat, input.as_bytes());
            assert_eq!(ended.code, Some(0), "{ended:?}");
            assert!(ended.err.contains("[allow clock {"), "{ended:?}");
            assert_eq!(ended.out.contains("denied and not run: not today"), !ran, "{ended:?}");
        }
    }
}
