//! The parts of a session service that every case needs: it says what it is, opens sessions, and answers calls that no
//! case is about.

use super::fields::short;
use crate::host::{
    Delivery, End, Framing, Host, Request, RpcCall, Service, json_response, response,
};
use crate::subject::Subject;
use broca::engine::{Command, Config, OpId, Outcome, Step};
use broca::proto::session::rpc::response_line;
use broca::{Json, Time};
use serde_json::{Value, json};

/// Virtual time that is enough for everything but a service that stays silent for ever.
pub(super) const PATIENCE_MS: u64 = 600_000;

/// What the service says about itself.
pub(super) fn meta(features: &[&str], turn_timeout_ms: Option<u64>) -> Vec<Delivery> {
    let mut meta = json!({"version": "0.0.0", "api_versions": ["v1"], "features": features});
    if let Some(ms) = turn_timeout_ms {
        meta["limits"] = json!({ "turn_timeout_ms": ms });
    }
    json_response(200, &meta.to_string())
}

/// The answers to everything but `/rpc`, history included; nothing for a path that no service has.
pub(super) fn around(request: &Request, meta: Vec<Delivery>, log: &[Value]) -> Vec<Delivery> {
    let path = request.path.split('?').next().unwrap_or_default();
    match (request.method.as_str(), path) {
        ("GET", "/api/v1/meta") => meta,
        ("POST", path) if path == "/api/v1/sessions" || path.ends_with("/join") => {
            let opened =
                json!({"session_id": "ses_demo", "session_key": "a-session-key", "profile": {}});
            json_response(200, &opened.to_string())
        }
        ("GET", path) if path.ends_with("/events") => {
            json_response(200, &json!({"items": log, "next_cursor": null}).to_string())
        }
        _ => json_response(
            404,
            r#"{"type":"not_found","title":"Not found","status":404,"detail":"-"}"#,
        ),
    }
}

/// An answer to a call: one terminal line.
pub(super) fn result(call: &RpcCall, result: &Json) -> Vec<Delivery> {
    let line = response_line(&call.id, Ok(result));
    response(200, "application/x-ndjson", Framing::Chunked, [line], End::Eof)
}

/// An answer that has begun and goes nowhere.
pub(super) fn silence() -> Vec<Delivery> {
    response(200, "application/x-ndjson", Framing::Chunked, [], End::Hold)
}

/// The configuration of every case.
pub(super) fn config() -> Config {
    Config::new("http://127.0.0.1:8080", "a-client-key")
}

/// Runs an operation that must succeed before the case itself begins.
pub(super) fn prepare<S: Service, C: Subject>(
    host: &mut Host<S, C>,
    command: Command,
) -> Result<Outcome, String> {
    let shown = format!("{command:?}");
    let name = shown.split([' ', '{', '(']).next().unwrap_or_default().to_owned();
    let op = host.command(command).map_err(|e| format!("{name} was refused: {e}"))?;
    let until = host.now().plus(PATIENCE_MS);
    finish(host, op, until).map_err(|fault| format!("{name} before the case: {fault}"))
}

fn finish<S: Service, C: Subject>(
    host: &mut Host<S, C>,
    op: OpId,
    until: Time,
) -> Result<Outcome, String> {
    while let Some((from, step)) = host.next(until) {
        match step {
            Step::Finished(outcome) if from == op => return outcome.map_err(|e| e.to_string()),
            _ => {}
        }
    }
    Err(host.fault().unwrap_or_else(|| "it never finished".to_owned()))
}

/// JSON text as a value; for comparing.
pub(super) fn value(json: &Json) -> Result<Value, String> {
    json.decode().map_err(|e| format!("JSON that came cannot be read: {e}"))
}

/// The values of a JSON object or array that should equal `expected`, described when they do not.
pub(super) fn equals(what: &str, expected: &Value, came: &Json, faults: &mut Vec<String>) {
    match value(came) {
        Ok(came) if came == *expected => {}
        Ok(came) => {
            faults.push(format!("{what}: expected {}, came {}", short(expected), short(&came)));
        }
        Err(fault) => faults.push(format!("{what}: {fault}")),
    }
}
