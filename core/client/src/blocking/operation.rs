//! One operation of the engine, as a handle of the shell holds it.

use super::driver::Shared;
use crate::engine::{Answer, CallId, Command, OpId, Outcome, Step, ToolCall, Trace};
use crate::steps::{Answers, Approval, Decision, Sending};
use crate::tools::{CancelSignal, Handler, ToolContext, ToolSet, run_caught};
use broca_proto::{Error, ErrorKind};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps taken from the engine at once, in bytes.
const BATCH: usize = 256 * 1024;

/// Handlers of an application that are no tools.
#[derive(Clone, Default)]
pub(super) struct Hooks {
    pub(super) sending: Option<Arc<SendingHook>>,
    pub(super) received: Option<Arc<ReceivedHook>>,
    pub(super) approval: Option<Arc<ApprovalHook>>,
}

pub(super) type SendingHook = dyn Fn(Sending) -> Result<Sending, String> + Send + Sync;
pub(super) type ReceivedHook = dyn Fn(&crate::steps::Received) + Send + Sync;
pub(super) type ApprovalHook = dyn Fn(Approval) -> Decision + Send + Sync;

/// An operation under way. Dropped before its end, it is cancelled.
pub(super) struct Operation {
    shared: Arc<Shared>,
    op: OpId,
    steps: VecDeque<Step>,
    /// The last step was taken from the engine; it may still be among `steps`.
    ended: bool,
    finished: bool,
    /// How long dropping it may take.
    leave: Duration,
    running: Vec<(CallId, CancelSignal)>,
}

/// What came of waiting for a step.
#[expect(
    clippy::large_enum_variant,
    reason = "it is handed on at once; a box would cost each step an allocation"
)]
pub(super) enum Waited {
    Step(Step),
    TimedOut,
    Over,
}

impl Operation {
    /// Begins an operation. `leave` bounds how long dropping it may take.
    pub(super) fn begin(
        shared: &Arc<Shared>,
        command: Command,
        trace: Trace,
        leave: Duration,
    ) -> Result<Self, Error> {
        let op = shared.next_op();
        let is_turn = matches!(command, Command::Send { .. } | Command::Resume);
        shared.with(|state, now| {
            state.expect(op, is_turn);
            state.engine.command(op, command, trace, now).inspect_err(|_| state.forget(op))
        })?;
        Ok(Self {
            shared: Arc::clone(shared),
            op,
            steps: VecDeque::new(),
            ended: false,
            finished: false,
            leave,
            running: Vec::new(),
        })
    }

    /// Begins an operation and waits for its outcome.
    pub(super) fn run(shared: &Arc<Shared>, command: Command) -> Result<Outcome, Error> {
        let mut operation = Self::begin(shared, command, Trace::default(), Duration::ZERO)?;
        loop {
            match operation.wait(None, |_, _| {})? {
                Waited::Step(Step::Finished(outcome)) => return outcome,
                Waited::Step(_) | Waited::TimedOut => {}
                Waited::Over => {
                    let message = "an operation ended without its outcome";
                    return Err(Error::new(ErrorKind::Internal, message));
                }
            }
        }
    }

    /// Waits for the next step. `seen` is shown each step as soon as it comes from the engine, before
    /// those in front of it have been handed out.
    pub(super) fn wait(
        &mut self,
        until: Option<Instant>,
        mut seen: impl FnMut(&mut Self, &Step),
    ) -> Result<Waited, Error> {
        if self.steps.is_empty() {
            if self.finished {
                return Ok(Waited::Over);
            }
            let mut batch = Vec::from(std::mem::take(&mut self.steps));
            let op = self.op;
            let came = self.shared.pump(until, |state, _| {
                state.engine.steps(op, BATCH, &mut batch);
                (!batch.is_empty()).then_some(())
            })?;
            if came.is_none() {
                return Ok(Waited::TimedOut);
            }
            for step in &batch {
                seen(self, step);
            }
            self.ended = matches!(batch.last(), Some(Step::Finished(_)));
            self.steps = batch.into();
        }
        let Some(step) = self.steps.pop_front() else { return Ok(Waited::TimedOut) };
        if let Step::Finished(_) = step {
            self.finish();
        }
        Ok(Waited::Step(step))
    }

    pub(super) fn op(&self) -> OpId {
        self.op
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn answers(&self) -> Arc<dyn Answers> {
        Arc::new(Arc::clone(&self.shared))
    }

    /// Starts the handler of a call on the pool, if its tool has one.
    pub(super) fn start_tool(&mut self, tools: &ToolSet, call: &ToolCall) {
        let Handler::Blocking(run) = tools.handler(&call.name) else { return };
        let signal = CancelSignal::default();
        let context = ToolContext::new(call, signal.clone());
        self.running.push((call.call, signal));
        let (run, input) = (Arc::clone(run), call.input.clone());
        self.start(call.call, Answer::Fail, move || match run_caught(&*run, input, context) {
            Ok(content) => Answer::Complete(content),
            Err(text) => Answer::Fail(text),
        });
    }

    /// Runs the `on_sending` handler on the pool.
    pub(super) fn start_sending(
        &mut self,
        hook: &Arc<SendingHook>,
        call: CallId,
        sending: Sending,
    ) {
        let hook = Arc::clone(hook);
        self.start(call, Answer::Refuse, move || {
            match catch_unwind(AssertUnwindSafe(|| hook(sending))) {
                Ok(Ok(Sending { message, trace, .. })) => {
                    Answer::Send { message: Some(message), trace }
                }
                Ok(Err(reason)) => Answer::Refuse(reason),
                Err(_) => Answer::Refuse("the on_sending handler panicked".to_owned()),
            }
        });
    }

    /// Runs the `on_approval` handler on the pool.
    pub(super) fn start_approval(&mut self, hook: &Arc<ApprovalHook>, approval: Approval) {
        let (hook, call) = (Arc::clone(hook), approval.call);
        self.start(call, Answer::Deny, move || {
            match catch_unwind(AssertUnwindSafe(|| hook(approval))) {
                Ok(Decision::Allow) => Answer::Allow,
                Ok(Decision::AllowNarrowed(input)) => Answer::AllowNarrowed(input),
                Ok(Decision::Deny(reason)) => Answer::Deny(reason),
                Err(_) => Answer::Deny("the approval handler panicked".to_owned()),
            }
        });
    }

    fn finish(&mut self) {
        self.finished = true;
        self.shared.with(|state, _| state.forget(self.op));
        // Whoever still runs was told to stop long ago, or its time was over.
        self.running.drain(..).for_each(|(_, signal)| signal.raise());
    }

    /// Tells what runs for this call to stop.
    pub(super) fn stop(&self, call: CallId) {
        let signals = self.running.iter().filter(|(other, _)| *other == call);
        signals.for_each(|(_, signal)| signal.raise());
    }

    fn start(
        &self,
        call: CallId,
        refuse: impl FnOnce(String) -> Answer,
        work: impl FnOnce() -> Answer + Send + 'static,
    ) {
        let shared = Arc::clone(&self.shared);
        // In both answers: too late, or about a turn that is over, it no longer matters.
        let begun = self.shared.pool.run(move || drop(shared.answer(call, work())));
        if let Err(error) = begun {
            drop(self.shared.answer(call, refuse(format!("no thread to run it: {error}"))));
        }
    }
}

impl Drop for Operation {
    /// Cancels the operation and waits until it is quiet, at most for the time that leaving may take.
    fn drop(&mut self) {
        if self.ended && !self.finished {
            self.finish();
        }
        if self.finished {
            return;
        }
        let op = self.op;
        self.running.iter().for_each(|(_, signal)| signal.raise());
        let signals = self.running.drain(..).map(|(_, signal)| signal).collect();
        self.shared.with(|state, now| state.leave(op, signals, now));
        if !self.leave.is_zero() && !std::thread::panicking() {
            let until = Instant::now().checked_add(self.leave);
            // Nothing can be reported from here; the service's own time limit ends what is left.
            drop(self.shared.pump(until, |state, _| state.is_forgotten(op).then_some(())));
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("op", &self.op).finish_non_exhaustive()
    }
}
