//! Revokes client keys (session service §11): nobody gets in with them from then on, and sessions in which nobody is left close.

use super::record::{Context, Write};
use super::{Engine, detached, store_problem};
use crate::store::StoreError;
use broca_proto::run::log::LogEvent;
use broca_proto::run::methods::SessionState;
use broca_proto::session::ids::{KeyId, SessionId};
use broca_proto::session::problem::Problem;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::task::JoinSet;

/// How many sessions are closed at the same time.
const AT_ONCE: usize = 64;

impl Engine {
    /// Revokes a client key and its session keys. Answers when the sessions that only it took part in are closed.
    ///
    /// # Errors
    /// `404 not_found`, or what the store says.
    pub(crate) async fn revoke_client_key(self: &Arc<Self>, id: KeyId) -> Result<(), Problem> {
        let (engine, named) = (Arc::clone(self), id.clone());
        let work = async move {
            let abandoned = engine.store().revoke_client_key(id.as_str(), super::now()).await?;
            // Who watches a session that closes sees that before its stream ends.
            let closing: HashSet<String> = abandoned.iter().cloned().collect();
            engine.turn_out(&id, |session| !closing.contains(session));
            let closed = engine.close_abandoned(abandoned).await;
            engine.turn_out(&id, |_| true);
            closed
        };
        let revoked = detached(work).await.unwrap_or(Err(StoreError::Stopped));
        revoked.map_err(|error| match error {
            StoreError::Unknown { .. } => {
                Problem::new(404, "not_found", format!("no client key {named}"))
            }
            error => store_problem(&error),
        })
    }

    /// Ends what goes on in sessions under a client key that was revoked.
    fn turn_out(&self, who: &KeyId, is_meant: impl Fn(&str) -> bool) {
        for session in self.in_memory() {
            if is_meant(session.id.as_str()) {
                session.revoke(who);
            }
        }
    }

    /// Closes sessions in which no session key is left.
    pub(super) async fn close_abandoned(
        self: &Arc<Self>,
        abandoned: Vec<String>,
    ) -> Result<(), StoreError> {
        let mut closing = JoinSet::new();
        let mut outcome = Ok(());
        for id in abandoned {
            if closing.len() >= AT_ONCE
                && let Some(closed) = closing.join_next().await
            {
                outcome = outcome.and_then(|()| closed.unwrap_or(Err(StoreError::Stopped)));
            }
            closing.spawn(Arc::clone(self).close_one(SessionId::from(id)));
        }
        while let Some(closed) = closing.join_next().await {
            outcome = outcome.and_then(|()| closed.unwrap_or(Err(StoreError::Stopped)));
        }
        outcome
    }

    async fn close_one(self: Arc<Self>, id: SessionId) -> Result<(), StoreError> {
        let Some(row) = self.store().session(id.as_str()).await? else { return Ok(()) };
        let session = self.session(&id);
        let event = LogEvent::client_key_revoked(&row.creator.into());
        let closed =
            session.record(&self, Write::CloseAbandoned, vec![event], Context::default()).await?;
        if closed.already.is_none() {
            session.close(SessionState::Closed);
        }
        Ok(())
    }
}
