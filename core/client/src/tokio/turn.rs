//! A turn: its steps as a stream, its tools run beside it.

use super::driver::Shared;
use super::operation::Operation;
use super::running::{Hooks, Running, start_approval, start_sending, start_tool};
use crate::engine::{self, OpId, Outcome, Reply};
use crate::steps::{
    self, Answers, Approval, NOBODY_TO_ASK, Presented, Question, Received, Sending, Step,
};
use crate::tools::{Handler, ToolSet};
use broca_proto::{Error, ErrorKind};
use futures_core::Stream;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A turn under way: a stream of steps that ends after [`Step::Done`] or an error.
///
/// Tools with handlers are started while the turn is polled, as soon as their calls come, and answer by
/// themselves. Everything else that asks for an answer (a manual tool, an approval) waits for it until
/// the service's time is over.
///
/// A turn that is dropped before its end is cancelled; [`Turn::cancel`] also waits until it is quiet.
#[must_use = "a turn that is dropped is cancelled; poll it, or call reply()"]
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

    /// The next step; nothing after the last. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Step, Error>> {
        std::future::poll_fn(|cx| self.poll_step(cx)).await
    }

    /// Drives the turn to its end and returns the reply. Approvals are decided by the session's `on_approval` handler;
    /// without one they are denied, and so fail calls of manual tools, because nobody is there to answer.
    ///
    /// # Errors
    /// What the turn failed with.
    pub async fn reply(mut self) -> Result<Reply, Error> {
        let mut reply = None;
        while let Some(step) = self.next().await {
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
    pub async fn cancel(mut self) -> Result<(), Error> {
        self.request_cancel();
        while let Some(step) = self.next().await {
            match step {
                Err(error) if error.is(ErrorKind::Cancelled) => {}
                step => drop(step?),
            }
        }
        Ok(())
    }

    /// Asks for the end of the turn without waiting; the stream then ends with a `cancelled` error.
    pub fn request_cancel(&self) {
        if let State::Running(live) = &self.0 {
            live.operation.cancel();
        }
    }

    /// Cancels this turn from elsewhere, such as a signal handler's task.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller(match &self.0 {
            State::Running(live) => {
                Some((Arc::clone(live.operation.shared()), live.operation.op()))
            }
            State::Refused(_) => None,
        })
    }

    /// Has the approval handler decide; without one, denies.
    fn decide(&mut self, approval: Approval) {
        let State::Running(live) = &mut self.0 else { return };
        match &live.hooks.approval {
            Some(hook) => {
                let started = start_approval(live.operation.shared(), hook, approval);
                live.operation.running.push(started);
            }
            // Withdrawn in the meantime, perhaps: then the answer does not matter.
            None => drop(approval.deny(NOBODY_TO_ASK)),
        }
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Step, Error>>> {
        match &mut self.0 {
            State::Refused(error) => Poll::Ready(error.take().map(Err)),
            State::Running(live) => live.poll_step(cx),
        }
    }
}

impl Stream for Turn {
    type Item = Result<Step, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_step(cx)
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
    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Step, Error>>> {
        let Self { operation, tools, hooks } = self;
        loop {
            let start = |shared: &Arc<Shared>, running: &mut Vec<Running>, step: &engine::Step| {
                start(shared, running, step, tools, hooks);
            };
            let Some(step) = ready!(operation.poll(cx, start)) else { return Poll::Ready(None) };
            if matches!(step, engine::Step::Sending { .. }) && hooks.sending.is_some() {
                continue; // its handler answers
            }
            let runs_itself = |name: &str| !matches!(tools.handler(name), Handler::Manual);
            let answers = || Arc::clone(operation.shared()) as Arc<dyn Answers>;
            return Poll::Ready(match steps::present(step, runs_itself, answers) {
                Presented::Step(step) => Some(Ok(step)),
                Presented::Over(Ok(Outcome::Replied)) => None,
                Presented::Over(Ok(_)) => {
                    let message = "a turn ended with the outcome of another operation";
                    Some(Err(Error::new(ErrorKind::Internal, message)))
                }
                Presented::Over(Err(error)) => Some(Err(error)),
            });
        }
    }
}

/// Starts what a step asks for, or tells it to stop.
fn start(
    shared: &Arc<Shared>,
    running: &mut Vec<Running>,
    step: &engine::Step,
    tools: &ToolSet,
    hooks: &Hooks,
) {
    match step {
        engine::Step::ToolCall(call) => running.extend(start_tool(shared, tools, call)),
        engine::Step::ToolCancel { call } => {
            running.iter().filter(|r| r.call == *call).for_each(Running::stop);
        }
        engine::Step::ApprovalWithdrawn { call } => {
            if let Some(at) = running.iter().position(|r| r.call == *call) {
                running.swap_remove(at).drop_now();
            }
        }
        engine::Step::Sending { call, round, message } => {
            if let Some(hook) = &hooks.sending {
                let question = Question::new(*call, Arc::clone(shared) as Arc<dyn Answers>);
                let sending = Sending::new(*round, message.clone(), question);
                running.push(start_sending(shared, *call, hook, sending));
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

/// Cancels a turn from anywhere, any number of times.
#[derive(Clone)]
pub struct Canceller(Option<(Arc<Shared>, OpId)>);

impl Canceller {
    /// Asks for the end of the turn; the turn's stream then ends with a `cancelled` error.
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
