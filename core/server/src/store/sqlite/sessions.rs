//! Sessions, their participants and drivers in tables.

use super::{credentials, events, gates, list, messages};
use crate::keys::KeyHash;
use crate::store::StoreError;
use crate::store::directory::{ListPlace, Listed};
use crate::store::event::{NewEvent, Stored, WallTime};
use crate::store::message::MessageNote;
use crate::store::session::{
    Closing, Epoch, Join, NewSession, Registration, Session, SessionState, ToolLists,
};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row};

/// What every verb asks first.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionRow {
    /// The session in other tables.
    pub(super) number: i64,
    pub(super) state: SessionState,
}

pub(super) fn row(db: &Connection, id: &str) -> Result<SessionRow, StoreError> {
    let mut sql = db.prepare_cached("SELECT number, state FROM sessions WHERE id = ?1")?;
    sql.query_row([id], |row| Ok(SessionRow { number: row.get(0)?, state: row.get(1)? }))
        .optional()?
        .ok_or(StoreError::Unknown { what: "session" })
}

pub(super) fn open_row(db: &Connection, id: &str) -> Result<SessionRow, StoreError> {
    let row = row(db, id)?;
    match row.state {
        SessionState::Open => Ok(row),
        state => Err(StoreError::NotOpen { state }),
    }
}

pub(super) fn open(
    db: &Connection,
    session: &NewSession,
    tools: &ToolLists,
    key: &KeyHash,
    event: NewEvent,
    now: WallTime,
) -> Result<Stored, StoreError> {
    credentials::refuse_revoked(db, &session.creator)?;
    let number = insert(db, session, SessionState::Open, now)?;
    put_tools(db, number, &session.creator, tools)?;
    add_session_key(db, number, key, &session.creator, now)?;
    events::append_one(db, number, event, now)
}

pub(super) fn record_refused(
    db: &Connection,
    session: &NewSession,
    event: NewEvent,
    now: WallTime,
) -> Result<Stored, StoreError> {
    let number = insert(db, session, SessionState::Error, now)?;
    events::append_one(db, number, event, now)
}

fn insert(
    db: &Connection,
    session: &NewSession,
    state: SessionState,
    now: WallTime,
) -> Result<i64, StoreError> {
    let closed_at = (state != SessionState::Open).then_some(now.0);
    db.prepare_cached(
        "INSERT INTO sessions (id, profile_id, creator, client_version, settings, state,
             created_at, closed_at, metadata) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute((
        &session.id,
        &session.profile_id,
        &session.creator,
        &session.client_version,
        &session.settings,
        state.as_str(),
        now.0,
        closed_at,
        session.metadata.as_deref().unwrap_or("{}"),
    ))?;
    Ok(db.last_insert_rowid())
}

pub(super) fn join(db: &Connection, join: Join, now: WallTime) -> Result<Stored, StoreError> {
    let number = open_row(db, &join.session)?.number;
    credentials::refuse_revoked(db, &join.client_key_id)?;
    match &join.tools {
        Some(tools) => put_tools(db, number, &join.client_key_id, tools)?,
        None => add_participant(db, number, &join.client_key_id)?,
    }
    add_session_key(db, number, &join.session_key, &join.client_key_id, now)?;
    events::append_one(db, number, join.event, now)
}

fn put_tools(
    db: &Connection,
    session: i64,
    key: &str,
    lists: &ToolLists,
) -> Result<(), StoreError> {
    db.prepare_cached(
        "INSERT INTO participants (session, client_key_id, tools, sandbox_tools, subagent_tools)
         VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO UPDATE SET tools = ?3, sandbox_tools = ?4, subagent_tools = ?5",
    )?
    .execute((session, key, &lists.tools, &lists.sandbox_tools, &lists.subagent_tools))?;
    Ok(())
}

/// Makes sure that a participant has lists of tools, be they empty.
fn add_participant(db: &Connection, session: i64, key: &str) -> Result<(), StoreError> {
    let none = ToolLists::default();
    db.prepare_cached(
        "INSERT INTO participants (session, client_key_id, tools, sandbox_tools, subagent_tools)
         VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO NOTHING",
    )?
    .execute((session, key, &none.tools, &none.sandbox_tools, &none.subagent_tools))?;
    Ok(())
}

fn add_session_key(
    db: &Connection,
    session: i64,
    hash: &KeyHash,
    client_key_id: &str,
    now: WallTime,
) -> Result<(), StoreError> {
    db.prepare_cached(
        "INSERT INTO session_keys (session, hash, client_key_id, created_at)
         VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute((session, hash.as_hex(), client_key_id, now.0))?;
    Ok(())
}

pub(super) fn find(db: &Connection, id: &str) -> Result<Option<Session>, StoreError> {
    let mut sql = db.prepare_cached("SELECT * FROM sessions WHERE id = ?1")?;
    sql.query_row([id], |row| Ok(read(db, row))).optional()?.transpose()
}

pub(super) fn listed(
    db: &Connection,
    state: Option<SessionState>,
    after: ListPlace,
    limit: u32,
) -> Result<Listed<Session>, StoreError> {
    let (after, most) = (list::place(after), list::one_more(limit));
    let item = |row: &Row<'_>| read(db, row);
    if let Some(state) = state {
        let mut sql = db.prepare_cached(
            "SELECT * FROM sessions WHERE state = ?3 AND number > ?1 ORDER BY number LIMIT ?2",
        )?;
        return list::read(sql.query((after, most, state.as_str()))?, limit, item);
    }
    let mut sql =
        db.prepare_cached("SELECT * FROM sessions WHERE number > ?1 ORDER BY number LIMIT ?2")?;
    list::read(sql.query((after, most))?, limit, item)
}

fn read(db: &Connection, row: &Row<'_>) -> Result<Session, StoreError> {
    Ok(Session {
        id: row.get("id")?,
        profile_id: row.get("profile_id")?,
        creator: row.get("creator")?,
        client_version: row.get("client_version")?,
        settings: row.get("settings")?,
        state: row.get("state")?,
        created_at: WallTime(row.get("created_at")?),
        closed_at: row.get::<_, Option<i64>>("closed_at")?.map(WallTime),
        last_seq: events::last(db, row.get("number")?)?,
    })
}

/// Closes a session unless it has a session key.
pub(super) fn close_abandoned(
    db: &Connection,
    id: &str,
    events: Vec<NewEvent>,
    now: WallTime,
) -> Result<Closing, StoreError> {
    let SessionRow { number, state } = row(db, id)?;
    if state == SessionState::Open && credentials::any_in(db, number)? {
        return Ok(Closing::Already(state));
    }
    close(db, id, None, SessionState::Closed, events, None, now)
}

pub(super) fn close(
    db: &Connection,
    id: &str,
    lease: Option<Epoch>,
    to: SessionState,
    events: Vec<NewEvent>,
    note: Option<&MessageNote>,
    now: WallTime,
) -> Result<Closing, StoreError> {
    if to == SessionState::Open {
        return Err(StoreError::Internal("a session was to be closed to `open`".to_owned()));
    }
    let SessionRow { number, state } = row(db, id)?;
    if state != SessionState::Open {
        return Ok(Closing::Already(state));
    }
    if let Some(lease) = lease {
        gates::holder(db, id, lease)?;
    }
    let stored = events::append(db, number, events, now)?;
    if let Some(note) = note {
        messages::note(db, number, note, lease, &stored)?;
    }
    db.prepare_cached("UPDATE sessions SET state = ?2, closed_at = ?3 WHERE number = ?1")?
        .execute((number, to.as_str(), now.0))?;
    if to == SessionState::Closed {
        db.prepare_cached("DELETE FROM drivers WHERE session = ?1")?.execute([number])?;
    }
    db.prepare_cached("DELETE FROM gates WHERE session = ?1")?.execute([number])?;
    Ok(Closing::Now(stored))
}

pub(super) fn tools(db: &Connection, id: &str, key: &str) -> Result<Option<ToolLists>, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT tools, sandbox_tools, subagent_tools FROM participants
         WHERE session = ?1 AND client_key_id = ?2",
    )?;
    let lists = sql.query_row((row(db, id)?.number, key), |row| {
        let (tools, sandbox_tools) = (row.get(0)?, row.get(1)?);
        Ok(ToolLists { tools, sandbox_tools, subagent_tools: row.get(2)? })
    });
    Ok(lists.optional()?)
}

pub(super) fn replace_tools(
    db: &Connection,
    id: &str,
    key: &str,
    tools: &str,
) -> Result<(), StoreError> {
    let number = open_row(db, id)?.number;
    db.prepare_cached(
        "INSERT INTO participants (session, client_key_id, tools, sandbox_tools, subagent_tools)
         VALUES (?1, ?2, ?3, '[]', '[]') ON CONFLICT DO UPDATE SET tools = ?3",
    )?
    .execute((number, key, tools))?;
    Ok(())
}

pub(super) fn register_driver(
    db: &Connection,
    id: &str,
    key: &str,
    events: Vec<NewEvent>,
    now: WallTime,
) -> Result<Registration, StoreError> {
    let number = open_row(db, id)?.number;
    let added = db
        .prepare_cached("INSERT OR IGNORE INTO drivers (session, client_key_id) VALUES (?1, ?2)")?
        .execute((number, key))?;
    if added == 0 {
        return Ok(Registration::Already);
    }
    Ok(Registration::First(events::append(db, number, events, now)?))
}

pub(super) fn drivers(db: &Connection, id: &str) -> Result<Vec<String>, StoreError> {
    let number = row(db, id)?.number;
    let mut sql = db.prepare_cached(
        "SELECT client_key_id FROM drivers WHERE session = ?1 ORDER BY client_key_id",
    )?;
    let drivers = sql.query_map([number], |row| row.get(0))?;
    Ok(drivers.collect::<Result<_, _>>()?)
}

impl FromSql for SessionState {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_str()? {
            "open" => Ok(Self::Open),
            "closed" => Ok(Self::Closed),
            "error" => Ok(Self::Error),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}
