//! Sessions and their logs, as the operator sees them.

use super::{IdPath, Items, answer, failed, id_of, instant};
use crate::engine::Engine;
use crate::http::refusal::{Refusal, json};
use crate::http::rest::{PageQuery, query};
use crate::http::rpc;
use crate::store::{ListPlace, Session, SessionState};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use broca_proto::session::ids::SessionId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Serialize)]
struct Shown {
    client_version: Option<String>,
    closed_at: Option<String>,
    created_at: String,
    id: String,
    profile_id: String,
    state: &'static str,
}

impl Shown {
    fn of(session: Session) -> Self {
        Self {
            client_version: session.client_version,
            closed_at: session.closed_at.map(instant),
            created_at: instant(session.created_at),
            id: session.id,
            profile_id: session.profile_id,
            state: session.state.as_str(),
        }
    }
}

/// The part of a list's query that names a state.
#[derive(Debug, Default, Deserialize)]
pub(super) struct StateQuery {
    state: Option<String>,
}

/// `GET /admin/v1/sessions`.
pub(super) async fn list(
    State(engine): State<Arc<Engine>>,
    filter: Result<Query<StateQuery>, QueryRejection>,
    page: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Response, Refusal> {
    let state = match query(filter)?.state.as_deref() {
        None => None,
        Some("open") => Some(SessionState::Open),
        Some("closed") => Some(SessionState::Closed),
        Some("error") => Some(SessionState::Error),
        Some(other) => {
            return Err(Refusal::bad_request(format!(
                "invalid state filter {other:?}; expected one of open, closed, error"
            )));
        }
    };
    let (after, limit) = query(page)?.read(engine.config())?;
    let listed = engine.store().sessions(state, ListPlace(after), limit).await;
    let listed = listed.map_err(|error| failed(&error, ""))?;
    Ok(answer(200, &Items::of(listed, Shown::of)))
}

/// `GET /admin/v1/sessions/{id}/events`: the rows of the client port, whatever has become of the session.
pub(super) async fn events(
    State(engine): State<Arc<Engine>>,
    path: IdPath,
    page: Result<Query<PageQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let id = SessionId::from(id_of(path));
    let (after, limit) = query(page)?.read(engine.config())?;
    let found = engine.store().session(id.as_str()).await;
    if found.map_err(|error| failed(&error, ""))?.is_none() {
        return Err(Refusal::not_found(format!("no session {id}")));
    }
    let features = rpc::features(&headers, engine.config());
    Ok(json(200, &engine.page(&id, after, limit, features).await?))
}
