//! The client port: HTTP/1.1 around the engine. Routes are thin; what they mean is decided in the
//! protocol crate and the engine.

pub(crate) mod auth;
mod body;
mod info;
mod listen;
mod patient;
pub(crate) mod refusal;
pub(crate) mod rest;
pub(crate) mod rpc;
mod stream;
mod trace;

use crate::engine::Engine;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{delete, get, post};
pub(crate) use listen::serve;
use std::sync::Arc;
use tracing::Instrument;

/// The routes of session service §3. An unknown path is an empty 404, a wrong method an empty 405.
pub(crate) fn router(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/healthz", get(|| async {}))
        .route("/api/v1/meta", get(rest::meta))
        .route("/api/v1/sessions", post(rest::open).get(info::list))
        .route("/api/v1/sessions/{id}", delete(rest::close).get(info::read).patch(info::update))
        .route("/api/v1/sessions/{id}/join", post(rest::join))
        .route("/api/v1/sessions/{id}/participants", get(rest::participants))
        .route("/api/v1/sessions/{id}/events", get(rest::events))
        .route("/api/v1/sessions/{id}/rpc", post(rpc::call))
        .layer(middleware::from_fn(in_span))
        .with_state(engine)
}

/// Runs each request in a span that carries the caller's trace, if it sent a valid one.
pub(crate) async fn in_span(request: Request, next: Next) -> Response {
    let trace = trace::TraceContext::read(request.headers());
    let span = tracing::info_span!(
        "http.request",
        method = %request.method(),
        trace_id = trace.as_ref().map(trace::TraceContext::trace_id),
        parent_id = trace.as_ref().map(trace::TraceContext::parent_id),
    );
    next.run(request).instrument(span).await
}
