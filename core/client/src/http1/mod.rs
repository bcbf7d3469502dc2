//! HTTP/1.1 for a client, without sockets and clocks.
//!
//! A [`Connection`] turns a [`Request`] into bytes, and bytes of the peer into [`Event`]s: the head
//! of the response, slices of its body, its end. Who owns the socket writes the ones and feeds the
//! others. One exchange at a time; no pipelining, no upgrades, no chunked requests. It follows RFC
//! 9110 and 9112, and where they let a reader guess it refuses instead: two readers that guess
//! differently are how responses are smuggled.
//!
//! ```
//! use broca::http1::{Connection, Event, Limits, Request, Target};
//! use bytes::Bytes;
//!
//! let mut connection = Connection::new(Limits::default());
//! let request = connection.send(Request {
//!     method: "GET",
//!     target: Target::Origin("/"),
//!     host: "localhost",
//!     headers: &[],
//!     body: b"",
//! })?;
//! // … the request goes out …
//! connection.written(request.len());
//! // … and the answer comes in.
//! connection.receive(Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"));
//! let Some(Event::Head(head)) = connection.poll()? else { panic!() };
//! assert_eq!(head.status(), 200);
//! let Some(Event::Body(bytes)) = connection.poll()? else { panic!() };
//! assert_eq!(&bytes[..], b"hi");
//! let Some(Event::End { reusable: true, .. }) = connection.poll()? else { panic!() };
//! assert!(connection.is_ready());
//! # Ok::<(), broca::http1::Http1Error>(())
//! ```

mod body;
mod error;
mod input;
mod request;
mod response;

use std::fmt;

use bytes::Bytes;

pub use error::Http1Error;
pub use request::{Request, Target};
pub use response::{Response, Version};

use body::{Body, Part};
use input::Input;
use request::Asked;

/// Bounds of what a peer may make the connection hold or skip.
///
/// Bodies are handed out as they come and have no bound here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one head, its empty line included; of requests too. Default 64 KiB.
    pub max_head_bytes: usize,
    /// Headers of one response. Default 128.
    pub max_headers: usize,
    /// Bytes of a chunk's size line, extensions and line end included. Default 4 KiB.
    pub max_chunk_line_bytes: usize,
    /// Bytes of all trailers of a response, the empty line included. Default 16 KiB.
    pub max_trailer_bytes: usize,
    /// Interim (1xx) responses before the final one. Default 16.
    pub max_informational: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_head_bytes: 64 * 1024,
            max_headers: 128,
            max_chunk_line_bytes: 4 * 1024,
            max_trailer_bytes: 16 * 1024,
            max_informational: 16,
        }
    }
}

/// What came in, in this order: `Head`, any number of `Body`, `End`; or `Head`, then `Tunnel`.
pub enum Event {
    /// Status and headers of the final response. Interim ones are skipped.
    Head(Response),
    /// Bytes of the body, never empty: a slice of a received buffer.
    Body(Bytes),
    /// The response is complete.
    End {
        /// The connection takes another request.
        reusable: bool,
        /// Only the end of the connection says that the body is whole. It may have been cut by
        /// whoever closed: believe it only if the content shows its own end.
        complete_by_close: bool,
    },
    /// After a 2xx answer to `CONNECT`: bytes from the other end of the tunnel. The first comes
    /// right after the head, usually empty; the connection speaks no HTTP any more, and whatever
    /// it still receives leaves as further events of this kind.
    Tunnel(Bytes),
}

/// The lengths of bodies, not their bytes.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(head) => head.fmt(f),
            Self::Body(data) => write!(f, "Body({} bytes)", data.len()),
            Self::End { reusable, complete_by_close } => f
                .debug_struct("End")
                .field("reusable", reusable)
                .field("complete_by_close", complete_by_close)
                .finish(),
            Self::Tunnel(data) => write!(f, "Tunnel({} bytes)", data.len()),
        }
    }
}

/// One HTTP/1.1 connection.
pub struct Connection {
    limits: Limits,
    input: Input,
    state: State,
    /// Bytes of the request that [`written`](Self::written) has not confirmed.
    unwritten: usize,
    /// The peer closed, cleanly or not.
    eof: Option<bool>,
}

enum State {
    /// Ready for a request.
    Idle,
    /// A request is out, its response has not begun or not all of its head is there.
    Waiting {
        asked: Asked,
        closes: bool,
        informational: usize,
    },
    Reading {
        body: Body,
        keep_alive: bool,
    },
    /// A tunnel, its first event still to come or not.
    Tunnel {
        announced: bool,
    },
    /// The last exchange is over and there will be no other.
    Finished,
    Failed(Http1Error),
}

impl Connection {
    /// A connection that was just opened.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, input: Input::default(), state: State::Idle, unwritten: 0, eof: None }
    }

    /// Whether [`send`](Self::send) may be called: no exchange is open, the last one left the
    /// connection usable, and nothing has come in since.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Idle) && self.eof.is_none() && self.input.is_empty()
    }

    /// Begins an exchange: the bytes to write, head and body in one buffer.
    ///
    /// # Errors
    ///
    /// [`NotReady`](Http1Error::NotReady), or that the request cannot be written as it is. The
    /// connection is then as it was before.
    pub fn send(&mut self, request: Request<'_>) -> Result<Bytes, Http1Error> {
        if !self.is_ready() {
            return Err(Http1Error::NotReady);
        }
        let request = request::encode(&request, &self.limits)?;
        self.unwritten = request.bytes.len();
        self.state =
            State::Waiting { asked: request.asked, closes: request.closes, informational: 0 };
        Ok(request.bytes)
    }

    /// That many more bytes of the request are on their way and will be written, come what may.
    ///
    /// A response that begins before all of them were reported (an early 413) is read like any
    /// other, but the connection is not reusable after it: the rest of the request may never go.
    pub fn written(&mut self, bytes: usize) {
        self.unwritten = self.unwritten.saturating_sub(bytes);
    }

    /// Takes bytes from the peer, cut anywhere. [`poll`](Self::poll) until it has nothing more
    /// before the next ones, so that they do not pile up here.
    pub fn receive(&mut self, data: Bytes) {
        self.input.push(data);
    }

    /// The peer closed, and no bytes come after those received: `clean` if it said so (a FIN; with
    /// TLS a close notification), not if the connection broke. What that means for the exchange,
    /// [`poll`](Self::poll) says once it has handed out what was received before.
    pub fn eof(&mut self, clean: bool) {
        self.eof.get_or_insert(clean);
    }

    /// The next event; `None` until more comes in. Allocates for heads only.
    ///
    /// # Errors
    ///
    /// The peer broke the protocol, a limit was passed, or the connection ended too early. Final.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Event>, Http1Error> {
        let step = match &mut self.state {
            State::Reading { body, keep_alive } => match body.poll(&mut self.input, &self.limits) {
                Ok(Some(Part::Data(data))) => return Ok(Some(Event::Body(data))),
                Ok(Some(Part::End)) => {
                    let reusable = *keep_alive && self.eof.is_none() && self.input.is_empty();
                    Ok(Some(self.end(reusable, false)))
                }
                Ok(None) => self.body_at_eof(),
                Err(error) => Err(error),
            },
            _ => self.poll_outside_body(),
        };
        if let Err(error) = &step {
            self.state = State::Failed(error.clone());
        }
        step
    }

    fn poll_outside_body(&mut self) -> Result<Option<Event>, Http1Error> {
        match &mut self.state {
            State::Waiting { .. } => self.head(),
            State::Tunnel { announced } => {
                let first = !std::mem::replace(announced, true);
                let data = self.input.take(u64::MAX);
                Ok(data.or_else(|| first.then(Bytes::new)).map(Event::Tunnel))
            }
            State::Idle | State::Finished if !self.input.is_empty() => {
                Err(Http1Error::UnexpectedData)
            }
            State::Idle | State::Finished | State::Reading { .. } => Ok(None),
            State::Failed(error) => Err(error.clone()),
        }
    }

    /// Reads heads until the final one; what follows from it is the new state.
    fn head(&mut self) -> Result<Option<Event>, Http1Error> {
        let State::Waiting { asked, closes, informational } = &mut self.state else {
            return Ok(None);
        };
        let response = loop {
            let limit = self.limits.max_head_bytes;
            if !self.input.starts_like(b"HTTP/1.") {
                return Err(Http1Error::NotHttp);
            }
            let head = self.input.take_head(limit);
            let Some(head) = head.map_err(|_| Http1Error::HeadTooLong { limit })? else {
                return match self.eof {
                    None => Ok(None),
                    Some(_) if self.input.is_empty() => Err(Http1Error::ClosedBeforeResponse),
                    Some(_) => Err(Http1Error::ClosedInHead),
                };
            };
            let response = Response::parse(head, &self.limits)?;
            match response.status() {
                101 => return Err(Http1Error::UnexpectedUpgrade),
                100..200 if *informational == self.limits.max_informational => {
                    let limit = self.limits.max_informational;
                    return Err(Http1Error::TooManyInformational { limit });
                }
                100..200 => *informational += 1,
                _ => break response,
            }
        };
        // Both kinds of framing are to be ignored in what opens a tunnel (RFC 9110 §9.3.6).
        self.state = if *asked == Asked::Connect && response.status() < 300 {
            State::Tunnel { announced: false }
        } else {
            let bodiless = *asked == Asked::Head || matches!(response.status(), 204 | 304);
            let body = Body::of(&response, bodiless)?;
            let keep_alive = response.keeps_alive() && !*closes && self.unwritten == 0;
            State::Reading { body, keep_alive }
        };
        Ok(Some(Event::Head(response)))
    }

    /// Nothing more to read in a body: is that its end?
    fn body_at_eof(&mut self) -> Result<Option<Event>, Http1Error> {
        let State::Reading { body, .. } = &self.state else { return Ok(None) };
        match self.eof {
            None => Ok(None),
            Some(true) if body.is_until_close() => Ok(Some(self.end(false, true))),
            Some(_) => {
                let (got, expected) = body.progress();
                Err(Http1Error::ClosedInBody { got, expected })
            }
        }
    }

    fn end(&mut self, reusable: bool, complete_by_close: bool) -> Event {
        self.state = if reusable { State::Idle } else { State::Finished };
        Event::End { reusable, complete_by_close }
    }
}

/// Where the exchange stands, without a byte of it.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Idle => "idle",
            State::Waiting { .. } => "waiting",
            State::Reading { .. } => "reading",
            State::Tunnel { .. } => "tunnel",
            State::Finished => "finished",
            State::Failed(_) => "failed",
        };
        f.debug_struct("Connection")
            .field("state", &state)
            .field("unwritten", &self.unwritten)
            .field("eof", &self.eof)
            .finish_non_exhaustive()
    }
}
