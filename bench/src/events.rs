//! The stream that every consumer reads: `session.event` lines of about 350 bytes, one in sixteen
//! with escapes, one in sixteen not ASCII, then the terminal line. A subscription's stream ends with
//! the event that the session is closed, because that is when a subscription is over.

use std::fmt::Write;

/// One line, newline included.
pub(crate) fn line(i: usize, out: &mut String) {
    let text = match i % 16 {
        0 => "caf\u{e9} na\u{ef}ve \u{2014} a slow brown bear",
        8 => "line one\\nline \\\"two\\\" of the answer",
        _ => "a slow brown bear walks around the lake",
    };
    let event_type = match i % 32 {
        5 => "tool.call",
        21 => "tool.result",
        _ => "provider.response.delta",
    };
    let index = i % 7;
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{{\"jsonrpc\":\"2.0\",\"method\":\"session.event\",\"params\":{{\"id\":\"evt_01J8ZQ4Y7M{i:08}\",\
         \"session_id\":\"ses_01J8ZQ4Y7M\",\"client_key_id\":\"key_01J8ZQ4Y7M\",\"event_type\":\"{event_type}\",\
         \"payload\":{{\"message_id\":\"msg_01J8ZQ\",\"index\":{index},\"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}},\
         \"created_at\":\"2026-07-06T18:26:10.123Z\"}}}}"
    );
}

/// The event after which nothing comes in a session.
pub(crate) const CLOSED: &str = concat!(
    r#"{"jsonrpc":"2.0","method":"session.event","params":{"id":"evt_01J8ZQ4Y7Mclosed","session_id":"ses_01J8ZQ4Y7M","#,
    r#""client_key_id":"key_01J8ZQ4Y7M","event_type":"session.close","payload":{"reason":"client_close"},"#,
    r#""created_at":"2026-07-06T18:26:10.123Z"}}"#,
    "\n"
);

/// The terminal line of a subscription.
pub(crate) fn unsubscribed(id: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"unsubscribed\":true}}}}\n")
}

/// The terminal line of a turn that ended with `text`.
pub(crate) fn terminal(id: &str, text: &str) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"message\":{{\"role\":\"assistant\",\
         \"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}]}},\"events\":[]}}}}\n"
    )
}

/// The terminal line of a turn that paused for the tool `add`.
pub(crate) fn paused(id: &str) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"message\":{{\"role\":\"assistant\",\"content\":[{{\"type\":\"tool_use\",\
         \"id\":\"toolu_01\",\"name\":\"add\",\"dispatch\":\"client\",\"input\":{{\"a\":2,\"b\":40}}}}]}},\"events\":[]}}}}\n"
    )
}

/// The id of a request, as JSON text.
pub(crate) fn id_of(body: &[u8]) -> String {
    let found = memchr::memmem::find(body, b"\"id\":").map(|at| at + 5);
    // Some writers put a blank after the colon.
    let digits = found.map_or(&b"1"[..], |at| body[at..].trim_ascii_start());
    digits.iter().take_while(|b| b.is_ascii_digit()).map(|b| char::from(*b)).collect()
}
