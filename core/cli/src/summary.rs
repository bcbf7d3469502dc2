//! An event in one line, for people.

use crate::fault::one_line;
use broca::Json;
use broca_proto::session::content::{BlockKind, Content, Message};
use broca_proto::session::event::Event;
use broca_proto::session::payload::{Declared, Payload};

/// What happened, in at most about `max` characters and without line ends or control characters.
#[must_use]
pub fn summary(event: &Event, max: usize) -> String {
    let told = match event.decode() {
        Ok(payload) => tell(&payload).unwrap_or_else(|| raw(event)),
        Err(_) => raw(event),
    };
    one_line(&told, max)
}

/// The time of day of an event, to the millisecond, as the service wrote it; the whole stamp when it
/// does not look like one.
#[must_use]
pub fn clock_time(event: &Event) -> String {
    let stamp = event.created_at();
    let time = stamp.split_once('T').map(|(_, time)| time.trim_end_matches('Z'));
    one_line(time.unwrap_or(stamp), 30)
}

/// The content of a tool's result as text.
#[must_use]
pub fn result_text(content: &Json) -> String {
    match Content::read(content) {
        Content::Other(json) => json.as_str().to_owned(),
        content => content.text(),
    }
}

fn tell(payload: &Payload) -> Option<String> {
    Some(match payload {
        Payload::ClientMessageSend(message) => message_line(message),
        Payload::ServerMessageSend(sent) => message_line(&sent.message),
        Payload::ProviderRequest(request) => {
            let again = match request.attempt {
                0 => String::new(),
                n => format!(", attempt {}", n + 1),
            };
            format!("{} {}{again}", request.provider, request.model)
        }
        Payload::ProviderResponse(response) if response.ok => match response.usage {
            Some(usage) => format!("{} tokens in, {} out", usage.input_tokens, usage.output_tokens),
            None => "ok".to_owned(),
        },
        Payload::ProviderResponse(response) => {
            format!("failed: {}", response.error.as_deref().unwrap_or("no reason given"))
        }
        Payload::ToolCall(call) => format!("{} {}", call.name, call.input.as_str()),
        Payload::ToolResult(result) => {
            let failed = if result.is_error == Some(true) { "failed: " } else { "" };
            format!("{failed}{}", result_text(&result.content))
        }
        Payload::McpRequest(request) => format!("{} {}", request.tool, request.input.as_str()),
        Payload::McpResponse(response) => match &response.error {
            Some(error) => format!("failed: {error}"),
            None if response.ok => "ok".to_owned(),
            None => "failed".to_owned(),
        },
        Payload::SessionOpen(declared) | Payload::SessionJoin(declared) => declared_line(declared),
        Payload::SessionDriverRegister(_) => String::new(),
        Payload::SessionClose(close) => close.reason.clone(),
        Payload::SessionError(error) => {
            let reason = error.reason.as_str();
            match &error.detail {
                Some(detail) => format!("{reason}: {detail}"),
                None => reason.to_owned(),
            }
        }
        _ => return None,
    })
}

fn message_line(message: &Message) -> String {
    let mut parts = Vec::new();
    let text = message.text();
    if !text.is_empty() {
        parts.push(format!("\"{}\"", text.trim()));
    }
    let calls: Vec<&str> = message.tool_uses().map(|(_, call)| call.name.as_str()).collect();
    if !calls.is_empty() {
        parts.push(format!("calls {}", calls.join(", ")));
    }
    let blocks = message.content.blocks().iter();
    match blocks.filter(|block| matches!(block.kind(), BlockKind::ToolResult(_))).count() {
        0 => {}
        1 => parts.push("1 tool result".to_owned()),
        n => parts.push(format!("{n} tool results")),
    }
    parts.join(", ")
}

fn declared_line(declared: &Declared) -> String {
    let all = declared.tools.iter().chain(&declared.sandbox_tools).chain(&declared.subagent_tools);
    let tools: Vec<&str> = all.map(String::as_str).collect();
    match tools.len() {
        0 => "without tools".to_owned(),
        _ => format!("with {}", tools.join(", ")),
    }
}

fn raw(event: &Event) -> String {
    event.payload().as_str().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(event_type: &str, payload: &str) -> String {
        let text = format!(
            r#"{{"id":"evt_1","session_id":"ses_1","client_key_id":null,"event_type":"{event_type}","payload":{payload},"created_at":"2026-07-06T18:26:10.000Z"}}"#
        );
        summary(&Event::parse(&text.into_bytes().into()).unwrap(), 60)
    }

    #[test]
    fn events_are_told_in_a_line() {
        for (event_type, payload, line) in [
            ("client.message.send", r#"{"role":"user","content":"two\nlines"}"#, "\"two lines\""),
            (
                "server.message.send",
                r#"{"role":"assistant","content":[{"type":"text","text":"Let me look."},{"type":"tool_use","id":"t","name":"look","input":{}}]}"#,
                "\"Let me look.\", calls look",
            ),
            ("tool.call", r#"{"id":"t","name":"look","input":{"at":1}}"#, "look {\"at\":1}"),
            ("tool.result", r#"{"tool_use_id":"t","content":"seen"}"#, "seen"),
            (
                "tool.result",
                r#"{"tool_use_id":"t","content":[{"type":"text","text":"no"}],"is_error":true}"#,
                "failed: no",
            ),
            ("session.open", r#"{"tools":["a","b"]}"#, "with a, b"),
            ("session.error", r#"{"reason":"loop_limit"}"#, "loop_limit"),
            ("session.new.thing", r#"{"x":[1,2]}"#, "{\"x\":[1,2]}"),
            ("tool.call", r#"{"surprise":true}"#, "{\"surprise\":true}"),
        ] {
            assert_eq!(told(event_type, payload), line, "{event_type}");
        }
    }

    #[test]
    fn a_line_stays_short_and_cannot_steer_the_terminal() {
        let long = told("client.message.send", &format!(r#"{{"content":"{}"}}"#, "x".repeat(900)));
        assert_eq!(long.chars().count(), 61);
        let line = told("client.message.send", r#"{"content":"\u001b[2Jgone"}"#);
        assert!(!line.contains('\u{1b}'), "{line:?}");
    }
}
