//! What the tools of one session did, by idempotency key, and what came of its turns.

use broca::tools::ToolContext;
use broca::{Error, ErrorKind, Retry};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The side effects of a session's tools: the store that must not do anything twice.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<HashMap<String, Call>>);

/// What became of one call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) tool_use_id: String,
    /// How often its handler was started as if for the first time.
    pub(crate) started: u32,
    /// How often it was started with the word that it may have run.
    pub(crate) started_again: u32,
    /// How often it had its effect.
    pub(crate) effects: u32,
}

impl Ledger {
    /// A handler begins; whether the effect is still to be had. One that may have run looks it up first.
    pub(crate) fn begin(&self, context: &ToolContext) -> bool {
        let mut calls = self.calls();
        let call = calls.entry(context.idempotency_key().to_owned()).or_default();
        context.tool_use_id().clone_into(&mut call.tool_use_id);
        if context.may_have_run() {
            call.started_again += 1;
            return call.effects == 0;
        }
        call.started += 1;
        true
    }

    /// The effect itself.
    pub(crate) fn effect(&self, context: &ToolContext) {
        if let Some(call) = self.calls().get_mut(context.idempotency_key()) {
            call.effects += 1;
        }
    }

    pub(crate) fn all(&self) -> Vec<(String, Call)> {
        self.calls().iter().map(|(key, call)| (key.clone(), call.clone())).collect()
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<String, Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a program was told about one of its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// This is the answer.
    Done(String),
    /// It was cancelled, as was asked.
    Cancelled,
    /// Every model refused, as the script says.
    Refused,
    /// It was under way when the service died; the session goes on.
    Interrupted,
    /// It never reached the service.
    NotSent,
    /// Nobody knows: the error said so.
    Unknown,
    /// Another driver went on, because the time was over while its program was away, or no way led to the service.
    GivenUp,
    /// Results that the program before had sent came later than its death, and before the same ones of this program.
    Overtaken,
    /// The program died when nothing was open any more, before it had read the end.
    Unread,
}

/// One message and what became of it.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    /// What marks it in the log.
    pub(crate) mark: String,
    pub(crate) outcome: Outcome,
    /// The ids of the events that were shown, if one program saw all of it.
    pub(crate) shown: Option<Vec<String>>,
}

/// What an error says about its message. Other errors than these have no place in a run.
pub(crate) fn outcome_of(error: &Error, resumed: bool) -> Result<Outcome, String> {
    const INTERRUPTED: &str = "turn interrupted";
    const TOO_LATE: &str = "no paused turn is awaiting";
    const OTHERS: &str = "is not in the paused assistant turn";
    let said = |error: &Error| {
        format!(
            "{} ({}, retry {}): {error}",
            error.kind().as_str(),
            error.code(),
            error.retry().as_str()
        )
    };
    match (error.kind(), error.retry()) {
        (ErrorKind::Cancelled, _) => Ok(Outcome::Cancelled),
        (ErrorKind::ProvidersFailed, _) => Ok(Outcome::Refused),
        (ErrorKind::Rpc, _) if error.message().contains(INTERRUPTED) => Ok(Outcome::Interrupted),
        (ErrorKind::Rpc, _) if error.message().contains(TOO_LATE) => Ok(Outcome::GivenUp),
        (ErrorKind::Rpc, _) if resumed && error.message().contains(OTHERS) => {
            Ok(Outcome::Overtaken)
        }
        (ErrorKind::Timeout, _) if resumed => Ok(Outcome::GivenUp),
        (kind, Retry::Unknown) if passes(kind) => Ok(Outcome::Unknown),
        (kind, Retry::Safe) if passes(kind) => Ok(Outcome::NotSent),
        _ => Err(format!("a turn ended with {}", said(error))),
    }
}

/// Whether the network alone may be at fault.
pub(crate) fn passes(kind: ErrorKind) -> bool {
    kind.is(ErrorKind::Transport)
        || matches!(kind, ErrorKind::Timeout | ErrorKind::StreamEndedEarly | ErrorKind::Lagged)
}
