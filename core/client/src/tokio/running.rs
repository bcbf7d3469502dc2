//! What runs beside a turn: tool handlers, hooks and approval handlers, each as a task that answers by itself.

use super::driver::Shared;
use crate::engine::{Answer, CallId, ToolCall};
use crate::steps::{Answers, Approval, Decision, Sending};
use crate::tools::{
    CancelSignal, Handler, ToolContext, ToolSet, catch, run_caught, run_caught_async,
};
use ::tokio::task::AbortHandle;
use broca_proto::Json;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

/// Handlers of an application that are no tools.
#[derive(Clone, Default)]
pub(super) struct Hooks {
    pub(super) sending: Option<Arc<SendingHook>>,
    pub(super) received: Option<Arc<ReceivedHook>>,
    pub(super) approval: Option<Arc<ApprovalHook>>,
}

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
pub(super) type SendingHook = dyn Fn(Sending) -> Boxed<Result<Sending, String>> + Send + Sync;
pub(super) type ReceivedHook = dyn Fn(&crate::steps::Received) + Send + Sync;
pub(super) type ApprovalHook = dyn Fn(Approval) -> Boxed<Decision> + Send + Sync;

/// One task that runs for a turn.
pub(super) struct Running {
    pub(super) call: CallId,
    signal: CancelSignal,
    task: AbortHandle,
}

impl Running {
    /// Asks it to stop.
    pub(super) fn stop(&self) {
        self.signal.raise();
    }

    /// Drops it where it stands. A function on a blocking thread cannot be dropped; its answer no longer counts.
    pub(super) fn drop_now(self) {
        self.signal.raise();
        self.task.abort();
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({:?})", self.call)
    }
}

/// Starts the handler of a call, if its tool has one.
pub(super) fn start_tool(
    shared: &Arc<Shared>,
    tools: &ToolSet,
    call: &ToolCall,
) -> Option<Running> {
    let signal = CancelSignal::default();
    let context = ToolContext::new(call, signal.clone());
    let (id, input, answers) = (call.call, call.input.clone(), Arc::clone(shared));
    let task = match tools.handler(&call.name) {
        Handler::Manual => return None,
        Handler::Async(run) => {
            let run = Arc::clone(run);
            let task = async move {
                report(&answers, id, run_caught_async(run, input, context).await);
            };
            shared.runtime().spawn(task).abort_handle()
        }
        Handler::Blocking(run) => {
            let run = Arc::clone(run);
            let task = move || report(&answers, id, run_caught(&*run, input, context));
            shared.runtime().spawn_blocking(task).abort_handle()
        }
    };
    Some(Running { call: id, signal, task })
}

/// Runs the `on_sending` handler.
pub(super) fn start_sending(
    shared: &Arc<Shared>,
    call: CallId,
    hook: &Arc<SendingHook>,
    sending: Sending,
) -> Running {
    let (hook, question) = (Arc::clone(hook), sending.question());
    let task = async move {
        let outcome = match catch(Box::pin(async move { hook(sending).await })).await {
            Ok(Ok(sending)) => sending.send(),
            Ok(Err(reason)) => question.refuse(reason),
            Err(_) => question.refuse("the on_sending handler panicked".to_owned()),
        };
        // Too late, or about a turn that is over: the answer no longer matters.
        drop(outcome);
    };
    spawned(shared, call, task)
}

/// Runs the `on_approval` handler.
pub(super) fn start_approval(
    shared: &Arc<Shared>,
    hook: &Arc<ApprovalHook>,
    approval: Approval,
) -> Running {
    let (hook, call, answers) = (Arc::clone(hook), approval.call, Arc::clone(shared));
    let task = async move {
        let decided = catch(Box::pin(async move { hook(approval).await })).await;
        let answer = match decided {
            Ok(Decision::Allow) => Answer::Allow,
            Ok(Decision::AllowNarrowed(input)) => Answer::AllowNarrowed(input),
            Ok(Decision::Deny(reason)) => Answer::Deny(reason),
            Err(_) => Answer::Deny("the approval handler panicked".to_owned()),
        };
        // Too late, or about a turn that is over: the answer no longer matters.
        drop(answers.answer(call, answer));
    };
    spawned(shared, call, task)
}

fn spawned(
    shared: &Arc<Shared>,
    call: CallId,
    task: impl Future<Output = ()> + Send + 'static,
) -> Running {
    let task = shared.runtime().spawn(task).abort_handle();
    Running { call, signal: CancelSignal::default(), task }
}

fn report(answers: &Arc<Shared>, call: CallId, outcome: Result<Json, String>) {
    let answer = match outcome {
        Ok(content) => Answer::Complete(content),
        Err(text) => Answer::Fail(text),
    };
    // Too late, or about a turn that is over: the answer no longer matters.
    drop(answers.answer(call, answer));
}
