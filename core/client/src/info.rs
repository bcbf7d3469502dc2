//! What the service tells of sessions, as the shells hand it on: read from the outcome of an operation.

use crate::engine::Outcome;
use broca_proto::json::JsonError;
use broca_proto::session::info::{SessionInfo, SessionPage};
use broca_proto::{Error, ErrorKind};

/// How a session stands.
pub(crate) fn info(outcome: &Outcome) -> Result<SessionInfo, Error> {
    let Outcome::Info(json) = outcome else { return Err(unexpected()) };
    SessionInfo::read(json).map_err(|e| malformed(&e))
}

/// A page of sessions.
pub(crate) fn page(outcome: &Outcome) -> Result<SessionPage, Error> {
    let Outcome::Sessions(json) = outcome else { return Err(unexpected()) };
    json.decode().map_err(|e| malformed(&e))
}

fn malformed(e: &JsonError) -> Error {
    let message = format!("what the service tells of a session cannot be read: {e}");
    Error::new(ErrorKind::Malformed, message)
}

fn unexpected() -> Error {
    let message = "asking about a session came to the outcome of something else";
    Error::new(ErrorKind::Internal, message)
}
