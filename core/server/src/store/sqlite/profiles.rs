//! Profiles and keys in tables.

use crate::keys::KeyHash;
use crate::store::StoreError;
use crate::store::event::WallTime;
use crate::store::session::{ClientKey, NewClientKey, Profile};
use rusqlite::{Connection, OptionalExtension, Row};

pub(super) fn put(db: &Connection, profile: &Profile, now: WallTime) -> Result<(), StoreError> {
    let taken = db
        .prepare_cached("SELECT 1 FROM profiles WHERE name = ?1 AND id <> ?2")?
        .exists((&profile.name, &profile.id))?;
    if taken {
        return Err(StoreError::NameTaken);
    }
    db.prepare_cached(
        "INSERT INTO profiles (id, name, primary_provider, fallback_providers, mcp_servers,
             allowed_tools, available_sandboxes, deleted, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)
         ON CONFLICT (id) DO UPDATE SET name = ?2, primary_provider = ?3, fallback_providers = ?4,
             mcp_servers = ?5, allowed_tools = ?6, available_sandboxes = ?7, deleted = ?8,
             updated_at = ?9",
    )?
    .execute((
        &profile.id,
        &profile.name,
        &profile.primary_provider,
        write_list(&profile.fallback_providers)?,
        write_list(&profile.mcp_servers)?,
        write_list(&profile.allowed_tools)?,
        write_list(&profile.available_sandboxes)?,
        profile.deleted,
        now.0,
    ))?;
    Ok(())
}

pub(super) fn by_id(db: &Connection, id: &str) -> Result<Option<Profile>, StoreError> {
    one(db, "SELECT * FROM profiles WHERE id = ?1", id)
}

pub(super) fn by_name(db: &Connection, name: &str) -> Result<Option<Profile>, StoreError> {
    one(db, "SELECT * FROM profiles WHERE name = ?1", name)
}

fn one(db: &Connection, sql: &str, value: &str) -> Result<Option<Profile>, StoreError> {
    db.prepare_cached(sql)?.query_row([value], |row| Ok(read(row))).optional()?.transpose()
}

fn read(row: &Row<'_>) -> Result<Profile, StoreError> {
    Ok(Profile {
        id: row.get("id")?,
        name: row.get("name")?,
        primary_provider: row.get("primary_provider")?,
        fallback_providers: read_list(&row.get::<_, String>("fallback_providers")?)?,
        mcp_servers: read_list(&row.get::<_, String>("mcp_servers")?)?,
        allowed_tools: read_list(&row.get::<_, String>("allowed_tools")?)?,
        available_sandboxes: read_list(&row.get::<_, String>("available_sandboxes")?)?,
        deleted: row.get("deleted")?,
    })
}

pub(super) fn add_client_key(
    db: &Connection,
    key: &NewClientKey,
    now: WallTime,
) -> Result<(), StoreError> {
    if by_id(db, &key.profile_id)?.is_none() {
        return Err(StoreError::Unknown { what: "profile" });
    }
    db.prepare_cached(
        "INSERT INTO client_keys (id, name, display_prefix, hash, profile_id, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute((
        &key.id,
        &key.name,
        &key.display_prefix,
        key.hash.as_hex(),
        &key.profile_id,
        now.0,
    ))?;
    Ok(())
}

/// The key and its row. The index narrows; what decides is the comparison in constant time.
pub(super) fn client_key(
    db: &Connection,
    hash: &KeyHash,
) -> Result<Option<(i64, ClientKey)>, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT number, id, name, profile_id, hash FROM client_keys
         WHERE hash = ?1 AND revoked_at IS NULL",
    )?;
    let found = sql
        .query_row([hash.as_hex()], |row| {
            let key = ClientKey { id: row.get(1)?, name: row.get(2)?, profile_id: row.get(3)? };
            Ok((row.get(0)?, key, row.get::<_, String>(4)?))
        })
        .optional()?;
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

/// Names as a JSON array.
pub(super) fn write_list(names: &[String]) -> Result<String, StoreError> {
    serde_json::to_string(names).map_err(|_| StoreError::Internal("a list of names".to_owned()))
}

/// Names from a JSON array.
pub(super) fn read_list(text: &str) -> Result<Vec<String>, StoreError> {
    serde_json::from_str(text)
        .map_err(|_| StoreError::Io("a stored list of names is damaged".to_owned()))
}
