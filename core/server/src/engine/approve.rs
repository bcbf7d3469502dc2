//! `session.approve`: the driver of a turn answers whether a tool of the service may run (feature `approve`).
//!
//! The turn waits with its question open in the session. The first answer is handed to it; whoever answers waits until what
//! became of the question is on disk, and is told that.

use super::Engine;
use super::record::new_event;
use super::session::Session;
use crate::engine::now;
use crate::store::{OpenApproval, StoreError};
use broca_proto::Json;
use broca_proto::run::log::LogEvent;
use broca_proto::run::methods;
use broca_proto::session::approval::{
    Answer, ApprovalState, Approve, ApproveResult, Question, SettledBy,
};
use broca_proto::session::ids::KeyId;
use broca_proto::session::rpc::{RpcFailure, code};
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// A question as the session keeps it while a turn waits.
#[derive(Debug)]
pub(super) struct Asked {
    owner: KeyId,
    question: Question,
    /// The turn's ear; nothing after the first answer.
    answer: Option<oneshot::Sender<Answer>>,
    /// Closed when what became of the question is on disk.
    settled: watch::Sender<()>,
}

/// Somebody who has answered, and waits to be told what holds.
pub(super) struct Heard {
    settled: watch::Receiver<()>,
    is_first: bool,
}

impl Asked {
    /// Whether `who` is asked about this call.
    pub(super) fn is_about(&self, who: &KeyId, call: &str) -> bool {
        self.owner == *who && self.call() == call
    }

    /// The call that is asked about.
    pub(super) fn call(&self) -> &str {
        &self.question.tool_use_id
    }

    /// `who` cannot answer any more: as if the time were over.
    pub(super) fn expect_none_of(&mut self, who: &KeyId) {
        if self.owner == *who {
            self.answer = None;
        }
    }

    /// Takes what its driver says.
    pub(super) fn hear(&mut self, said: Approve) -> Result<Heard, RpcFailure> {
        let settled = self.settled.subscribe();
        if self.answer.is_none() {
            return Ok(Heard { settled, is_first: false });
        }
        let answer = self.question.accept(said)?;
        if let Some(turn) = self.answer.take() {
            // The turn may just have stopped: then that is what the log will tell.
            let _ = turn.send(answer);
        }
        Ok(Heard { settled, is_first: true })
    }
}

/// The turn's end of its question. Dropping it says that what became of the question is on disk, or will never be.
pub(super) struct OpenQuestion {
    session: Arc<Session>,
    tool_use_id: String,
}

impl OpenQuestion {
    pub(super) fn new(
        session: &Arc<Session>,
        owner: &KeyId,
        question: Question,
    ) -> (Self, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        let tool_use_id = question.tool_use_id.clone();
        let (owner, answer, settled) = (owner.clone(), Some(answer), watch::channel(()).0);
        session.open_question(Asked { owner, question, answer, settled });
        (Self { session: Arc::clone(session), tool_use_id }, answered)
    }

    pub(super) fn tool_use_id(&self) -> &str {
        &self.tool_use_id
    }
}

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        self.session.close_question(&self.tool_use_id);
    }
}

/// Answers when what holds is on disk.
pub(super) async fn approve(
    engine: &Engine,
    session: &Session,
    who: &KeyId,
    said: Approve,
) -> Result<Json, RpcFailure> {
    let id = said.tool_use_id.clone();
    let mut was = ApprovalState::Resolved;
    loop {
        if let Some(Heard { mut settled, is_first }) = session.hear_answer(who, said.clone())? {
            if is_first {
                was = ApprovalState::Waiting;
            }
            // The sender goes when the question is settled.
            while settled.changed().await.is_ok() {}
        }
        match logged(engine, session, who, &id).await? {
            Some(payload) => {
                let result = ApproveResult::of_resolved(&payload, was);
                let result = result.ok_or_else(methods::internal_error)?;
                return Json::encode(&result).map_err(|_| methods::internal_error());
            }
            // It was asked at this very moment.
            None if session.asks(who, &id) => {}
            // A question that is neither open nor settled: its turn could not be stored.
            None => return Err(methods::internal_error()),
        }
    }
}

/// What the log says became of the question; nothing while it is open.
async fn logged(
    engine: &Engine,
    session: &Session,
    who: &KeyId,
    id: &str,
) -> Result<Option<Json>, RpcFailure> {
    let logged = engine.store().approval(session.id.as_str(), id).await.map_err(|error| {
        let code = error.code();
        tracing::error!(session = %session.id, code, %error, "an answer cannot be looked up");
        methods::internal_error()
    })?;
    let Some(logged) = logged.filter(|logged| logged.owner == who.as_str()) else {
        let words = "Invalid params: \"tool_use_id\" names no call that this driver was asked for";
        return Err(RpcFailure::new(code::INVALID_PARAMS, words));
    };
    Ok(logged.resolved.and_then(|payload| Json::parse(payload).ok()))
}

/// Settles the questions whose turns ended with the service before this one.
pub(super) async fn withdraw_interrupted(
    store: &Arc<dyn crate::store::Store>,
) -> Result<(), StoreError> {
    for OpenApproval { session, owner, call } in store.open_approvals().await? {
        let owner = KeyId::from(owner.as_str());
        let event = LogEvent::approval_withdrawn(&owner, &call, &SettledBy::Shutdown);
        store.append(&session, None, vec![new_event(event, None)?], now()).await?;
    }
    Ok(())
}
