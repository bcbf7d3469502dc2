//! What client keys may use, and what they have used, in tables.

use crate::store::StoreError;
use broca_proto::run::quota::KeyLimits;
use rusqlite::{Connection, OptionalExtension};

pub(super) fn write(limits: &KeyLimits) -> Result<String, StoreError> {
    serde_json::to_string(limits).map_err(|_| StoreError::Internal("limits".to_owned()))
}

pub(super) fn read(text: &str) -> Result<KeyLimits, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Io("stored limits are damaged".to_owned()))
}

pub(super) fn all(db: &Connection) -> Result<Vec<(String, KeyLimits)>, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT k.id, k.limits, p.limits FROM client_keys k JOIN profiles p ON p.id = k.profile_id
         WHERE k.revoked_at IS NULL AND (k.limits <> '{}' OR p.limits <> '{}')",
    )?;
    let mut rows = sql.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let own = read(&row.get::<_, String>(1)?)?;
        all.push((row.get(0)?, own.or(read(&row.get::<_, String>(2)?)?)));
    }
    Ok(all)
}

pub(super) fn open_sessions(db: &Connection, key: &str) -> Result<u64, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT count(*) FROM sessions INDEXED BY sessions_open_by_creator
         WHERE creator = ?1 AND state = 'open'",
    )?;
    Ok(sql.query_row([key], |row| row.get::<_, i64>(0))?.cast_unsigned())
}

pub(super) fn tokens(db: &Connection, key: &str, day: u64) -> Result<u64, StoreError> {
    let mut sql =
        db.prepare_cached("SELECT tokens FROM token_usage WHERE client_key_id = ?1 AND day = ?2")?;
    let counted = sql.query_row((key, number(day)), |row| row.get::<_, i64>(0)).optional()?;
    Ok(counted.map_or(0, i64::cast_unsigned))
}

pub(super) fn count(db: &Connection, key: &str, day: u64, more: u64) -> Result<(), StoreError> {
    let total = tokens(db, key, day)?.saturating_add(more);
    db.prepare_cached(
        "INSERT INTO token_usage (client_key_id, day, tokens) VALUES (?1, ?2, ?3)
         ON CONFLICT DO UPDATE SET day = ?2, tokens = ?3",
    )?
    .execute((key, number(day), number(total)))?;
    Ok(())
}

/// A number as SQL has it.
fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
