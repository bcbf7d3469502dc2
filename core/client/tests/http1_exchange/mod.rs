//! One exchange from beginning to end, written down so that two ways of having it can be compared.

#![allow(dead_code, clippy::unwrap_used, reason = "a helper of tests, of which each uses a part")]

use broca::http1::{Connection, Event, Http1Error, Limits, Request, Target, Version};
use bytes::Bytes;
use proptest::prelude::*;

pub(crate) const GET: Request<'static> = Request {
    method: "GET",
    target: Target::Origin("/"),
    host: "localhost",
    headers: &[],
    body: b"",
};

pub(crate) const CONNECT: Request<'static> =
    Request { method: "CONNECT", target: Target::Authority("example.test:443"), ..GET };

/// All that a caller can learn from one exchange; bodies joined, since cuts may split them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) status: Option<u16>,
    pub(crate) http10: bool,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) tunnel: Option<Vec<u8>>,
    /// Whether the connection was reusable, whether only its end showed the end of the body.
    pub(crate) end: Option<(bool, bool)>,
    pub(crate) error: Option<Http1Error>,
}

/// A connection that has sent all of `request`.
pub(crate) fn asked(request: Request<'_>, limits: Limits) -> Connection {
    let mut connection = Connection::new(limits);
    let bytes = connection.send(request).unwrap();
    connection.written(bytes.len());
    connection
}

impl Exchange {
    /// Sends `request` and has the peer answer with `pieces`, then close if `eof` says how.
    pub(crate) fn of<'a>(
        request: Request<'_>,
        limits: Limits,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        eof: Option<bool>,
    ) -> Self {
        let mut connection = asked(request, limits);
        let mut exchange = Self::default();
        for piece in pieces {
            connection.receive(Bytes::copy_from_slice(piece));
            exchange.drain(&mut connection);
        }
        if let Some(clean) = eof {
            connection.eof(clean);
            exchange.drain(&mut connection);
        }
        exchange
    }

    pub(crate) fn drain(&mut self, connection: &mut Connection) {
        loop {
            match connection.poll() {
                Ok(None) => return,
                Ok(Some(event)) => self.note(event),
                Err(error) => {
                    assert_eq!(connection.poll().err().as_ref(), Some(&error), "errors are final");
                    self.error = Some(error);
                    return;
                }
            }
        }
    }

    fn note(&mut self, event: Event) {
        assert!(self.error.is_none() && self.end.is_none(), "{event:?} after the end");
        match event {
            Event::Head(head) => {
                assert!(self.status.is_none(), "a second head");
                self.status = Some(head.status());
                self.http10 = head.version() == Version::Http10;
                self.headers =
                    head.headers().map(|(n, v)| (n.to_ascii_lowercase(), v.to_vec())).collect();
            }
            Event::Body(data) => {
                assert!(!data.is_empty() && self.status.is_some());
                self.body.extend_from_slice(&data);
            }
            Event::End { reusable, complete_by_close } => {
                assert!(self.status.is_some());
                self.end = Some((reusable, complete_by_close));
            }
            Event::Tunnel(data) => {
                assert!(self.status.is_some());
                self.tunnel.get_or_insert_default().extend_from_slice(&data);
            }
        }
    }
}

/// A response of the corpus with some of its bytes changed, removed or added.
pub(crate) fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let byte =
        prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'0'), Just(b' '), Just(b':'), any::<u8>()];
    let change = (any::<prop::sample::Index>(), byte, 0..3_u8);
    (prop::sample::select(RESPONSES), prop::collection::vec(change, 0..4)).prop_map(
        |((_, response), changes)| {
            let mut bytes = response.to_vec();
            for (at, byte, kind) in changes {
                if bytes.is_empty() {
                    break;
                }
                let at = at.index(bytes.len());
                match kind {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    _ => drop(bytes.remove(at)),
                }
            }
            bytes
        },
    )
}

/// Responses of every shape, good and bad, each with its name.
pub(crate) const RESPONSES: &[(&str, &[u8])] = &[
    ("length", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"),
    ("length zero", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ("length twice", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi"),
    ("length list", b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nhi"),
    ("length cut", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"),
    ("lengths differ", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi!"),
    ("length list differs", b"HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\nhi!"),
    ("length negative", b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nhi"),
    ("length plus", b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nhi"),
    ("length hex", b"HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\nhi"),
    ("length empty", b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nhi"),
    ("length overflow", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhi"),
    ("until close", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it"),
    ("until close, empty", b"HTTP/1.1 200 OK\r\n\r\n"),
    ("chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"),
    ("chunked, capital", b"HTTP/1.1 200 OK\r\nTRANSFER-ENCODING: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n"),
    ("chunked, zeros", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0005\r\nhello\r\n000\r\n\r\n"),
    ("chunked, empty", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("chunk extension", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n1 ; c=\"d\"\r\n!\r\n0;e\r\n\r\n"),
    ("trailers", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\nX-B:\r\n\r\n"),
    ("trailer folded", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA: 1\r\n b\r\n\r\n"),
    ("trailer without colon", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nHTTP/1.1 200 OK\r\n\r\n"),
    ("trailer ends with LF", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA: b\n\r\n\r\n"),
    ("chunked cut in data", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"),
    ("chunked cut in size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1"),
    ("chunked cut after data", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r"),
    ("chunked cut before last line", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n"),
    ("chunk junk after data", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhiXX\r\n0\r\n\r\n"),
    ("chunk data ends with LF", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\n0\r\n\r\n"),
    ("chunk size ends with LF", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nhi\r\n0\r\n\r\n"),
    ("chunk size ends with CR", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\rhi\r\n0\r\n\r\n"),
    ("chunk size empty", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\nhi\r\n0\r\n\r\n"),
    ("chunk size with sign", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+2\r\nhi\r\n0\r\n\r\n"),
    ("chunk size with 0x", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nhi\r\n0\r\n\r\n"),
    ("chunk size after blank", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n 2\r\nhi\r\n0\r\n\r\n"),
    ("chunk size overflow", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nhi\r\n0\r\n\r\n"),
    ("chunk size of 17 digits", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n00000000000000002\r\nhi\r\n0\r\n\r\n"),
    ("chunk size huge", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff0\r\nhi\r\n0\r\n\r\n"),
    ("chunk extension with LF", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a\nhi\r\n0\r\n\r\n"),
    ("both framings", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
    ("both framings, turned", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
    ("gzip, chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
    ("chunked twice", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
    ("chunked on two lines", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
    ("identity", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhi"),
    ("gzip", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhi"),
    ("chunked with vertical tab", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: \x0bchunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
    ("chunked on 1.0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
    ("1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("1.0 kept alive", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi"),
    ("closing", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"),
    ("204", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ("204 with length", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"),
    ("304 with length", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
    ("204 with both framings", b"HTTP/1.1 204 No\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("100 first", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("103 twice", b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 103 E\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("100 then nothing", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ("101", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    ("413", b"HTTP/1.1 413 Payload Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig"),
    ("no reason", b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi"),
    ("lines end with LF", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi"),
    ("blanks around a value", b"HTTP/1.1 200 OK\r\nContent-Length: \t 2 \t\r\n\r\nhi"),
    ("bytes beyond ASCII in a value", b"HTTP/1.1 200 OK\r\nX: \xc3\xa9\xff\r\nContent-Length: 2\r\n\r\nhi"),
    ("same header thrice", b"HTTP/1.1 200 OK\r\nX: 1\r\nx: 2\r\nX: 3\r\nContent-Length: 0\r\n\r\n"),
    ("folded", b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nhi"),
    ("blank before colon", b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nhi"),
    ("bare CR in a value", b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 2\r\n\r\nhi"),
    ("bare CR after status", b"HTTP/1.1 200 OK\rX: a\r\nContent-Length: 2\r\n\r\nhi"),
    ("NUL in a value", b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nhi"),
    ("NUL in a name", b"HTTP/1.1 200 OK\r\nX\0: a\r\nContent-Length: 2\r\n\r\nhi"),
    ("no colon", b"HTTP/1.1 200 OK\r\nnothing\r\nContent-Length: 2\r\n\r\nhi"),
    ("empty line first", b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("blank before version", b" HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("status of two digits", b"HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("status 099", b"HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("status 999", b"HTTP/1.1 999 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("HTTP/2", b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("HTTP/1.2", b"HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("HTTP/0.9", b"<html>hi</html>"),
    ("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n"),
    ("a TLS alert", b"\x15\x03\x01\x00\x02\x02\x46"),
    ("head cut", b"HTTP/1.1 200 OK\r\nContent-Le"),
    ("version cut", b"HTTP/1"),
    ("nothing", b""),
];
