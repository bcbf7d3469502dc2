//! Who makes a request: the `Authorization` header (session service §3.1).

use super::refusal::Refusal;
use crate::engine::{Client, Engine};
use axum::http::{HeaderMap, header};
use broca_proto::Secret;
use broca_proto::session::ids::{KeyId, SessionId};

/// The client behind a client key.
pub(crate) async fn client(engine: &Engine, headers: &HeaderMap) -> Result<Client, Refusal> {
    let key = bearer(headers)?;
    let client = engine.client_of(&key).await?;
    let client = client.ok_or_else(|| Refusal::unauthorized("invalid client key"))?;
    engine.admit_request(&client.key)?;
    Ok(client)
}

/// The client key behind a session key of this session, held to its limits.
pub(crate) async fn session(
    engine: &Engine,
    headers: &HeaderMap,
    session: &SessionId,
) -> Result<KeyId, Refusal> {
    let who = participant(engine, headers, session).await?;
    engine.admit_request(&who)?;
    Ok(who)
}

/// The client key behind a session key of this session.
pub(crate) async fn participant(
    engine: &Engine,
    headers: &HeaderMap,
    session: &SessionId,
) -> Result<KeyId, Refusal> {
    let key = bearer(headers)?;
    engine
        .participant_of(session, &key)
        .await?
        .ok_or_else(|| Refusal::unauthorized("invalid session key"))
}

/// The token of `Authorization: Bearer …`; the scheme is accepted in exactly two spellings.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<Secret, Refusal> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Err(Refusal::unauthorized("missing Authorization header"));
    };
    let text = value.to_str().unwrap_or_default();
    let token = text.strip_prefix("Bearer ").or_else(|| text.strip_prefix("bearer "));
    // A header that ends in the scheme has lost its trailing blank on the way.
    let token = if matches!(text, "Bearer" | "bearer") { Some("") } else { token };
    let Some(token) = token else {
        return Err(Refusal::unauthorized("Authorization header must be a Bearer token"));
    };
    if token.trim().is_empty() {
        return Err(Refusal::unauthorized("empty bearer token"));
    }
    Ok(Secret::new(token.trim()))
}
