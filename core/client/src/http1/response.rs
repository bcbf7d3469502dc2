//! The head of a response.

use std::{fmt, ops::Range};

use bytes::Bytes;

use super::{Http1Error, Limits};

/// The version a server answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: the connection closes unless both sides said otherwise.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// Status and headers of a response; the body follows in events.
///
/// Holds the bytes of the head as they came and where each header lies in them.
#[derive(Clone)]
pub struct Response {
    status: u16,
    version: Version,
    head: Bytes,
    fields: Box<[Field]>,
}

#[derive(Clone)]
struct Field {
    name: Range<usize>,
    value: Range<usize>,
}

impl Response {
    /// Reads a whole head, empty line included.
    ///
    /// # Errors
    ///
    /// What breaks the grammar of RFC 9112: folded lines, blanks before a colon and a carriage
    /// return alone among it, because two readers that disagree on them can be played against
    /// each other. And too many headers.
    pub(super) fn parse(head: Bytes, limits: &Limits) -> Result<Self, Http1Error> {
        // One line each, besides the status line and the empty one.
        let lines = memchr::memchr_iter(b'\n', &head).count().saturating_sub(2);
        if lines > limits.max_headers {
            return Err(Http1Error::TooManyHeaders { limit: limits.max_headers });
        }
        let mut headers = vec![httparse::EMPTY_HEADER; lines];
        let mut parsed = httparse::Response::new(&mut headers);
        let complete = match parsed.parse(&head) {
            Ok(httparse::Status::Complete(len)) => len == head.len(),
            Ok(httparse::Status::Partial) => false,
            Err(error) => return Err(Http1Error::MalformedHead { what: part(error) }),
        };
        let (true, Some(status @ 100..), Some(minor)) = (complete, parsed.code, parsed.version)
        else {
            return Err(Http1Error::MalformedHead { what: "the status line" });
        };
        let start = head.as_ptr().addr();
        let within = |part: &[u8]| {
            let from = part.as_ptr().addr() - start;
            from..from + part.len()
        };
        let fields = parsed
            .headers
            .iter()
            .map(|header| Field {
                name: within(header.name.as_bytes()),
                value: within(header.value),
            })
            .collect();
        let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
        Ok(Self { status, version, head, fields })
    }

    /// The status code, 200 to 999.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The version of the status line.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The value of the first header with this name, whatever its case, without blanks around it.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.header_all(name).next()
    }

    /// The same as text; `None` also if the value is not UTF-8.
    #[must_use]
    pub fn header_str(&self, name: &str) -> Option<&str> {
        self.header(name).and_then(|value| str::from_utf8(value).ok())
    }

    /// The values of all headers with this name, in order.
    pub fn header_all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.headers().filter(move |(held, _)| held.eq_ignore_ascii_case(name)).map(|(_, v)| v)
    }

    /// All headers, name as it was written and value, in order.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|field| {
            // Names are tokens, hence ASCII; the fallback is never taken.
            let name = str::from_utf8(&self.head[field.name.clone()]).unwrap_or_default();
            (name, &self.head[field.value.clone()])
        })
    }

    /// Whether the server will take another request on this connection (RFC 9112 §9.3).
    pub(super) fn keeps_alive(&self) -> bool {
        let says = |word: &str| {
            self.header_all("connection")
                .flat_map(list)
                .any(|option| option.eq_ignore_ascii_case(word.as_bytes()))
        };
        !says("close") && (self.version == Version::Http11 || says("keep-alive"))
    }
}

/// Status, version and the names of the headers; their values may be secret.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers().map(|(name, _)| name).collect();
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("version", &self.version)
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

/// The members of a comma-separated value, without blanks around them.
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(<[u8]>::trim_ascii)
}

const fn part(error: httparse::Error) -> &'static str {
    match error {
        httparse::Error::HeaderName => {
            "the name of a header (a folded line, or blanks before the colon)"
        }
        httparse::Error::HeaderValue => "the value of a header (a control character)",
        httparse::Error::NewLine => "a carriage return without a line feed",
        httparse::Error::Version => "the version",
        httparse::Error::Status => "the status line",
        httparse::Error::Token | httparse::Error::TooManyHeaders => "a header",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &'static str) -> Result<Response, Http1Error> {
        Response::parse(Bytes::from_static(head.as_bytes()), &Limits::default())
    }

    #[test]
    fn headers_are_found_in_any_case_and_in_order() {
        let head = parse("HTTP/1.1 404 Not Found\r\nX-A: 1\r\nb:\t two \r\nx-a: 3\r\nC:\r\n\r\n");
        let head = head.unwrap();
        assert_eq!((head.status(), head.version()), (404, Version::Http11));
        assert_eq!(head.header("x-A"), Some(&b"1"[..]));
        assert_eq!(head.header_all("X-a").collect::<Vec<_>>(), [b"1", b"3"]);
        assert_eq!(head.header_str("B"), Some("two"));
        assert_eq!(head.header("c"), Some(&b""[..]));
        assert_eq!(head.header("d"), None);
        assert_eq!(
            head.headers().map(|(name, _)| name).collect::<Vec<_>>(),
            ["X-A", "b", "x-a", "C"]
        );
    }

    #[test]
    fn a_status_line_may_lack_its_reason_and_lines_their_carriage_return() {
        assert_eq!(parse("HTTP/1.1 200\r\n\r\n").unwrap().status(), 200);
        assert_eq!(parse("HTTP/1.0 200 \n\n").unwrap().version(), Version::Http10);
    }

    #[test]
    fn a_head_that_two_readers_could_read_in_two_ways_is_refused() {
        let bad = [
            "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n\tc\r\n\r\n",
            "HTTP/1.1 200 OK\r\n A: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA\t: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\rC: d\r\n\r\n",
            "HTTP/1.1 200 OK\rA: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n",
            "HTTP/1.1 200 OK\r\n: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 099 Low\r\n\r\n",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1  200 OK\r\n\r\n",
            "HTTP/1.2 200 OK\r\n\r\n",
        ];
        for head in bad {
            let error = parse(head).err();
            assert!(matches!(error, Some(Http1Error::MalformedHead { .. })), "{head:?}: {error:?}");
        }
    }

    #[test]
    fn headers_are_counted() {
        let head = Bytes::from_static(b"HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\n\r\n");
        let limits = |max_headers| Limits { max_headers, ..Limits::default() };
        assert!(Response::parse(head.clone(), &limits(2)).is_ok());
        let error = Response::parse(head, &limits(1)).err();
        assert_eq!(error, Some(Http1Error::TooManyHeaders { limit: 1 }));
    }

    #[test]
    fn the_connection_stays_open_by_version_and_by_word() {
        let cases = [
            ("HTTP/1.1 200 OK\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nConnection: x, Close\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n\r\n", true),
        ];
        for (head, alive) in cases {
            assert_eq!(parse(head).unwrap().keeps_alive(), alive, "{head:?}");
        }
    }

    #[test]
    fn debug_output_shows_names_and_no_values() {
        let shown = format!("{:?}", parse("HTTP/1.1 200 OK\r\nSet-Cookie: secret\r\n\r\n"));
        assert!(shown.contains("Set-Cookie") && !shown.contains("secret"), "{shown}");
    }
}
