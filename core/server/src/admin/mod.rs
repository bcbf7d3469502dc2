//! The admin port: REST for the operator, on a loopback address (session service §13).
//!
//! [`profiles`], [`keys`], [`sessions`] and [`registry`] are its routes; [`bootstrap`] sees to it that there is an
//! admin key. What a route does beyond one verb of the store is the engine's business.

pub(crate) mod bootstrap;
mod keys;
mod profiles;
mod registry;
mod sessions;

use crate::engine::{Engine, store_problem};
use crate::http::refusal::{Refusal, json};
use crate::http::{auth, in_span};
use crate::keys::{KeyHash, NoRandomness};
use crate::store::{Listed, StoreError, WallTime};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State, rejection::PathRejection};
use axum::http::header;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use broca_proto::Json;
use broca_proto::run::quota::KeyLimits;
use broca_proto::session::problem::Problem;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use std::sync::Arc;

/// The `{id}` of a path, or why it cannot be read.
type IdPath = Result<Path<String>, PathRejection>;

/// The routes of the admin port. An unknown path is an empty 404, a wrong method an empty 405.
pub(crate) fn router(engine: Arc<Engine>) -> Router {
    routes()
        .route_layer(middleware::from_fn_with_state(Arc::clone(&engine), authenticate))
        .layer(middleware::from_fn(in_span))
        .with_state(engine)
}

/// Carries out a request of whoever has the database itself, so that no key is asked for: its status and its body, which is
/// empty where there is none.
pub(crate) async fn carry_out(
    engine: Arc<Engine>,
    method: &str,
    path: &str,
    body: &Json,
) -> Result<(u16, Bytes), axum::Error> {
    let request = axum::http::Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.clone().into_bytes()))
        .map_err(axum::Error::new)?;
    let service = TowerToHyperService::new(routes().with_state(engine));
    let response = match service.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let status = response.status().as_u16();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

fn routes() -> Router<Arc<Engine>> {
    Router::new()
        .route("/admin/v1/profiles", post(profiles::create).get(profiles::list))
        .route(
            "/admin/v1/profiles/{id}",
            get(profiles::read).put(profiles::replace).delete(profiles::delete),
        )
        .route("/admin/v1/keys", post(keys::create).get(keys::list))
        .route("/admin/v1/keys/{id}", get(keys::read).put(keys::replace).delete(keys::revoke))
        .route("/admin/v1/keys/{id}/rotate", post(keys::rotate))
        .route("/admin/v1/sessions", get(sessions::list))
        .route("/admin/v1/sessions/{id}/events", get(sessions::events))
        .route("/admin/v1/mcp-servers", get(registry::mcp_servers))
        .route("/admin/v1/providers", get(registry::providers))
        .route("/admin/v1/config", get(registry::config))
        .route("/admin/v1/sandbox-status", get(registry::sandbox_status))
}

/// Lets a request through that has the admin key, or every one where the operator turned that off.
async fn authenticate(State(engine): State<Arc<Engine>>, request: Request, next: Next) -> Response {
    if !engine.config().admin.auth_disabled {
        let key = auth::bearer(request.headers());
        let known = async {
            let key = key?;
            let found = engine.store().admin_key(KeyHash::of(key.expose())).await;
            let found = found.map_err(|error| store_problem(&error))?;
            found.ok_or_else(|| Refusal::unauthorized("invalid admin key"))
        };
        if let Err(refusal) = known.await {
            return refusal.into_response();
        }
    }
    next.run(request).await
}

/// The id that a path names; one that is no UTF-8 names nothing.
fn id_of(path: IdPath) -> String {
    path.map_or_else(|_| "\u{fffd}".to_owned(), |Path(id)| id)
}

/// An answer with a body.
fn answer(status: u16, body: &impl Serialize) -> Response {
    json(status, &Json::encode(body).unwrap_or_default())
}

/// A page of a list.
#[derive(Serialize)]
struct Items<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

impl<T> Items<T> {
    fn of<S>(listed: Listed<S>, item: impl Fn(S) -> T) -> Self {
        let next_cursor = listed.next.map(|place| place.0.to_string());
        Self { items: listed.items.into_iter().map(item).collect(), next_cursor }
    }
}

/// A text member that must be there and say something.
fn text(body: &Json, name: &str) -> Result<String, Refusal> {
    let text = body.member(name).and_then(|value| value.to_text());
    let text = text.ok_or_else(|| Refusal::bad_request(format!("{name} must be a string")))?;
    if text.trim().is_empty() {
        return Err(Refusal::bad_request(format!("{name} must not be empty")));
    }
    Ok(text)
}

/// The member `limits`: what a key, or each key of a profile, may use.
fn limits(body: &Json) -> Result<KeyLimits, Refusal> {
    let limits = body.member("limits").filter(|limits| !limits.is_null());
    let read = limits.map_or_else(|| Ok(KeyLimits::default()), |limits| KeyLimits::read(&limits));
    read.map_err(Refusal::bad_request)
}

fn instant(at: WallTime) -> String {
    at.to_string()
}

/// What is said when a verb of the store did not happen; `missing` is what there is none of.
fn failed(error: &StoreError, missing: &str) -> Refusal {
    match error {
        StoreError::Unknown { .. } => Problem::new(404, "not_found", missing),
        StoreError::NameTaken => Problem::new(409, "duplicate_name", error.to_string()),
        StoreError::ProfileInUse { .. } => Problem::new(409, "profile_in_use", error.to_string()),
        error => store_problem(error),
    }
    .into()
}

fn no_randomness(error: NoRandomness) -> Refusal {
    tracing::error!(%error, "no key can be made");
    Problem::new(500, "internal", "the service failed; see its log").into()
}
