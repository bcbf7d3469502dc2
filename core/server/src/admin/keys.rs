//! Client keys: made, listed, rotated, revoked.

use super::{IdPath, Items, answer, failed, id_of, instant, limits, no_randomness, text};
use crate::engine::{Engine, now};
use crate::http::refusal::Refusal;
use crate::http::rest::{PageQuery, query, read_json};
use crate::keys::{IdKind, NewKey, Role};
use crate::store::{ClientKeyRecord, ListPlace, NewClientKey, Rotation, StoreError, WallTime};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use broca_proto::run::open::read_body;
use broca_proto::run::quota::KeyLimits;
use broca_proto::session::ids::KeyId;
use broca_proto::session::problem::Problem;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
struct Made<'a> {
    created_at: String,
    id: String,
    key: &'a str,
    name: String,
    prefix: String,
    profile_id: String,
}

#[derive(Serialize)]
struct Rotated<'a> {
    created_at: String,
    id: String,
    key: &'a str,
    name: String,
    prefix: String,
    previous_until: Option<String>,
    profile_id: String,
}

#[derive(Serialize)]
struct Shown {
    created_at: String,
    id: String,
    last_used_at: Option<String>,
    #[serde(skip_serializing_if = "KeyLimits::is_none")]
    limits: KeyLimits,
    name: String,
    prefix: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_until: Option<String>,
    profile_id: String,
}

impl Shown {
    fn of(record: ClientKeyRecord, now: WallTime) -> Self {
        Self {
            created_at: instant(record.created_at),
            id: record.id,
            last_used_at: record.last_used_at.map(instant),
            limits: record.limits,
            name: record.name,
            prefix: record.display_prefix,
            previous_until: record.previous_until.filter(|until| *until > now).map(instant),
            profile_id: record.profile_id,
        }
    }
}

/// `POST /admin/v1/keys`. The plaintext is in the answer and nowhere else.
pub(super) async fn create(
    State(engine): State<Arc<Engine>>,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, content) = request.into_parts();
    let body = read_body(read_json(&engine, &parts.headers, content).await?)?;
    let (name, profile_id) = (text(&body, "name")?, text(&body, "profile_id")?);
    let key = NewKey::mint(Role::Client).map_err(no_randomness)?;
    let id = IdKind::Key.mint().map_err(no_randomness)?;
    let new = NewClientKey {
        id: id.clone(),
        name: name.clone(),
        display_prefix: key.display_prefix.clone(),
        hash: key.hash.clone(),
        profile_id: profile_id.clone(),
        limits: limits(&body)?,
    };
    let at = now();
    engine.store().add_client_key(new, at).await.map_err(|error| match error {
        StoreError::Unknown { .. } => {
            let detail = format!("no active profile {profile_id}");
            Problem::new(422, "profile_unavailable", detail).into()
        }
        error => failed(&error, ""),
    })?;
    engine.limits_changed().await?;
    tracing::info!(client_key = %id, "a client key was made");
    let prefix = key.display_prefix;
    let key = key.plaintext.expose();
    Ok(answer(201, &Made { created_at: instant(at), id, key, name, prefix, profile_id }))
}

/// `GET /admin/v1/keys`.
pub(super) async fn list(
    State(engine): State<Arc<Engine>>,
    page: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Response, Refusal> {
    let (after, limit) = query(page)?.read(engine.config())?;
    let listed = engine.store().client_keys(ListPlace(after), limit).await;
    let listed = listed.map_err(|error| failed(&error, ""))?;
    let at = now();
    Ok(answer(200, &Items::of(listed, |record| Shown::of(record, at))))
}

/// `GET /admin/v1/keys/{id}`.
pub(super) async fn read(
    State(engine): State<Arc<Engine>>,
    path: IdPath,
) -> Result<Response, Refusal> {
    let id = id_of(path);
    let found = engine.store().client_key_record(&id).await;
    let found = found.map_err(|error| failed(&error, ""))?;
    let found = found.ok_or_else(|| Refusal::not_found(missing(&id)))?;
    Ok(answer(200, &Shown::of(found, now())))
}

/// `PUT /admin/v1/keys/{id}`: another name and other limits; limits that are not named are none.
pub(super) async fn replace(
    State(engine): State<Arc<Engine>>,
    path: IdPath,
    request: Request,
) -> Result<Response, Refusal> {
    let id = id_of(path);
    let (parts, content) = request.into_parts();
    let body = read_body(read_json(&engine, &parts.headers, content).await?)?;
    let changed =
        engine.store().change_client_key(&id, &text(&body, "name")?, limits(&body)?).await;
    let changed = changed.map_err(|error| failed(&error, &missing(&id)))?;
    engine.limits_changed().await?;
    tracing::info!(client_key = %id, "a client key was changed");
    Ok(answer(200, &Shown::of(changed, now())))
}

/// `POST /admin/v1/keys/{id}/rotate`: new plaintext for the same client. The body may say how long the old one is good.
pub(super) async fn rotate(
    State(engine): State<Arc<Engine>>,
    path: IdPath,
    request: Request,
) -> Result<Response, Refusal> {
    let id = id_of(path);
    let (parts, content) = request.into_parts();
    let body = read_body(read_json(&engine, &parts.headers, content).await?)?;
    let longest = crate::config::LONGEST.as_secs();
    let overlap = match body.member("overlap_seconds").filter(|seconds| !seconds.is_null()) {
        None => engine.config().key_overlap.as_secs(),
        Some(seconds) => {
            let seconds: Option<u64> = seconds.decode().ok().filter(|s| *s <= longest);
            seconds.ok_or_else(|| {
                let words = format!("overlap_seconds must be a whole number from 0 to {longest}");
                Refusal::bad_request(words)
            })?
        }
    };
    let key = NewKey::mint(Role::Client).map_err(no_randomness)?;
    let at = now();
    let until = i64::try_from(overlap).unwrap_or(i64::MAX).saturating_mul(1000);
    let rotation = Rotation {
        id: id.clone(),
        display_prefix: key.display_prefix.clone(),
        hash: key.hash.clone(),
        previous_until: WallTime(at.0.saturating_add(until)),
    };
    let record = engine.store().rotate_client_key(rotation, at).await;
    let record = record.map_err(|error| failed(&error, &missing(&id)))?;
    tracing::info!(client_key = %id, "a client key was rotated");
    let shown = Shown::of(record, at);
    Ok(answer(
        200,
        &Rotated {
            created_at: shown.created_at,
            id: shown.id,
            key: key.plaintext.expose(),
            name: shown.name,
            prefix: shown.prefix,
            previous_until: shown.previous_until,
            profile_id: shown.profile_id,
        },
    ))
}

/// `DELETE /admin/v1/keys/{id}`: its session keys go with it, and the sessions in which nobody is left close.
pub(super) async fn revoke(
    State(engine): State<Arc<Engine>>,
    path: IdPath,
) -> Result<Response, Refusal> {
    let id = id_of(path);
    engine.revoke_client_key(KeyId::from(id.as_str())).await?;
    tracing::info!(client_key = %id, "a client key was revoked");
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn missing(id: &str) -> String {
    format!("no client key {id}")
}
