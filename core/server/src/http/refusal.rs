//! Problem documents as answers (session service §3.5).

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use broca_proto::Json;
use broca_proto::run::quota::Exceeded;
use broca_proto::session::problem::Problem;

/// A refused REST call.
#[derive(Debug)]
pub(crate) struct Refusal {
    problem: Problem,
    /// Seconds after which the same call may go through.
    retry_after: Option<u64>,
}

impl Refusal {
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Problem::new(400, "bad_request", detail).into()
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Problem::new(404, "not_found", detail).into()
    }

    pub(crate) fn unauthorized(detail: &str) -> Self {
        Problem::new(401, "unauthorized", detail).into()
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self { problem, retry_after: None }
    }
}

impl From<Exceeded> for Refusal {
    fn from(exceeded: Exceeded) -> Self {
        Self { problem: exceeded.problem(), retry_after: exceeded.retry_after_seconds() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json(self.problem.status, &self.problem.to_json());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A JSON answer of one piece.
pub(crate) fn json(status: u16, body: &Json) -> Response {
    let mut response = Response::new(Body::from(body.clone().into_bytes()));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
