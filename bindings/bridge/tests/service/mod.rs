//! A session service in memory whose model calls a tool a few times and then says that it is done.

#![allow(dead_code, reason = "each test program uses a part of it")]

use broca::engine::{Config, OpId, Step};
use broca_proto::session::rpc::response_line;
use broca_proto::{Json, Time};
use broca_testkit::host::{
    Delivery, End, Framing, Host, Request, Service, json_response, response,
};
use broca_testkit::subject::Bridged;

/// The service; `calls` is how many calls of the tool `t` come with the first answer of each turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turns {
    pub(crate) calls: usize,
}

impl Service for Turns {
    fn answer(&mut self, request: &Request, _: Time) -> Vec<Delivery> {
        let Some(call) = request.rpc() else { return rest(request) };
        let result = match call.method.as_str() {
            "session.sendMessage" => {
                let said = call.params.as_str();
                if said.contains("tool_result") { message("\"done\"") } else { self.first() }
            }
            "session.cancel" => json(r#"{"cancelled":true,"was":"paused"}"#),
            "session.subscribe" => {
                return response(200, "application/x-ndjson", Framing::Chunked, [], End::Hold);
            }
            _ => Json::empty_object(),
        };
        let line = response_line(&call.id, Ok(&result));
        response(200, "application/x-ndjson", Framing::Chunked, [line], End::Eof)
    }
}

impl Turns {
    fn first(self) -> Json {
        let calls: Vec<String> = (0..self.calls)
            .map(|n| {
                format!(
                    r#"{{"type":"tool_use","id":"tu_{n}","name":"t","input":{{"n":{n}}},"dispatch":"client"}}"#
                )
            })
            .collect();
        if calls.is_empty() {
            message("\"done\"")
        } else {
            message(&format!("[{}]", calls.join(",")))
        }
    }
}

/// A host over the bridge with this service, the session open with the tool `t`.
pub(crate) fn open(calls: usize) -> Host<Turns, Bridged> {
    open_with(Config::new("http://127.0.0.1:9", "a-key"), calls)
}

/// The same with other options.
pub(crate) fn open_with(config: Config, calls: usize) -> Host<Turns, Bridged> {
    let mut host = Host::over(Bridged::new(&config).unwrap(), Turns { calls });
    let op = begin(&mut host, r#"{"open":{"tools":[{"name":"t"}]}}"#);
    let outcome = until_finished(&mut host, op);
    assert!(matches!(outcome.last(), Some(Step::Finished(Ok(_)))), "{outcome:?}");
    host
}

/// Begins an operation through the handle, as a binding does.
pub(crate) fn begin(host: &mut Host<Turns, Bridged>, command: &str) -> OpId {
    let handle = host.subject().handle();
    let op = handle.command(command.as_bytes(), Default::default(), host.now()).unwrap();
    host.wake();
    OpId(op)
}

/// The steps of an operation up to the one that ends it; those of others are lost.
pub(crate) fn until_finished(host: &mut Host<Turns, Bridged>, op: OpId) -> Vec<Step> {
    let mut steps = Vec::new();
    let until = host.now().plus(600_000);
    while let Some((from, step)) = host.next(until) {
        if from == op {
            let over = matches!(step, Step::Finished(_));
            steps.push(step);
            if over {
                break;
            }
        }
    }
    assert_eq!(host.fault(), None);
    steps
}

fn rest(request: &Request) -> Vec<Delivery> {
    let path = request.path.split('?').next().unwrap_or_default();
    match (request.method.as_str(), path.rsplit('/').next().unwrap_or_default()) {
        ("GET", "meta") => {
            json_response(200, r#"{"version":"0","api_versions":["v1"],"features":["cancel"]}"#)
        }
        ("POST", "sessions" | "join") => json_response(
            200,
            r#"{"session_id":"ses_demo","session_key":"a-session-key","profile":{"a":1e2}}"#,
        ),
        ("GET", "events") => json_response(
            200,
            r#"{"items":[{"id":"evt_1","session_id":"ses_demo","event_type":"x","payload":{},"created_at":"2030"}],"next_cursor":"n"}"#,
        ),
        ("GET", "participants") => json_response(200, r#"{"drivers":["k"]}"#),
        _ => json_response(200, "{}"),
    }
}

fn message(content: &str) -> Json {
    json(&format!(r#"{{"message":{{"role":"assistant","content":{content}}},"events":[]}}"#))
}

fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).unwrap()
}
