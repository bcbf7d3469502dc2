//! When keys were last used: noted in memory, written with the next commit there is.

use crate::store::event::WallTime;
use rusqlite::Connection;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A key by its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Credential {
    /// A row of `client_keys`.
    Client(i64),
    /// A row of `session_keys`.
    Session(i64),
}

/// Uses noted and not yet written; bounded by [`Uses::MOST`].
#[derive(Debug)]
pub(super) struct Uses {
    resolution_ms: i64,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    /// The last use that is written or waits to be.
    last: HashMap<Credential, WallTime>,
    waiting: Vec<(Credential, WallTime)>,
}

impl Uses {
    /// How many keys are remembered. Beyond it the memory starts over, which costs a few writes more.
    const MOST: usize = 16_384;

    pub(super) fn new(resolution: Duration) -> Self {
        let resolution_ms = i64::try_from(resolution.as_millis()).unwrap_or(i64::MAX);
        Self { resolution_ms, noted: Mutex::default() }
    }

    /// Notes a use, unless one within the resolution is noted already.
    pub(super) fn note(&self, key: Credential, now: WallTime) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let known = noted.last.get(&key).copied();
        if known.is_some_and(|last| now.0.saturating_sub(last.0) < self.resolution_ms) {
            return;
        }
        if noted.waiting.len() >= Self::MOST {
            return;
        }
        if noted.last.len() >= Self::MOST {
            noted.last.clear();
        }
        noted.last.insert(key, now);
        noted.waiting.push((key, now));
    }

    /// Takes what is to be written.
    pub(super) fn take(&self) -> Vec<(Credential, WallTime)> {
        std::mem::take(&mut self.noted.lock().unwrap_or_else(PoisonError::into_inner).waiting)
    }

    /// Writes what was taken. A failure loses a time of use and nothing else.
    pub(super) fn write(db: &Connection, taken: &[(Credential, WallTime)]) -> rusqlite::Result<()> {
        for (key, at) in taken {
            let (sql, number) = match key {
                Credential::Client(number) => {
                    ("UPDATE client_keys SET last_used_at = ?2 WHERE number = ?1", number)
                }
                Credential::Session(number) => {
                    ("UPDATE session_keys SET last_used_at = ?2 WHERE number = ?1", number)
                }
            };
            db.prepare_cached(sql)?.execute((number, at.0))?;
        }
        Ok(())
    }
}
