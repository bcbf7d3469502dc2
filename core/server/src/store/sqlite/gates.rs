//! Gates and paused turns in a table: one row for each session whose gate was ever claimed.

use super::profiles::{read_list, write_list};
use super::sessions::{SessionRow, open_row, row};
use super::{events, messages};
use crate::store::StoreError;
use crate::store::event::{NewEvent, Stored, WallTime};
use crate::store::message::MessageNote;
use crate::store::session::{Epoch, Lease, Parked, Pause};
use rusqlite::{Connection, OptionalExtension, Row};

/// Who takes a paused turn up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By<'a> {
    /// This client key, which must be its owner.
    Owner(&'a str),
    /// This client key, which was let through in front of the store.
    Anyone(&'a str),
}

/// Frees the gates of turns that ran when the service ended. Paused turns stay.
pub(super) fn free_held(db: &Connection) -> Result<(), StoreError> {
    db.execute("UPDATE gates SET held = 0, owner = NULL WHERE held = 1", [])?;
    Ok(())
}

/// The open session whose gate this lease still holds.
pub(super) fn holder(db: &Connection, id: &str, lease: Epoch) -> Result<SessionRow, StoreError> {
    let session = open_row(db, id)?;
    let held = db
        .prepare_cached("SELECT 1 FROM gates WHERE session = ?1 AND epoch = ?2 AND held = 1")?
        .exists((session.number, lease.0.cast_signed()))?;
    if held { Ok(session) } else { Err(StoreError::LeaseLost) }
}

pub(super) fn claim(
    db: &Connection,
    id: &str,
    owner: &str,
    events: Vec<NewEvent>,
    note: Option<&MessageNote>,
    now: WallTime,
) -> Result<Lease, StoreError> {
    let session = open_row(db, id)?.number;
    if pause(db, id)?.is_some() {
        return Err(StoreError::Parked);
    }
    hold(db, session, owner, events, note, now)
}

pub(super) fn park(
    db: &Connection,
    id: &str,
    lease: Epoch,
    pause: &Pause,
    events: Vec<NewEvent>,
    note: Option<&MessageNote>,
    now: WallTime,
) -> Result<Vec<Stored>, StoreError> {
    let session = holder(db, id, lease)?.number;
    db.prepare_cached(
        "UPDATE gates SET held = 0, owner = ?2, pause_deadline = ?3, pause_expected = ?4,
             pause_stashed = ?5, pause_progress = ?6, pause_began = ?7 WHERE session = ?1",
    )?
    .execute((
        session,
        &pause.owner,
        pause.deadline.0,
        write_list(&pause.expected)?,
        &pause.stashed,
        &pause.progress,
        pause.began.0,
    ))?;
    append(db, session, lease, events, note, now)
}

/// Moves the deadline of the owner's pause, never to an earlier time.
pub(super) fn prolong(
    db: &Connection,
    id: &str,
    owner: &str,
    deadline: WallTime,
) -> Result<(), StoreError> {
    let session = open_row(db, id)?.number;
    match pause(db, id)? {
        None => return Err(StoreError::NotParked),
        Some(found) if found.pause.owner != owner => return Err(StoreError::NotOwner),
        Some(_) => {}
    }
    db.prepare_cached(
        "UPDATE gates SET pause_deadline = max(pause_deadline, ?2) WHERE session = ?1",
    )?
    .execute((session, deadline.0))?;
    Ok(())
}

pub(super) fn unpark(
    db: &Connection,
    id: &str,
    by: By<'_>,
    parked: Epoch,
    events: Vec<NewEvent>,
    note: Option<&MessageNote>,
    now: WallTime,
) -> Result<Lease, StoreError> {
    let session = open_row(db, id)?.number;
    let found = pause(db, id)?.filter(|found| found.epoch == parked);
    let found = found.ok_or(StoreError::NotParked)?;
    let owner = match by {
        By::Owner(owner) if found.pause.owner != owner => return Err(StoreError::NotOwner),
        By::Owner(owner) | By::Anyone(owner) => owner,
    };
    hold(db, session, owner, events, note, now)
}

/// The gate changes hands: a new epoch, no pause.
fn hold(
    db: &Connection,
    session: i64,
    owner: &str,
    events: Vec<NewEvent>,
    note: Option<&MessageNote>,
    now: WallTime,
) -> Result<Lease, StoreError> {
    let epoch: i64 = db
        .prepare_cached(
            "INSERT INTO gates (session, epoch, owner, held) VALUES (?1, 1, ?2, 1)
             ON CONFLICT DO UPDATE SET epoch = epoch + 1, owner = ?2, held = 1,
                 pause_deadline = NULL, pause_expected = NULL, pause_stashed = NULL,
                 pause_progress = NULL, pause_began = NULL
             RETURNING epoch",
        )?
        .query_row((session, owner), |row| row.get(0))?;
    let epoch = Epoch(epoch.cast_unsigned());
    let events = append(db, session, epoch, events, note, now)?;
    Ok(Lease { epoch, events })
}

/// Logs events of the turn with this lease, and what is to be remembered of its message with them.
fn append(
    db: &Connection,
    session: i64,
    lease: Epoch,
    events: Vec<NewEvent>,
    note: Option<&MessageNote>,
    now: WallTime,
) -> Result<Vec<Stored>, StoreError> {
    let stored = events::append(db, session, events, now)?;
    if let Some(note) = note {
        messages::note(db, session, note, Some(lease), &stored)?;
    }
    Ok(stored)
}

pub(super) fn release(
    db: &Connection,
    id: &str,
    lease: Epoch,
    events: Vec<NewEvent>,
    note: Option<&MessageNote>,
    now: WallTime,
) -> Result<Vec<Stored>, StoreError> {
    let session = holder(db, id, lease)?.number;
    db.prepare_cached("UPDATE gates SET held = 0, owner = NULL WHERE session = ?1")?
        .execute([session])?;
    append(db, session, lease, events, note, now)
}

pub(super) fn pause(db: &Connection, id: &str) -> Result<Option<Parked>, StoreError> {
    let number = row(db, id)?.number;
    let mut sql = db.prepare_cached(concat!(
        "SELECT s.id, g.epoch, g.owner, g.pause_deadline, g.pause_expected, g.pause_stashed,
             g.pause_progress, g.pause_began FROM gates g JOIN sessions s ON s.number = g.session",
        " WHERE g.session = ?1 AND g.pause_deadline IS NOT NULL"
    ))?;
    sql.query_row([number], |row| Ok(read(row))).optional()?.transpose()
}

pub(super) fn all_pauses(db: &Connection) -> Result<Vec<Parked>, StoreError> {
    let mut sql = db.prepare_cached(concat!(
        "SELECT s.id, g.epoch, g.owner, g.pause_deadline, g.pause_expected, g.pause_stashed,
             g.pause_progress, g.pause_began FROM gates g JOIN sessions s ON s.number = g.session",
        " WHERE g.pause_deadline IS NOT NULL ORDER BY g.pause_deadline"
    ))?;
    let mut rows = sql.query([])?;
    let mut pauses = Vec::new();
    while let Some(row) = rows.next()? {
        pauses.push(read(row)?);
    }
    Ok(pauses)
}

fn read(row: &Row<'_>) -> Result<Parked, StoreError> {
    Ok(Parked {
        session: row.get(0)?,
        epoch: Epoch(row.get::<_, i64>(1)?.cast_unsigned()),
        pause: Pause {
            owner: row.get(2)?,
            began: WallTime(row.get(7)?),
            deadline: WallTime(row.get(3)?),
            expected: read_list(&row.get::<_, String>(4)?)?,
            stashed: row.get(5)?,
            progress: row.get(6)?,
        },
    })
}
