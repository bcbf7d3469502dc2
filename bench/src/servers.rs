//! The trivial service that contenders talk to: enough of the session service for a client to open
//! a session, and answers that were made before the first request.

use crate::Failure;
use crate::events;
use crate::scale::Scale;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs the server `kind` until its standard input ends; prints its port first.
pub(crate) fn run(kind: &str) -> Result<(), Failure> {
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut rest);
        std::process::exit(0);
    });
    match kind {
        "events-each" => blast(true),
        "events-64k" => blast(false),
        "turns" => turns(),
        "none" => nothing(),
        other => Err(format!("there is no server \"{other}\"").into()),
    }
}

const META: &str = r#"{"api_versions":["v1"],"version":"0.1.0"}"#;
const CLOSED: &str = r#"{"session_id":"ses_1","state":"closed"}"#;

/// What every request but a message and a subscription is answered with.
fn small_answer(method: &str, path: &str, body: &[u8]) -> Option<String> {
    if path.ends_with("/meta") {
        return Some(META.to_owned());
    }
    if method == "DELETE" {
        return Some(CLOSED.to_owned());
    }
    if !path.ends_with("/rpc") {
        return Some(opened());
    }
    memchr::memmem::find(body, b"session.registerDriver").map(|_| {
        format!(
            "{{\"id\":{},\"jsonrpc\":\"2.0\",\"result\":{{\"registered\":true}}}}\n",
            events::id_of(body)
        )
    })
}

/// A session with an id of its own.
fn opened() -> String {
    static SESSIONS: AtomicUsize = AtomicUsize::new(1);
    let number = SESSIONS.fetch_add(1, Ordering::Relaxed);
    format!(
        "{{\"session_id\":\"ses_{number}\",\"session_key\":\"bae_ses_{number}\",\
         \"profile\":{{\"id\":\"pro_1\",\"name\":\"main\"}}}}"
    )
}

/// For contenders that read from their own memory: a port where nobody answers.
fn nothing() -> Result<(), Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    loop {
        std::thread::park();
    }
}

// ---- a stream of events -----------------------------------------------------------------------

/// Plain threads and ready-made bytes, so that the server costs little while a consumer is measured.
fn blast(chunk_per_event: bool) -> Result<(), Failure> {
    let events = Scale::from_environment()?.events;
    let mut body = String::with_capacity(events * 360);
    for i in 0..events {
        events::line(i, &mut body);
    }
    let body = Arc::new(chunked(body.as_bytes(), chunk_per_event));
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    for stream in listener.incoming() {
        let (stream, body) = (stream?, body.clone());
        std::thread::spawn(move || blast_connection(stream, &body));
    }
    Ok(())
}

fn chunked(body: &[u8], per_event: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + body.len() / 20);
    let mut put = |chunk: &[u8]| {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    };
    if per_event {
        body.split_inclusive(|b| *b == b'\n').for_each(&mut put);
    } else {
        body.chunks(64 * 1024).for_each(&mut put);
    }
    out
}

fn blast_connection(mut stream: TcpStream, body: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    let mut part = vec![0; 16 * 1024];
    loop {
        let (head, length) = loop {
            if let Some(at) = memchr::memmem::find(&buffer, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&buffer[..at]).to_ascii_lowercase();
                let length = head.lines().find_map(|l| l.strip_prefix("content-length:"));
                let length: usize = length.and_then(|v| v.trim().parse().ok()).unwrap_or(0);
                if buffer.len() >= at + 4 + length {
                    break (at + 4, length);
                }
            }
            let n = stream.read(&mut part)?;
            if n == 0 {
                return Ok(());
            }
            buffer.extend_from_slice(&part[..n]);
        };
        let line = String::from_utf8_lossy(&buffer[..head]).into_owned();
        let mut words = line.split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let path = words.next().unwrap_or_default().to_owned();
        let request: Vec<u8> = buffer.drain(..head + length).skip(head).collect();
        if let Some(answer) = small_answer(&method, &path, &request) {
            let kind =
                if path.ends_with("/rpc") { "application/x-ndjson" } else { "application/json" };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
                answer.len()
            );
            stream.write_all(format!("{head}{answer}").as_bytes())?;
            continue;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n")?;
        for piece in body.chunks(256 * 1024) {
            stream.write_all(piece)?;
        }
        let id = events::id_of(&request);
        let last = if memchr::memmem::find(&request, b"session.subscribe").is_some() {
            format!("{}{}", events::CLOSED, events::unsubscribed(&id))
        } else {
            events::terminal(&id, "done")
        };
        stream.write_all(format!("{:x}\r\n{last}\r\n0\r\n\r\n", last.len()).as_bytes())?;
    }
}

// ---- tool round trips -------------------------------------------------------------------------

fn turns() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        println!("{}", listener.local_addr()?.port());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                let service = service_fn(turn);
                // A connection that breaks is the contender's affair.
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    })
}

/// Two events and a terminal line, in three chunks.
async fn turn(
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let body = request.into_body().collect().await?.to_bytes();
    if let Some(answer) = small_answer(&method, &path, &body) {
        let kind = if path.ends_with("/rpc") { "application/x-ndjson" } else { "application/json" };
        let mut response = Response::new(Full::new(Bytes::from(answer)).boxed());
        response
            .headers_mut()
            .insert("content-type", hyper::header::HeaderValue::from_static(kind));
        return Ok(response);
    }
    let id = events::id_of(&body);
    let last = if memchr::memmem::find(&body, b"\"tool_result\"").is_some() {
        // A tool that was not run, or whose result was lost, shows in the answer.
        let right = memchr::memmem::find(&body, b"\"42\"").is_some();
        events::terminal(&id, if right { "42" } else { "wrong result" })
    } else {
        events::paused(&id)
    };
    let mut event = String::new();
    events::line(1, &mut event);
    let event = Bytes::from(event);
    let parts = [event.clone(), event, Bytes::from(last)];
    let stream = futures_util::stream::iter(parts.map(|part| Ok(Frame::data(part))));
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(stream)));
    let kind = hyper::header::HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert("content-type", kind);
    Ok(response)
}
