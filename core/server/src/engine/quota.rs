//! Holds client keys to what they may use. Keys without limits cost one look at a map.

use super::{Engine, now_ms, store_problem};
use crate::store::{Store, StoreError};
use broca_proto::run::methods;
use broca_proto::run::quota::{self, Exceeded, KeyLimits, Minute};
use broca_proto::session::ids::KeyId;
use broca_proto::session::problem::Problem;
use broca_proto::session::rpc::RpcFailure;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The client keys that are limited in something.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    keys: RwLock<HashMap<KeyId, (KeyLimits, Arc<Meter>)>>,
}

/// What a key uses right now.
#[derive(Debug, Default)]
struct Meter {
    minute: Mutex<Minute>,
    turns: AtomicU32,
    /// Held from the count of the open sessions until one more is open.
    opening: Arc<tokio::sync::Mutex<()>>,
}

/// A call of `session.sendMessage` that counts until this is dropped.
#[derive(Debug)]
pub(super) struct TurnSlot(Arc<Meter>);

impl Drop for TurnSlot {
    fn drop(&mut self) {
        self.0.turns.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The right to open one more session, until this is dropped.
pub(super) type OpenSlot = tokio::sync::OwnedMutexGuard<()>;

impl Quotas {
    /// Reads the limits; what keys use right now stays counted.
    pub(super) async fn load(&self, store: &dyn Store) -> Result<(), StoreError> {
        let limits = store.key_limits().await?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let mut old = std::mem::take(&mut *keys);
        for (id, limits) in limits {
            let id = KeyId::from(id);
            let meter = old.remove(&id).map(|(_, meter)| meter).unwrap_or_default();
            keys.insert(id, (limits, meter));
        }
        Ok(())
    }

    fn of(&self, key: &KeyId) -> Option<(KeyLimits, Arc<Meter>)> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        if keys.is_empty() { None } else { keys.get(key).cloned() }
    }
}

impl Engine {
    /// The limits of keys or profiles have changed.
    pub(crate) async fn limits_changed(&self) -> Result<(), Problem> {
        let loaded = self.quotas.load(self.store().as_ref()).await;
        loaded.map_err(|error| store_problem(&error))
    }

    /// Counts a request of this key.
    pub(crate) fn admit_request(&self, key: &KeyId) -> Result<(), Exceeded> {
        let Some((limits, meter)) = self.quotas.of(key) else { return Ok(()) };
        let Some(most) = limits.requests_per_minute else { return Ok(()) };
        meter.minute.lock().unwrap_or_else(PoisonError::into_inner).admit(now_ms(), most)
    }

    /// Lets a call of `session.sendMessage` begin, if the key may.
    pub(super) async fn admit_turn(&self, key: &KeyId) -> Result<Option<TurnSlot>, RpcFailure> {
        let Some((limits, meter)) = self.quotas.of(key) else { return Ok(None) };
        if let Some(most) = limits.tokens_per_day {
            let now = now_ms();
            let used = self.store().tokens_of(key.as_str(), quota::day(now)).await;
            let used = used.map_err(|error| {
                tracing::error!(code = error.code(), %error, "the store failed");
                methods::internal_error()
            })?;
            if used >= most {
                return Err(Exceeded::tokens_per_day(most, now).failure());
            }
        }
        let most = limits.concurrent_turns.unwrap_or(u32::MAX);
        let one_more = |turns: u32| (turns < most).then(|| turns.saturating_add(1));
        match meter.turns.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more) {
            Ok(_) => Ok(Some(TurnSlot(meter))),
            Err(_) => Err(Exceeded::concurrent_turns(most).failure()),
        }
    }

    /// Lets a session be opened, if the key may.
    pub(super) async fn admit_open(&self, key: &KeyId) -> Result<Option<OpenSlot>, Problem> {
        let Some((limits, meter)) = self.quotas.of(key) else { return Ok(None) };
        let Some(most) = limits.open_sessions else { return Ok(None) };
        let slot = Arc::clone(&meter.opening).lock_owned().await;
        let open = self.store().open_sessions_of(key.as_str()).await;
        if open.map_err(|error| store_problem(&error))? >= u64::from(most) {
            return Err(Exceeded::open_sessions(most).problem());
        }
        Ok(Some(slot))
    }

    /// Counts what a model has taken and given, for a key whose tokens are limited.
    pub(super) async fn count_tokens(&self, key: &KeyId, tokens: u64) -> Result<(), StoreError> {
        let limited =
            self.quotas.of(key).is_some_and(|(limits, _)| limits.tokens_per_day.is_some());
        if !limited {
            return Ok(());
        }
        self.store().count_tokens(key.as_str(), quota::day(now_ms()), tokens).await
    }
}
