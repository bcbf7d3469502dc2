//! Follows the responses on one connection as their bytes pass, and applies what shall happen to them.

use crate::fault::ResponseFault;
use memchr::{memchr, memmem};

/// A head that is longer is passed on unread, and everything after it.
const MAX_HEAD: usize = 256 * 1024;

/// A chunk's size line that is longer is none.
const MAX_SIZE_LINE: usize = 4 * 1024;

/// What the proxy knows of a response when its head is there.
pub(crate) struct Head {
    pub(crate) is_ndjson: bool,
}

/// What shall become of a response.
pub(crate) enum Plan {
    /// It answers a request that wants no body.
    NoBody,
    /// It may have a body.
    Body(ResponseFault),
}

/// What must be done once the bytes given out are out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Go,
    Stall,
    Cut { reset: bool },
}

/// The responses of one connection, one after the other.
#[derive(Debug)]
pub(crate) struct Responses {
    state: State,
    /// The part of a head, or of the line of a chunk's size, that is there.
    held: Vec<u8>,
    /// What there is of a response that is held back until its end.
    buffered: Vec<u8>,
    body: Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    /// Bytes that the body still has.
    Sized(u64),
    ChunkSize,
    /// Bytes that the chunk still has.
    Chunk(u64),
    /// Bytes of the line end after a chunk that are still to come.
    ChunkEnd(usize),
    Trailers,
    /// The body ends with the connection.
    UntilEnd,
    /// No HTTP, or none that is understood: everything passes.
    Blind,
}

/// The body of the response that is under way.
#[derive(Debug, Default)]
struct Body {
    fault: ResponseFault,
    /// Chunks are made here, and those of the server taken apart.
    is_rechunked: bool,
    bytes: u64,
    lines: u64,
    /// What there is of the line that will be sent twice.
    twice: Vec<u8>,
}

impl Responses {
    pub(crate) fn new() -> Self {
        Self { state: State::Head, held: Vec::new(), buffered: Vec::new(), body: Body::default() }
    }

    /// Takes bytes of the server up to the first at which something must be done; returns how many it took. What
    /// shall be handed on is added to `out`. `plan` is asked once for each final response.
    pub(crate) fn take(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        mut plan: impl FnMut(&Head) -> Plan,
    ) -> (usize, Then) {
        let mut used = 0;
        while used < input.len() {
            let rest = &input[used..];
            let from = out.len();
            let (size, then) = match self.state {
                State::Head => self.head(rest, out, &mut plan),
                State::Sized(left) => {
                    let (size, then) = self.body.take(upto(rest, left), out);
                    self.state = State::Sized(left - size as u64);
                    if left == size as u64 {
                        self.state = State::Head;
                        self.body.end(out);
                    }
                    (size, then)
                }
                State::ChunkSize => (self.chunk_size(rest, out), Then::Go),
                State::Chunk(left) => {
                    let (size, then) = self.body.take(upto(rest, left), out);
                    let left = left - size as u64;
                    self.state = if left == 0 { State::ChunkEnd(2) } else { State::Chunk(left) };
                    (size, then)
                }
                State::ChunkEnd(left) => {
                    let size = left.min(rest.len());
                    self.body.frame(&rest[..size], out);
                    let left = left - size;
                    self.state = if left == 0 { State::ChunkSize } else { State::ChunkEnd(left) };
                    (size, Then::Go)
                }
                State::Trailers => (self.trailers(rest, out), Then::Go),
                State::UntilEnd => self.body.take(rest, out),
                State::Blind => {
                    out.extend_from_slice(rest);
                    (rest.len(), Then::Go)
                }
            };
            self.buffer(out, from);
            used += size;
            if then != Then::Go {
                return (used, then);
            }
        }
        (used, Then::Go)
    }

    /// What is still held back when the server has closed the connection, which ends a response too.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffered)
    }

    /// Holds back what was added to `out` after `from`, if the response that is under way shall be, and puts it there
    /// once it is whole.
    fn buffer(&mut self, out: &mut Vec<u8>, from: usize) {
        if self.body.fault.buffer && self.state != State::Head {
            self.buffered.extend(out.drain(from..));
        } else if !self.buffered.is_empty() {
            out.splice(from..from, self.buffered.drain(..));
        }
    }

    /// Lets the response that is under way go on unharmed.
    pub(crate) fn heal(&mut self) {
        self.body.fault = ResponseFault::default();
    }

    fn head(
        &mut self,
        rest: &[u8],
        out: &mut Vec<u8>,
        plan: &mut impl FnMut(&Head) -> Plan,
    ) -> (usize, Then) {
        let before = self.held.len();
        self.held.extend_from_slice(rest);
        let known = b"HTTP/1.".len().min(self.held.len());
        let from = before.saturating_sub(3);
        let end = memmem::find(&self.held[from..], b"\r\n\r\n").map(|at| from + at + 4);
        let is_http = self.held[..known] == b"HTTP/1."[..known];
        let Some(end) = end.filter(|_| is_http) else {
            if !is_http || self.held.len() > MAX_HEAD {
                self.go_blind(out);
            }
            return (rest.len(), Then::Go);
        };
        self.held.truncate(end);
        let Some(facts) = Facts::read(&self.held) else {
            self.go_blind(out);
            return (end - before, Then::Go);
        };
        let head = std::mem::take(&mut self.held);
        self.body = Body::default();
        if facts.status == 101 {
            self.state = State::Blind;
        } else if facts.status >= 200 {
            match plan(&Head { is_ndjson: facts.is_ndjson }) {
                Plan::Body(fault) if !matches!(facts.status, 204 | 304) => {
                    self.body.is_rechunked =
                        fault.duplicate_line.is_some() && facts.framing != Framing::UntilEnd;
                    self.body.fault = fault;
                    self.state = match facts.framing {
                        Framing::Chunked => State::ChunkSize,
                        Framing::Sized(0) => State::Head,
                        Framing::Sized(size) => State::Sized(size),
                        Framing::UntilEnd => State::UntilEnd,
                    };
                }
                _ => {}
            }
        }
        match self.state {
            // A line that is sent twice makes the announced size untrue.
            State::Sized(_) if self.body.is_rechunked => with_chunks(&head, out),
            _ => out.extend_from_slice(&head),
        }
        (end - before, self.body.due())
    }

    /// The line that begins a chunk: its size in hexadecimal digits, and extensions.
    fn chunk_size(&mut self, rest: &[u8], out: &mut Vec<u8>) -> usize {
        let Some(end) = memchr(b'\n', rest).map(|at| at + 1) else {
            self.held.extend_from_slice(rest);
            if self.held.len() > MAX_SIZE_LINE {
                self.go_blind(out);
            }
            return rest.len();
        };
        self.held.extend_from_slice(&rest[..end]);
        let digits = self.held.split(|byte| matches!(byte, b';' | b'\r' | b'\n')).next();
        let size = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        let line = std::mem::take(&mut self.held);
        match size {
            Some(0) => {
                out.extend_from_slice(&line);
                self.state = State::Trailers;
            }
            Some(size) => {
                self.body.frame(&line, out);
                self.state = State::Chunk(size);
            }
            None => {
                out.extend_from_slice(&line);
                self.state = State::Blind;
            }
        }
        end
    }

    /// Lines after the last chunk, up to the empty one.
    fn trailers(&mut self, rest: &[u8], out: &mut Vec<u8>) -> usize {
        let end = memchr(b'\n', rest).map(|at| at + 1);
        let size = end.unwrap_or(rest.len());
        out.extend_from_slice(&rest[..size]);
        self.held.extend_from_slice(&rest[..size]);
        if end.is_some() {
            if matches!(&self.held[..], b"\r\n" | b"\n") {
                self.state = State::Head;
            }
            self.held.clear();
        }
        size
    }

    fn go_blind(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
        self.state = State::Blind;
    }
}

impl Body {
    /// Hands bytes of the body on, up to the first at which something must be done.
    fn take(&mut self, data: &[u8], out: &mut Vec<u8>) -> (usize, Then) {
        if self.fault.is_none() {
            self.give(data, out);
            return (data.len(), Then::Go);
        }
        let mut used = 0;
        while used < data.len() {
            let rest = &data[used..];
            let mut size = memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
            for limit in [self.fault.cut_after_bytes, self.fault.stall_after_bytes] {
                let room = limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.bytes));
                size = upto(&rest[..size], room.max(1)).len();
            }
            let piece = &rest[..size];
            self.give(piece, out);
            self.bytes += size as u64;
            used += size;
            self.follow_lines(piece, out);
            let then = self.due();
            if then != Then::Go {
                return (used, then);
            }
        }
        (used, Then::Go)
    }

    /// Counts lines and repeats the one that shall come twice.
    fn follow_lines(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let is_twice = self.fault.duplicate_line == Some(self.lines + 1);
        if is_twice {
            self.twice.extend_from_slice(piece);
        }
        if piece.ends_with(b"\n") {
            self.lines += 1;
            if is_twice {
                let line = std::mem::take(&mut self.twice);
                self.give(&line, out);
            }
        }
    }

    /// What must be done now that so much of the body is out. A silence is asked for once.
    fn due(&mut self) -> Then {
        let fault = &mut self.fault;
        let (bytes, lines) = (Some(self.bytes), Some(self.lines));
        if fault.cut_after_bytes == bytes || fault.cut_after_lines == lines {
            return Then::Cut { reset: fault.reset };
        }
        let is_silent = fault.stall_after_bytes == bytes || fault.stall_after_lines == lines;
        if is_silent {
            (fault.stall_after_bytes, fault.stall_after_lines) = (None, None);
            return Then::Stall;
        }
        Then::Go
    }

    fn give(&self, data: &[u8], out: &mut Vec<u8>) {
        if !self.is_rechunked || data.is_empty() {
            out.extend_from_slice(data);
            return;
        }
        out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    }

    /// The end of a body that the server gave a size and that became chunks.
    fn end(&self, out: &mut Vec<u8>) {
        if self.is_rechunked {
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }

    /// Hands framing of the server on, unless other framing takes its place.
    fn frame(&self, data: &[u8], out: &mut Vec<u8>) {
        if !self.is_rechunked {
            out.extend_from_slice(data);
        }
    }
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Sized(u64),
    Chunked,
    UntilEnd,
}

/// What a head says that matters here.
struct Facts {
    status: u16,
    framing: Framing,
    is_ndjson: bool,
}

impl Facts {
    /// Nothing if it is no head of a response, or one that can be read in two ways.
    fn read(head: &[u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut response = httparse::Response::new(&mut headers);
        response.parse(head).ok()?;
        let mut facts =
            Self { status: response.code?, framing: Framing::UntilEnd, is_ndjson: false };
        for header in response.headers.iter() {
            let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
            let value = value.to_ascii_lowercase();
            match header.name.to_ascii_lowercase().as_str() {
                "content-type" => facts.is_ndjson = value.starts_with("application/x-ndjson"),
                "transfer-encoding" if value.ends_with("chunked") => {
                    facts.framing = Framing::Chunked;
                }
                // Chunks win over a size.
                "content-length" if facts.framing != Framing::Chunked => {
                    facts.framing = Framing::Sized(value.parse().ok()?);
                }
                _ => {}
            }
        }
        Some(facts)
    }
}

/// The head with chunks in place of the size.
fn with_chunks(head: &[u8], out: &mut Vec<u8>) {
    let is_size = |line: &[u8]| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(b"content-length")
    };
    let lines = head.split_inclusive(|byte| *byte == b'\n').filter(|line| !is_size(line));
    for line in lines.filter(|line| *line != b"\r\n") {
        out.extend_from_slice(line);
    }
    out.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
}

/// At most this many of the bytes.
fn upto(data: &[u8], most: u64) -> &[u8] {
    &data[..usize::try_from(most).unwrap_or(usize::MAX).min(data.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";

    fn chunk(data: &str) -> String {
        format!("{:x}\r\n{data}\r\n", data.len())
    }

    /// Plays bytes in pieces cut at these places until something ends it, with the fault for every response with
    /// lines, or for every one if it counts none; silences are told as `|`.
    fn play(input: &[u8], cuts: &[usize], fault: &ResponseFault) -> (Vec<u8>, Then) {
        let mut responses = Responses::new();
        let mut out = Vec::new();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (input.len() + 1)).collect();
        cuts.extend([0, input.len()]);
        cuts.sort_unstable();
        for pair in cuts.windows(2) {
            let mut rest = &input[pair[0]..pair[1]];
            while !rest.is_empty() {
                let (used, then) = responses.take(rest, &mut out, |head| {
                    let is_meant = fault.is_for(head.is_ndjson, b"");
                    Plan::Body(if is_meant { fault.clone() } else { ResponseFault::default() })
                });
                rest = &rest[used..];
                match then {
                    Then::Go => {}
                    Then::Stall => out.push(b'|'),
                    Then::Cut { .. } => return (out, then),
                }
            }
        }
        (out, Then::Go)
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    /// A small reading of chunks, to judge what comes out.
    fn unchunked(mut body: &str) -> String {
        let mut all = String::new();
        loop {
            let (size, rest) = body.split_once("\r\n").unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            all.push_str(&rest[..size]);
            assert_eq!(&rest[size..size + 2], "\r\n");
            body = &rest[size + 2..];
            if size == 0 {
                assert_eq!(body, "");
                return all;
            }
        }
    }

    #[test]
    fn a_cut_after_lines_lets_exactly_these_through() {
        let input = [STREAM, &chunk("one\ntwo\nthr"), &chunk("ee\nfour\n"), "0\r\n\r\n"].concat();
        for (lines, last) in [(0, "\r\n\r\n"), (1, "one\n"), (2, "two\n"), (3, "ee\n")] {
            let fault = ResponseFault { cut_after_lines: Some(lines), ..ResponseFault::default() };
            let (out, then) = play(input.as_bytes(), &[], &fault);
            assert_eq!(then, Then::Cut { reset: false });
            assert!(text(out).ends_with(last), "{lines}");
        }
        let fault = ResponseFault { cut_after_lines: Some(9), ..ResponseFault::default() };
        assert_eq!(play(input.as_bytes(), &[], &fault), (input.into_bytes(), Then::Go));
    }

    #[test]
    fn a_cut_after_bytes_counts_the_body_and_not_its_framing() {
        let fault =
            ResponseFault { cut_after_bytes: Some(5), reset: true, ..ResponseFault::default() };
        let input = [STREAM, &chunk("abc"), &chunk("defg"), "0\r\n\r\n"].concat();
        let (out, then) = play(input.as_bytes(), &[], &fault);
        assert_eq!(then, Then::Cut { reset: true });
        assert!(text(out).ends_with("3\r\nabc\r\n4\r\nde"));
        let input = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789";
        let (out, _) = play(input.as_bytes(), &[], &fault);
        assert!(text(out).ends_with("\r\n\r\n12345"));
    }

    #[test]
    fn a_silence_falls_at_its_place_and_what_follows_is_kept() {
        let fault = ResponseFault { stall_after_lines: Some(1), ..ResponseFault::default() };
        let input = [STREAM, &chunk("a\nb\n"), "0\r\n\r\n"].concat();
        let (out, then) = play(input.as_bytes(), &[], &fault);
        assert_eq!(then, Then::Go);
        assert_eq!(text(out), [STREAM, "4\r\na\n|b\n\r\n0\r\n\r\n"].concat());
    }

    #[test]
    fn a_line_is_repeated_inside_correct_chunks_whatever_the_framing_was() {
        let fault = ResponseFault { duplicate_line: Some(2), ..ResponseFault::default() };
        let chunked = [STREAM, &chunk("a\nb"), &chunk("b\nc\n"), "0\r\n\r\n"].concat();
        let sized = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nContent-length: 7\r\n\r\na\nbb\nc\n";
        for input in [&chunked, sized] {
            let (out, _) = play(input.as_bytes(), &[], &fault);
            let out = text(out);
            let (head, body) = out.split_once("\r\n\r\n").unwrap();
            assert!(head.to_lowercase().ends_with("transfer-encoding: chunked"), "{head}");
            assert!(!head.to_lowercase().contains("content-length"), "{head}");
            assert_eq!(unchunked(body), "a\nbb\nbb\nc\n");
        }
        let until_end = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\na\nb\n";
        let (out, _) = play(until_end.as_bytes(), &[], &fault);
        assert!(text(out).ends_with("\r\n\r\na\nb\nb\n"));
    }

    #[test]
    fn what_is_buffered_comes_whole_at_its_end_and_in_its_place() {
        let fault = ResponseFault { buffer: true, ..ResponseFault::default() };
        let sized = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
        let (chunks, open) = ([STREAM, &chunk("one\n")].concat(), "HTTP/1.1 200 OK\r\n\r\n");
        for (begun, rest) in [(chunks.as_str(), "0\r\n\r\n"), (sized, "ok"), (open, "")] {
            let mut responses = Responses::new();
            let mut out = Vec::new();
            let mut take = |input: &str, out: &mut Vec<u8>| {
                responses.take(input.as_bytes(), out, |_| Plan::Body(fault.clone()))
            };
            let interim = "HTTP/1.1 100 Continue\r\n\r\n";
            take(&[interim, begun].concat(), &mut out);
            assert_eq!(text(out.clone()), interim, "{begun}");
            take(&[rest, "HTTP/1.1 204 No Content\r\n\r\n"].concat(), &mut out);
            out.extend(responses.finish());
            assert!(text(out).starts_with(&[interim, begun, rest].concat()), "{begun}");
        }
    }

    #[test]
    fn what_concerns_lines_leaves_other_content_alone() {
        let fault = ResponseFault { cut_after_lines: Some(0), ..ResponseFault::default() };
        let other =
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n{}\n";
        assert_eq!(play(other.as_bytes(), &[], &fault), (other.into(), Then::Go));
    }

    #[test]
    fn what_is_no_http_passes_as_it_is() {
        for input in ["hello\r\n\r\n", "HTTP/1.", "HTTP/1.1 junk\r\n\r\nabc", "HTTQ"] {
            let (out, _) = play(input.as_bytes(), &[3], &ResponseFault::default());
            // The beginning of a head is held until the head is whole.
            assert!(out == input.as_bytes() || input == "HTTP/1.", "{input}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_of_the_bytes_gives_the_same(
            cuts in prop::collection::vec(0_usize..10_000, 0..12),
            lines in prop::collection::vec("[a-z]{0,9}\n", 0..6),
            sizes in prop::collection::vec(1_usize..9, 1..9),
            which in 0_u8..7,
            at in 1_u64..9,
        ) {
            let body = lines.concat();
            let mut input = format!(
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n{STREAM}");
            let (mut rest, mut sizes) = (body.as_str(), sizes.into_iter().cycle());
            while !rest.is_empty() {
                let size = sizes.next().unwrap().min(rest.len());
                input.push_str(&chunk(&rest[..size]));
                rest = &rest[size..];
            }
            input.push_str("0\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
            let at = Some(at);
            let none = ResponseFault::default();
            let fault = match which {
                0 => none,
                1 => ResponseFault { cut_after_bytes: at, ..none },
                2 => ResponseFault { cut_after_lines: at, ..none },
                3 => ResponseFault { stall_after_bytes: at, ..none },
                4 => ResponseFault { stall_after_lines: at, ..none },
                5 => ResponseFault { duplicate_line: at, ..none },
                _ => ResponseFault { buffer: true, ..none },
            };
            let whole = text(play(input.as_bytes(), &[], &fault).0);
            let cut = text(play(input.as_bytes(), &cuts, &fault).0);
            // Where chunks are made here, how they are cut follows the pieces; what they hold does not.
            if which == 5 {
                prop_assert_eq!(joined(&whole), joined(&cut));
            } else {
                if matches!(which, 0 | 6) {
                    prop_assert_eq!(&whole, &input);
                }
                prop_assert_eq!(whole, cut);
            }
        }
    }

    /// The content of the chunked response, and what follows it.
    fn joined(all: &str) -> (String, String) {
        let (_, body) = all.split_once("chunked\r\n\r\n").unwrap();
        let (body, rest) = body.split_once("0\r\nx: y").unwrap();
        (unchunked(&format!("{body}0\r\n\r\n")), rest.to_owned())
    }
}
