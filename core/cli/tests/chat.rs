//! `broca chat`: words, tools, interrupts, errors.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use command::{Service, Talk, answering, broca, run, run_with_input};
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn kinds(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|object| object["type"].as_str().unwrap()).collect()
}

#[test]
fn one_message_with_a_tool_prints_words_alone() {
    let service = Service::start(&[]);
    let ended = run(&mut service.broca(&["chat", "--tool", "shout=tr a-z A-Z", "shout \"hello\""]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let words = "I am calling shout.\nshout says:\n{\"INPUT\":\"HELLO\"}\n";
    assert_eq!(ended.out, words);
    for part in ["[session ses_", "[tool shout {\"input\":\"hello\"}]", "[tool shout ok, "] {
        assert!(ended.err.contains(part), "{ended:?}");
    }
}

#[test]
fn a_message_can_be_piped_in() {
    let service =
        Service::scripted(r#"{"rules":[{"when":{"equals":"one\ntwo"},"then":{"text":"both"}}]}"#);
    let ended = run_with_input(&mut service.broca(&["chat"]), b"one\ntwo\n");
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "both\n"));
    let ended = run_with_input(&mut service.broca(&["chat"]), b"\n");
    assert_eq!(ended.code, Some(2));
    assert!(ended.error_line().contains("there is no message"));
}

#[test]
fn tools_that_go_wrong_are_told_to_the_model_and_end_nothing() {
    let service = Service::start(&[]);
    for (command, outcome, part) in [
        ("echo broken >&2; exit 7", "failed", "status 7: broken"),
        ("no-such-program", "failed", "command not found"),
        ("printf '\\377'", "failed", "no UTF-8"),
        ("yes", "failed", "more than 4096 bytes"),
        ("kill -SEGV $$", "failed", "signal"),
        ("sleep 600", "timed_out_may_have_run", ""),
    ] {
        let tool = format!("probe={command}");
        let ended = run(&mut service.broca(&[
            "chat",
            "--json",
            "--tool-timeout",
            "1",
            "--tool-output",
            "4096",
            "--tool",
            &tool,
            "probe \"x\"",
        ]));
        assert_eq!(ended.code, Some(0), "{command}: {ended:?}");
        let objects = ended.objects();
        let settled: Vec<_> =
            objects.iter().filter(|object| object["type"] == "tool_settled").collect();
        assert_eq!(settled.len(), 1, "{command}: {settled:?}");
        assert_eq!(settled[0]["outcome"], outcome, "{command}: {settled:?}");
        assert_eq!(settled[0]["name"], "probe", "{command}: {settled:?}");
        let reply = objects.last().unwrap();
        let text = reply["text"].as_str().unwrap();
        assert!(reply["type"] == "reply" && text.contains(part), "{command}: {text}");
    }
}

#[test]
fn a_tool_finds_its_name_and_a_key_but_not_ours() {
    let service = Service::start(&[]);
    let key = fs::read_to_string(service.key_file()).unwrap();
    let mut chat = service.broca(&["chat", "--tool", "env=env", "env \"x\""]);
    let ended = run(chat.env("BROCA_CLIENT_KEY", key.trim()));
    assert!(ended.out.contains("BROCA_TOOL_NAME=env"), "{ended:?}");
    assert!(ended.out.contains("BROCA_IDEMPOTENCY_KEY="), "{ended:?}");
    assert!(!ended.out.contains(key.trim()));
}

#[test]
fn programs_get_lines_that_parse_and_end_with_the_reply() {
    let service = Service::start(&[]);
    let ended = run(&mut service.broca(&["chat", "--json", "--tool", "probe=cat", "probe \"x\""]));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let objects = ended.objects();
    let kinds = kinds(&objects);
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("session", "reply"));
    for kind in ["event", "delta", "tool_call", "tool_settled", "status"] {
        assert!(kinds.contains(&kind), "{kind}");
    }
    let events = objects.iter().filter(|object| object["type"] == "event");
    for event in events {
        let event = &event["event"];
        assert!(event["id"].as_str().unwrap().starts_with("evt_"));
        assert!(event["payload"].is_object() && event["event_type"].is_string());
    }
}

#[test]
fn words_come_while_the_model_still_speaks_and_an_interrupt_ends_only_the_turn() {
    let service = Service::scripted(
        r#"{"rules":[
            {"when":{"contains":"slowly"},"then":{"pieces":["first ",{"text":"never","delay_ms":600000}]}},
            {"then":{"text":"quick"}}]}"#,
    );
    let mut chat = Talk::begin(service.broca(&["chat", "-i", "--json"]).stdin(Stdio::piped()));
    chat.say("slowly please");
    assert_eq!(chat.object("delta")["text"], "first ");
    chat.interrupt();
    assert_eq!(chat.object("error")["kind"], "cancelled");
    chat.say("and now?");
    assert_eq!(chat.object("reply")["text"], "quick");
    let ended = chat.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.out.contains("never"));
}

#[test]
fn an_interrupt_stops_the_programs_of_the_turn() {
    let service = Service::start(&[]);
    let pid = service.state.path().join("pid");
    let tool = format!(
        "probe=trap '' TERM; sleep 600 & echo $! >{0}.new; mv {0}.new {0}; wait",
        pid.display()
    );
    let mut chat = Talk::begin(
        service.broca(&["chat", "-i", "--json", "--tool", &tool]).stdin(Stdio::piped()),
    );
    chat.say("probe \"x\"");
    chat.object("tool_call");
    let until = Instant::now() + command::DEADLINE;
    while !pid.exists() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(3));
    }
    chat.interrupt();
    assert_eq!(chat.object("tool_settled")["outcome"], "interrupted_may_have_run");
    assert_eq!(chat.object("error")["kind"], "cancelled");
    let pid = fs::read_to_string(&pid).unwrap();
    let alive = |pid: &str| {
        let found = fs::read_to_string(format!("/proc/{pid}/stat"));
        found.is_ok_and(|stat| !stat.contains(") Z ")) // a zombie runs nothing
    };
    while alive(pid.trim()) {
        assert!(Instant::now() < until, "the program is still there");
        std::thread::sleep(Duration::from_millis(3));
    }
    // The turn is quiet: the next one begins at once.
    chat.say("hello");
    chat.object("reply");
    assert_eq!(chat.end().code, Some(0));
}

#[test]
fn one_message_that_is_interrupted_ends_with_130() {
    let service = Service::scripted(
        r#"{"rules":[{"then":{"pieces":["first\n",{"text":"never","delay_ms":600000}]}}]}"#,
    );
    let mut chat = Talk::begin(&mut service.broca(&["chat", "hello"]));
    chat.line(|line| line == "first\n");
    chat.interrupt();
    let ended = chat.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.err.ends_with("broca: the turn was cancelled\n"), "{ended:?}");
}

#[test]
fn two_interrupts_at_the_prompt_leave_and_one_does_not() {
    let service = Service::start(&[]);
    let mut chat = Talk::begin(service.broca(&["chat", "-i", "--json"]).stdin(Stdio::piped()));
    chat.object("session");
    for _ in 0..2 {
        chat.interrupt();
        chat.object("note");
        chat.say("hello");
        chat.object("reply");
    }
    chat.interrupt();
    chat.object("note");
    chat.interrupt();
    let ended = chat.wait();
    assert_eq!(ended.code, Some(130), "{ended:?}");
}

#[test]
fn refusals_have_their_exit_codes_and_one_line() {
    let service = Service::start(&[]);
    let html = answering(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\nConnection: close\r\n\r\n<html>hi</html>",
    );
    let silent = answering(b"");
    let strange = tempfile::tempdir().unwrap();
    let wrong = format!("bae_{}", "0".repeat(48));
    for (arguments, code, part) in [
        (&["--key", &wrong, "hi"][..], 4, "--key-file"),
        (&["--key", "", "hi"], 2, "key"),
        (&["--url", "http://127.0.0.1:1", "hi"], 3, "broca serve --dev"),
        (&["--url", &html, "hi"], 3, "--url"),
        (&["--url", &silent, "hi"], 3, ""),
        (&["--url", "nonsense", "hi"], 2, "has no scheme"),
        (&["--session", "ses_00000000000000000000000000000000", "hi"], 1, ""),
        (&["--tool", "nonsense", "hi"], 2, "NAME=COMMAND"),
        (&["--key-file", "/no/such/file", "hi"], 2, "/no/such/file"),
        (&["--no-such-option"], 2, "broca chat --help"),
    ] {
        let key = fs::read_to_string(service.key_file()).unwrap();
        let mut chat = service.broca(&["chat"]);
        if !arguments.contains(&"--key") && !arguments.contains(&"--key-file") {
            chat.env("BROCA_CLIENT_KEY", key.trim());
        }
        let ended = run(chat.args(arguments));
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
        let line = ended.error_line();
        assert!(line.contains(part), "{arguments:?}: {line}");
        assert!(!line.contains(&wrong) && !line.contains(key.trim()), "{line}");
    }
    let ended = run(broca(strange.path()).args(["chat", "hi"]));
    assert_eq!(ended.code, Some(2));
    assert!(ended.error_line().contains("broca serve --dev"));
    // What is wrong is the address; that there is no key does not matter yet.
    for url in ["127.0.0.1:8080", "https://user@127.0.0.1:8080/"] {
        let ended = run(broca(strange.path()).args(["chat", "--url", url, "hi"]));
        assert_eq!(ended.code, Some(2));
        let line = ended.error_line();
        assert!(line.contains("http://127.0.0.1:8080") && !line.contains("key"), "{line}");
    }
}

#[test]
fn programs_are_told_about_errors_too() {
    let service = Service::start(&[]);
    let wrong = format!("bae_{}", "0".repeat(48));
    let ended = run(&mut service.broca(&["chat", "--json", "--key", &wrong, "hi"]));
    let error = &ended.objects()[0];
    assert_eq!((&error["type"], &error["kind"]), (&"error".into(), &"unauthorized".into()));
    assert_eq!((&error["code"], &error["retry"]), (&(-301).into(), &"unsafe".into()));
}

#[test]
fn a_service_that_dies_in_the_middle_of_a_turn_is_told() {
    let service = Service::scripted(
        r#"{"rules":[{"then":{"pieces":["first\n",{"text":"never","delay_ms":600000}]}}]}"#,
    );
    let mut chat = Talk::begin(&mut service.broca(&["chat", "hello"]));
    chat.line(|line| line == "first\n");
    let state = service.kill();
    let ended = chat.end();
    assert!(matches!(ended.code, Some(1 | 3)), "{ended:?}");
    let last = ended.err.lines().last().unwrap();
    assert!(last.starts_with("broca: "), "{ended:?}");
    drop(state);
}

#[test]
fn a_session_can_be_joined_and_closed_and_is_over_then() {
    let service = Service::start(&[]);
    let session = service.session("hello");
    let ended = run(&mut service.broca(&["chat", "--session", &session, "--close", "again"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let ended = run(&mut service.broca(&["chat", "--session", &session, "once more"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let line = ended.error_line();
    assert!(line.contains("broca chat without --session"), "{line}");
    let ended = run(&mut service.broca(&["watch", &session]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let line = ended.error_line();
    assert!(line.contains("cannot be joined") && !line.contains("broca chat"), "{line}");
}

#[test]
fn models_that_fail_are_an_error() {
    let service =
        Service::scripted(r#"{"rules":[{"then":{"fail":{"status":500,"error":"down"}}}]}"#);
    let ended = run(&mut service.broca(&["chat", "--json", "hi"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.objects().last().unwrap()["kind"], "providers_failed");
    let ended = run(&mut service.broca(&["chat", "hi"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let line = ended.err.lines().last().unwrap();
    assert!(line.starts_with("broca: ") && line.contains("down"), "{ended:?}");
    assert!(line.contains("--model") && line.contains("--base-url"), "{ended:?}");
    assert!(!ended.err.contains("all_providers_failed"), "{ended:?}");
}

#[test]
fn a_tool_that_is_late_is_told_once_and_before_what_the_model_says_of_it() {
    let service = Service::start(&[]);
    let late = ["chat", "--tool-timeout", "1", "--tool", "probe=sleep 600", "probe \"x\""];
    let chat = service.broca(&late);
    // In one stream, as a terminal shows them.
    let mut both = std::process::Command::new("/bin/sh");
    both.args(["-c", "exec \"$@\" 2>&1", "sh"])
        .arg(chat.get_program())
        .args(chat.get_args())
        .env_clear();
    for (name, value) in chat.get_envs() {
        both.envs(value.map(|value| (name, value)));
    }
    let ended = run(both.stdin(Stdio::null()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.out.lines().collect();
    let of = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
    assert_eq!(of("[tool probe timed out, may have run, "), 1, "{ended:?}");
    let told = lines.iter().position(|line| line.starts_with("[tool probe timed out"));
    let said = lines.iter().position(|line| line.starts_with("probe failed"));
    assert!(told < said, "{ended:?}");
}

#[test]
fn a_reader_that_wants_no_more_is_no_failure() {
    let service = Service::scripted(r#"{"rules":[{"then":{"text":"word ","repeat":100000}}]}"#);
    let mut chat = service.broca(&["chat", "hi"]);
    let mut chat = chat.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(chat.stdout.take());
    let until = Instant::now() + command::DEADLINE;
    while chat.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(3));
    }
    assert_eq!(chat.wait().unwrap().code(), Some(0));
}

#[test]
fn descriptions_come_from_a_file() {
    let service = Service::start(&[]);
    let file = service.state.path().join("tools.json");
    let schema = r#"[{"name":"weather","description":"Tell the weather of a city.","command":"cat",
        "input_schema":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}]"#;
    fs::write(&file, schema).unwrap();
    let mut chat =
        service.broca(&["chat", "what is the weather in the city \"Oslo\"?", "--tool-file"]);
    // Options may follow the message.
    let ended = run(chat.arg(&file));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains(r#"{"city":"Oslo"}"#), "{ended:?}");
}
