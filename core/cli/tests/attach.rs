//! A session outlives the program that drives it, and the service that serves it, over real sockets.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use broca::steps::Step;
use broca::{Error, ErrorKind, Json, SavedSession, Tool};
use command::Service;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SCHEMA: &str = r#"{"type":"object","properties":{"name":{"type":"string"}}}"#;

fn url(service: &Service) -> String {
    format!("http://{}", service.addr())
}

fn key(service: &Service) -> String {
    fs::read_to_string(service.key_file()).unwrap().trim().to_owned()
}

fn by_hand(name: &str) -> Tool {
    Tool::manual(name, "", Json::parse(SCHEMA).unwrap())
}

/// A tool that counts how often it ran.
fn counted(name: &str, ran: &Arc<AtomicUsize>) -> Tool {
    let ran = Arc::clone(ran);
    Tool::raw(name, "", Json::parse(SCHEMA).unwrap(), move |_, context| {
        ran.fetch_add(1, Ordering::SeqCst);
        Ok(Json::string(if context.may_have_run() { "again" } else { "once" }))
    })
}

/// A program on tokio that opens a session, runs into two calls, answers one of them, saves and dies.
fn dies_in_a_turn(service: &Service) -> SavedSession {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let saved = runtime.block_on(async {
        let client = broca::Client::new(url(service), key(service)).unwrap();
        let session = client.open().tools([by_hand("count"), by_hand("pay")]).await.unwrap();
        let mut turn = session.send("count apples and pay pears");
        let mut open = Vec::new();
        while open.len() < 2 {
            if let Step::ToolCall(call) = turn.next().await.unwrap().unwrap() {
                open.push(call);
            }
        }
        let count = open.iter().find(|call| call.name == "count").unwrap();
        count.complete("seven").unwrap();
        let saved = session.save().unwrap();
        // A program that dies cancels nothing.
        std::mem::forget((turn, session));
        saved
    });
    runtime.shutdown_background();
    saved
}

/// A program without a runtime that attaches.
fn attach(
    service: &Service,
    saved: SavedSession,
    tools: Vec<Tool>,
) -> Result<broca::blocking::Session, Error> {
    let client = broca::blocking::Client::new(url(service), key(service))?;
    client.attach(saved).tools(tools).start()
}

#[test]
fn another_program_takes_a_turn_up_after_the_service_was_restarted_too() {
    let service = Service::start(&[]);
    let saved = dies_in_a_turn(&service);
    let text = saved.to_json();
    let addr = service.addr().to_owned();
    let state = service.kill();
    let service = Service::start_in(state, &addr, &[]);

    let saved = SavedSession::parse(text.expose().as_bytes()).unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let tools = vec![counted("count", &ran), counted("pay", &ran)];
    let session = attach(&service, saved, tools).unwrap();
    let reply = session.resume().unwrap().reply().unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 1, "the saved result is not made again");
    assert!(reply.text().contains("seven") && reply.text().contains("again"), "{}", reply.text());
    assert!(session.resume().is_none());
    // A plain session from here on.
    assert!(session.ask("count plums").unwrap().text().contains("once"));
}

#[test]
fn a_message_sent_instead_tells_the_model_what_was_interrupted() {
    let service = Service::start(&[]);
    let saved = dies_in_a_turn(&service);
    let session = attach(&service, saved, vec![by_hand("count"), by_hand("pay")]).unwrap();
    session.ask("Never mind.").unwrap();
    let mut history = session.history();
    let mut log = Vec::new();
    while let Some(page) = history.next_page().unwrap() {
        log.extend(page);
    }
    let results = log.iter().filter(|event| event.type_name() == "tool.result");
    let said: Vec<String> = results.map(|event| event.payload().as_str().to_owned()).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().any(|text| text.contains("seven")));
    assert!(said.iter().any(|text| text.contains("may have run")));
}

#[test]
fn a_session_that_was_closed_meanwhile_is_an_error() {
    let service = Service::start(&[]);
    let saved = dies_in_a_turn(&service);
    let session = attach(&service, saved.clone(), Vec::new()).unwrap();
    session.close().unwrap();
    let error = attach(&service, saved, Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionClosed, "{error}");
}
