//! One operation of the engine, as a handle of the shell holds it.

use super::driver::Shared;
use super::running::Running;
use crate::engine::{Command, OpId, Outcome, Step, Trace};
use broca_proto::{Error, ErrorKind};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// What every handle of a session holds. When the last one goes, the session's task ends.
pub(super) struct Attached(pub(super) Arc<Shared>);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.with(|state, now| state.leave_all(now));
    }
}

/// Steps taken from the engine at once, in bytes.
const BATCH: usize = 256 * 1024;
/// Steps handed out without a pause; then other tasks get their turn.
const BURST: u32 = 256;

/// An operation under way. Dropped before its end, it is cancelled.
pub(super) struct Operation {
    attached: Arc<Attached>,
    op: OpId,
    steps: VecDeque<Step>,
    burst: u32,
    /// The last step was taken from the engine; it may still be among `steps`.
    ended: bool,
    finished: bool,
    /// What runs for it.
    pub(super) running: Vec<Running>,
}

impl Operation {
    /// Begins an operation.
    pub(super) fn begin(
        attached: &Arc<Attached>,
        command: Command,
        trace: Trace,
    ) -> Result<Self, Error> {
        let op = attached.0.next_op();
        let is_turn = matches!(command, Command::Send { .. } | Command::Resume);
        attached.0.with(|state, now| {
            if state.is_over() {
                return Err(runtime_gone());
            }
            state.expect(op, is_turn);
            state.engine.command(op, command, trace, now).inspect_err(|_| state.forget(op))
        })?;
        Ok(Self {
            attached: Arc::clone(attached),
            op,
            steps: VecDeque::new(),
            burst: 0,
            ended: false,
            finished: false,
            running: Vec::new(),
        })
    }

    /// Begins an operation and waits for its outcome.
    pub(super) async fn run(attached: &Arc<Attached>, command: Command) -> Result<Outcome, Error> {
        let mut operation = Self::begin(attached, command, Trace::default())?;
        std::future::poll_fn(|cx| operation.poll_outcome(cx)).await
    }

    /// Skips to the outcome.
    pub(super) fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Result<Outcome, Error>> {
        loop {
            match ready!(self.poll(cx, |_, _, _| {})) {
                Some(Step::Finished(outcome)) => return Poll::Ready(outcome),
                Some(_) => {}
                None => return Poll::Ready(Err(over())),
            }
        }
    }

    /// The next step; nothing after the last. `seen` is shown each step as soon as it comes from the engine, before
    /// those in front of it have been handed out.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut seen: impl FnMut(&Arc<Shared>, &mut Vec<Running>, &Step),
    ) -> Poll<Option<Step>> {
        if self.steps.is_empty() {
            if self.finished {
                return Poll::Ready(None);
            }
            if let Err(error) = self.pull(cx) {
                self.finished = true;
                return Poll::Ready(Some(Step::Finished(Err(error))));
            }
            if self.steps.is_empty() {
                self.burst = 0;
                return Poll::Pending;
            }
            for step in &self.steps {
                seen(&self.attached.0, &mut self.running, step);
            }
        }
        if self.burst >= BURST {
            self.burst = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.burst += 1;
        let step = self.steps.pop_front();
        if let Some(Step::Finished(_)) = step {
            self.finish();
        }
        Poll::Ready(step)
    }

    /// Asks the engine to end the operation early.
    pub(super) fn cancel(&self) {
        self.attached.0.with(|state, now| state.engine.cancel(self.op, now));
    }

    pub(super) fn op(&self) -> OpId {
        self.op
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.attached.0
    }

    /// Takes a batch, or leaves the waker; one lock for both.
    fn pull(&mut self, cx: &Context<'_>) -> Result<(), Error> {
        let mut batch = Vec::from(std::mem::take(&mut self.steps));
        let over = self.attached.0.with(|state, _| {
            state.engine.steps(self.op, BATCH, &mut batch);
            if batch.is_empty() {
                state.wait(self.op, cx.waker());
            }
            state.is_over()
        });
        self.ended = matches!(batch.last(), Some(Step::Finished(_)));
        self.steps = batch.into();
        if over && self.steps.is_empty() { Err(runtime_gone()) } else { Ok(()) }
    }

    fn finish(&mut self) {
        self.finished = true;
        self.attached.0.with(|state, _| state.forget(self.op));
        // Whoever still runs was told to stop long ago, or its time was over.
        self.running.drain(..).for_each(Running::drop_now);
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.ended && !self.finished {
            self.finish();
        }
        if self.finished {
            return;
        }
        let running = std::mem::take(&mut self.running);
        running.iter().for_each(Running::stop);
        self.attached.0.with(|state, now| {
            if !state.is_over() {
                state.leave(self.op, running, now);
            }
        });
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("op", &self.op).finish_non_exhaustive()
    }
}

fn runtime_gone() -> Error {
    let message = "the session's task is gone: its tokio runtime has shut down, or was built without I/O and time \
                   (enable_all); open or join the session on another one";
    Error::new(ErrorKind::Closed, message)
}

fn over() -> Error {
    Error::new(ErrorKind::Internal, "an operation ended without its outcome")
}
