//! One `/rpc` exchange as the client sees it: the bytes of one answer become items and an outcome.
//!
//! Every decision of design §7 about lines, ids and ends is here. The machine knows no HTTP: it is
//! fed the body of one answer.

use super::event::Event;
use super::ndjson::{Decoder, Found};
use super::rpc::{IdMatch, Line, RpcFailure, match_id};
use crate::Json;
use crate::error::{Error, ErrorKind, Retry};
use bytes::Bytes;

/// How the body of an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEnd {
    /// Completely, as its framing says.
    Complete,
    /// The connection was closed cleanly where only that marks the end of the body.
    ByClose,
    /// The connection broke.
    Broken,
}

/// What the application sees of an exchange before its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Item {
    /// An event.
    Event(Event),
    /// A notification that is no event, with its raw JSON: display deltas, and what this version does not know.
    Notification {
        /// The method.
        method: String,
        /// Its parameters.
        params: Json,
        /// The whole line.
        raw: Json,
    },
    /// A line over the limit was skipped.
    Oversized {
        /// Its length in bytes.
        bytes: u64,
        /// The limit in force.
        limit: usize,
    },
    /// Something odd that does not end the stream.
    Warning(Warning),
}

/// Something odd that does not end the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// What kind of oddity.
    pub class: WarningClass,
    /// What was seen, without payloads.
    pub message: String,
}

/// The kinds of oddities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarningClass {
    /// A line that is no JSON-RPC object was skipped.
    MalformedLine,
    /// The answer's id came back as a string.
    IdTypeChanged,
    /// An answer to a request that this exchange did not make.
    UnexpectedId,
    /// An error notice that ends nothing.
    Notice,
}

impl WarningClass {
    /// The word used in every language.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MalformedLine => "malformed_line",
            Self::IdTypeChanged => "id_type_changed",
            Self::UnexpectedId => "unexpected_id",
            Self::Notice => "notice",
        }
    }
}

/// The client's view of one `/rpc` answer.
#[derive(Debug)]
pub struct Exchange {
    id: Json,
    decoder: Decoder,
    limit: usize,
    outcome: Option<Result<Json, Error>>,
    ended: bool,
    last_was_oversized: Option<u64>,
    /// Its buffer is used again for every event.
    last_event_id: Vec<u8>,
}

impl Exchange {
    /// The answer to the request `id`, with lines of at most `max_line_bytes`.
    #[must_use]
    pub fn new(id: Json, max_line_bytes: usize) -> Self {
        Self {
            id,
            decoder: Decoder::new(max_line_bytes),
            limit: max_line_bytes,
            outcome: None,
            ended: false,
            last_was_oversized: None,
            last_event_id: Vec::new(),
        }
    }

    /// Takes bytes of the body. Take every item with [`Exchange::poll`] before the next call.
    pub fn receive(&mut self, bytes: Bytes) {
        // What follows the terminal line means nothing, and must not pile up.
        if !self.ended && self.outcome.is_none() {
            self.decoder.push(bytes);
        }
    }

    /// The next thing the application sees; nothing until more bytes come.
    #[inline]
    pub fn poll(&mut self) -> Option<Item> {
        while self.outcome.is_none() {
            let found = self.decoder.next_line()?;
            if let Some(item) = self.take(found) {
                return Some(item);
            }
        }
        None
    }

    /// The body has ended. Items that only now are whole come from the iterator; after it the
    /// outcome is known.
    pub fn end(&mut self, end: BodyEnd) -> Option<Item> {
        if self.ended {
            return None;
        }
        if let Some(item) = self.poll() {
            return Some(item);
        }
        if self.outcome.is_none()
            && end != BodyEnd::Broken
            && let Some(found) = self.decoder.finish_input()
            && let Some(item) = self.take_last(found)
        {
            return Some(item);
        }
        self.ended = true;
        if self.outcome.is_none() {
            self.outcome = Some(Err(self.early(end)));
        }
        None
    }

    /// The outcome, once the terminal line was read or the body has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<&Result<Json, Error>> {
        self.outcome.as_ref()
    }

    /// Takes the outcome.
    pub fn take_outcome(&mut self) -> Option<Result<Json, Error>> {
        self.outcome.take()
    }

    /// The id of the last event read.
    #[must_use]
    pub fn last_event_id(&self) -> Option<&str> {
        std::str::from_utf8(&self.last_event_id).ok().filter(|id| !id.is_empty())
    }

    #[inline]
    fn take(&mut self, found: Found) -> Option<Item> {
        let line = match found {
            Found::Line(line) => line,
            Found::Oversized { bytes, .. } => {
                self.last_was_oversized = Some(bytes);
                return Some(Item::Oversized { bytes, limit: self.limit });
            }
        };
        match Line::parse(&line) {
            Ok(Line::Event(event)) => {
                self.last_was_oversized = None;
                self.last_event_id.clear();
                self.last_event_id.extend_from_slice(event.id_bytes());
                Some(Item::Event(event))
            }
            Ok(Line::Notification { method, params, raw }) => {
                self.last_was_oversized = None;
                Some(Item::Notification { method, params, raw })
            }
            Ok(Line::Notice(failure)) => self.notice(&failure),
            Ok(Line::Response { id, outcome }) => self.response(&id, outcome),
            Err(fault) => {
                let message = format!("skipped a line of {} bytes: {fault}", line.len());
                Some(Item::Warning(Warning { class: WarningClass::MalformedLine, message }))
            }
        }
    }

    /// A line at the end of the body without newline: a whole value counts, a fragment does not.
    fn take_last(&mut self, found: Found) -> Option<Item> {
        match found {
            Found::Line(line) if Json::parse(line.clone()).is_err() => None,
            found => self.take(found),
        }
    }

    fn notice(&mut self, failure: &RpcFailure) -> Option<Item> {
        if failure.is_lagged() {
            let details = self.details(&[("code", Json::integer(failure.code))]);
            self.outcome = Some(Err(Error::new(
                ErrorKind::Lagged,
                "the service dropped this reader because it fell behind; read on from the last event",
            )
            .with_details(details)));
            return None;
        }
        // Any other notice without an id stands for the end of the stream: nothing follows it.
        self.outcome = Some(Err(failure.to_error()));
        None
    }

    fn response(&mut self, id: &Json, outcome: Result<Json, RpcFailure>) -> Option<Item> {
        let matched = match_id(&self.id, id);
        if matched == IdMatch::Other {
            let message = "skipped an answer to another request".to_owned();
            return Some(Item::Warning(Warning { class: WarningClass::UnexpectedId, message }));
        }
        self.outcome = Some(outcome.map_err(|failure| failure.to_error()));
        (matched == IdMatch::TypeChanged).then(|| {
            let message =
                "the answer's id is the request's number as a string; a gateway rewrites ids"
                    .to_owned();
            Item::Warning(Warning { class: WarningClass::IdTypeChanged, message })
        })
    }

    fn early(&self, end: BodyEnd) -> Error {
        if let (Some(bytes), true) = (self.last_was_oversized, end != BodyEnd::Broken) {
            let message = format!(
                "the terminal line has {bytes} bytes, the limit is {}; raise max_line_bytes",
                self.limit
            );
            let details = self.details(&[
                ("bytes", Json::integer(i64::try_from(bytes).unwrap_or(i64::MAX))),
                ("limit", Json::integer(i64::try_from(self.limit).unwrap_or(i64::MAX))),
            ]);
            return Error::new(ErrorKind::LineTooLong, message).with_details(details);
        }
        let how = match end {
            BodyEnd::Broken => "the connection broke",
            BodyEnd::Complete | BodyEnd::ByClose => "the stream ended",
        };
        Error::new(
            ErrorKind::StreamEndedEarly,
            format!("{how} before the terminal line; the request may have run: read the history before repeating it"),
        )
        .with_retry(Retry::Unknown)
        .with_details(self.details(&[]))
    }

    fn details(&self, more: &[(&str, Json)]) -> Json {
        let last = self.last_event_id().map_or_else(Json::null, Json::string);
        let members = [("last_event_id", &last)];
        Json::object(members.into_iter().chain(more.iter().map(|(k, v)| (*k, v))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(body: &[u8], end: BodyEnd) -> (Vec<Item>, Result<Json, Error>) {
        let mut exchange = Exchange::new(Json::integer(1), 1024);
        let mut items = Vec::new();
        exchange.receive(Bytes::copy_from_slice(body));
        while let Some(item) = exchange.poll() {
            items.push(item);
        }
        while let Some(item) = exchange.end(end) {
            items.push(item);
        }
        (items, exchange.take_outcome().unwrap())
    }

    #[test]
    fn no_terminal_line_is_never_success() {
        for end in [BodyEnd::Complete, BodyEnd::ByClose, BodyEnd::Broken] {
            let (_, outcome) = run(b"", end);
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::StreamEndedEarly);
        }
    }

    #[test]
    fn a_whole_terminal_without_newline_counts_unless_the_connection_broke() {
        let body = br#"{"id":1,"result":{}}"#;
        assert!(run(body, BodyEnd::Complete).1.is_ok());
        assert!(run(body, BodyEnd::ByClose).1.is_ok());
        assert!(run(body, BodyEnd::Broken).1.is_err());
    }

    #[test]
    fn an_oversized_terminal_is_named_as_such() {
        let body = format!("{{\"id\":1,\"result\":\"{}\"}}\n", "x".repeat(2000));
        let (items, outcome) = run(body.as_bytes(), BodyEnd::Complete);
        assert!(matches!(items[..], [Item::Oversized { limit: 1024, .. }]));
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LineTooLong);
        let bytes = body.len() - 1;
        for told in [&bytes.to_string()[..], "1024", "max_line_bytes"] {
            assert!(error.message().contains(told), "{error}");
        }
        let details = error.details().unwrap();
        assert_eq!(details.member("bytes").unwrap().decode(), Ok(bytes));
        assert_eq!(details.member("limit").unwrap().decode(), Ok(1024));
    }

    #[test]
    fn an_oversized_notification_is_a_gap_and_the_stream_goes_on() {
        let body = format!(
            "{{\"method\":\"x\",\"p\":\"{}\"}}\n{{\"id\":1,\"result\":{{}}}}\n",
            "x".repeat(2000)
        );
        let (items, outcome) = run(body.as_bytes(), BodyEnd::Complete);
        assert_eq!(items.len(), 1);
        assert!(outcome.is_ok());
    }

    #[test]
    fn a_line_that_is_not_utf_8_is_skipped_and_the_next_one_is_read() {
        let body = b"{\"method\":\"x\",\"params\":\"a\xffb\"}\n{\"id\":1,\"result\":{}}\n";
        let (items, outcome) = run(body, BodyEnd::Complete);
        let skipped = |w: &Warning| w.class == WarningClass::MalformedLine;
        assert!(matches!(&items[..], [Item::Warning(w)] if skipped(w)), "{items:?}");
        assert!(outcome.is_ok());
    }

    #[test]
    fn what_follows_the_terminal_line_means_nothing() {
        let body = b"{\"id\":1,\"result\":{}}\n{\"id\":1,\"error\":{\"code\":-1,\"message\":\"x\"}}\n{\"method\":\"y\"}\n";
        let (items, outcome) = run(body, BodyEnd::Complete);
        assert!(items.is_empty() && outcome.is_ok());
    }

    #[test]
    fn an_answer_to_another_request_is_not_ours() {
        let (items, outcome) = run(b"{\"id\":2,\"result\":{}}\n", BodyEnd::Complete);
        assert_eq!(items.len(), 1);
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::StreamEndedEarly);
    }
}
