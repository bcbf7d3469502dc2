//! Problem documents as answers (session service §3.5).

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use broca_proto::Json;
use broca_proto::session::problem::Problem;

/// A refused REST call.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Problem);

impl Refusal {
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self(Problem::new(400, "bad_request", detail))
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self(Problem::new(404, "not_found", detail))
    }

    pub(crate) fn unauthorized(detail: &str) -> Self {
        Self(Problem::new(401, "unauthorized", detail))
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        json(self.0.status, &self.0.to_json())
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
