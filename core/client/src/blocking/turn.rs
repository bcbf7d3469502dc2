//! A turn: its steps, one call at a time, its tools run beside it.

use super::driver::Shared;
use super::operation::{Hooks, Operation, Waited};
use crate::engine::{self, OpId, Outcome, Reply};
use crate::steps::{self, Approval, NOBODY_TO_ASK, Presented, Question, Received, Sending, Step};
use crate::tools::{Handler, ToolSet};
use broca_proto::{Error, ErrorKind};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A turn under way. It moves while somebody is inside a call of its session, such as [`Turn::next`].
///
/// Tools with handlers are started as soon as their calls come, on threads of the session's pool, and
/// answer by themselves. Everything else that asks for an answer (a manual tool, an approval) waits for
/// it until the service's time is over.
///
/// A turn that is dropped before its end is cancelled, and dropping waits until it is quiet, at most for
/// the configured `cancel_timeout_ms` and grace time.
#[must_use = "a turn that is dropped is cancelled; call next() or reply()"]
pub struct Turn(State);

enum State {
    Refused(Option<Error>),
    Running(Box<Live>),
}

struct Live {
    operation: Operation,
    tools: Arc<ToolSet>,
    hooks: Arc<Hooks>,
}

/// What came of waiting for a step.
#[derive(Debug)]
pub enum Next {
    /// A step.
    Step(Step),
    /// No step in the given time. Ask again.
    TimedOut,
    /// Nothing follows.
    Finished,
}

impl Turn {
    pub(super) fn new(
        begun: Result<Operation, Error>,
        tools: Arc<ToolSet>,
        hooks: Arc<Hooks>,
    ) -> Self {
        Self(match begun {
            Ok(operation) => State::Running(Box::new(Live { operation, tools, hooks })),
            Err(error) => State::Refused(Some(error)),
        })
    }

    /// Waits for the next step, at most for `timeout`.
    ///
    /// # Errors
    /// What the turn failed with. Nothing follows it.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Next, Error> {
        match &mut self.0 {
            State::Refused(error) => error.take().map_or(Ok(Next::Finished), Err),
            State::Running(live) => live.next(timeout.and_then(|t| Instant::now().checked_add(t))),
        }
    }

    /// Drives the turn to its end and returns the reply. Approvals are decided by the session's `on_approval` handler;
    /// without one they are denied, and so fail calls of manual tools, because nobody is there to answer.
    ///
    /// # Errors
    /// What the turn failed with.
    pub fn reply(mut self) -> Result<Reply, Error> {
        let mut reply = None;
        while let Some(step) = Steps(&mut self).next() {
            match step? {
                Step::Done(done) => reply = Some(*done),
                Step::ToolCall(call) if !call.runs_itself() => {
                    call.fail(steps::NOBODY_TO_RUN)?;
                }
                Step::Approval(approval) => self.decide(approval),
                _ => {}
            }
        }
        reply.ok_or_else(|| Error::new(ErrorKind::Internal, "the turn ended without a reply"))
    }

    /// Ends the turn early and returns when it is quiet: the service has let go of it, or does not matter any more, and
    /// tools have stopped or were abandoned. Steps that were still waiting are dropped. A turn that had
    /// already come to its end is no error.
    ///
    /// # Errors
    /// What the turn failed with before it could be cancelled.
    pub fn cancel(mut self) -> Result<(), Error> {
        self.canceller().cancel();
        for step in &mut self {
            match step {
                Err(error) if error.is(ErrorKind::Cancelled) => {}
                step => drop(step?),
            }
        }
        Ok(())
    }

    /// Has the approval handler decide; without one, denies.
    fn decide(&mut self, approval: Approval) {
        let State::Running(live) = &mut self.0 else { return };
        match &live.hooks.approval {
            Some(hook) => live.operation.start_approval(hook, approval),
            // Withdrawn in the meantime, perhaps: then the answer does not matter.
            None => drop(approval.deny(NOBODY_TO_ASK)),
        }
    }

    /// Cancels this turn from another thread.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller(match &self.0 {
            State::Running(live) => {
                Some((Arc::clone(live.operation.shared()), live.operation.op()))
            }
            State::Refused(_) => None,
        })
    }
}

/// The steps of a turn to its end, waiting for each.
#[derive(Debug)]
pub struct Steps<'a>(&'a mut Turn);

impl Iterator for Steps<'_> {
    type Item = Result<Step, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            return match self.0.next(None) {
                Ok(Next::Step(step)) => Some(Ok(step)),
                Ok(Next::TimedOut) => continue,
                Ok(Next::Finished) => None,
                Err(error) => Some(Err(error)),
            };
        }
    }
}

impl<'a> IntoIterator for &'a mut Turn {
    type Item = Result<Step, Error>;
    type IntoIter = Steps<'a>;

    fn into_iter(self) -> Steps<'a> {
        Steps(self)
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            State::Running(live) => write!(f, "Turn({:?})", live.operation),
            State::Refused(_) => f.write_str("Turn(refused)"),
        }
    }
}

impl Live {
    fn next(&mut self, until: Option<Instant>) -> Result<Next, Error> {
        let Self { operation, tools, hooks } = self;
        loop {
            let seen = |operation: &mut Operation, step: &engine::Step| {
                start(operation, step, tools, hooks);
            };
            let step = match operation.wait(until, seen)? {
                Waited::Step(step) => step,
                Waited::TimedOut => return Ok(Next::TimedOut),
                Waited::Over => return Ok(Next::Finished),
            };
            if matches!(step, engine::Step::Sending { .. }) && hooks.sending.is_some() {
                continue; // its handler answers
            }
            let runs_itself = |name: &str| !matches!(tools.handler(name), Handler::Manual);
            return match steps::present(step, runs_itself, || operation.answers()) {
                Presented::Step(step) => Ok(Next::Step(step)),
                Presented::Over(Ok(Outcome::Replied)) => Ok(Next::Finished),
                Presented::Over(Ok(_)) => {
                    let message = "a turn ended with the outcome of another operation";
                    Err(Error::new(ErrorKind::Internal, message))
                }
                Presented::Over(Err(error)) => Err(error),
            };
        }
    }
}

/// Starts what a step asks for, or tells it to stop.
fn start(operation: &mut Operation, step: &engine::Step, tools: &ToolSet, hooks: &Hooks) {
    match step {
        engine::Step::ToolCall(call) => operation.start_tool(tools, call),
        engine::Step::ToolCancel { call } => operation.stop(*call),
        engine::Step::Sending { call, round, message } => {
            if let Some(hook) = &hooks.sending {
                let question = Question::new(*call, operation.answers());
                let sending = Sending::new(*round, message.clone(), question);
                operation.start_sending(hook, *call, sending);
            }
        }
        engine::Step::Received { round, message } => {
            if let Some(hook) = &hooks.received {
                hook(&Received { round: *round, message: message.clone() });
            }
        }
        _ => {}
    }
}

/// Cancels a turn from any thread, any number of times.
#[derive(Clone)]
pub struct Canceller(Option<(Arc<Shared>, OpId)>);

impl Canceller {
    /// Asks for the end of the turn; the turn then ends with a `cancelled` error. Nothing is waited for.
    pub fn cancel(&self) {
        if let Some((shared, op)) = &self.0 {
            shared.with(|state, now| state.engine.cancel(*op, now));
        }
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Canceller({:?})", self.0.as_ref().map(|(_, op)| op))
    }
}
