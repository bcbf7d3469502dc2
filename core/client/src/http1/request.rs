//! Requests as bytes: one buffer with line, headers and body.

use std::fmt;

use bytes::{Bytes, BytesMut};

use super::{Http1Error, Limits};

/// What is asked of the server.
///
/// `Host` and `Content-Length` are written by the connection; requests are never chunked and never
/// wait for `100 Continue`.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The method, a token in its exact case: `GET`, `POST`, `CONNECT`, …
    pub method: &'a str,
    /// Whom or what the request is for.
    pub target: Target<'a>,
    /// The value of `Host`: a host name or address, with its port unless it is the default one.
    pub host: &'a str,
    /// Further headers, name and value, in the order in which they are to be written.
    pub headers: &'a [(&'a str, &'a str)],
    /// The whole body; empty for none.
    pub body: &'a [u8],
}

/// The four ways to write a target (RFC 9112 §3.2) that a client of ours needs: three.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// `/path?query`: to the server itself.
    Origin(&'a str),
    /// `http://host/path?query`: to a proxy.
    Absolute(&'a str),
    /// `host:port`: to a proxy, with the method `CONNECT` and with no other.
    Authority(&'a str),
}

/// A target may hold a secret in its query: only its form is shown.
impl fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Origin(_) => "Origin(..)",
            Self::Absolute(_) => "Absolute(..)",
            Self::Authority(_) => "Authority(..)",
        })
    }
}

/// Names of headers and the length of the body; values, target and body may be secret.
impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| *name).collect();
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("target", &self.target)
            .field("headers", &names)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// What the meaning of the response depends on (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Head,
    Connect,
    Other,
}

/// A request ready to be written.
pub(super) struct Encoded {
    pub(super) bytes: Bytes,
    pub(super) asked: Asked,
    /// The request itself says `Connection: close`.
    pub(super) closes: bool,
}

/// The request in one buffer.
///
/// # Errors
///
/// Whatever would let a method, target, host, name or value change the shape of the request, and
/// headers that would contradict what is written here.
pub(super) fn encode(request: &Request<'_>, limits: &Limits) -> Result<Encoded, Http1Error> {
    let refuse = |what| Err(Http1Error::BadRequest { what });
    if !is_token(request.method) {
        return refuse("the method is not a token; use GET, POST or the like");
    }
    let asked = match request.method {
        "CONNECT" => Asked::Connect,
        "HEAD" => Asked::Head,
        _ => Asked::Other,
    };
    if matches!(request.target, Target::Authority(_)) != (asked == Asked::Connect) {
        return refuse("a target of host and port goes with the method CONNECT, and only with it");
    }
    let target = match request.target {
        Target::Origin(path) if !path.starts_with('/') => {
            return refuse("the target's path does not begin with a slash");
        }
        Target::Absolute(url) if !(url.starts_with("http://") || url.starts_with("https://")) => {
            return refuse("the target for a proxy does not begin with http:// or https://");
        }
        Target::Authority(authority) if !is_authority(authority) => {
            return refuse("the target of CONNECT is not a host and a port");
        }
        Target::Origin(text) | Target::Absolute(text) | Target::Authority(text) => text,
    };
    if !target.bytes().all(|b| b.is_ascii_graphic()) {
        return refuse(
            "the target holds a space, a control or a character beyond ASCII; \
             percent-encode it",
        );
    }
    if !is_authority(request.host) {
        return refuse("the host is empty or holds a character that no host has");
    }
    if asked == Asked::Connect && !request.body.is_empty() {
        return refuse("CONNECT has no body");
    }
    let closes = check_headers(request.headers)?;

    let fields: usize = request.headers.iter().map(|(n, v)| n.len() + v.len() + 4).sum();
    let about = request.method.len() + target.len() + request.host.len() + fields + 64;
    let mut out = BytesMut::with_capacity(about + request.body.len());
    for part in [request.method, " ", target, " HTTP/1.1\r\nHost: ", request.host, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    for (name, value) in request.headers {
        for part in [name, ": ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    // A method that usually has a body says so even when it is empty (RFC 9110 §8.6).
    if !request.body.is_empty() || matches!(request.method, "POST" | "PUT" | "PATCH") {
        out.extend_from_slice(format!("Content-Length: {}\r\n", request.body.len()).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    if out.len() > limits.max_head_bytes {
        return Err(Http1Error::RequestHeadTooLong { limit: limits.max_head_bytes });
    }
    out.extend_from_slice(request.body);
    Ok(Encoded { bytes: out.freeze(), asked, closes })
}

/// Headers that are written here, or that would promise what this connection does not do.
const RESERVED: [&str; 7] =
    ["Host", "Content-Length", "Transfer-Encoding", "Expect", "Upgrade", "TE", "Trailer"];

/// Whether one of them closes the connection, if all may be written.
fn check_headers(headers: &[(&str, &str)]) -> Result<bool, Http1Error> {
    let mut closes = false;
    for (index, (name, value)) in headers.iter().enumerate() {
        if !is_token(name) {
            return Err(Http1Error::HeaderName { index });
        }
        if let Some(name) = RESERVED.into_iter().find(|held| held.eq_ignore_ascii_case(name)) {
            return Err(Http1Error::HeaderReserved { name });
        }
        if !value.bytes().all(|b| b == b'\t' || (b >= b' ' && b != 0x7f)) {
            return Err(Http1Error::HeaderValue { index });
        }
        closes |= name.eq_ignore_ascii_case("connection")
            && value.split(',').any(|option| option.trim().eq_ignore_ascii_case("close"));
    }
    Ok(closes)
}

/// A name or method as RFC 9110 §5.6.2 has it.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn is_authority(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Request<'static> = Request {
        method: "POST",
        target: Target::Origin("/rpc"),
        host: "example.test:8080",
        headers: &[],
        body: b"{}",
    };

    fn written(request: Request<'_>) -> Result<String, Http1Error> {
        let encoded = encode(&request, &Limits::default())?;
        Ok(String::from_utf8(encoded.bytes.to_vec()).unwrap())
    }

    #[test]
    fn a_request_is_one_buffer_with_host_and_exact_length() {
        assert_eq!(
            written(Request { headers: &[("Accept", "a/b"), ("X-Empty", "")], ..PLAIN }).unwrap(),
            "POST /rpc HTTP/1.1\r\nHost: example.test:8080\r\nAccept: a/b\r\nX-Empty: \r\n\
             Content-Length: 2\r\n\r\n{}"
        );
    }

    #[test]
    fn only_methods_with_a_body_announce_an_empty_one() {
        let none = Request { body: b"", ..PLAIN };
        assert!(written(none).unwrap().contains("Content-Length: 0\r\n"));
        assert!(!written(Request { method: "GET", ..none }).unwrap().contains("Content-Length"));
    }

    #[test]
    fn a_target_is_written_in_the_form_it_was_given() {
        let url = Target::Absolute("http://example.test/rpc?a=b");
        let line = written(Request { target: url, ..PLAIN }).unwrap();
        assert!(line.starts_with("POST http://example.test/rpc?a=b HTTP/1.1\r\n"));
        let connect = Request {
            method: "CONNECT",
            target: Target::Authority("[::1]:443"),
            body: b"",
            ..PLAIN
        };
        assert!(written(connect).unwrap().starts_with("CONNECT [::1]:443 HTTP/1.1\r\nHost: "));
    }

    #[test]
    fn nothing_can_be_injected_into_a_head() {
        for method in ["", "GET ", "GET /\r\n", "GE\0T", "GÉT"] {
            let bad = written(Request { method, ..PLAIN });
            assert!(matches!(bad, Err(Http1Error::BadRequest { .. })), "{method:?}");
        }
        let targets = [
            Target::Origin(""),
            Target::Origin("rpc"),
            Target::Origin("/a b"),
            Target::Origin("/a\r\nX: y"),
            Target::Origin("/é"),
            Target::Absolute("/rpc"),
            Target::Absolute("http://a/\n"),
            Target::Authority("a:1"),
        ];
        for target in targets {
            let bad = written(Request { target, ..PLAIN });
            assert!(matches!(bad, Err(Http1Error::BadRequest { .. })), "{target:?}");
        }
        for host in ["", "a b", "a\r\nX: y", "a/b", "u@h", "a,b", "a\0"] {
            let bad = written(Request { host, ..PLAIN });
            assert!(matches!(bad, Err(Http1Error::BadRequest { .. })), "{host:?}");
        }
        for name in ["", "A B", "A:", "A\r\nB", "A\0", " A", "Ä"] {
            let bad = written(Request { headers: &[("Ok", "1"), (name, "v")], ..PLAIN });
            assert_eq!(bad, Err(Http1Error::HeaderName { index: 1 }), "{name:?}");
        }
        for value in ["a\rb", "a\nb", "a\r\nB: c", "a\0", "\x7f", "\x1b"] {
            let bad = written(Request { headers: &[("A", value)], ..PLAIN });
            assert_eq!(bad, Err(Http1Error::HeaderValue { index: 0 }), "{value:?}");
        }
    }

    #[test]
    fn headers_that_frame_the_request_are_not_the_callers() {
        for name in ["host", "CONTENT-LENGTH", "transfer-encoding", "Expect", "upgrade", "te"] {
            let bad = written(Request { headers: &[(name, "1")], ..PLAIN });
            assert!(matches!(bad, Err(Http1Error::HeaderReserved { .. })), "{name}");
        }
    }

    #[test]
    fn connect_goes_with_an_authority_and_without_a_body() {
        let connect = Request { method: "CONNECT", body: b"", ..PLAIN };
        let authority = Target::Authority("h:1");
        assert!(written(connect).is_err());
        assert!(written(Request { target: authority, body: b"x", ..connect }).is_err());
        assert!(written(Request { target: Target::Authority("h/:1"), ..connect }).is_err());
        assert!(written(Request { target: authority, ..connect }).is_ok());
    }

    #[test]
    fn a_request_head_over_the_limit_is_refused_and_a_large_body_is_not() {
        let limits = Limits { max_head_bytes: 100, ..Limits::default() };
        assert!(encode(&Request { body: &[b'x'; 1000], ..PLAIN }, &limits).is_ok());
        let long = "v".repeat(100);
        let bad = encode(&Request { headers: &[("A", &long)], ..PLAIN }, &limits);
        assert_eq!(bad.err(), Some(Http1Error::RequestHeadTooLong { limit: 100 }));
    }

    #[test]
    fn debug_output_shows_no_value_target_or_body() {
        let shown = format!(
            "{:?}",
            Request {
                target: Target::Origin("/secret"),
                headers: &[("Authorization", "secret")],
                body: b"secret",
                ..PLAIN
            }
        );
        assert!(shown.contains("Authorization") && !shown.contains("secret"), "{shown}");
    }
}
