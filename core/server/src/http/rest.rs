//! The calls around the session loop: one JSON body in, one JSON body out (session service §3).

use super::refusal::{Refusal, json};
use super::{auth, body, rpc};
use crate::config::Config;
use crate::engine::Engine;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use broca_proto::Json;
use broca_proto::session::ids::SessionId;
use broca_proto::session::rest::{Limits, Meta, Participants};
use bytes::Bytes;
use serde::Deserialize;
use std::sync::Arc;

/// The `{id}` of a path, or why it cannot be read.
pub(crate) type SessionPath = Result<Path<String>, PathRejection>;

/// The session that a path names. One that is no UTF-8 names none: it is answered as any id that is not there,
/// after the key was looked at.
pub(crate) fn session_id(path: SessionPath) -> SessionId {
    SessionId::from(path.map_or_else(|_| "\u{fffd}".to_owned(), |Path(id)| id))
}

/// `GET /api/v1/meta`.
pub(crate) async fn meta(State(engine): State<Arc<Engine>>) -> Response {
    let config = engine.config();
    let mut limits = Limits::standard();
    limits.turn_timeout_ms = u64::try_from(config.turn_timeout.as_millis()).ok();
    limits.max_request_bytes = Some(config.max_request_bytes as u64);
    limits.max_rounds = Some(config.max_rounds);
    limits.ring_events = Some(config.hub.ring_events as u64);
    limits.max_page = Some(config.page_max);
    let heartbeat = u64::try_from(config.heartbeat_notice.as_millis()).ok();
    limits.approval_timeout_ms = u64::try_from(config.approval_timeout.as_millis()).ok();
    limits.message_ids = Some(config.message_ids);
    limits.max_metadata_bytes = Some(config.max_metadata as u64);
    limits.max_metadata_keys = Some(config.max_metadata_keys);
    limits.max_hold_ms = u64::try_from(config.max_hold.as_millis()).ok();
    limits.heartbeat_ms = heartbeat.filter(|every| *every > 0);
    let meta = Meta {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api_versions: vec!["v1".to_owned()],
        features: config.offered().words().into_iter().map(str::to_owned).collect(),
        limits: Some(limits),
    };
    json(200, &Json::encode(&meta).unwrap_or_default())
}

/// `POST /api/v1/sessions`.
pub(crate) async fn open(
    State(engine): State<Arc<Engine>>,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, content) = request.into_parts();
    let client = auth::client(&engine, &parts.headers).await?;
    let content = read_json(&engine, &parts.headers, content).await?;
    let features = rpc::features(&parts.headers, engine.config());
    Ok(json(201, &engine.open(client, features, content).await?))
}

/// `POST /api/v1/sessions/{id}/join`.
pub(crate) async fn join(
    State(engine): State<Arc<Engine>>,
    path: SessionPath,
    request: Request,
) -> Result<Response, Refusal> {
    let session = session_id(path);
    let (parts, content) = request.into_parts();
    let client = auth::client(&engine, &parts.headers).await?;
    let content = read_json(&engine, &parts.headers, content).await?;
    Ok(json(201, &engine.join(&session, client, content).await?))
}

/// `GET …/participants`.
pub(crate) async fn participants(
    State(engine): State<Arc<Engine>>,
    path: SessionPath,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let session = session_id(path);
    auth::session(&engine, &headers, &session).await?;
    let drivers = engine.drivers(&session).await?;
    Ok(json(200, &Json::encode(&Participants { drivers }).unwrap_or_default()))
}

/// The query of a list that comes in pages.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct PageQuery {
    pub(super) cursor: Option<String>,
    limit: Option<String>,
}

impl PageQuery {
    /// How many items the page may have.
    pub(crate) fn limit(&self, config: &Config) -> Result<u32, Refusal> {
        let Some(text) = &self.limit else { return Ok(config.page_default) };
        let limit = text.parse::<i64>().ok().filter(|limit| *limit > 0);
        let limit =
            limit.ok_or_else(|| Refusal::bad_request("limit must be a positive integer"))?;
        Ok(u32::try_from(limit).unwrap_or(u32::MAX).min(config.page_max))
    }

    /// Where the page begins and how many items it may have.
    pub(crate) fn read(&self, config: &Config) -> Result<(u64, u32), Refusal> {
        let limit = self.limit(config)?;
        let after = match self.cursor.as_deref() {
            None | Some("") => 0,
            Some(cursor) => match cursor.parse::<u64>() {
                Ok(after) if cursor.bytes().all(|b| b.is_ascii_digit()) => after,
                _ => return Err(Refusal::bad_request(format!("invalid cursor: {cursor:?}"))),
            },
        };
        Ok((after, limit))
    }
}

/// The query of a page, or why it cannot be read.
pub(crate) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Refusal> {
    let Ok(Query(query)) = query else {
        return Err(Refusal::bad_request("the query cannot be read"));
    };
    Ok(query)
}

/// `GET …/events`.
pub(crate) async fn events(
    State(engine): State<Arc<Engine>>,
    path: SessionPath,
    query: Result<Query<PageQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let session = session_id(path);
    auth::session(&engine, &headers, &session).await?;
    let config = engine.config();
    let (after, limit) = self::query(query)?.read(config)?;
    let page = engine.page(&session, after, limit, rpc::features(&headers, config)).await?;
    Ok(json(200, &page))
}

/// `DELETE /api/v1/sessions/{id}`.
pub(crate) async fn close(
    State(engine): State<Arc<Engine>>,
    path: SessionPath,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let session = session_id(path);
    auth::session(&engine, &headers, &session).await?;
    engine.close(&session).await?;
    let id = Json::string(session.as_str());
    Ok(json(200, &Json::object([("session_id", &id), ("state", &Json::string("closed"))])))
}

pub(crate) async fn read_json(
    engine: &Engine,
    headers: &HeaderMap,
    content: axum::body::Body,
) -> Result<Bytes, Refusal> {
    let config = engine.config();
    let content =
        body::read(headers, content, config.max_request_bytes, config.body_timeout).await?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    if !is_json {
        return Err(Refusal::bad_request(
            "the request needs a JSON body and the header Content-Type: application/json",
        ));
    }
    Ok(content)
}
