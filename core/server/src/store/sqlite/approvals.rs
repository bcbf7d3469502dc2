//! Questions for consent, read from the log. A turn asks one at a time, so at most the last one of a session is open.

use super::sessions;
use crate::store::StoreError;
use crate::store::session::{LoggedApproval, OpenApproval};
use broca_proto::session::event::EventType;
use rusqlite::Connection;

pub(super) fn find(
    db: &Connection,
    id: &str,
    call: &str,
) -> Result<Option<LoggedApproval>, StoreError> {
    let session = sessions::row(db, id)?.number;
    let mut sql = db.prepare_cached(
        "SELECT event_type, client_key_id, payload FROM events INDEXED BY events_approvals
         WHERE session = ?1
             AND event_type IN ('session.approval.requested', 'session.approval.resolved')
             AND json_extract(payload, '$.tool_use_id') = ?2
         ORDER BY seq DESC LIMIT 2",
    )?;
    let mut rows = sql.query((session, call))?;
    let mut resolved = None;
    while let Some(row) = rows.next()? {
        if row.get::<_, String>(0)? == EventType::APPROVAL_REQUESTED {
            let owner = row.get::<_, Option<String>>(1)?.unwrap_or_default();
            return Ok(Some(LoggedApproval { owner, resolved }));
        }
        resolved = Some(row.get(2)?);
    }
    Ok(None)
}

pub(super) fn open(db: &Connection) -> Result<Vec<OpenApproval>, StoreError> {
    let mut sql = db.prepare_cached(
        "SELECT s.id, e.client_key_id, json_extract(e.payload, '$.tool_use_id')
         FROM (SELECT session, max(seq) AS seq FROM events INDEXED BY events_approvals
               WHERE event_type IN ('session.approval.requested', 'session.approval.resolved')
               GROUP BY session) AS newest
         JOIN events AS e ON e.session = newest.session AND e.seq = newest.seq
         JOIN sessions AS s ON s.number = e.session
         WHERE e.event_type = 'session.approval.requested'",
    )?;
    let open = sql.query_map([], |row| {
        let owner = row.get::<_, Option<String>>(1)?.unwrap_or_default();
        Ok(OpenApproval { session: row.get(0)?, owner, call: row.get(2)? })
    })?;
    Ok(open.collect::<Result<_, _>>()?)
}
