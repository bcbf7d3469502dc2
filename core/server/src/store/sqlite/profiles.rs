//! Profiles in a table.

use super::{limits, list};
use crate::store::StoreError;
use crate::store::directory::{ListPlace, Listed, ProfileRecord};
use crate::store::event::WallTime;
use crate::store::session::Profile;
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
             allowed_tools, available_sandboxes, deleted, created_at, updated_at, limits)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?10)
         ON CONFLICT (id) DO UPDATE SET name = ?2, primary_provider = ?3, fallback_providers = ?4,
             mcp_servers = ?5, allowed_tools = ?6, available_sandboxes = ?7, deleted = ?8,
             updated_at = ?9, limits = ?10",
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
        limits::write(&profile.limits)?,
    ))?;
    Ok(())
}

pub(super) fn replace(
    db: &Connection,
    profile: &Profile,
    now: WallTime,
) -> Result<ProfileRecord, StoreError> {
    record(db, &profile.id)?.ok_or(StoreError::Unknown { what: "profile" })?;
    put(db, profile, now)?;
    record(db, &profile.id)?.ok_or(StoreError::Unknown { what: "profile" })
}

pub(super) fn delete(db: &Connection, id: &str, now: WallTime) -> Result<(), StoreError> {
    record(db, id)?.ok_or(StoreError::Unknown { what: "profile" })?;
    let mut sql = db.prepare_cached(
        "SELECT count(*) FROM client_keys WHERE profile_id = ?1 AND revoked_at IS NULL",
    )?;
    let keys: i64 = sql.query_row([id], |row| row.get(0))?;
    if keys > 0 {
        return Err(StoreError::ProfileInUse { keys: keys.cast_unsigned() });
    }
    db.prepare_cached("UPDATE profiles SET deleted = 1, updated_at = ?2 WHERE id = ?1")?
        .execute((id, now.0))?;
    Ok(())
}

pub(super) fn listed(
    db: &Connection,
    after: ListPlace,
    limit: u32,
) -> Result<Listed<ProfileRecord>, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT * FROM profiles WHERE number > ?1 AND deleted = 0 ORDER BY number LIMIT ?2",
    )?;
    let rows = sql.query((list::place(after), list::one_more(limit)))?;
    list::read(rows, limit, read_record)
}

pub(super) fn record(db: &Connection, id: &str) -> Result<Option<ProfileRecord>, StoreError> {
    let mut sql = db.prepare_cached("SELECT * FROM profiles WHERE id = ?1 AND deleted = 0")?;
    sql.query_row([id], |row| Ok(read_record(row))).optional()?.transpose()
}

fn read_record(row: &Row<'_>) -> Result<ProfileRecord, StoreError> {
    Ok(ProfileRecord {
        profile: read(row)?,
        created_at: WallTime(row.get("created_at")?),
        updated_at: WallTime(row.get("updated_at")?),
    })
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
        limits: limits::read(&row.get::<_, String>("limits")?)?,
        deleted: row.get("deleted")?,
    })
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
