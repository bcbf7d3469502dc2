//! Server-sent events, read incrementally (provider streams §0).
//!
//! Bytes come in any pieces; the same events come out for every cut. Lines end at CR LF, LF or CR and
//! nowhere else. Text is decoded line by line, which equals decoding the whole stream, because no
//! UTF-8 sequence holds a line end; bytes that are not UTF-8 become U+FFFD and are counted.

use crate::Json;
use std::collections::VecDeque;
use thiserror::Error;

/// Bounds of an [`SseReader`], in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SseLimits {
    /// The longest line, without its end.
    pub max_line: usize,
    /// The most data of one event: all its `data` lines together.
    pub max_event: usize,
}

/// One event: its name (empty when it has none) and its data lines joined with LF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// The value of the last `event` field.
    pub event: String,
    /// The `data` fields, joined with LF.
    pub data: String,
}

/// A bound was exceeded; nothing more is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SseError {
    /// A line is longer than the limit.
    #[error(
        "a line of the event stream is longer than {limit} bytes; raise max_line if that is right"
    )]
    LineTooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// An event's data is larger than the limit.
    #[error(
        "an event of the stream holds more than {limit} bytes of data; raise max_event if that is right"
    )]
    EventTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

/// How the input ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SseEnd {
    /// Between two events, or in one that has no data.
    Clean,
    /// Inside an event whose data is whole: one JSON value or the end mark. Use it.
    Whole(SseEvent),
    /// Inside an event whose data breaks off: an early end.
    Fragment,
}

/// Reads bytes into events.
#[derive(Debug)]
pub struct SseReader {
    limits: SseLimits,
    end_mark: Option<&'static str>,
    line: Vec<u8>,
    /// The last byte was a CR that ended a line: a LF right after it belongs to it.
    after_cr: bool,
    first_line: bool,
    event: String,
    data: Option<String>,
    ready: VecDeque<SseEvent>,
    failed: Option<SseError>,
    lines: u64,
    replaced: u64,
}

impl Default for SseLimits {
    /// 16 MiB each.
    fn default() -> Self {
        Self { max_line: 16 << 20, max_event: 16 << 20 }
    }
}

impl SseReader {
    /// A reader at the start of a body.
    #[must_use]
    pub fn new(limits: SseLimits) -> Self {
        Self {
            limits,
            end_mark: None,
            line: Vec::new(),
            after_cr: false,
            first_line: true,
            event: String::new(),
            data: None,
            ready: VecDeque::new(),
            failed: None,
            lines: 0,
            replaced: 0,
        }
    }

    /// Names data that is whole without being JSON, such as `[DONE]`.
    #[must_use]
    pub fn with_end_mark(mut self, mark: &'static str) -> Self {
        self.end_mark = Some(mark);
        self
    }

    /// Takes the next bytes of the body.
    ///
    /// # Errors
    /// [`SseError`] once a limit is exceeded, and on every call after that. Events that were
    /// complete before it can still be polled.
    pub fn handle_input(&mut self, mut bytes: &[u8]) -> Result<(), SseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while !bytes.is_empty() {
            let Some(at) = memchr::memchr2(b'\n', b'\r', bytes) else {
                return self.extend_line(bytes);
            };
            self.extend_line(&bytes[..at])?;
            let was_cr = bytes[at] == b'\r';
            bytes = &bytes[at + 1..];
            if was_cr {
                match bytes.first() {
                    None => self.after_cr = true,
                    Some(b'\n') => bytes = &bytes[1..],
                    Some(_) => {}
                }
            }
            self.end_line()?;
        }
        Ok(())
    }

    /// The next whole event.
    pub fn poll_event(&mut self) -> Option<SseEvent> {
        self.ready.pop_front()
    }

    /// Says that the body ended, and what stood there unfinished. Poll the whole events first.
    ///
    /// # Errors
    /// [`SseError`] when a limit was exceeded.
    pub fn handle_end(&mut self) -> Result<SseEnd, SseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.line.is_empty() {
            self.end_line()?;
        }
        let event = std::mem::take(&mut self.event);
        let Some(data) = self.data.take() else { return Ok(SseEnd::Clean) };
        let marked = self.end_mark.is_some_and(|mark| data.trim() == mark);
        if marked || Json::parse(data.clone()).is_ok() {
            Ok(SseEnd::Whole(SseEvent { event, data }))
        } else {
            Ok(SseEnd::Fragment)
        }
    }

    /// Lines read so far, comments and blank ones included: a silence watchdog restarts when it grows.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Lines that held bytes which are not UTF-8.
    #[must_use]
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len() + bytes.len() > self.limits.max_line {
            return self.fail(SseError::LineTooLong { limit: self.limits.max_line });
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), SseError> {
        let mut buffer = std::mem::take(&mut self.line);
        self.lines += 1;
        let mut line = buffer.as_slice();
        if std::mem::take(&mut self.first_line) {
            line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        }
        let outcome = self.take_line(line);
        // The buffer is used again, unless one huge line made it huge.
        if buffer.capacity() <= 64 << 10 {
            buffer.clear();
            self.line = buffer;
        }
        outcome
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), SseError> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if let Some(data) = self.data.take() {
                self.ready.push_back(SseEvent { event, data });
            }
            return Ok(());
        }
        let text = String::from_utf8_lossy(line);
        if matches!(text, std::borrow::Cow::Owned(_)) {
            self.replaced += 1;
        }
        let (field, value) = match text.split_once(':') {
            Some((field, value)) => (field, value.strip_prefix(' ').unwrap_or(value)),
            None => (text.as_ref(), ""),
        };
        match field {
            "data" => {
                let held = self.data.as_ref().map_or(0, |data| data.len() + 1);
                if held + value.len() > self.limits.max_event {
                    return self.fail(SseError::EventTooLarge { limit: self.limits.max_event });
                }
                match &mut self.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => self.data = Some(value.to_owned()),
                }
            }
            "event" => value.clone_into(&mut self.event),
            // A comment has an empty field name; `id`, `retry` and unknown fields mean nothing here.
            _ => {}
        }
        Ok(())
    }

    fn fail(&mut self, error: SseError) -> Result<(), SseError> {
        self.failed = Some(error);
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(name: &str, data: &str) -> SseEvent {
        SseEvent { event: name.to_owned(), data: data.to_owned() }
    }

    fn read(chunks: &[&[u8]]) -> (Vec<SseEvent>, Result<SseEnd, SseError>) {
        let limits = SseLimits { max_line: 64, max_event: 64 };
        let mut reader = SseReader::new(limits).with_end_mark("[DONE]");
        for chunk in chunks {
            if reader.handle_input(chunk).is_err() {
                break;
            }
        }
        let mut events = Vec::new();
        while let Some(event) = reader.poll_event() {
            events.push(event);
        }
        (events, reader.handle_end())
    }

    #[test]
    fn all_three_line_ends_work_and_a_cr_at_the_end_of_a_read_takes_the_lf_of_the_next() {
        let (events, end) = read(&[b"data: a\r", b"\n\r", b"\ndata: b\r\rdata: c\n\n"]);
        assert_eq!(events, [event("", "a"), event("", "b"), event("", "c")]);
        assert_eq!(end, Ok(SseEnd::Clean));
    }

    #[test]
    fn only_one_byte_order_mark_at_the_start_is_dropped() {
        let (events, _) = read(&["\u{feff}data: \u{feff}a\n\n\u{feff}data: b\n\n".as_bytes()]);
        assert_eq!(events, [event("", "\u{feff}a")], "a later mark makes an unknown field");
    }

    #[test]
    fn unicode_separators_are_data() {
        let (events, _) = read(&["data: a\u{2028}b\u{85}c\u{b}d\u{c}e\n\n".as_bytes()]);
        assert_eq!(events, [event("", "a\u{2028}b\u{85}c\u{b}d\u{c}e")]);
    }

    #[test]
    fn comments_fields_without_a_colon_and_unknown_fields_do_no_harm() {
        let (events, _) =
            read(&[b": ping\nid: 7\nretry: 5\nevent:error\ndata\ndata:  x\nwhat\n\n"]);
        assert_eq!(events, [event("error", "\n x")]);
    }

    #[test]
    fn an_event_without_data_is_not_dispatched_and_its_name_does_not_stay() {
        let (events, _) = read(&[b"event: ping\n\ndata: 1\n\n"]);
        assert_eq!(events, [event("", "1")]);
    }

    #[test]
    fn an_unfinished_event_is_used_only_when_its_data_is_whole() {
        assert_eq!(read(&[b"data: {\"a\":1}"]).1, Ok(SseEnd::Whole(event("", "{\"a\":1}"))));
        assert_eq!(read(&[b"data: {\"a\":1}\n"]).1, Ok(SseEnd::Whole(event("", "{\"a\":1}"))));
        assert_eq!(read(&[b"data: [DONE]"]).1, Ok(SseEnd::Whole(event("", "[DONE]"))));
        assert_eq!(read(&[b"data: {\"a\":"]).1, Ok(SseEnd::Fragment));
        assert_eq!(read(&[b"data: [DON"]).1, Ok(SseEnd::Fragment));
        assert_eq!(read(&[b"event: x\n: y"]).1, Ok(SseEnd::Clean));
    }

    #[test]
    fn a_line_or_event_past_its_limit_is_an_error_that_names_it() {
        let long = format!("data: 1\n\ndata: {}\n\n", "x".repeat(70));
        let (events, end) = read(&[long.as_bytes()]);
        assert_eq!(events, [event("", "1")], "what was whole before is kept");
        assert_eq!(end, Err(SseError::LineTooLong { limit: 64 }));
        let many = "data: 0123456789012345678\n".repeat(4);
        assert_eq!(read(&[many.as_bytes()]).1, Err(SseError::EventTooLarge { limit: 64 }));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_and_counted() {
        let mut reader = SseReader::new(SseLimits::default());
        reader.handle_input(b"data: a\xFFb\n\n").unwrap();
        assert_eq!(reader.poll_event(), Some(event("", "a\u{fffd}b")));
        assert_eq!(reader.replaced(), 1);
    }

    proptest! {
        #[test]
        fn every_cut_of_the_bytes_gives_the_same_events(
            text in "(\u{feff}|)((data|event|id|):? ?[a{}\"é\u{2028}\u{1F600}]{0,30}(\r\n|\n|\r)|\r\n|\n|\r){0,24}(data: ?[1-9{}]{0,3})?",
            cuts in prop::collection::vec(1_usize..9, 0..60),
        ) {
            let bytes = text.as_bytes();
            let whole = read(&[bytes]);
            let mut chunks = Vec::new();
            let mut rest = bytes;
            for cut in cuts {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                chunks.push(chunk);
                rest = after;
            }
            chunks.push(rest);
            prop_assert_eq!(read(&chunks), whole.clone());
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(read(&single), whole);
        }
    }
}
