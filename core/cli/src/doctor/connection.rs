//! One connection, step by step, so that each step can be told apart: to the service or its proxy, through a tunnel,
//! with TLS, and one question in HTTP.

use broca::Error;
use broca::engine::{CloseReason, Route};
use broca::http1::{Connection, Event, Http1Error, Limits, Request, Response, Target};
use broca::tls::Connector;
use broca::wire::{Found, ReadBuffer, Socket, Wire, close_reason};
use bytes::BytesMut;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// As much of an answer is looked at.
const MAX_BODY: usize = 64 * 1024;

/// Why a connection is of no use.
#[derive(Debug)]
pub(crate) enum Broken {
    Closed(CloseReason),
    Http(Http1Error),
    Tls(Error),
    /// The proxy gave no tunnel but this status.
    NoTunnel(u16),
}

/// What was answered; of a long body the beginning.
pub(crate) struct Answer {
    pub(crate) head: Response,
    pub(crate) body: Vec<u8>,
}

/// A connection that is open.
pub(crate) struct Line {
    stream: TcpStream,
    wire: Wire,
    room: ReadBuffer,
}

impl Line {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, CloseReason> {
        let stream = TcpStream::connect(address).await.map_err(|e| close_reason(&e))?;
        Ok(Self { stream, wire: Wire::new(), room: ReadBuffer::new() })
    }

    /// Has the proxy of the route connect to the service.
    pub(crate) async fn tunnel(&mut self, route: &Route, authority: &str) -> Result<(), Broken> {
        let authorization =
            route.proxy_authorization().map(|value| ("Proxy-Authorization", value.expose()));
        let request = Request {
            method: "CONNECT",
            target: Target::Authority(authority),
            host: authority,
            headers: authorization.as_slice(),
            body: b"",
        };
        let mut http = self.send(request)?;
        match self.event(&mut http).await? {
            Event::Head(head) if (200..300).contains(&head.status()) => Ok(()),
            Event::Head(head) => Err(Broken::NoTunnel(head.status())),
            _ => Err(Broken::Http(Http1Error::UnexpectedData)),
        }
    }

    /// Speaks TLS from here on.
    pub(crate) async fn secure(&mut self, connector: &Connector, name: &str) -> Result<(), Broken> {
        self.wire.start_tls(connector.connect(name).map_err(Broken::Tls)?);
        while !self.wire.take_secured() {
            self.wire.flush(&mut Direct(&self.stream));
            match self.wire.read(&mut Direct(&self.stream), &mut self.room) {
                Found::Closed(why) => return Err(Broken::Closed(why)),
                Found::Blocked => self.ready().await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Asks for a path of the service, without a key.
    pub(crate) async fn ask(&mut self, route: &Route, path: &str) -> Result<Answer, Broken> {
        self.call(route, "GET", path, &[], b"").await
    }

    /// Sends this to a path of the service.
    pub(super) async fn post(
        &mut self,
        route: &Route,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, Broken> {
        self.call(route, "POST", path, headers, body).await
    }

    async fn call(
        &mut self,
        route: &Route,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, Broken> {
        let (own, absolute, host) = (route.path(path), route.absolute(path), route.authority());
        let mut headers = vec![
            ("Accept", "application/json"),
            ("User-Agent", concat!("broca-cli/", env!("CARGO_PKG_VERSION"))),
        ];
        headers.extend_from_slice(more);
        if let Some(value) = route.proxy_authorization().filter(|_| absolute.is_some()) {
            headers.push(("Proxy-Authorization", value.expose()));
        }
        let target = absolute.as_deref().map_or(Target::Origin(&own), Target::Absolute);
        let request = Request { method, target, host: &host, headers: &headers, body };
        self.exchange(request, MAX_BODY).await
    }

    /// Sends a request and reads its answer; of a body that is longer than `most` bytes the beginning.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<'_>,
        most: usize,
    ) -> Result<Answer, Broken> {
        let mut http = self.send(request)?;
        let Event::Head(head) = self.event(&mut http).await? else {
            return Err(Broken::Http(Http1Error::UnexpectedData));
        };
        let mut body = Vec::new();
        while let Event::Body(piece) = self.event(&mut http).await? {
            body.extend_from_slice(&piece[..piece.len().min(most - body.len())]);
            if body.len() == most {
                break;
            }
        }
        Ok(Answer { head, body })
    }

    /// Leaves in order.
    pub(crate) fn close(mut self) {
        self.wire.finish(&mut Direct(&self.stream));
    }

    fn send(&mut self, request: Request<'_>) -> Result<Connection, Broken> {
        let mut http = Connection::new(Limits::default());
        let bytes = http.send(request).map_err(Broken::Http)?;
        self.wire.push(bytes);
        Ok(http)
    }

    /// The next event of an exchange.
    async fn event(&mut self, http: &mut Connection) -> Result<Event, Broken> {
        loop {
            let written = self.wire.flush(&mut Direct(&self.stream));
            http.written(written);
            if let Some(event) = http.poll().map_err(Broken::Http)? {
                return Ok(event);
            }
            match self.wire.read(&mut Direct(&self.stream), &mut self.room) {
                Found::Data(bytes) => http.receive(bytes),
                Found::Progress => {}
                Found::Blocked => self.ready().await?,
                Found::Closed(why) => {
                    http.eof(why == CloseReason::Eof);
                    return match http.poll() {
                        Ok(Some(event)) => Ok(event),
                        Ok(None) => Err(Broken::Closed(why)),
                        Err(Http1Error::ClosedBeforeResponse) => Err(Broken::Closed(why)),
                        Err(error) => Err(Broken::Http(error)),
                    };
                }
            }
        }
    }

    async fn ready(&self) -> Result<(), Broken> {
        let writing = if self.wire.wants_write() { Interest::WRITABLE } else { Interest::READABLE };
        let interest = Interest::READABLE.add(writing);
        let ready = self.stream.ready(interest).await;
        ready.map(drop).map_err(|e| Broken::Closed(close_reason(&e)))
    }
}

/// What the socket does at once.
struct Direct<'a>(&'a TcpStream);

impl Socket for Direct<'_> {
    fn read(&mut self, into: &mut BytesMut) -> io::Result<usize> {
        self.0.try_read_buf(into)
    }

    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }
}
