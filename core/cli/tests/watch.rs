//! `broca watch`: every event once and in order, whatever happens to the service.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use command::{Service, Talk, run};
use serde_json::Value;

/// The ids of the events among these objects, in their order.
fn ids(objects: &[Value]) -> Vec<String> {
    let events = objects.iter().filter(|object| object["type"] == "event");
    events.map(|object| object["event"]["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_watch_shows_what_happened_and_ends_with_the_session() {
    let service = Service::start(&[]);
    let session = service.session("hello");
    let mut watch = Talk::begin(&mut service.broca(&["watch", &session, "--from-start"]));
    let first = watch.line(|_| true);
    assert!(first.contains("session.open"), "{first}");
    watch.line(|line| line.contains("session.join"));
    let closed = run(&mut service.broca(&["chat", "--session", &session, "--close", "bye"]));
    assert_eq!(closed.code, Some(0), "{closed:?}");
    let ended = watch.end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let last = ended.out.lines().last().unwrap();
    assert!(last.contains("session.close") && last.contains("client_close"), "{last}");
    assert!(ended.out.contains("\"hello\"") && ended.out.contains("\"bye\""), "{ended:?}");
}

#[test]
fn a_watch_outlives_the_deaths_of_the_service_and_misses_nothing() {
    let state = tempfile::tempdir().unwrap();
    let script = state.path().join("script.json");
    let slow = r#"{"rules":[{"when":{"contains":"slow"},"then":{"pieces":["a",{"text":"b","delay_ms":600000}]}}]}"#;
    std::fs::write(&script, slow).unwrap();
    let model = format!("scripted:{}", script.display());
    let mut service = Service::start_in(state, "127.0.0.1:0", &["--model", &model]);
    let addr = service.addr().to_owned();
    let session = service.session("before");
    let mut watch = Talk::begin(&mut service.broca(&["watch", &session, "--from-start", "--json"]));
    watch.line(|line| line.contains("session.join"));
    let chat = |service: &Service, message: &str, more: &[&str]| {
        let all = [&["chat", "--session", &session][..], more, &[message]].concat();
        let ended = run(&mut service.broca(&all));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    };
    for death in 0..3 {
        // It dies while a turn is under way.
        let mut cut = service.broca(&["chat", "--session", &session, "--json", "slow"]);
        let mut cut = Talk::begin(&mut cut);
        cut.object("delta");
        let state = service.kill();
        service = Service::start_in(state, &addr, &["--model", &model]);
        let message = format!("after {death}");
        chat(&service, &message, &[]);
        watch.line(|line| line.contains(&message));
        // The log tells it that its turn is over.
        assert_ne!(cut.end().code, Some(0));
    }
    let late = {
        let mut late = service.broca(&["watch", &session, "--from-start", "--json"]);
        let mut late = Talk::begin(&mut late);
        late.line(|line| line.contains("after 2"));
        chat(&service, "end", &["--close"]);
        late.end()
    };
    let ended = watch.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("connection lost, trying again in "), "{ended:?}");
    assert!(!ended.err.contains("may have run"), "{ended:?}");
    let (seen, logged) = (ids(&ended.objects()), ids(&late.objects()));
    assert_eq!(seen, logged);
    let mut once = seen.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), seen.len());
}

#[test]
fn a_watch_that_saw_nothing_before_the_service_died_says_what_may_be_missing() {
    let service = Service::start(&[]);
    let (addr, session) = (service.addr().to_owned(), service.session("hello"));
    let mut watch = Talk::begin(&mut service.broca(&["watch", &session, "--json"]));
    assert_eq!(watch.object("status")["status"], "connected");
    let state = service.kill();
    let gap = watch.object("gap");
    assert_eq!(gap["lost"], "unseen");
    assert_eq!(watch.object("status")["status"], "reconnecting");
    let service = Service::start_in(state, &addr, &[]);
    watch.line(|line| line.contains("\"connected\""));
    let closed = run(&mut service.broca(&["chat", "--session", &session, "--close", "bye"]));
    assert_eq!(closed.code, Some(0), "{closed:?}");
    let ended = watch.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let first = ended.err.lines().next().unwrap();
    assert!(first.contains("--from-start") && first.contains("connection was lost"), "{ended:?}");
    assert!(!ended.err.contains("may have run"), "{ended:?}");
}

#[test]
fn a_watch_goes_on_after_an_event() {
    let service = Service::start(&[]);
    let session = service.session("hello");
    let mut all = Talk::begin(&mut service.broca(&["watch", &session, "--from-start", "--json"]));
    all.line(|line| line.contains("session.join"));
    all.interrupt();
    let all = all.end();
    assert_eq!(all.code, Some(130));
    let events = ids(&all.objects());
    let last = events.last().unwrap();
    assert!(all.error_line().ends_with(&format!("--after {last}")), "{all:?}");

    let mut rest =
        Talk::begin(&mut service.broca(&["watch", &session, "--after", &events[1], "--json"]));
    assert_eq!(rest.object("event")["event"]["id"], events[2].as_str());
}

#[test]
fn a_watcher_leaves_the_tools_of_the_driver_alone() {
    let service = Service::start(&[]);
    let mut chat = service.broca(&["chat", "-i", "--json", "--tool", "probe=cat"]);
    let mut chat = Talk::begin(chat.stdin(std::process::Stdio::piped()));
    let session = chat.object("session")["session_id"].as_str().unwrap().to_owned();
    let key = std::fs::read_to_string(service.key_file()).unwrap();
    // What a newcomer pastes holds the driver's key.
    let mut watch = service.broca(&["watch", &session, "--from-start"]);
    let mut watch = Talk::begin(watch.env("BROCA_CLIENT_KEY", key.trim()));
    watch.line(|line| line.contains("session.join"));
    chat.say("probe \"x\"");
    assert_eq!(chat.object("tool_call")["name"], "probe");
    chat.object("reply");
}

#[test]
fn a_session_that_cannot_be_watched_is_told() {
    let service = Service::start(&[]);
    let ended = run(&mut service.broca(&["watch", "ses_00000000000000000000000000000000"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.error_line().contains("not_found"), "{ended:?}");
    let ended = run(&mut service.broca(&["watch", "x", "--url", "http://127.0.0.1:1"]));
    assert_eq!(ended.code, Some(3), "{ended:?}");
}
