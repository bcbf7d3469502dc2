//! An HTTP client that shows raw bytes: whole answers, and streams line by line.

use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Nothing in these tests takes longer unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How long a stream is watched for bytes that must not come.
pub const SILENCE: Duration = Duration::from_millis(150);

/// Waits for something that must happen.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => panic!("{what} did not happen"),
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// An answer that is still being read: its head, then its bytes.
pub struct Stream {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    left: Left,
}

enum Left {
    Length(usize),
    Chunked,
    Over,
}

/// Sends a request and reads the head of the answer.
pub async fn begin(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(String, String)],
    body: Option<&str>,
) -> Stream {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = body {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    head.push_str(body.unwrap_or_default());
    // The service may answer, and stop reading, before all is written.
    let _ = socket.write_all(head.as_bytes()).await;
    soon("the head of an answer", Stream::read_head(socket, method == "HEAD")).await
}

/// Sends a request and reads the whole answer.
pub async fn exchange(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(String, String)],
    body: Option<&str>,
) -> Answer {
    let mut stream = begin(addr, method, path, headers, body).await;
    let mut bytes = Vec::new();
    while let Some(piece) = soon("the end of an answer", stream.piece()).await {
        bytes.extend(piece);
    }
    Answer { status: stream.status, headers: stream.headers, body: bytes }
}

impl Stream {
    pub async fn read_head(socket: TcpStream, bodiless: bool) -> Self {
        let mut reader = BufReader::new(socket);
        let mut line = String::new();
        reader.read_line(&mut line).await.unwrap();
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let mut headers = Vec::new();
        let mut left = Left::Over;
        loop {
            line.clear();
            reader.read_line(&mut line).await.unwrap();
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            let (name, value) = (name.to_owned(), value.trim().to_owned());
            match name.to_ascii_lowercase().as_str() {
                "content-length" => left = Left::Length(value.parse().unwrap()),
                "transfer-encoding" => left = Left::Chunked,
                _ => {}
            }
            headers.push((name, value));
        }
        if bodiless {
            left = Left::Over;
        }
        Self { status, headers, reader, left }
    }

    /// The next bytes of the body; nothing at its end. Panics when it breaks off.
    pub async fn piece(&mut self) -> Option<Vec<u8>> {
        match self.left {
            Left::Over | Left::Length(0) => None,
            Left::Length(length) => {
                let mut bytes = vec![0; length];
                self.reader.read_exact(&mut bytes).await.unwrap();
                self.left = Left::Over;
                Some(bytes)
            }
            Left::Chunked => {
                let mut line = String::new();
                self.reader.read_line(&mut line).await.unwrap();
                let size = usize::from_str_radix(line.trim(), 16)
                    .unwrap_or_else(|_| panic!("the body broke off: {line:?}"));
                let mut bytes = vec![0; size + 2];
                self.reader.read_exact(&mut bytes).await.unwrap();
                bytes.truncate(size);
                if size == 0 {
                    self.left = Left::Over;
                    return None;
                }
                Some(bytes)
            }
        }
    }

    pub fn is_chunked(&self) -> bool {
        matches!(self.left, Left::Chunked)
    }
}

/// A streamed answer, line by line.
pub struct Lines {
    pub stream: Stream,
    buffered: Vec<u8>,
}

impl Lines {
    pub async fn of(stream: Stream) -> Self {
        assert_eq!(stream.status, 200);
        Self { stream, buffered: Vec::new() }
    }

    /// The next line; nothing at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffered.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffered.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            match soon("a line or the end of a stream", self.stream.piece()).await {
                Some(piece) => self.buffered.extend(piece),
                None => {
                    assert!(self.buffered.is_empty(), "a line without its end");
                    return None;
                }
            }
        }
    }

    /// Reads up to the first event of this type.
    pub async fn until(&mut self, event_type: &str) -> Value {
        loop {
            let line = self.next().await.unwrap_or_else(|| panic!("no {event_type}"));
            if line["params"]["event_type"] == event_type {
                return line;
            }
        }
    }

    /// Reads up to the first notification of this method.
    pub async fn until_method(&mut self, method: &str) -> Value {
        loop {
            let line = self.next().await.unwrap_or_else(|| panic!("no {method}"));
            if line["method"] == method {
                return line;
            }
        }
    }

    /// Everything up to the end.
    pub async fn rest(&mut self) -> Vec<Value> {
        let mut lines = Vec::new();
        while let Some(line) = self.next().await {
            lines.push(line);
        }
        lines
    }

    /// Nothing comes for a while.
    pub async fn stays_silent(&mut self) {
        assert!(self.buffered.is_empty());
        let piece = timeout(SILENCE, self.stream.piece()).await;
        if let Ok(piece) = piece {
            panic!("not silent: {:?}", piece.map(|p| String::from_utf8_lossy(&p).into_owned()));
        }
    }
}
