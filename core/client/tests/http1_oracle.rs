//! hyper, over memory, as a second opinion: on responses, and on the requests we write.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{convert::Infallible, sync::Arc};

use broca::http1::{Connection, Event, Limits, Request, Target};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::Mutex,
};

mod http1_exchange;
use http1_exchange::{Exchange, GET, RESPONSES, damaged};

/// What a reader makes of a response that it accepts whole.
#[derive(Debug, PartialEq, Eq)]
struct Accepted {
    status: u16,
    /// Sorted by name; hyper keeps the order of equal names only.
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// Where we refuse and hyper does not, and why. Everything else must be the same.
const STRICTER: &[(&str, &str)] = &[
    ("101", "no upgrade was asked for, so nobody would speak the other protocol"),
    ("both framings", "RFC 9112 §6.3: ought to be handled as an error; the usual smuggling vector"),
    ("both framings, turned", "the same"),
    ("204 with both framings", "the same; that there is no body does not make it less suspicious"),
    ("gzip, chunked", "we ask for no coding and could not undo it"),
    ("chunked twice", "RFC 9112 §6.1: chunked must not be applied twice"),
    ("chunked on two lines", "the same"),
    ("identity", "no coding of RFC 9112; a body until close would be a guess"),
    ("gzip", "we ask for no coding and could not undo it"),
    ("chunk size of 17 digits", "as httparse: no size needs more than 16"),
    ("trailer ends with LF", "RFC 9112 §7.1.2: a trailer line ends with CR LF"),
    ("empty line first", "RFC 9112 §2.2 lets servers skip one, not clients"),
];

async fn hyper_reads(response: &[u8], piece: usize) -> Option<Accepted> {
    // The buffer holds one piece, so that hyper sees the pieces as they were cut.
    let (near, mut far) = tokio::io::duplex(4096);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    let driver = tokio::spawn(connection);
    let server = async {
        read_head(&mut far).await;
        for piece in response.chunks(piece) {
            if far.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(far);
    };
    let request = hyper::Request::get("/").header("host", "localhost");
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let client = async {
        let response = sender.send_request(request).await.ok()?;
        let (head, body) = response.into_parts();
        let mut headers: Vec<_> = head
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect();
        headers.sort_by(|a, b| a.0.cmp(&b.0));
        let body = body.collect().await.ok()?.to_bytes().to_vec();
        Some(Accepted { status: head.status.as_u16(), headers, body })
    };
    let (accepted, ()) = tokio::join!(client, server);
    driver.abort();
    accepted
}

async fn read_head(stream: &mut DuplexStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
}

fn we_read(response: &[u8], piece: usize) -> Option<Accepted> {
    // An empty response has no pieces; hyper sees it as nothing but an end.
    let exchange = Exchange::of(GET, Limits::default(), response.chunks(piece), Some(true));
    exchange.end?;
    let mut headers = exchange.headers;
    headers.sort_by(|a, b| a.0.cmp(&b.0));
    Some(Accepted { status: exchange.status?, headers, body: exchange.body })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn we_read_what_hyper_reads_except_where_we_are_stricter_on_purpose() {
    let runtime = runtime();
    let mut differences = Vec::new();
    let mut accepted = 0;
    for (name, response) in RESPONSES {
        let stricter = STRICTER.iter().any(|(held, _)| held == name);
        for piece in [1, 3, 100_000] {
            let ours = we_read(response, piece);
            let theirs = runtime.block_on(hyper_reads(response, piece));
            let as_expected =
                if stricter { ours.is_none() && theirs.is_some() } else { ours == theirs };
            accepted += usize::from(ours.is_some());
            if !as_expected {
                differences.push(format!("{name} by {piece}: ours {ours:?}, hyper {theirs:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(accepted >= 60, "only {accepted} responses were accepted: nothing was compared");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_we_accept_of_damaged_responses_hyper_reads_the_same(
        response in damaged(),
        piece in 1..200_usize,
    ) {
        if let Some(ours) = we_read(&response, piece) {
            let theirs = runtime().block_on(hyper_reads(&response, piece));
            prop_assert_eq!(Some(ours), theirs);
        }
    }
}

/// What hyper's server saw of a request: method, target, headers, body.
type Seen = (String, String, Vec<(String, Vec<u8>)>, Vec<u8>);

/// Sends the requests over one connection to hyper's server, piece by piece.
async fn hyper_serves(requests: &[Request<'_>], piece: usize) -> Vec<Seen> {
    let (mut near, far) = tokio::io::duplex(64 * 1024);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let service = hyper::service::service_fn(move |request: hyper::Request<_>| {
        let log = Arc::clone(&log);
        async move {
            let (head, body): (_, hyper::body::Incoming) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let headers = head.headers.iter();
            let headers = headers.map(|(n, v)| (n.to_string(), v.as_bytes().to_vec())).collect();
            let target = head.uri.to_string();
            log.lock().await.push((head.method.to_string(), target, headers, body.to_vec()));
            Ok::<_, Infallible>(hyper::Response::new(Full::new(Bytes::from_static(b"seen"))))
        }
    });
    let server = tokio::spawn(
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service),
    );
    let mut connection = Connection::new(Limits::default());
    for request in requests {
        let bytes = connection.send(*request).unwrap();
        for piece in bytes.chunks(piece) {
            near.write_all(piece).await.unwrap();
            connection.written(piece.len());
            tokio::task::yield_now().await;
        }
        let mut body = Vec::new();
        'response: loop {
            let mut buffer = vec![0; 1000];
            let n = near.read(&mut buffer).await.unwrap();
            assert!(n > 0, "hyper closed the connection");
            buffer.truncate(n);
            connection.receive(Bytes::from(buffer));
            while let Some(event) = connection.poll().unwrap() {
                match event {
                    Event::Head(head) => assert_eq!(head.status(), 200),
                    Event::Body(data) => body.extend_from_slice(&data),
                    Event::End { reusable, .. } => {
                        assert!(reusable);
                        break 'response;
                    }
                    Event::Tunnel(_) => panic!("no tunnel was asked for"),
                }
            }
        }
        assert_eq!(body, if request.method == "HEAD" { &b""[..] } else { b"seen" });
    }
    drop(near);
    server.await.unwrap().unwrap();
    let mut seen = seen.lock().await;
    std::mem::take(&mut *seen)
}

#[test]
fn hyper_reads_our_requests_as_we_meant_them() {
    let body = vec![b'x'; 300_000];
    let requests = [
        GET,
        Request { method: "HEAD", target: Target::Origin("/a?b=%20&c"), ..GET },
        Request { method: "POST", body: &body, headers: &[("X-A", "1"), ("x-a", "2\t3")], ..GET },
        Request { method: "POST", ..GET },
        Request { method: "DELETE", target: Target::Origin("/gone"), ..GET },
        Request { target: Target::Absolute("http://localhost:1/via?proxy"), ..GET },
        Request { method: "PUT", body: b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", ..GET },
    ];
    for piece in [1, 7, 1_000_000] {
        let few = if piece == 1 { &requests[..2] } else { &requests[..] };
        let seen = runtime().block_on(hyper_serves(few, piece));
        assert_eq!(seen.len(), few.len());
        for (request, (method, target, headers, body)) in few.iter().zip(seen) {
            let (Target::Origin(ours) | Target::Absolute(ours) | Target::Authority(ours)) =
                request.target;
            assert_eq!((&method[..], &target[..], &body[..]), (request.method, ours, request.body));
            let length = body.len().to_string();
            let mut expected = vec![("host", request.host)];
            expected.extend(request.headers);
            if !body.is_empty() || method == "POST" {
                expected.push(("content-length", &length));
            }
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(name, value)| (name.to_ascii_lowercase(), value.as_bytes().to_vec()))
                .collect();
            assert_eq!(headers, expected);
        }
    }
}
