//! Request bodies: read within a limit and a time.

use super::refusal::Refusal;
use axum::body::Body;
use axum::http::{HeaderMap, header};
use broca_proto::session::problem::Problem;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// How long, and for how many bytes, an oversized body is read on so that the client can see the answer
/// before its connection breaks.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// Reads a whole body of at most `limit` bytes; the limit holds before anything is kept.
pub(crate) async fn read(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    time: Duration,
) -> Result<Bytes, Refusal> {
    let announced = headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        if !headers.contains_key(header::EXPECT) {
            linger(body);
        }
        return Err(too_large(limit));
    }
    let deadline = Instant::now() + time;
    let mut first = Bytes::new();
    let mut gathered = BytesMut::new();
    loop {
        let frame = match timeout_at(deadline, body.frame()).await {
            Err(_) => {
                let detail = format!(
                    "the request body did not arrive within {} s; send it without pauses",
                    time.as_secs_f32()
                );
                return Err(Problem::new(408, "request_timeout", detail).into());
            }
            Ok(None) => break,
            Ok(Some(Err(_))) => {
                return Err(Refusal::bad_request("the request body broke off"));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + gathered.len() + data.len() > limit {
            linger(body);
            return Err(too_large(limit));
        }
        // Most bodies are one piece, which is passed on without a copy.
        if first.is_empty() && gathered.is_empty() {
            first = data;
        } else {
            if gathered.is_empty() {
                gathered.extend_from_slice(&std::mem::take(&mut first));
            }
            gathered.extend_from_slice(&data);
        }
    }
    Ok(if gathered.is_empty() { first } else { gathered.freeze() })
}

fn too_large(limit: usize) -> Refusal {
    let detail = format!("the request body is larger than {limit} bytes; send less at once");
    Problem::new(413, "payload_too_large", detail).into()
}

fn linger(mut body: Body) {
    tokio::spawn(timeout(LINGER, async move {
        let mut taken = 0;
        while let Some(Ok(frame)) = body.frame().await {
            taken += frame.data_ref().map_or(0, Bytes::len);
            if taken > LINGER_BYTES {
                break;
            }
        }
    }));
}
