//! What can go wrong.

use std::time::Duration;

/// What happens to one connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fault {
    /// Close it as soon as it is there.
    pub refuse: bool,
    /// Where [`refuse`](Self::refuse) or [`cut_after`](Self::cut_after) end it: with a reset, as a crashed machine
    /// would, in place of an orderly end.
    pub reset: bool,
    /// Hold each piece from the server back for this long.
    pub delay: Duration,
    /// Hold each piece from the client back for this long.
    pub delay_up: Duration,
    /// Cut it after this many bytes from the server, heads of responses included.
    pub cut_after: Option<u64>,
    /// Fall silent after this many bytes from the server, and stay connected.
    pub stall_after: Option<u64>,
    /// Hand the bytes of the server on in pieces of at most this size; 0 for as they come.
    pub piece: usize,
    /// Deliver what the client sends twice: the same bytes go over a second connection too, whose answers nobody gets.
    /// So does a proxy that repeats a request because it thinks that the first one was lost.
    pub repeat: bool,
    /// Let the next connection reach the server first; without one it goes on after half a second.
    pub behind: bool,
}

/// What happens to one HTTP response.
///
/// Bytes and lines are those of the body, without the framing of chunks; a line ends with its line feed. What
/// concerns lines is for responses whose content type is NDJSON and passes others over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResponseFault {
    /// Cut the connection after this many bytes of the body.
    pub cut_after_bytes: Option<u64>,
    /// Cut the connection after this many lines.
    pub cut_after_lines: Option<u64>,
    /// Fall silent after this many bytes of the body, and stay connected.
    pub stall_after_bytes: Option<u64>,
    /// Fall silent after this many lines, and stay connected.
    pub stall_after_lines: Option<u64>,
    /// Send this line, counted from 1, twice.
    pub duplicate_line: Option<u64>,
    /// Hold the whole response back until the server has ended it, its head included, as a proxy that buffers does.
    pub buffer: bool,
    /// Cut with a reset in place of an orderly end. What was handed on just before may be lost with it.
    pub reset: bool,
    /// Only for answers to requests that contain this text in their first 64 KiB, such as the name of a method.
    pub request: Option<String>,
}

impl ResponseFault {
    /// Whether it does nothing.
    pub(crate) const fn is_none(&self) -> bool {
        self.cut_after_bytes.is_none()
            && self.stall_after_bytes.is_none()
            && !self.counts_lines()
            && !self.buffer
    }

    pub(crate) const fn counts_lines(&self) -> bool {
        self.cut_after_lines.is_some()
            || self.stall_after_lines.is_some()
            || self.duplicate_line.is_some()
    }

    /// Whether it is meant for a response with or without NDJSON, to this request.
    pub(crate) fn is_for(&self, is_ndjson: bool, request: &[u8]) -> bool {
        let is_asked = |text: &str| memchr::memmem::find(request, text.as_bytes()).is_some();
        (is_ndjson || !self.counts_lines()) && self.request.as_deref().is_none_or(is_asked)
    }
}
