//! Profiles: made, listed, read, replaced, deleted.

use super::{IdPath, Items, answer, failed, id_of, instant, limits, no_randomness, text};
use crate::engine::{Engine, now};
use crate::http::refusal::Refusal;
use crate::http::rest::{PageQuery, query, read_json};
use crate::keys::IdKind;
use crate::store::{ListPlace, Profile, ProfileRecord};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use broca_proto::Json;
use broca_proto::run::open::read_body;
use broca_proto::run::quota::KeyLimits;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
struct Made {
    created_at: String,
    id: String,
    name: String,
}

#[derive(Serialize)]
struct Shown {
    allowed_tools: Vec<String>,
    available_sandboxes: Vec<String>,
    created_at: String,
    fallback_providers: Vec<String>,
    id: String,
    #[serde(skip_serializing_if = "KeyLimits::is_none")]
    limits: KeyLimits,
    mcp_servers: Vec<String>,
    name: String,
    primary_provider: String,
    updated_at: String,
}

impl Shown {
    fn of(record: ProfileRecord) -> Self {
        let ProfileRecord { profile, created_at, updated_at } = record;
        Self {
            allowed_tools: profile.allowed_tools,
            available_sandboxes: profile.available_sandboxes,
            created_at: instant(created_at),
            fallback_providers: profile.fallback_providers,
            id: profile.id,
            limits: profile.limits,
            mcp_servers: profile.mcp_servers,
            name: profile.name,
            primary_provider: profile.primary_provider,
            updated_at: instant(updated_at),
        }
    }
}

/// `POST /admin/v1/profiles`. Names of providers are resolved when a session uses them, not here.
pub(super) async fn create(
    State(engine): State<Arc<Engine>>,
    request: Request,
) -> Result<Response, Refusal> {
    let body = body_of(&engine, request).await?;
    let id = IdKind::Profile.mint().map_err(no_randomness)?;
    let profile = profile(&body, id.clone())?;
    let (name, at) = (profile.name.clone(), now());
    let made = engine.store().put_profile(profile, at).await;
    made.map_err(|error| failed(&error, "no profile"))?;
    tracing::info!(profile = %id, "a profile was made");
    Ok(answer(201, &Made { created_at: instant(at), id, name }))
}

/// `GET /admin/v1/profiles`.
pub(super) async fn list(
    State(engine): State<Arc<Engine>>,
    page: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Response, Refusal> {
    let (after, limit) = query(page)?.read(engine.config())?;
    let listed = engine.store().profiles(ListPlace(after), limit).await;
    let listed = listed.map_err(|error| failed(&error, "no profile"))?;
    Ok(answer(200, &Items::of(listed, Shown::of)))
}

/// `GET /admin/v1/profiles/{id}`.
pub(super) async fn read(
    State(engine): State<Arc<Engine>>,
    path: IdPath,
) -> Result<Response, Refusal> {
    let id = id_of(path);
    let found = engine.store().profile_record(&id).await;
    let found = found.map_err(|error| failed(&error, &missing(&id)))?;
    let found = found.ok_or_else(|| Refusal::not_found(missing(&id)))?;
    Ok(answer(200, &Shown::of(found)))
}

/// `PUT /admin/v1/profiles/{id}`: replaces everything; a list that is not named becomes empty.
pub(super) async fn replace(
    State(engine): State<Arc<Engine>>,
    path: IdPath,
    request: Request,
) -> Result<Response, Refusal> {
    let id = id_of(path);
    let body = body_of(&engine, request).await?;
    let replaced = engine.store().replace_profile(profile(&body, id.clone())?, now()).await;
    let replaced = replaced.map_err(|error| failed(&error, &missing(&id)))?;
    engine.limits_changed().await?;
    tracing::info!(profile = %id, "a profile was replaced");
    Ok(answer(200, &Shown::of(replaced)))
}

/// `DELETE /admin/v1/profiles/{id}`.
pub(super) async fn delete(
    State(engine): State<Arc<Engine>>,
    path: IdPath,
) -> Result<Response, Refusal> {
    let id = id_of(path);
    let deleted = engine.store().delete_profile(&id, now()).await;
    deleted.map_err(|error| failed(&error, &missing(&id)))?;
    tracing::info!(profile = %id, "a profile was deleted");
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn missing(id: &str) -> String {
    format!("no profile {id}")
}

async fn body_of(engine: &Engine, request: Request) -> Result<Json, Refusal> {
    let (parts, content) = request.into_parts();
    Ok(read_body(read_json(engine, &parts.headers, content).await?)?)
}

fn profile(body: &Json, id: String) -> Result<Profile, Refusal> {
    Ok(Profile {
        id,
        name: text(body, "name")?,
        primary_provider: text(body, "primary_provider")?,
        fallback_providers: names(body, "fallback_providers")?,
        mcp_servers: names(body, "mcp_servers")?,
        allowed_tools: names(body, "allowed_tools")?,
        available_sandboxes: names(body, "available_sandboxes")?,
        limits: limits(body)?,
        deleted: false,
    })
}

fn names(body: &Json, name: &str) -> Result<Vec<String>, Refusal> {
    let Some(list) = body.member(name) else { return Ok(Vec::new()) };
    let wrong = |_| Refusal::bad_request(format!("{name} must be an array of strings"));
    list.decode().map_err(wrong)
}
