//! A turn of the real service is held while its tool runs.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use broca::{Json, Tool};
use command::Service;
use std::fs;
use std::time::Duration;

/// What a tool answers that takes longer than the service waits.
fn answer_of_a_slow_tool(hold_ms: Option<u64>) -> String {
    let service = Service::start(&["--turn-timeout", "1"]);
    let key = fs::read_to_string(service.key_file()).unwrap();
    let client = broca::blocking::Client::builder(format!("http://{}", service.addr()), key.trim())
        .configure(|config| config.hold_ms = hold_ms)
        .build()
        .unwrap();
    let schema = Json::parse(r#"{"type":"object"}"#).unwrap();
    let slow = Tool::raw("dig", "", schema, |_, context| {
        // Longer than the service waits, unless it is told to stop.
        if context.cancel_signal().wait(Duration::from_secs(3)) {
            return Err("told to stop".to_owned());
        }
        Ok(Json::string("treasure"))
    });
    let session = client.open().tool(slow).start().unwrap();
    session.ask("dig").unwrap().text()
}

#[test]
fn a_tool_that_takes_longer_than_the_service_waits_has_its_result() {
    assert!(answer_of_a_slow_tool(Some(60_000)).contains("treasure"));
}

#[test]
fn without_holding_it_is_over_at_the_services_deadline() {
    assert!(answer_of_a_slow_tool(None).contains("did not finish in time"));
}
