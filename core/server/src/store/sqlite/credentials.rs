//! Client keys, session keys and admin keys in tables.

use super::{limits, list, profiles};
use crate::keys::KeyHash;
use crate::store::StoreError;
use crate::store::directory::{ClientKeyRecord, ListPlace, Listed, NewAdminKey, Rotation};
use crate::store::event::WallTime;
use crate::store::session::{ClientKey, NewClientKey};
use broca_proto::run::quota::KeyLimits;
use rusqlite::{Connection, OptionalExtension, Row};

pub(super) fn add_client_key(
    db: &Connection,
    key: &NewClientKey,
    now: WallTime,
) -> Result<(), StoreError> {
    if profiles::record(db, &key.profile_id)?.is_none() {
        return Err(StoreError::Unknown { what: "profile" });
    }
    db.prepare_cached(
        "INSERT INTO client_keys (id, name, display_prefix, hash, profile_id, created_at, limits)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute((
        &key.id,
        &key.name,
        &key.display_prefix,
        key.hash.as_hex(),
        &key.profile_id,
        now.0,
        limits::write(&key.limits)?,
    ))?;
    Ok(())
}

/// The key and its row. The index narrows; what decides is the comparison in constant time.
pub(super) fn client_key(
    db: &Connection,
    hash: &KeyHash,
    now: WallTime,
) -> Result<Option<(i64, ClientKey)>, StoreError> {
    let read = |row: &Row<'_>| {
        let key = ClientKey { id: row.get(1)?, name: row.get(2)?, profile_id: row.get(3)? };
        Ok((row.get(0)?, key, row.get::<_, String>(4)?))
    };
    let mut sql = db.prepare_cached(
        "SELECT number, id, name, profile_id, hash FROM client_keys
         WHERE hash = ?1 AND revoked_at IS NULL",
    )?;
    let mut found = sql.query_row([hash.as_hex()], read).optional()?;
    if found.is_none() {
        let mut sql = db.prepare_cached(
            "SELECT number, id, name, profile_id, previous_hash FROM client_keys
             WHERE previous_hash = ?1 AND previous_until > ?2 AND revoked_at IS NULL",
        )?;
        found = sql.query_row((hash.as_hex(), now.0), read).optional()?;
    }
    Ok(found.filter(|(_, _, stored)| hash.matches(stored)).map(|(number, key, _)| (number, key)))
}

/// The client key behind a session key, and the session key's row.
pub(super) fn session_key(
    db: &Connection,
    session: &str,
    hash: &KeyHash,
) -> Result<Option<(i64, String)>, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT k.number, k.client_key_id, k.hash FROM sessions s
         JOIN session_keys k ON k.session = s.number AND k.hash = ?2
         WHERE s.id = ?1 AND k.revoked_at IS NULL",
    )?;
    let found = sql
        .query_row((session, hash.as_hex()), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get::<_, String>(2)?))
        })
        .optional()?;
    Ok(found.filter(|(_, _, stored)| hash.matches(stored)).map(|(number, key, _)| (number, key)))
}

pub(super) fn listed(
    db: &Connection,
    after: ListPlace,
    limit: u32,
) -> Result<Listed<ClientKeyRecord>, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT * FROM client_keys WHERE number > ?1 AND revoked_at IS NULL
         ORDER BY number LIMIT ?2",
    )?;
    let rows = sql.query((list::place(after), list::one_more(limit)))?;
    list::read(rows, limit, read_record)
}

pub(super) fn record(db: &Connection, id: &str) -> Result<Option<ClientKeyRecord>, StoreError> {
    let mut sql =
        db.prepare_cached("SELECT * FROM client_keys WHERE id = ?1 AND revoked_at IS NULL")?;
    sql.query_row([id], |row| Ok(read_record(row))).optional()?.transpose()
}

fn read_record(row: &Row<'_>) -> Result<ClientKeyRecord, StoreError> {
    Ok(ClientKeyRecord {
        id: row.get("id")?,
        name: row.get("name")?,
        display_prefix: row.get("display_prefix")?,
        profile_id: row.get("profile_id")?,
        created_at: WallTime(row.get("created_at")?),
        last_used_at: row.get::<_, Option<i64>>("last_used_at")?.map(WallTime),
        previous_until: row.get::<_, Option<i64>>("previous_until")?.map(WallTime),
        limits: limits::read(&row.get::<_, String>("limits")?)?,
    })
}

pub(super) fn change(
    db: &Connection,
    id: &str,
    name: &str,
    to: &KeyLimits,
) -> Result<ClientKeyRecord, StoreError> {
    db.prepare_cached(
        "UPDATE client_keys SET name = ?2, limits = ?3 WHERE id = ?1 AND revoked_at IS NULL",
    )?
    .execute((id, name, limits::write(to)?))?;
    record(db, id)?.ok_or(StoreError::Unknown { what: "key" })
}

pub(super) fn rotate(
    db: &Connection,
    rotation: &Rotation,
    now: WallTime,
) -> Result<ClientKeyRecord, StoreError> {
    let overlaps = rotation.previous_until > now;
    db.prepare_cached(
        "UPDATE client_keys SET previous_hash = CASE WHEN ?5 THEN hash END,
             previous_until = CASE WHEN ?5 THEN ?4 END, hash = ?2, display_prefix = ?3
         WHERE id = ?1 AND revoked_at IS NULL",
    )?
    .execute((
        &rotation.id,
        rotation.hash.as_hex(),
        &rotation.display_prefix,
        rotation.previous_until.0,
        overlaps,
    ))?;
    record(db, &rotation.id)?.ok_or(StoreError::Unknown { what: "key" })
}

pub(super) fn revoke(db: &Connection, id: &str, now: WallTime) -> Result<Vec<String>, StoreError> {
    let revoked = db
        .prepare_cached(
            "UPDATE client_keys SET revoked_at = ?2, previous_hash = NULL, previous_until = NULL
             WHERE id = ?1 AND revoked_at IS NULL",
        )?
        .execute((id, now.0))?;
    if revoked == 0 {
        return Err(StoreError::Unknown { what: "key" });
    }
    db.prepare_cached(
        "UPDATE session_keys SET revoked_at = ?2 WHERE client_key_id = ?1 AND revoked_at IS NULL",
    )?
    .execute((id, now.0))?;
    let mut sql = db.prepare_cached(
        "SELECT DISTINCT s.number, s.id FROM session_keys mine
         JOIN sessions s ON s.number = mine.session AND s.state = 'open'
         WHERE mine.client_key_id = ?1 AND NOT EXISTS (
             SELECT 1 FROM session_keys k WHERE k.session = s.number AND k.revoked_at IS NULL)
         ORDER BY s.number",
    )?;
    let left = sql.query_map([id], |row| row.get(1))?;
    Ok(left.collect::<Result<_, _>>()?)
}

/// The open sessions without a session key.
pub(super) fn abandoned(db: &Connection) -> Result<Vec<String>, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT s.id FROM sessions s WHERE s.state = 'open' AND NOT EXISTS (
             SELECT 1 FROM session_keys k WHERE k.session = s.number AND k.revoked_at IS NULL)
         ORDER BY s.number",
    )?;
    let left = sql.query_map([], |row| row.get(0))?;
    Ok(left.collect::<Result<_, _>>()?)
}

/// Whether a session (by row) has a session key that was not revoked.
pub(super) fn any_in(db: &Connection, session: i64) -> Result<bool, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT 1 FROM session_keys WHERE session = ?1 AND revoked_at IS NULL LIMIT 1",
    )?;
    Ok(sql.exists([session])?)
}

/// Refuses what a client key does that was revoked after it was recognised.
pub(super) fn refuse_revoked(db: &Connection, id: &str) -> Result<(), StoreError> {
    let mut sql =
        db.prepare_cached("SELECT 1 FROM client_keys WHERE id = ?1 AND revoked_at IS NOT NULL")?;
    if sql.exists([id])? { Err(StoreError::Revoked) } else { Ok(()) }
}

pub(super) fn has_admin_key(db: &Connection) -> Result<bool, StoreError> {
    let mut sql = db.prepare_cached("SELECT 1 FROM admin_keys WHERE revoked_at IS NULL LIMIT 1")?;
    Ok(sql.exists([])?)
}

pub(super) fn put_admin_key(
    db: &Connection,
    key: &NewAdminKey,
    now: WallTime,
) -> Result<(), StoreError> {
    db.prepare_cached("UPDATE admin_keys SET revoked_at = ?1 WHERE revoked_at IS NULL")?
        .execute([now.0])?;
    db.prepare_cached(
        "INSERT INTO admin_keys (id, name, display_prefix, hash, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute((&key.id, &key.name, &key.display_prefix, key.hash.as_hex(), now.0))?;
    Ok(())
}

pub(super) fn admin_key(db: &Connection, hash: &KeyHash) -> Result<Option<String>, StoreError> {
    // There is one as a rule; all that there are is few.
    let mut sql = db.prepare_cached("SELECT id, hash FROM admin_keys WHERE revoked_at IS NULL")?;
    let mut rows = sql.query([])?;
    while let Some(row) = rows.next()? {
        if hash.matches(&row.get::<_, String>(1)?) {
            return Ok(Some(row.get(0)?));
        }
    }
    Ok(None)
}
