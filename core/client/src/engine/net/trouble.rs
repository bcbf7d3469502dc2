//! What becomes of an exchange when its connection breaks, its peer babbles, or its time is over.

use super::{ExchangeId, Net, NetEvent, State};
use crate::engine::effect::{CloseReason, ConnId};
use crate::http1::Http1Error;
use broca_proto::session::exchange::BodyEnd;
use broca_proto::{Error, ErrorKind, Retry, Time};

impl Net {
    /// The peer's HTTP is wrong, or the connection ended where it must not.
    pub(super) fn broken(&mut self, conn: ConnId, id: ExchangeId, error: &Http1Error, now: Time) {
        let ended = matches!(
            error,
            Http1Error::ClosedBeforeResponse
                | Http1Error::ClosedInHead
                | Http1Error::ClosedInBody { .. }
        );
        let gone = self.conns.get(&conn).and_then(|c| c.gone);
        self.close(conn, true);
        if ended {
            self.lost(id, gone.unwrap_or(CloseReason::Eof), now);
            return;
        }
        let got_head = self.exchanges.get(&id).is_some_and(|x| x.got_head);
        let kind = if got_head { ErrorKind::Malformed } else { ErrorKind::NotBroca };
        let message =
            format!("{} does not answer in HTTP as it should: {error}", self.address.display());
        self.fail(id, Error::new(kind, message).with_retry(Retry::Unknown), now);
    }

    /// The connection under an exchange is gone before its answer was whole.
    pub(super) fn lost(&mut self, id: ExchangeId, why: CloseReason, now: Time) {
        let Some(x) = self.exchanges.get_mut(&id) else { return };
        let reused = matches!(x.state, State::Sent { reused: true, .. });
        if x.call.idempotent && reused && !x.got_head {
            // A kept connection that the peer had closed meanwhile.
            x.state = State::Waiting;
            x.needs_new = true;
            x.deadline = Some(now.plus(self.settings.connect_timeout_ms));
            self.waiting.push_front(id);
            self.serve_waiting(now);
            return;
        }
        if x.got_head {
            let op = x.op;
            self.exchanges.remove(&id);
            self.events.push_back((op, id, NetEvent::End(BodyEnd::Broken)));
            self.serve_waiting(now);
            return;
        }
        let message = format!(
            "{} after the request had left, without an answer; it may have been carried out. If this happens always, check that a session service listens at {}, and whether it wants https",
            why.as_str(),
            self.address.display()
        );
        self.fail(id, Error::new(ErrorKind::Io, message).with_retry(Retry::Unknown), now);
    }

    /// A deadline of an exchange has passed, unless something before it in the same moment has moved it.
    pub(super) fn phase_over(&mut self, id: ExchangeId, now: Time) {
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let Some(x) = self.exchanges.get_mut(&id) else { return };
        if !due(x.whole_deadline) {
            if !due(x.phase_deadline()) {
                return;
            }
            if std::mem::take(&mut x.resumed) {
                // The time did not count while the answer was not read.
                let ms = x.call.silence_timeout_ms.filter(|_| x.got_head);
                x.deadline = Some(now.plus(ms.unwrap_or(x.call.head_timeout_ms)));
                return;
            }
        }
        self.too_late(id, now);
    }

    pub(super) fn too_late(&mut self, id: ExchangeId, now: Time) {
        let Some(x) = self.exchanges.get(&id) else { return };
        let got_head = x.got_head;
        let (message, retry) = match &x.state {
            State::Waiting => (
                format!(
                    "all {} connections of this client are in use; raise max_connections",
                    self.settings.max_connections
                ),
                Retry::Safe,
            ),
            State::Dialling(_) => (
                format!(
                    "no connection to {} within {} ms",
                    self.address.display(),
                    self.settings.connect_timeout_ms
                ),
                Retry::Safe,
            ),
            State::Sent { .. } if got_head => (
                "the answer did not end, or fell silent, within its time limit; raise rest_timeout_ms or silence_timeout_ms".to_owned(),
                Retry::Unknown,
            ),
            State::Sent { .. } => (
                format!(
                    "{} took the request and did not answer in time; check that it is a session service, or raise head_timeout_ms ({} ms) and, for a REST call, rest_timeout_ms",
                    self.address.display(),
                    x.call.head_timeout_ms
                ),
                Retry::Unknown,
            ),
        };
        let kind = if matches!(x.state, State::Dialling(_)) {
            ErrorKind::Connect
        } else {
            ErrorKind::Timeout
        };
        self.fail(id, Error::new(kind, message).with_retry(retry), now);
    }

    pub(super) fn fail(&mut self, id: ExchangeId, error: Error, now: Time) {
        let Some(op) = self.exchanges.get(&id).map(|x| x.op) else { return };
        self.abort(id, now);
        self.events.push_back((op, id, NetEvent::Failed(error)));
    }
}
