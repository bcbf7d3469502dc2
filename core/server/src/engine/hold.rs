//! `session.hold`: the owner of a paused turn keeps it for longer (feature `hold`).

use super::session::Session;
use super::{Engine, now_ms};
use crate::store::{StoreError, WallTime};
use broca_proto::session::ids::KeyId;
use broca_proto::session::method::HoldResult;

/// Holds, and answers when that is on disk. The gate knows first, so that its timer takes nothing away meanwhile.
pub(super) async fn hold(
    engine: &Engine,
    session: &Session,
    who: &KeyId,
) -> Result<HoldResult, StoreError> {
    let none = HoldResult { held: false, expires_in_ms: None };
    let Some(deadline) = session.hold(who, engine.config()) else { return Ok(none) };
    let until = WallTime(i64::try_from(deadline).unwrap_or(i64::MAX));
    match engine.store().hold(session.id.as_str(), who.as_str(), until).await {
        Ok(()) => {
            let left = deadline.saturating_sub(now_ms());
            Ok(HoldResult { held: true, expires_in_ms: Some(left) })
        }
        // Its owner took it up meanwhile, or somebody took it over.
        Err(StoreError::NotParked | StoreError::NotOwner) => Ok(none),
        Err(error) => Err(error),
    }
}
