//! `POST /api/v1/sessions/{id}/rpc`: JSON-RPC in, NDJSON out (session service §4).

use super::stream::{Alive, StreamBody};
use super::{auth, body, refusal::Refusal, rest};
use crate::config::Config;
use crate::engine::{Engine, Reply};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use broca_proto::session::feature::{self, Features};
use broca_proto::session::rpc;
use bytes::Bytes;
use std::sync::Arc;

/// Authenticates, reads the envelope and lets the engine answer.
pub(crate) async fn call(
    State(engine): State<Arc<Engine>>,
    path: rest::SessionPath,
    request: Request,
) -> Response {
    match answer(&engine, path, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn answer(
    engine: &Arc<Engine>,
    path: rest::SessionPath,
    request: Request,
) -> Result<Response, Refusal> {
    let session = rest::session_id(path);
    let (parts, content) = request.into_parts();
    let who = auth::participant(engine, &parts.headers, &session).await?;
    let config = engine.config();
    let content =
        body::read(&parts.headers, content, config.max_request_bytes, config.body_timeout).await?;
    let admitted = engine.admit_request(&who);
    let request = match rpc::Request::read(content) {
        Ok(request) => match admitted {
            Ok(()) => Ok(request),
            Err(exceeded) => Err((request.id, exceeded.failure())),
        },
        Err(refused) => Err(refused),
    };
    let request = match request {
        Ok(request) => request,
        Err((id, failure)) => {
            let line = id.map(|id| rpc::response_line(&id, Err(&failure))).unwrap_or_default();
            return Ok(ndjson(line.into()));
        }
    };
    let features = features(&parts.headers, config);
    let alive = Alive::of(features, config);
    let reply = engine.call(&session, who, features, request).await;
    Ok(ndjson(match reply {
        Reply::Line(line) => line.into(),
        Reply::Call(listening) => Body::new(StreamBody::call(listening, alive)),
        Reply::Watch(replay) => Body::new(StreamBody::subscription(replay, alive)),
        Reply::Nothing => Bytes::new().into(),
    }))
}

/// What the request asks for beyond the plain contract, and gets.
pub(crate) fn features(headers: &HeaderMap, config: &Config) -> Features {
    let values = headers.get_all(feature::HEADER);
    Features::parse(values.iter().filter_map(|value| value.to_str().ok())).and(config.offered())
}

fn ndjson(body: Body) -> Response {
    let mut response = Response::new(body);
    let ndjson = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(header::CONTENT_TYPE, ndjson);
    response
}
