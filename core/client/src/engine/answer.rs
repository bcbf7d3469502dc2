//! Answers of the service, collected from the events of an HTTP exchange: whole REST answers and
//! the streams of `/rpc`.

use super::net::{ExchangeId, NetEvent};
use broca_proto::session::exchange::{BodyEnd, Exchange, Item};
use broca_proto::session::problem::Problem;
use broca_proto::{Error, ErrorKind, Json, Retry};
use bytes::{Bytes, BytesMut};

/// Bytes of an error's body that are looked at.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// The one status that says all: its body is often lost, because the peer stops reading (RFC 9110 §15.5.14).
const PAYLOAD_TOO_LARGE: u16 = 413;

const JSON: &str = "application/json";

/// A REST call under way.
#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) exchange: ExchangeId,
    limit: usize,
    status: u16,
    content_type: String,
    body: BytesMut,
}

impl Rest {
    pub(crate) fn new(exchange: ExchangeId, limit: usize) -> Self {
        Self { exchange, limit, status: 0, content_type: String::new(), body: BytesMut::new() }
    }

    /// Takes an event; the answer's JSON, or why there is none, once it is over.
    pub(crate) fn take(&mut self, event: NetEvent, service: &str) -> Option<Result<Json, Error>> {
        match event {
            NetEvent::Sent => None,
            NetEvent::Head(head) => {
                self.status = head.status();
                self.content_type = content_type(head.header_str("content-type"));
                None
            }
            NetEvent::Body(bytes) => {
                if self.body.len() + bytes.len() > self.limit {
                    let message = format!(
                        "the answer has more than {} bytes; ask for less or raise max_answer_bytes",
                        self.limit
                    );
                    return Some(Err(Error::new(ErrorKind::Limit, message)));
                }
                self.body.extend_from_slice(&bytes);
                None
            }
            NetEvent::End(BodyEnd::Broken) if self.status != PAYLOAD_TOO_LARGE => Some(Err(cut())),
            NetEvent::End(_) => {
                let body = self.body.split().freeze();
                if !(200..300).contains(&self.status) {
                    return Some(Err(refusal(self.status, &self.content_type, &body, service)));
                }
                Some(
                    Json::parse(body.clone())
                        .map_err(|_| not_broca(self.status, &self.content_type, &body, service)),
                )
            }
            NetEvent::Failed(error) => Some(Err(error)),
        }
    }
}

/// A call of `/rpc` under way.
#[derive(Debug)]
pub(crate) struct Rpc {
    pub(crate) exchange: ExchangeId,
    pub(crate) id: Json,
    stream: Exchange,
    /// The body is no stream but the reason why there is none.
    refused: Option<(u16, String, BytesMut)>,
    answered: bool,
    left: bool,
    headed: bool,
}

/// What an event of the network meant for a call.
pub(crate) enum Progress {
    /// It goes on.
    Going,
    /// The terminal line is there; only the end of the body is missing.
    Answered,
    /// The answer is no stream but a refusal; why follows, within the time of a head.
    Refused,
    /// It is over.
    Over(Result<Json, Error>),
}

impl Rpc {
    pub(crate) fn new(exchange: ExchangeId, id: Json, max_line_bytes: usize) -> Self {
        let stream = Exchange::new(id.clone(), max_line_bytes);
        Self { exchange, id, stream, refused: None, answered: false, left: false, headed: false }
    }

    /// Takes an event; items of the stream go to `sink`.
    #[inline]
    pub(crate) fn take(
        &mut self,
        event: NetEvent,
        service: &str,
        mut sink: impl FnMut(Item),
    ) -> Progress {
        match event {
            NetEvent::Body(bytes) => {
                if let Some((_, _, body)) = &mut self.refused {
                    let room = MAX_REFUSAL_BYTES.saturating_sub(body.len());
                    body.extend_from_slice(&bytes[..room.min(bytes.len())]);
                    if bytes.len() < room {
                        return Progress::Going;
                    }
                    // Enough to know what it is, however much more comes.
                    return Progress::Over(self.end(BodyEnd::Complete, service, sink));
                }
                if self.answered {
                    return Progress::Going;
                }
                self.stream.receive(bytes);
                while let Some(item) = self.stream.poll() {
                    sink(item);
                }
                if self.stream.outcome().is_some() && !self.answered {
                    self.answered = true;
                    return Progress::Answered;
                }
                Progress::Going
            }
            NetEvent::Sent => {
                self.left = true;
                Progress::Going
            }
            NetEvent::Head(head) => {
                self.headed = true;
                let kind = content_type(head.header_str("content-type"));
                let is_stream = matches!(kind.as_str(), "application/x-ndjson" | JSON | "");
                if head.status() != 200 || !is_stream {
                    self.refused = Some((head.status(), kind, BytesMut::new()));
                    return Progress::Refused;
                }
                Progress::Going
            }
            NetEvent::End(end) => Progress::Over(self.end(end, service, sink)),
            NetEvent::Failed(error) => {
                // A stream whose terminal line is there needs nothing more from its connection, and a
                // refusal outranks what became of the rest of its body.
                if self.refused.is_some() {
                    return Progress::Over(self.end(BodyEnd::Broken, service, sink));
                }
                match self.stream.take_outcome().filter(|_| self.answered) {
                    Some(outcome) => Progress::Over(outcome),
                    None => Progress::Over(Err(error)),
                }
            }
        }
    }

    /// Whether the request has left, so that it may have had an effect.
    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// Whether the answer has begun: the service knows of the call.
    pub(crate) fn has_begun(&self) -> bool {
        self.headed
    }

    /// Whether events came.
    pub(crate) fn has_events(&self) -> bool {
        self.stream.last_event_id().is_some()
    }

    fn end(
        &mut self,
        end: BodyEnd,
        service: &str,
        mut sink: impl FnMut(Item),
    ) -> Result<Json, Error> {
        if let Some((status, kind, body)) = self.refused.take() {
            let body = body.freeze();
            let half = end == BodyEnd::Broken && kind == JSON && Json::parse(body.clone()).is_err();
            if half && status != PAYLOAD_TOO_LARGE {
                return Err(cut());
            }
            return Err(refusal(status, &kind, &body, service));
        }
        while let Some(item) = self.stream.end(end) {
            sink(item);
        }
        let early = || Error::new(ErrorKind::Internal, "an exchange ended without an outcome");
        self.stream.take_outcome().unwrap_or_else(|| Err(early()))
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::StreamEndedEarly, "the connection broke inside the answer")
}

fn content_type(value: Option<&str>) -> String {
    let value = value.unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The error for an answer that is not a success.
fn refusal(status: u16, content_type: &str, body: &Bytes, service: &str) -> Error {
    let problem = Json::parse(body.clone()).ok().and_then(|json| json.decode::<Problem>().ok());
    if let Some(mut problem) = problem {
        if problem.status == 0 {
            problem.status = status;
        }
        return problem.to_error();
    }
    if status == PAYLOAD_TOO_LARGE {
        return Problem::new(
            PAYLOAD_TOO_LARGE,
            "payload_too_large",
            "the request is larger than the service accepts",
        )
        .to_error();
    }
    not_broca(status, content_type, body, service)
}

/// Something answered, and it is not a session service.
fn not_broca(status: u16, content_type: &str, body: &Bytes, service: &str) -> Error {
    let what = match content_type {
        "text/html" => "an HTML page".to_owned(),
        "" => format!("{} bytes without a content type", body.len()),
        other => other.chars().filter(|c| c.is_ascii_graphic()).take(60).collect(),
    };
    let retry = if matches!(status, 502..=504 | 429) { Retry::Unknown } else { Retry::Unsafe };
    let cure = match status {
        502..=504 => "a proxy answers in its place; the service may be down",
        404 => "check the path of the address",
        _ => "check the address: this is not a session service, or a login page stands before it",
    };
    Error::new(ErrorKind::NotBroca, format!("{service} answered {status} with {what}; {cure}"))
        .with_retry(retry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_problem_document_is_no_session_service() {
        let page = Bytes::from_static(b"<html>login</html>");
        let error = refusal(200, "text/html", &page, "http://x");
        assert_eq!(error.kind(), ErrorKind::NotBroca);
        assert!(error.message().contains("an HTML page"));
        assert_eq!(refusal(502, "text/html", &page, "http://x").retry(), Retry::Unknown);
        assert_eq!(refusal(413, "text/plain", &page, "http://x").kind(), ErrorKind::Api);
        let problem = Bytes::from_static(br#"{"type":"unauthorized","title":"Unauthorized","status":401,"detail":"invalid client key"}"#);
        assert_eq!(
            refusal(401, "application/json", &problem, "http://x").kind(),
            ErrorKind::Unauthorized
        );
    }
}
