//! What can go wrong on an HTTP/1.1 connection.

use thiserror::Error;

/// Why a request was refused, or why a connection can say nothing more that is to be believed.
///
/// An error of [`send`](super::Connection::send) leaves the connection as it was. An error of
/// [`poll`](super::Connection::poll) is final: every later `poll` answers the same, and the
/// connection must be closed. No variant carries a header value, a target or a byte of a body.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Http1Error {
    /// `send` on a connection that cannot take a request now.
    #[error(
        "the HTTP connection is not ready for a request: an exchange is open, or it may not be \
         used again; ask is_ready first, or open another connection"
    )]
    NotReady,
    /// The request line or the host cannot be written.
    #[error("the HTTP request cannot be written: {what}")]
    BadRequest {
        /// What is wrong and what would be right.
        what: &'static str,
    },
    /// A header's name is not a token.
    #[error(
        "header {index} of the HTTP request has a name that is not a token; use letters, digits \
         and -"
    )]
    HeaderName {
        /// The place of the header in the list, from 0.
        index: usize,
    },
    /// A header's value holds a control character.
    #[error(
        "header {index} of the HTTP request has a value with a line break, NUL or another control \
         character; remove it"
    )]
    HeaderValue {
        /// The place of the header in the list, from 0.
        index: usize,
    },
    /// A header that the connection writes itself, or never writes.
    #[error("the HTTP header {name} is not the caller's to set; leave it out")]
    HeaderReserved {
        /// The header.
        name: &'static str,
    },
    /// The request's line and headers are longer than allowed.
    #[error(
        "line and headers of the HTTP request are longer than max_head_bytes = {limit}; shorten \
         them or raise the limit"
    )]
    RequestHeadTooLong {
        /// [`Limits::max_head_bytes`](super::Limits::max_head_bytes).
        limit: usize,
    },
    /// The peer's first bytes are not those of an HTTP/1 response.
    #[error(
        "the peer does not speak HTTP/1; check host and port, and whether the address needs \
         https instead of http"
    )]
    NotHttp,
    /// The head of the response breaks the grammar.
    #[error("the head of the HTTP response is malformed: {what}; the server or a proxy is faulty")]
    MalformedHead {
        /// Which part.
        what: &'static str,
    },
    /// The head of the response is longer than allowed.
    #[error(
        "the head of the HTTP response is longer than max_head_bytes = {limit}; raise the limit \
         if the server is right to send so much"
    )]
    HeadTooLong {
        /// [`Limits::max_head_bytes`](super::Limits::max_head_bytes).
        limit: usize,
    },
    /// The response has more headers than allowed.
    #[error(
        "the HTTP response has more headers than max_headers = {limit}; raise the limit if the \
         server is right to send so many"
    )]
    TooManyHeaders {
        /// [`Limits::max_headers`](super::Limits::max_headers).
        limit: usize,
    },
    /// Interim (1xx) responses without end.
    #[error(
        "the server sent more interim (1xx) responses than max_informational = {limit}; raise \
         the limit if that is meant"
    )]
    TooManyInformational {
        /// [`Limits::max_informational`](super::Limits::max_informational).
        limit: usize,
    },
    /// `101 Switching Protocols`, though nothing of the kind was asked for.
    #[error("the server switched protocols (101) unasked; check what listens at this address")]
    UnexpectedUpgrade,
    /// `Content-Length` and `Transfer-Encoding` in one response.
    #[error(
        "the HTTP response has both Content-Length and Transfer-Encoding, so its end is \
         ambiguous (response smuggling); the server or a proxy is faulty"
    )]
    AmbiguousLength,
    /// `Content-Length` is no number, too large, or several that differ.
    #[error(
        "the Content-Length of the HTTP response is not one decimal number below 2^64; the \
         server or a proxy is faulty"
    )]
    BadContentLength,
    /// `Transfer-Encoding` is not exactly `chunked`, or stands in an HTTP/1.0 response.
    #[error(
        "the Transfer-Encoding of the HTTP response is not exactly one \"chunked\" on HTTP/1.1, \
         and nothing else was asked for; the server or a proxy is faulty"
    )]
    BadTransferEncoding,
    /// The chunks of a body break the grammar.
    #[error("a chunk of the HTTP response is malformed: {what}; the server or a proxy is faulty")]
    MalformedChunk {
        /// Which part.
        what: &'static str,
    },
    /// The line with the size and the extensions of a chunk is longer than allowed.
    #[error(
        "the size line of a chunk is longer than max_chunk_line_bytes = {limit}; raise the limit \
         if the server needs such long chunk extensions"
    )]
    ChunkLineTooLong {
        /// [`Limits::max_chunk_line_bytes`](super::Limits::max_chunk_line_bytes).
        limit: usize,
    },
    /// The trailers after the last chunk are longer than allowed.
    #[error(
        "the trailers of the HTTP response are longer than max_trailer_bytes = {limit}; raise \
         the limit if the server needs them"
    )]
    TrailersTooLong {
        /// [`Limits::max_trailer_bytes`](super::Limits::max_trailer_bytes).
        limit: usize,
    },
    /// A line after the last chunk is not a header.
    #[error("a trailer of the HTTP response is malformed; the server or a proxy is faulty")]
    MalformedTrailer,
    /// Bytes that belong to no exchange.
    #[error(
        "the server sent bytes that answer no request; the connection is closed and its earlier \
         response stands"
    )]
    UnexpectedData,
    /// The connection ended and no byte of the response had come (interim responses apart).
    #[error(
        "the server closed the connection before it answered; whether it acted on the request is \
         unknown"
    )]
    ClosedBeforeResponse,
    /// The connection ended inside the head of the response.
    #[error(
        "the connection ended inside the head of the HTTP response; whether the server acted on \
         the request is unknown"
    )]
    ClosedInHead,
    /// The connection ended inside the body.
    #[error(
        "the connection ended inside the body of the HTTP response after {got} bytes{}; the rest \
         is lost", of(.expected)
    )]
    ClosedInBody {
        /// Bytes of the body that came.
        got: u64,
        /// How many the server had announced, if it had.
        expected: Option<u64>,
    },
}

fn of(expected: &Option<u64>) -> String {
    expected.map(|n| format!(" of {n}")).unwrap_or_default()
}
