//! JSON-RPC 2.0 as the session service speaks it (session service §4).

use super::event::Event;
use crate::Json;
use crate::error::{Error, ErrorKind, Retry};
use crate::json::{JsonError, scan, write_string};
use bytes::Bytes;

/// The numbers of JSON-RPC errors (session service §5.1).
pub mod code {
    /// The body is not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// JSON that is no request, or a batch.
    pub const INVALID_REQUEST: i64 = -32600;
    /// No such method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// Parameters missing or of the wrong type.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The service failed, such as its storage.
    pub const INTERNAL: i64 = -32603;
    /// The session's state does not allow it, and everything else without a number of its own.
    pub const APPLICATION: i64 = -32000;
    /// The caller has not registered as a driver.
    pub const DRIVER_NOT_REGISTERED: i64 = -32001;
    /// The profile does not offer the image.
    pub const SANDBOX_IMAGE_NOT_ALLOWED: i64 = -32011;
    /// The sandbox did not start.
    pub const SANDBOX_START_FAILED: i64 = -32012;
    /// No sandbox runs.
    pub const SANDBOX_NOT_RUNNING: i64 = -32013;
    /// No such subagent.
    pub const SUBAGENT_NOT_FOUND: i64 = -32014;
    /// The profile does not allow the tool.
    pub const TOOL_NOT_ALLOWED: i64 = -32015;
    /// A paused turn stands in the way.
    pub const TURN_IN_PROGRESS: i64 = -32020;
    /// The turn was cancelled by `session.cancel` (feature `cancel`).
    pub const TURN_CANCELLED: i64 = -32021;
    /// The turn of the message broke off before its end (feature `message-id`).
    pub const TURN_INTERRUPTED: i64 = -32022;
    /// The id belongs to another message (feature `message-id`).
    pub const MESSAGE_ID_USED: i64 = -32023;
    /// Every provider failed; the turn is over, the session stays open (feature `keep-open`).
    pub const PROVIDERS_FAILED: i64 = -32024;
    /// Too many model rounds; the turn is over, the session stays open (feature `keep-open`).
    pub const LOOP_LIMIT: i64 = -32025;
    /// The client key may not use more of something; the operator sets how much. Nothing happened.
    pub const LIMIT_EXCEEDED: i64 = -32026;
}

/// The message of the line that ends a stream whose reader fell behind.
pub const LAGGED_MESSAGE: &str = "lagged; reconnect with since_event_id";

/// How the refusal of results begins that no paused turn waits for (session service §7): nothing was
/// logged, and the session stays open.
const NO_PAUSE: &str = "tool result merge invalid: no paused turn";

/// The message of a call that a service turns away, or breaks off, because it ends.
const SHUTDOWN: &str = "the service is shutting down";

/// The message of a subscription whose replay broke off (session service §5.1).
const REPLAY_FAILED: &str = "replay failed";

/// A JSON-RPC error object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcFailure {
    /// The number.
    pub code: i64,
    /// The sentence.
    pub message: String,
}

impl RpcFailure {
    /// An error object.
    #[must_use]
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Whether it says that the reader fell behind.
    #[must_use]
    pub fn is_lagged(&self) -> bool {
        self.code == code::APPLICATION && self.message.starts_with("lagged")
    }

    /// The error that an application sees for it.
    #[must_use]
    pub fn to_error(&self) -> Error {
        let kind = match self.code {
            code::DRIVER_NOT_REGISTERED => ErrorKind::DriverNotRegistered,
            code::TURN_IN_PROGRESS => ErrorKind::TurnInProgress,
            code::INVALID_PARAMS => ErrorKind::InvalidParams,
            code::TURN_CANCELLED => ErrorKind::Cancelled,
            code::PROVIDERS_FAILED => ErrorKind::ProvidersFailed,
            code::LOOP_LIMIT => ErrorKind::LoopLimit,
            code::APPLICATION if self.is_lagged() => ErrorKind::Lagged,
            code::APPLICATION if self.message.starts_with("session is ") => {
                ErrorKind::SessionClosed
            }
            code::TOOL_NOT_ALLOWED => ErrorKind::ToolNotAllowed,
            _ => ErrorKind::Rpc,
        };
        let details = Json::object([
            ("code", &Json::integer(self.code)),
            ("message", &Json::string(&self.message)),
        ]);
        let cure = match kind {
            ErrorKind::ProvidersFailed | ErrorKind::LoopLimit => {
                "; the session stays open, and its history has the message"
            }
            ErrorKind::SessionClosed => "; open a new session",
            _ if self.message.starts_with(NO_PAUSE) => {
                "; the turn's time was over, or another program with this client key has taken its place"
            }
            _ => "",
        };
        // What failed inside the service may go well the next time; a replay has no effect to repeat.
        let retry = match self.code {
            code::INTERNAL | code::TURN_INTERRUPTED => Retry::Unknown,
            // The message is in the history: sent again, it stands there twice.
            code::PROVIDERS_FAILED => Retry::Unknown,
            code::APPLICATION if self.message == REPLAY_FAILED => Retry::Safe,
            code::LIMIT_EXCEEDED => Retry::Safe,
            _ => kind.retry(),
        };
        Error::new(kind, format!("the service answered {}: {}{cure}", self.code, self.message))
            .with_retry(retry)
            .with_details(details)
    }

    /// Whether `error` is the refusal of tool results that no paused turn waits for.
    #[must_use]
    pub fn is_no_pause(error: &Error) -> bool {
        let message = error.details().and_then(|d| d.member("message")).and_then(|m| m.to_text());
        error.kind() == ErrorKind::Rpc && message.is_some_and(|m| m.starts_with(NO_PAUSE))
    }

    /// Whether `error` says that the turn of a message broke off before its end (feature `message-id`).
    #[must_use]
    pub fn is_interrupted(error: &Error) -> bool {
        let code = error.details().and_then(|d| d.member("code")).and_then(|c| c.decode().ok());
        error.kind() == ErrorKind::Rpc && code == Some(code::TURN_INTERRUPTED)
    }

    /// Whether `error` says that the service ends, and another call may find it again.
    #[must_use]
    pub fn is_shutdown(error: &Error) -> bool {
        let message = error.details().and_then(|d| d.member("message")).and_then(|m| m.to_text());
        error.kind() == ErrorKind::Rpc && message.is_some_and(|m| m.starts_with(SHUTDOWN))
    }
}

/// One line of an `/rpc` answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Line {
    /// A `session.event` notification.
    Event(Event),
    /// Any other object that answers nothing: a method this version may not know.
    Notification {
        /// The method; empty when the object has none.
        method: String,
        /// Its parameters.
        params: Json,
        /// The whole line.
        raw: Json,
    },
    /// An error without `id`: the service's own notice about the stream.
    Notice(RpcFailure),
    /// An object with `id`: the answer to a request.
    Response {
        /// The id as JSON text.
        id: Json,
        /// The result, or the error.
        outcome: Result<Json, RpcFailure>,
    },
}

impl Line {
    /// Reads one line, without its newline.
    ///
    /// # Errors
    /// When the line is not one JSON object in UTF-8, or an event without id or type.
    pub fn parse(line: &Bytes) -> Result<Self, JsonError> {
        if let Err(e) = std::str::from_utf8(line) {
            return Err(JsonError { at: e.valid_up_to(), reason: "not UTF-8".to_owned() });
        }
        if let Some(event) = written_as_usual(line) {
            return Ok(Self::Event(event));
        }
        let Some(mut members) = scan::members(line, 0) else {
            return Err(JsonError { at: 0, reason: "not a JSON object".to_owned() });
        };
        let mut found = Members::default();
        // The method stands before its params on every line a service writes, so the event can be
        // read in the same pass; otherwise it is read in a second one.
        let mut event = None;
        while let Some(member) = members.step(|key, escaped, at| {
            if !escaped && &line[key.0..key.1] == b"params" && found.is_event(line) {
                let (read, end) = Event::scan(line, at)?;
                event = Some(read);
                return Ok(scan::Visit::Until(end));
            }
            Ok(scan::Visit::Skip)
        })? {
            match member.key_bytes(line).as_ref() {
                b"id" => found.id = Some(member.value),
                b"method" => found.method = Some(member.value),
                b"params" => found.params = Some(member.value),
                b"result" => found.result = Some(member.value),
                b"error" => found.error = Some(member.value),
                _ => {}
            }
        }
        let end = members.end();
        if scan::blanks(line, end) != line.len() {
            return Err(JsonError { at: end, reason: "something follows the object".to_owned() });
        }
        found.into_line(line, end, event)
    }
}

/// An event whose line begins and ends as services write it, which spares the way through the envelope. Anything
/// else, faults included, is for the general way.
#[inline]
fn written_as_usual(line: &Bytes) -> Option<Event> {
    const BEFORE: &[u8] = br#"{"jsonrpc":"2.0","method":"session.event","params":"#;
    if !line.starts_with(BEFORE) {
        return None;
    }
    let (event, end) = Event::scan(line, BEFORE.len()).ok()?;
    (&line[end..] == b"}").then_some(event)
}

#[derive(Default)]
struct Members {
    id: Option<(usize, usize)>,
    method: Option<(usize, usize)>,
    params: Option<(usize, usize)>,
    result: Option<(usize, usize)>,
    error: Option<(usize, usize)>,
}

impl Members {
    fn is_event(&self, line: &Bytes) -> bool {
        self.id.is_none()
            && self.method.is_some_and(|(from, to)| &line[from..to] == b"\"session.event\"")
    }

    fn into_line(self, line: &Bytes, end: usize, event: Option<Event>) -> Result<Line, JsonError> {
        let json = |span: (usize, usize)| Json::of_scanned(line, span.0, span.1);
        let failure = self.error.map(json).filter(|error| !error.is_null());
        if let (Some(id), true) = (self.id, self.method.is_none()) {
            let outcome = match (failure, self.result) {
                (Some(error), _) => Err(read_failure(&error)),
                (None, Some(result)) => Ok(json(result)),
                (None, None) => {
                    let reason = "an answer with neither result nor error".to_owned();
                    return Err(JsonError { at: 0, reason });
                }
            };
            return Ok(Line::Response { id: json(id), outcome });
        }
        if self.is_event(line) {
            if let Some(event) = event {
                return Ok(Line::Event(event));
            }
            let Some((at, _)) = self.params else {
                return Err(JsonError { at: 0, reason: "an event without params".to_owned() });
            };
            return Event::scan(line, at).map(|(event, _)| Line::Event(event));
        }
        if let (Some(error), None) = (failure, self.method) {
            return Ok(Line::Notice(read_failure(&error)));
        }
        let method = self.method.and_then(|span| json(span).to_text()).unwrap_or_default();
        let params = self.params.map_or_else(Json::empty_object, json);
        Ok(Line::Notification {
            method,
            params,
            raw: Json::of_scanned(line, scan::blanks(line, 0), end),
        })
    }
}

fn read_failure(error: &Json) -> RpcFailure {
    let code = error.member("code").and_then(|c| c.decode().ok()).unwrap_or(code::INTERNAL);
    let message = error.member("message").and_then(|m| m.to_text()).unwrap_or_default();
    RpcFailure { code, message }
}

/// How an answer's id compares with the id of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdMatch {
    /// The same value.
    Same,
    /// `null`: it answers the exchange's only request.
    Null,
    /// A number came back as a string of the same digits.
    TypeChanged,
    /// Another id.
    Other,
}

/// Compares the id of an answer with the id that was sent: exactly, but for a number that came
/// back as a string (design §7).
#[must_use]
pub fn match_id(sent: &Json, came: &Json) -> IdMatch {
    if sent == came {
        return IdMatch::Same;
    }
    if came.is_null() {
        return IdMatch::Null;
    }
    match (sent.to_text(), came.to_text()) {
        (Some(sent), Some(came)) if sent == came => IdMatch::Same,
        (None, Some(digits)) if digits == sent.as_str() => IdMatch::TypeChanged,
        _ => IdMatch::Other,
    }
}

/// Writes a request.
#[must_use]
pub fn request(id: &Json, method: &str, params: &Json) -> Bytes {
    let mut out = String::with_capacity(params.as_bytes().len() + method.len() + 64);
    out.push_str("{\"jsonrpc\":\"2.0\",\"id\":");
    out.push_str(id.as_str());
    out.push_str(",\"method\":");
    write_string(&mut out, method);
    out.push_str(",\"params\":");
    out.push_str(params.as_str());
    out.push('}');
    out.into()
}

/// Writes the notification line of an event, newline included.
#[must_use]
pub fn event_line(event: &Event) -> Bytes {
    notification_line("session.event", &event.json())
}

/// Writes a notification line, newline included.
#[must_use]
pub fn notification_line(method: &str, params: &Json) -> Bytes {
    let mut out = String::with_capacity(params.as_bytes().len() + method.len() + 48);
    out.push_str("{\"jsonrpc\":\"2.0\",\"method\":");
    write_string(&mut out, method);
    out.push_str(",\"params\":");
    out.push_str(params.as_str());
    out.push_str("}\n");
    out.into()
}

/// Writes the terminal line of a request, newline included.
#[must_use]
pub fn response_line(id: &Json, outcome: Result<&Json, &RpcFailure>) -> Bytes {
    let mut out = String::new();
    match outcome {
        Ok(result) => {
            out.push_str("{\"id\":");
            out.push_str(id.as_str());
            out.push_str(",\"jsonrpc\":\"2.0\",\"result\":");
            out.push_str(result.as_str());
        }
        Err(failure) => {
            out.push_str("{\"error\":");
            write_failure(&mut out, failure);
            out.push_str(",\"id\":");
            out.push_str(id.as_str());
            out.push_str(",\"jsonrpc\":\"2.0\"");
        }
    }
    out.push_str("}\n");
    out.into()
}

/// Writes an error without id, newline included: a notice about the stream.
#[must_use]
pub fn notice_line(failure: &RpcFailure) -> Bytes {
    let mut out = String::from("{\"jsonrpc\":\"2.0\",\"error\":");
    write_failure(&mut out, failure);
    out.push_str("}\n");
    out.into()
}

fn write_failure(out: &mut String, failure: &RpcFailure) {
    out.push_str("{\"code\":");
    out.push_str(&failure.code.to_string());
    out.push_str(",\"message\":");
    write_string(out, &failure.message);
    out.push('}');
}

/// A request as the service reads it from a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The id as JSON text; `None` for a notification, which gets no terminal line.
    pub id: Option<Json>,
    /// The method.
    pub method: String,
    /// The parameters; `{}` when absent.
    pub params: Json,
}

impl Request {
    /// Reads and checks the envelope of a request, in the order of session service §4.2.
    ///
    /// # Errors
    /// The id to answer with (`null` when none can be known) and the error object. A refused
    /// notification is answered only when its body is no request at all: `None` means no answer.
    pub fn read(body: Bytes) -> Result<Self, (Option<Json>, RpcFailure)> {
        let invalid = |message: &str| RpcFailure::new(code::INVALID_REQUEST, message);
        let Ok(json) = Json::parse(body) else {
            return Err((Some(Json::null()), RpcFailure::new(code::PARSE_ERROR, "Parse error")));
        };
        if json.as_bytes().first() == Some(&b'[') {
            let batch = "Invalid Request: batch requests are not supported";
            return Err((Some(Json::null()), invalid(batch)));
        }
        let Some(members) = json.members() else {
            return Err((Some(Json::null()), invalid("Invalid Request")));
        };
        let member =
            |name: &str| members.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v.clone());
        let id = member("id");
        if member("jsonrpc").and_then(|v| v.to_text()).as_deref() != Some("2.0") {
            let wrong = "Invalid Request: missing or wrong \"jsonrpc\" version";
            return Err((id, invalid(wrong)));
        }
        let Some(method) = member("method").and_then(|v| v.to_text()) else {
            return Err((id, invalid("Invalid Request: missing \"method\"")));
        };
        let params = member("params").unwrap_or_else(Json::empty_object);
        Ok(Self { id, method, params })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Line, JsonError> {
        Line::parse(&Bytes::copy_from_slice(text.as_bytes()))
    }

    const EVENT: &str = r#"{"id":"evt_1","event_type":"tool.call","payload":{"a":1}}"#;

    #[test]
    fn an_event_is_found_whatever_the_order_of_members() {
        for text in [
            format!(r#"{{"jsonrpc":"2.0","method":"session.event","params":{EVENT}}}"#),
            format!(r#"{{"params":{EVENT},"method":"session.event","jsonrpc":"2.0"}}"#),
            format!(r#" {{ "method" : "session.event" , "params" : {EVENT} , "extra":[{{}}] }} "#),
        ] {
            let Line::Event(event) = parse(&text).unwrap() else { panic!("{text}") };
            assert_eq!(event.json().as_str(), EVENT);
        }
    }

    #[test]
    fn refusals_are_told_apart_by_what_a_retry_would_do() {
        let error = |code, message: &str| RpcFailure::new(code, message).to_error();
        let orphans =
            error(-32000, "tool result merge invalid: no paused turn is awaiting tool results");
        assert!(RpcFailure::is_no_pause(&orphans));
        assert!(!RpcFailure::is_no_pause(&error(-32000, "tool result merge invalid: other")));
        assert_eq!(error(-32000, "replay failed").retry(), Retry::Safe);
        assert_eq!(error(-32603, "Internal error").retry(), Retry::Unknown);
        assert_eq!(error(-32601, "Method not found: x").retry(), Retry::Unsafe);
    }

    #[test]
    fn an_error_without_id_is_a_notice_and_answers_nothing() {
        let text = r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"lagged; reconnect with since_event_id"}}"#;
        let Line::Notice(failure) = parse(text).unwrap() else { panic!() };
        assert!(failure.is_lagged());
    }

    #[test]
    fn a_notification_needs_no_params() {
        for text in [
            r#"{"jsonrpc":"2.0","method":"session.resync"}"#,
            r#"{"method":"session.resync","params":null}"#,
        ] {
            let Line::Notification { method, raw, .. } = parse(text).unwrap() else {
                panic!("{text}")
            };
            assert_eq!((method.as_str(), raw.as_str()), ("session.resync", text));
        }
    }

    #[test]
    fn null_as_id_is_an_answer() {
        let text = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#;
        let Line::Response { id, outcome } = parse(text).unwrap() else { panic!() };
        assert_eq!(match_id(&Json::integer(1), &id), IdMatch::Null);
        assert_eq!(outcome.unwrap_err().code, code::PARSE_ERROR);
    }

    #[test]
    fn ids_compare_exactly_but_for_a_number_that_became_a_string() {
        let json = |t: &str| Json::parse(t.to_owned()).unwrap();
        assert_eq!(match_id(&json("1"), &json("1")), IdMatch::Same);
        assert_eq!(match_id(&json("1"), &json("\"1\"")), IdMatch::TypeChanged);
        assert_eq!(match_id(&json("\"1\""), &json("1")), IdMatch::Other);
        assert_eq!(match_id(&json("\"a\\u0062\""), &json("\"ab\"")), IdMatch::Same);
        assert_eq!(match_id(&json("9007199254740993"), &json("9007199254740992")), IdMatch::Other);
    }

    #[test]
    fn junk_is_an_error_and_never_a_line() {
        for text in [
            "",
            "x",
            "[1]",
            "{",
            "{}x",
            "{\"a\":}",
            "\"s\"",
            "{\"id\":1}",
            r#"{"method":"session.event","params":{}}"#,
            r#"{"method":"session.event"}"#,
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(Line::parse(&Bytes::from_static(b"{\"a\":\"\xff\"}")).is_err());
    }

    #[test]
    fn envelope_checks_come_in_the_order_of_the_specification() {
        let cases = [
            ("{", Some("null"), -32700, "Parse error"),
            ("[]", Some("null"), -32600, "Invalid Request: batch requests are not supported"),
            ("[1", Some("null"), -32700, "Parse error"),
            ("3", Some("null"), -32600, "Invalid Request"),
            ("null", Some("null"), -32600, "Invalid Request"),
            (
                r#"{"id":9,"method":"m"}"#,
                Some("9"),
                -32600,
                "Invalid Request: missing or wrong \"jsonrpc\" version",
            ),
            (
                r#"{"id":9,"jsonrpc":2.0}"#,
                Some("9"),
                -32600,
                "Invalid Request: missing or wrong \"jsonrpc\" version",
            ),
            (
                r#"{"id":9,"jsonrpc":"2.0"}"#,
                Some("9"),
                -32600,
                "Invalid Request: missing \"method\"",
            ),
            (
                r#"{"id":9,"jsonrpc":"2.0","method":4}"#,
                Some("9"),
                -32600,
                "Invalid Request: missing \"method\"",
            ),
            (r#"{"jsonrpc":"2.0"}"#, None, -32600, "Invalid Request: missing \"method\""),
        ];
        for (body, id, code, message) in cases {
            let (got_id, failure) = Request::read(Bytes::from_static(body.as_bytes())).unwrap_err();
            assert_eq!(got_id.as_ref().map(Json::as_str), id, "{body}");
            assert_eq!((failure.code, failure.message.as_str()), (code, message), "{body}");
        }
        let request =
            Request::read(Bytes::from_static(br#"{"jsonrpc":"2.0","method":"m","id":{"a":1}}"#))
                .unwrap();
        assert_eq!(request.id.unwrap().as_str(), r#"{"a":1}"#);
        assert_eq!(request.params.as_str(), "{}");
    }

    #[test]
    fn lines_are_written_the_way_they_are_read() {
        let failure =
            RpcFailure::new(-32001, "call session.registerDriver before session.sendMessage");
        let line = response_line(&Json::string("s1"), Err(&failure));
        assert_eq!(
            line,
            "{\"error\":{\"code\":-32001,\"message\":\"call session.registerDriver before session.sendMessage\"},\"id\":\"s1\",\"jsonrpc\":\"2.0\"}\n"
        );
        let line = response_line(&Json::integer(1), Ok(&Json::empty_object()));
        assert_eq!(line, "{\"id\":1,\"jsonrpc\":\"2.0\",\"result\":{}}\n");
    }
}
