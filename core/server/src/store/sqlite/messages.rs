//! Messages under the ids of their senders in a table.

use super::sessions;
use crate::store::StoreError;
use crate::store::event::{Seq, Stored};
use crate::store::message::{KnownMessage, MessageAnswer, MessageNote, MessageOutcome};
use crate::store::session::Epoch;
use rusqlite::{Connection, OptionalExtension, Row};

/// Remembers a message of a session (by row), or what became of it. `logged` are the events that go with it.
pub(super) fn note(
    db: &Connection,
    session: i64,
    note: &MessageNote,
    epoch: Option<Epoch>,
    logged: &[Stored],
) -> Result<(), StoreError> {
    let MessageNote { message, outcome } = note;
    let spans = outcome.as_ref().map(|outcome| write_spans(&outcome.spans, logged)).transpose()?;
    let (mut unlogged, mut code, mut sentence) = (None, None, None);
    match outcome.as_ref().map(|outcome| &outcome.answer) {
        None | Some(MessageAnswer::Logged) => {}
        Some(MessageAnswer::Unlogged(answer)) => unlogged = Some(answer),
        Some(MessageAnswer::Failed { code: number, message }) => {
            (code, sentence) = (Some(number), Some(message));
        }
    }
    db.prepare_cached(
        "INSERT INTO messages (session, sender, id, digest, epoch, spans, answer, error_code,
             error_message) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (session, sender, id) DO UPDATE SET epoch = coalesce(?5, epoch), spans = ?6,
             answer = ?7, error_code = ?8, error_message = ?9",
    )?
    .execute((
        session,
        &message.sender,
        &message.id,
        &message.digest,
        epoch.map(|epoch| epoch.0.cast_signed()),
        spans,
        unlogged,
        code,
        sentence,
    ))?;
    db.prepare_cached(
        "DELETE FROM messages WHERE session = ?1 AND number <= (SELECT number FROM messages
             WHERE session = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute((session, message.keep.max(1)))?;
    Ok(())
}

pub(super) fn find(
    db: &Connection,
    id: &str,
    sender: &str,
    message: &str,
) -> Result<Option<KnownMessage>, StoreError> {
    let session = sessions::row(db, id)?.number;
    let mut sql = db.prepare_cached(
        "SELECT digest, epoch, spans, answer, error_code, error_message FROM messages
         WHERE session = ?1 AND sender = ?2 AND id = ?3",
    )?;
    sql.query_row((session, sender, message), |row| Ok(read(row))).optional()?.transpose()
}

fn read(row: &Row<'_>) -> Result<KnownMessage, StoreError> {
    let outcome = match row.get::<_, Option<String>>(2)? {
        None => None,
        Some(spans) => {
            let code: Option<i64> = row.get(4)?;
            let answer = match (code, row.get::<_, Option<String>>(3)?) {
                (Some(code), _) => {
                    let message = row.get::<_, Option<String>>(5)?.unwrap_or_default();
                    MessageAnswer::Failed { code, message }
                }
                (None, Some(answer)) => MessageAnswer::Unlogged(answer),
                (None, None) => MessageAnswer::Logged,
            };
            Some(MessageOutcome { spans: read_spans(&spans)?, answer })
        }
    };
    let epoch = row.get::<_, Option<i64>>(1)?.map(|epoch| Epoch(epoch.cast_unsigned()));
    Ok(KnownMessage { digest: row.get(0)?, epoch, outcome })
}

/// The spans as a JSON array of pairs, with the events that have just been logged behind them.
fn write_spans(spans: &[(Seq, Seq)], logged: &[Stored]) -> Result<String, StoreError> {
    let mut pairs: Vec<(u64, u64)> = spans.iter().map(|(from, to)| (from.0, to.0)).collect();
    if let (Some(first), Some(last)) = (logged.first(), logged.last()) {
        match pairs.last_mut() {
            Some((_, to)) if *to + 1 == first.seq.0 => *to = last.seq.0,
            _ => pairs.push((first.seq.0, last.seq.0)),
        }
    }
    serde_json::to_string(&pairs)
        .map_err(|error| StoreError::Internal(format!("places cannot be written: {error}")))
}

fn read_spans(text: &str) -> Result<Vec<(Seq, Seq)>, StoreError> {
    let pairs: Vec<(u64, u64)> = serde_json::from_str(text)
        .map_err(|error| StoreError::Io(format!("stored places cannot be read: {error}")))?;
    Ok(pairs.into_iter().map(|(from, to)| (Seq(from), Seq(to))).collect())
}
