//! Sessions as they are told of, and what is kept with them.

use super::{events, sessions};
use crate::store::StoreError;
use crate::store::event::{NewEvent, WallTime};
use crate::store::session::{MetadataChange, Overview, OverviewPage};
use rusqlite::{Connection, OptionalExtension};

pub(super) fn find(db: &Connection, id: &str) -> Result<Option<Overview>, StoreError> {
    let Some(session) = sessions::find(db, id)? else { return Ok(None) };
    let number = sessions::row(db, id)?.number;
    let mut sql =
        db.prepare_cached("SELECT metadata, metadata_version FROM sessions WHERE number = ?1")?;
    let (metadata, version): (String, i64) =
        sql.query_row([number], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut sql = db.prepare_cached(
        "SELECT id, created_at FROM events WHERE session = ?1 ORDER BY seq DESC LIMIT 1",
    )?;
    let last =
        sql.query_row([number], |row| Ok((row.get(0)?, WallTime(row.get(1)?)))).optional()?;
    Ok(Some(Overview {
        drivers: sessions::drivers(db, id)?,
        metadata,
        metadata_version: version.cast_unsigned(),
        last_event: last,
        session,
    }))
}

pub(super) fn of_client(
    db: &Connection,
    client_key_id: &str,
    after: Option<&str>,
    limit: u32,
) -> Result<OverviewPage, StoreError> {
    let before = match after {
        None => i64::MAX,
        Some(id) => {
            let number = sessions::row(db, id)?.number;
            let took_part = db
                .prepare_cached(
                    "SELECT 1 FROM participants WHERE session = ?1 AND client_key_id = ?2",
                )?
                .exists((number, client_key_id))?;
            if !took_part {
                return Err(StoreError::Unknown { what: "session" });
            }
            number
        }
    };
    let most = i64::from(limit.max(1));
    let mut sql = db.prepare_cached(
        "SELECT s.id FROM participants p JOIN sessions s ON s.number = p.session
         WHERE p.client_key_id = ?1 AND p.session < ?2 ORDER BY p.session DESC LIMIT ?3",
    )?;
    let ids = sql.query_map((client_key_id, before, most + 1), |row| row.get::<_, String>(0))?;
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    let mut page = OverviewPage::default();
    for id in ids {
        if page.items.len() >= limit.max(1) as usize {
            page.more = true;
            break;
        }
        page.items.extend(find(db, &id)?);
    }
    Ok(page)
}

pub(super) fn change_metadata(
    db: &Connection,
    id: &str,
    was: u64,
    metadata: &str,
    event: NewEvent,
    now: WallTime,
) -> Result<MetadataChange, StoreError> {
    let number = sessions::open_row(db, id)?.number;
    let changed = db
        .prepare_cached(
            "UPDATE sessions SET metadata = ?3, metadata_version = metadata_version + 1
             WHERE number = ?1 AND metadata_version = ?2",
        )?
        .execute((number, was.cast_signed(), metadata))?;
    if changed == 0 {
        return Ok(MetadataChange::Behind);
    }
    Ok(MetadataChange::Now(events::append_one(db, number, event, now)?))
}
