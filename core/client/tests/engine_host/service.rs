//! Answers as a session service writes them, and a service that opens sessions.

use super::{Act, CLIENT_KEY, Host, Request, SESSION_KEY, Script, config};
use broca::engine::{Command, Config, Environment};
use broca::proto::session::content::Message;
use broca::proto::session::tool::Tool;
use broca::{Json, Secret};

/// What the plain contract offers.
pub(crate) const PLAIN: &[&str] = &[];
/// What this version can make use of.
pub(crate) const FULL: &[&str] = &["display", "cancel"];

pub(crate) fn json(status: u16, body: &str) -> Vec<Act> {
    answer(status, "application/json", body)
}

pub(crate) fn answer(status: u16, kind: &str, body: &str) -> Vec<Act> {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    vec![Act::Send(head.into_bytes())]
}

pub(crate) fn problem(status: u16, slug: &str) -> Vec<Act> {
    json(status, &format!(r#"{{"type":"{slug}","title":"T","status":{status},"detail":"no"}}"#))
}

/// The head of a stream.
pub(crate) fn head() -> Act {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";
    Act::Send(head.into())
}

/// One line of a stream, as a chunk.
pub(crate) fn line(text: &str) -> Act {
    Act::Send(format!("{:x}\r\n{text}\n\r\n", text.len() + 1).into_bytes())
}

/// The end of a stream.
pub(crate) fn end() -> Act {
    Act::Send(b"0\r\n\r\n".to_vec())
}

/// A whole stream of these lines.
pub(crate) fn stream(lines: &[String]) -> Vec<Act> {
    let mut acts = vec![head()];
    acts.extend(lines.iter().map(|text| line(text)));
    acts.push(end());
    acts
}

pub(crate) fn event(id: &str, kind: &str, payload: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"session.event","params":{}}}"#,
        bare_event(id, kind, payload)
    )
}

pub(crate) fn bare_event(id: &str, kind: &str, payload: &str) -> String {
    format!(
        r#"{{"id":"{id}","session_id":"ses_1","client_key_id":null,"event_type":"{kind}","payload":{payload},"created_at":"2026-01-01T00:00:00.000Z"}}"#
    )
}

pub(crate) fn delta(text: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"session.display","params":{{"type":"text_delta","message_id":"m","delta":"{text}"}}}}"#
    )
}

pub(crate) fn result(request: &Request, result: &str) -> String {
    format!(r#"{{"id":{},"jsonrpc":"2.0","result":{result}}}"#, request.id())
}

pub(crate) fn failure(request: &Request, code: i64, message: &str) -> String {
    format!(
        r#"{{"error":{{"code":{code},"message":"{message}"}},"id":{},"jsonrpc":"2.0"}}"#,
        request.id()
    )
}

/// A turn that ends with this text.
pub(crate) fn reply(request: &Request, text: &str) -> String {
    let message =
        format!(r#"{{"role":"assistant","content":[{{"type":"text","text":"{text}"}}]}}"#);
    result(request, &format!(r#"{{"message":{message},"events":[]}}"#))
}

/// A turn that pauses with these calls, of id and tool.
pub(crate) fn pause(request: &Request, calls: &[(&str, &str)]) -> String {
    let block = |(id, name): &(&str, &str)| {
        format!(
            r#"{{"type":"tool_use","id":"{id}","name":"{name}","input":{{"q":"pLaNtEd"}},"dispatch":"client"}}"#
        )
    };
    let blocks: Vec<String> = calls.iter().map(block).collect();
    let message = format!(r#"{{"role":"assistant","content":[{}]}}"#, blocks.join(","));
    result(request, &format!(r#"{{"message":{message},"events":[]}}"#))
}

/// The blocks of the message in this request.
pub(crate) fn blocks(request: &Request) -> Vec<serde_json::Value> {
    request.body["params"]["message"]["content"].as_array().cloned().unwrap_or_default()
}

/// The tool results in this request: id and whether it is an error, in order.
pub(crate) fn results(request: &Request) -> Vec<(String, bool)> {
    results_of(&blocks(request))
}

pub(crate) fn results_of(blocks: &[serde_json::Value]) -> Vec<(String, bool)> {
    let result = |b: &serde_json::Value| {
        (b["type"] == "tool_result")
            .then(|| (b["tool_use_id"].as_str().unwrap().to_owned(), b["is_error"] == true))
    };
    blocks.iter().filter_map(result).collect()
}

pub(crate) fn say(text: &str) -> Command {
    Command::Send { message: Message::user(text) }
}

pub(crate) fn tool(name: &str) -> Tool {
    Tool::new(name, "", Json::empty_object())
}

/// A service that opens sessions and leaves everything else to `rest`.
pub(crate) fn service(
    features: &[&str],
    mut rest: impl FnMut(&Request) -> Vec<Act> + 'static,
) -> Script {
    let meta =
        serde_json::json!({"version": "0.1.0", "api_versions": ["v1"], "features": features});
    let mut opened = false;
    Box::new(move |request| {
        let key = request.header("authorization").unwrap_or_default();
        let path = request.target.split_once("/api/").map_or("", |(_, path)| path);
        match (request.method.as_str(), path, request.rpc()) {
            ("GET", "v1/meta", _) => json(200, &meta.to_string()),
            ("POST", "v1/sessions" | "v1/sessions/ses_1/join", _) => {
                assert_eq!(key, format!("Bearer {CLIENT_KEY}"));
                json(
                    201,
                    &format!(
                        r#"{{"session_id":"ses_1","session_key":"{SESSION_KEY}","profile":{{"id":"pro_1","name":"main"}}}}"#
                    ),
                )
            }
            (_, _, "session.registerDriver") if !opened => {
                opened = true;
                stream(&[result(request, r#"{"registered":true}"#)])
            }
            _ => {
                assert_eq!(key, format!("Bearer {SESSION_KEY}"), "{request:?}");
                rest(request)
            }
        }
    })
}

impl Host {
    /// A host whose engine has opened a session by operation 1, and knows `tools`.
    pub(crate) fn opened(
        change: impl FnOnce(&mut Config),
        seed: u64,
        features: &[&str],
        tools: Vec<Tool>,
        rest: impl FnMut(&Request) -> Vec<Act> + 'static,
    ) -> Self {
        let mut settings = config();
        settings.client_key = Secret::new(CLIENT_KEY.to_owned());
        change(&mut settings);
        let mut host = Self::new(settings, Environment::none(), seed);
        host.script = service(features, rest);
        let pull = std::mem::replace(&mut host.pull, usize::MAX);
        host.command(1, Command::Open { tools, metadata: None });
        host.finish(1);
        assert!(matches!(host.outcome(1), Some(Ok(_))), "{:?}", host.said(1));
        host.pull = pull;
        host.requests.clear();
        host.effects.clear();
        host
    }
}
