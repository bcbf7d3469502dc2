//! The log in a table.

use super::sessions;
use crate::store::StoreError;
use crate::store::event::{
    Elided, Event, LoggedMessage, NewEvent, Page, PageLimit, Seq, Stored, WallTime,
};
use crate::store::session::Counters;
use broca_proto::Json;
use broca_proto::run::log::{compose_request, provider_message};
use broca_proto::session::event::EventType;
use rusqlite::{Connection, OptionalExtension, Row};

/// Logs events of a session (by row), numbering them. The writer's transaction makes that exclusive.
pub(super) fn append(
    db: &Connection,
    session: i64,
    events: Vec<NewEvent>,
    now: WallTime,
) -> Result<Vec<Stored>, StoreError> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let mut seq = last(db, session)?;
    let mut stored = Vec::with_capacity(events.len());
    for event in events {
        seq = Seq(seq.0 + 1);
        insert(db, session, seq, &event, now)?;
        stored.push(Stored { seq, created_at: now, event });
    }
    Ok(stored)
}

pub(super) fn append_one(
    db: &Connection,
    session: i64,
    event: NewEvent,
    now: WallTime,
) -> Result<Stored, StoreError> {
    let seq = Seq(last(db, session)?.0 + 1);
    insert(db, session, seq, &event, now)?;
    Ok(Stored { seq, created_at: now, event })
}

fn insert(
    db: &Connection,
    session: i64,
    seq: Seq,
    event: &NewEvent,
    now: WallTime,
) -> Result<(), StoreError> {
    let elided = event.elided.as_ref();
    db.prepare_cached(
        "INSERT INTO events (session, seq, id, client_key_id, event_type, created_at, elided_from,
             elided_tail, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute((
        session,
        seq.0.cast_signed(),
        &event.id,
        &event.client_key_id,
        &event.event_type,
        now.0,
        elided.map(|elided| elided.from.0.cast_signed()),
        elided.map(|elided| &elided.tail),
        &event.payload,
    ))?;
    Ok(())
}

/// The last event of a session (by row).
pub(super) fn last(db: &Connection, session: i64) -> Result<Seq, StoreError> {
    let mut sql =
        db.prepare_cached("SELECT seq FROM events WHERE session = ?1 ORDER BY seq DESC LIMIT 1")?;
    let seq = sql.query_row([session], |row| row.get::<_, i64>(0)).optional()?;
    Ok(seq.map_or(Seq::START, |seq| Seq(seq.cast_unsigned())))
}

pub(super) fn page(
    db: &Connection,
    id: &str,
    after: Seq,
    limit: PageLimit,
) -> Result<Page, StoreError> {
    let session = sessions::row(db, id)?.number;
    let mut sql = db.prepare_cached(
        "SELECT seq, id, client_key_id, event_type, created_at, payload, elided_from, elided_tail
         FROM events WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
    )?;
    let most = i64::from(limit.events.max(1));
    let mut rows = sql.query((session, place(after), most + 1))?;
    let mut page = Page::default();
    let mut history = History::default();
    let mut bytes = 0_usize;
    while let Some(row) = rows.next()? {
        if page.events.len() >= limit.events.max(1) as usize {
            page.more = true;
            break;
        }
        let event = read(db, session, row, &mut history)?;
        bytes = bytes.saturating_add(event.payload.len());
        if bytes > limit.bytes && !page.events.is_empty() {
            page.more = true;
            break;
        }
        page.events.push(event);
    }
    Ok(page)
}

fn read(
    db: &Connection,
    session: i64,
    row: &Row<'_>,
    history: &mut History,
) -> Result<Event, StoreError> {
    let mut event = Event {
        seq: Seq(row.get::<_, i64>(0)?.cast_unsigned()),
        id: row.get(1)?,
        client_key_id: row.get(2)?,
        event_type: row.get(3)?,
        created_at: WallTime(row.get(4)?),
        payload: row.get(5)?,
    };
    if let Some(from) = row.get::<_, Option<i64>>(6)? {
        let elided = Elided { from: Seq(from.cast_unsigned()), tail: row.get(7)? };
        history.extend(db, session, elided.from, event.seq)?;
        let payload = compose_request(
            &json(std::mem::take(&mut event.payload))?,
            &history.messages,
            &json(elided.tail)?,
        );
        event.payload = payload.as_str().to_owned();
    }
    Ok(event)
}

/// The messages before the events of one page: read once, extended from event to event.
#[derive(Default)]
struct History {
    from: Seq,
    before: Seq,
    messages: Vec<Json>,
}

impl History {
    /// Makes it the messages from one place up to the event at another.
    fn extend(
        &mut self,
        db: &Connection,
        session: i64,
        from: Seq,
        before: Seq,
    ) -> Result<(), StoreError> {
        if from != self.from {
            *self = Self { from, before: from, messages: Vec::new() };
        }
        let start = self.before.max(from);
        for message in messages(db, session, start, Seq(before.0.saturating_sub(1)))? {
            let event_type = EventType::parse(&message.event_type);
            self.messages.push(provider_message(&json(message.payload)?, &event_type));
        }
        self.before = before;
        Ok(())
    }
}

fn json(text: String) -> Result<Json, StoreError> {
    Json::parse(text).map_err(|_| StoreError::Io("a stored payload is not JSON".to_owned()))
}

pub(super) fn messages(
    db: &Connection,
    session: i64,
    from: Seq,
    up_to: Seq,
) -> Result<Vec<LoggedMessage>, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT seq, id, event_type, payload FROM events INDEXED BY events_messages
         WHERE session = ?1 AND seq BETWEEN ?2 AND ?3
             AND event_type IN ('client.message.send', 'server.message.send') ORDER BY seq",
    )?;
    let messages = sql.query_map((session, place(from), place(up_to)), |row| {
        let seq = Seq(row.get::<_, i64>(0)?.cast_unsigned());
        let (id, event_type) = (row.get(1)?, row.get(2)?);
        Ok(LoggedMessage { seq, id, event_type, payload: row.get(3)? })
    })?;
    Ok(messages.collect::<Result<_, _>>()?)
}

/// Looks from the end backwards, because whoever resumes was there a moment ago. An id that is not
/// there costs a walk through the session, as much as the full replay that follows.
pub(super) fn position_of(
    db: &Connection,
    id: &str,
    event_id: &str,
) -> Result<Option<Seq>, StoreError> {
    let session = sessions::row(db, id)?.number;
    let mut sql = db.prepare_cached(
        "SELECT seq FROM events WHERE session = ?1 AND id = ?2 ORDER BY seq DESC LIMIT 1",
    )?;
    let seq = sql.query_row((session, event_id), |row| row.get::<_, i64>(0)).optional()?;
    Ok(seq.map(|seq| Seq(seq.cast_unsigned())))
}

pub(super) fn counters(db: &Connection) -> Result<Counters, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT (SELECT coalesce(max(number), 0) FROM sessions),
                (SELECT coalesce(max(number), 0) FROM events),
                (SELECT count(*) FROM gates WHERE pause_deadline IS NOT NULL)",
    )?;
    Ok(sql.query_row([], |row| {
        let count = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
        Ok(Counters { sessions: count(0)?, events: count(1)?, paused: count(2)? })
    })?)
}

/// A place as SQL has it; what lies beyond its numbers lies beyond every log.
fn place(seq: Seq) -> i64 {
    i64::try_from(seq.0).unwrap_or(i64::MAX)
}
