//! `session.cancel`: ends the caller's turn, running, paused or queued (feature `cancel`).

use super::Engine;
use super::record::{Context, Write};
use super::send::{Call, Grant};
use super::session::{Ending, Found, Session};
use super::turn::read_pause;
use crate::store::{MessageAnswer, MessageNote, MessageOutcome, StoreError};
use broca_proto::Json;
use broca_proto::run::gate::{Parking, Ticket};
use broca_proto::run::{methods, turn};
use broca_proto::session::content::Block;
use broca_proto::session::ids::KeyId;
use broca_proto::session::method::{Cancel, CancelResult, CancelledState};
use broca_proto::session::rpc::RpcFailure;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Cancels and answers when the gate is free.
pub(super) async fn cancel(
    engine: &Engine,
    session: &Arc<Session>,
    who: &KeyId,
    cancel: Cancel,
) -> Result<Json, RpcFailure> {
    let mut was_running = false;
    let was = loop {
        match session.find_cancelled(who, cancel.request_id.as_ref(), was_running) {
            Found::Idle => break CancelledState::Idle,
            Found::Queued(call, grant) => {
                let noted = note_cancelled(engine, session, &call).await;
                // Its streams may have gone away at this very moment.
                let _ = grant.send(Grant::Cancelled);
                noted?;
                break CancelledState::Queued;
            }
            Found::Running(over, cancelled) => {
                over.closed().await;
                if cancelled.load(Ordering::SeqCst) {
                    break CancelledState::Running;
                }
                // It came to its end or its pause before the word reached it: look again.
                was_running = true;
            }
            Found::Paused(ticket, parking) => {
                settle_paused(engine, session, ticket, parking, cancel.results).await?;
                break CancelledState::Paused;
            }
        }
    };
    let result = CancelResult { cancelled: was != CancelledState::Idle, was };
    Json::encode(&result).map_err(|_| methods::internal_error())
}

/// Remembers that a message was cancelled before its turn, so that it does nothing when it comes again.
async fn note_cancelled(engine: &Engine, session: &Session, call: &Call) -> Result<(), RpcFailure> {
    let Some(message) = call.message.clone() else { return Ok(()) };
    let RpcFailure { code, message: sentence } = turn::turn_cancelled();
    let answer = MessageAnswer::Failed { code, message: sentence };
    let outcome = Some(MessageOutcome { spans: Vec::new(), answer });
    let noted = engine.store().note_message(session.id.as_str(), MessageNote { message, outcome });
    noted.await.map_err(|error| {
        tracing::error!(session = %session.id, code = error.code(), %error, "a cancel failed");
        methods::internal_error()
    })
}

async fn settle_paused(
    engine: &Engine,
    session: &Arc<Session>,
    ticket: Ticket,
    parking: Parking,
    results: Vec<Block>,
) -> Result<(), RpcFailure> {
    let settled = settle(engine, session, &parking.owner, results).await;
    let ending = match &settled {
        Ok(()) => Ending::Released,
        Err(_) => Ending::GivenBack(parking),
    };
    session.end_call(ticket, ending, None, || ());
    settled
}

async fn settle(
    engine: &Engine,
    session: &Session,
    who: &KeyId,
    results: Vec<Block>,
) -> Result<(), RpcFailure> {
    let failed = |error: StoreError| {
        tracing::error!(session = %session.id, code = error.code(), %error, "a cancel failed");
        methods::internal_error()
    };
    let parked = engine.store().pause(session.id.as_str()).await.map_err(failed)?;
    let Some(parked) = parked else { return Ok(()) };
    let pause = read_pause(&parked.pause).map_err(failed)?;
    let events = turn::cancel_paused(&pause, results)?;
    let write = Write::Resume { owner: who.as_str().to_owned(), parked: parked.epoch };
    let resumed = session.record(engine, write, events, Context::default()).await;
    let Some(lease) = resumed.map_err(failed)?.epoch else { return Ok(()) };
    let released = session.record(engine, Write::Release(lease), Vec::new(), Context::default());
    if let Err(error) = released.await {
        // The log holds the end of the turn; the store's gate is taken over by the next turn.
        tracing::error!(session = %session.id, code = error.code(), %error, "a gate stays claimed");
    }
    Ok(())
}
