//! A turn of very many events over real sockets, and an application that sleeps meanwhile (guarantee 6).
#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod scripted_service;

use broca::steps::Step;
use broca::tokio::Client;
use scripted_service::{Answer, Asked, Service};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

const EVENTS: u32 = 50_000;
const DONE: &str = r#"{"content":[{"text":"done","type":"text"}],"role":"assistant"}"#;

/// The events of the turn that follow the one with this number.
fn show(answer: &mut Answer<'_>, since: u32) {
    let payload = format!(r#"{{"text":"{}"}}"#, "y".repeat(400));
    for n in since + 1..EVENTS {
        answer.event_of(&format!("evt_{n}"), "provider.request", &payload);
    }
    answer.event_of(&format!("evt_{EVENTS}"), "server.message.send", DONE);
}

#[test]
fn a_reader_that_sleeps_through_a_turn_of_fifty_thousand_events_holds_nobody_up_and_misses_none() {
    let (told, all_written) = channel();
    let told = Mutex::new(told);
    let service = Service::start(move |asked: &Asked, answer: &mut Answer<'_>| {
        if asked.is("session.sendMessage") {
            show(answer, 0);
            answer.result(&format!(r#"{{"events":[],"message":{DONE}}}"#));
            told.lock().unwrap().send(()).unwrap();
        } else if asked.is("session.subscribe") {
            let since = asked.params.as_ref().unwrap().member("since_event_id");
            let since = since.and_then(|id| id.to_text()).unwrap();
            show(answer, since.strip_prefix("evt_").unwrap().parse().unwrap());
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::builder(service.url(), "bae_key")
            .configure(|config| config.step_buffer_bytes = 4_000_000)
            .build()
            .unwrap();
        let session = client.open().await.unwrap();
        let mut turn = session.send("Say much.");
        let (mut seen, mut done) = (0, false);
        while let Some(step) = turn.next().await {
            match step.unwrap() {
                Step::Event(event) => {
                    seen += 1;
                    assert_eq!(event.id(), format!("evt_{seen}"));
                    // Twenty megabytes fit into no buffer between two sockets: the turn is read while nothing is taken.
                    while seen == 100 && all_written.try_recv().is_err() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
                Step::Done(reply) => {
                    assert_eq!((seen, reply.text().as_str()), (EVENTS, "done"));
                    done = true;
                }
                Step::Gap(gap) => panic!("{gap:?}"),
                _ => {}
            }
        }
        assert!(done);
    });
    assert!(!service.calls("session.subscribe").is_empty(), "what was not kept came from the log");
}
