//! `/api/v1/sessions` and `/api/v1/sessions/{id}` beyond the plain contract (feature `metadata`). A request that does not ask for
//! it is answered as by a service without these methods.

use super::refusal::{Refusal, json};
use super::rest::{self, PageQuery, SessionPath, read_json, session_id};
use super::{auth, rpc};
use crate::engine::Engine;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// `GET /api/v1/sessions`.
pub(crate) async fn list(
    State(engine): State<Arc<Engine>>,
    query: Result<Query<PageQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    if !is_asked_for(&engine, &headers) {
        return Ok(not_allowed("POST"));
    }
    let client = auth::client(&engine, &headers).await?;
    let query = rest::query(query)?;
    let limit = query.limit(engine.config())?;
    let cursor = query.cursor.as_deref().filter(|cursor| !cursor.is_empty());
    Ok(json(200, &engine.sessions_of(&client, cursor, limit).await?))
}

/// `GET /api/v1/sessions/{id}`.
pub(crate) async fn read(
    State(engine): State<Arc<Engine>>,
    path: SessionPath,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    if !is_asked_for(&engine, &headers) {
        return Ok(not_allowed("DELETE"));
    }
    let session = session_id(path);
    auth::session(&engine, &headers, &session).await?;
    Ok(json(200, &engine.info(&session).await?))
}

/// `PATCH /api/v1/sessions/{id}`.
pub(crate) async fn update(
    State(engine): State<Arc<Engine>>,
    path: SessionPath,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, content) = request.into_parts();
    if !is_asked_for(&engine, &parts.headers) {
        return Ok(not_allowed("DELETE"));
    }
    let session = session_id(path);
    let who = auth::session(&engine, &parts.headers, &session).await?;
    let content = read_json(&engine, &parts.headers, content).await?;
    Ok(json(200, &engine.update(&session, who, content).await?))
}

fn is_asked_for(engine: &Engine, headers: &HeaderMap) -> bool {
    rpc::features(headers, engine.config()).metadata
}

/// What the plain contract answers: it has this method alone.
fn not_allowed(method: &'static str) -> Response {
    let allow = [(header::ALLOW, HeaderValue::from_static(method))];
    (StatusCode::METHOD_NOT_ALLOWED, allow).into_response()
}
