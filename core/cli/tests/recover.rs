//! Turns of a real client on a real service, through a proxy that breaks their streams: every event once and in
//! order, every outcome known, no message said twice.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod command;

use broca::Tool;
use broca::engine::Config;
use broca::proto::session::event::{Event, EventType};
use broca::steps::Step;
use broca::tokio::{Client, Session, Turn};
use broca_chaos::{ChaosProxy, ResponseFault};
use command::Service;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls a tool of the client and one of the service, then answers in many words.
const SCRIPT: &str = r#"{"rules":[
    {"when":{"contains":"long","after_tools":false},"then":{"tool_calls":[{"name":"note","input":{"text":"a"}},{"name":"clock","input":{}}]}},
    {"when":{"contains":"slow"},"then":{"pieces":[{"text":"a","delay_ms":300},{"text":"b","delay_ms":300}]}},
    {"then":{"text":"one two three four five"}}
]}"#;

struct Stage {
    service: Service,
    proxy: ChaosProxy,
}

impl Stage {
    fn new() -> Self {
        let service = Service::scripted(SCRIPT);
        let proxy = ChaosProxy::start(service.addr().parse().unwrap()).unwrap();
        Self { service, proxy }
    }

    fn client(&self, change: impl FnOnce(&mut Config)) -> Client {
        let key = std::fs::read_to_string(self.service.key_file()).unwrap();
        Client::builder(self.proxy.url(), key.trim()).configure(change).build().unwrap()
    }

    /// Breaks the next answer to a message in this way.
    fn break_next(&self, fault: ResponseFault) {
        self.proxy.plan_response(ResponseFault {
            request: Some("session.sendMessage".to_owned()),
            ..fault
        });
    }
}

/// Every step of a turn to its end.
async fn steps(mut turn: Turn) -> Vec<Step> {
    let mut all = Vec::new();
    while let Some(step) = turn.next().await {
        all.push(step.unwrap_or_else(|error| panic!("{error}; after {all:?}")));
    }
    all
}

fn event_ids(steps: &[Step]) -> Vec<String> {
    let id = |step: &Step| match step {
        Step::Event(event) => Some(event.id().to_owned()),
        _ => None,
    };
    steps.iter().filter_map(id).collect()
}

async fn log(session: &Session) -> Vec<Event> {
    let mut history = session.history();
    let mut log = Vec::new();
    while let Some(event) = history.next().await {
        log.push(event.unwrap());
    }
    log
}

/// What the stream of a turn shows of its events: not what the client itself has said.
fn is_shown(event: &Event) -> bool {
    let said = event.is(&EventType::ClientMessageSend);
    let own = event.is(&EventType::ToolResult)
        && event.payload().member("dispatch").is_some_and(|d| d.as_str() == "\"client\"");
    !said && !own
}

/// Says something, and checks that the application saw the turn whole and once, whatever broke.
async fn survives(session: &Session, message: &str, rounds: usize) -> Vec<Step> {
    let before = log(session).await.len();
    let steps = steps(session.send(message)).await;
    let Some(Step::Done(reply)) = steps.last() else { panic!("no reply: {steps:?}") };
    let logged = log(session).await.split_off(before);
    let said = logged.iter().filter(|e| e.is(&EventType::ClientMessageSend)).count();
    assert_eq!(said, rounds, "each message was said once");
    let shown: Vec<&Event> = logged.iter().filter(|event| is_shown(event)).collect();
    let shown: Vec<String> = shown.iter().map(|event| event.id().to_owned()).collect();
    assert_eq!(event_ids(&steps), shown);
    let all: Vec<String> = logged.iter().map(|event| event.id().to_owned()).collect();
    let replied: Vec<String> = reply.turn_events().iter().map(|e| e.id().to_owned()).collect();
    assert_eq!(replied, all);
    steps
}

/// A tool that counts its runs.
fn counting(runs: &Arc<AtomicUsize>) -> Tool {
    let runs = Arc::clone(runs);
    Tool::function("note", "Keeps a text.", move |note: Note| {
        runs.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, Infallible>(note.text) }
    })
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Note {
    text: String,
}

#[tokio::test]
async fn a_turn_survives_a_break_anywhere_in_either_of_its_answers() {
    let stage = Stage::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let session = stage.client(|_| ()).open().tool(counting(&runs)).await.unwrap();
    let mut turns = 0;
    for answer in 0..2 {
        for lines in 0..8 {
            for reset in [false, true] {
                for _ in 0..answer {
                    stage.break_next(ResponseFault {
                        duplicate_line: Some(1),
                        ..ResponseFault::default()
                    });
                }
                stage.break_next(ResponseFault {
                    cut_after_lines: Some(lines),
                    reset,
                    ..ResponseFault::default()
                });
                survives(&session, "long", 2).await;
                turns += 1;
                assert_eq!(runs.load(Ordering::SeqCst), turns, "each call ran once");
                stage.proxy.heal().unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_turn_that_goes_on_without_its_stream_is_followed_to_its_end() {
    let stage = Stage::new();
    let session = stage.client(|_| ()).open().await.unwrap();
    for bytes in [0, 1, 400] {
        stage
            .break_next(ResponseFault { cut_after_bytes: Some(bytes), ..ResponseFault::default() });
        survives(&session, "slow", 1).await;
    }
}

#[tokio::test]
async fn breaks_of_everything_again_and_again_are_survived() {
    let stage = Stage::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let session = stage.client(|_| ()).open().tool(counting(&runs)).await.unwrap();
    for round in 0..10_u64 {
        stage.break_next(ResponseFault {
            cut_after_lines: Some(round % 4),
            ..ResponseFault::default()
        });
        for lines in [0, 1, 3] {
            stage.proxy.plan_response(ResponseFault {
                cut_after_lines: Some(lines),
                request: Some("session.subscribe".to_owned()),
                ..ResponseFault::default()
            });
        }
        survives(&session, "long", 2).await;
        stage.proxy.heal().unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 10);
}

#[tokio::test]
async fn a_turn_that_a_restart_breaks_off_is_told_as_such_and_the_session_goes_on() {
    let state = tempfile::tempdir().unwrap();
    let script = state.path().join("script.json");
    std::fs::write(
        &script,
        r#"{"rules":[{"when":{"contains":"slow"},"then":{"pieces":["a",{"text":"b","delay_ms":600000}]}}]}"#,
    )
    .unwrap();
    let model = format!("scripted:{}", script.display());
    let service = Service::start_in(state, "127.0.0.1:0", &["--model", &model]);
    let addr = service.addr().to_owned();
    let key = std::fs::read_to_string(service.key_file()).unwrap();
    let client = Client::new(service.url.clone(), key.trim()).unwrap();
    let session = client.open().await.unwrap();
    let mut turn = session.send("slow");
    while !matches!(turn.next().await, Some(Ok(Step::Event(_)))) {}
    let state = service.kill();
    let service = Service::start_in(state, &addr, &["--model", &model]);
    let error = loop {
        match turn.next().await {
            Some(Ok(Step::Done(_))) | None => panic!("nobody can have answered"),
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
        }
    };
    assert_eq!(error.retry(), broca::Retry::Unknown, "{error}");
    assert!(error.message().contains("interrupted"), "{error}");
    assert!(
        session.ask("hello").await.is_ok(),
        "the session goes on, and the driver is known again"
    );
    let said = log(&session).await.iter().filter(|e| e.is(&EventType::ClientMessageSend)).count();
    assert_eq!(said, 2);
    drop(service);
}
