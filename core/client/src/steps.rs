//! Steps as the shells hand them out: the engine's, with the means to answer them.

pub(crate) use crate::engine::{NOBODY_TO_ASK, NOBODY_TO_RUN};

use crate::engine::{self, Answer, CallId, Delta, Gap, Lost, Reply, Status, Trace};
use broca_proto::session::content::Message;
use broca_proto::session::event::Event;
use broca_proto::session::exchange::Warning;
use broca_proto::session::ids::Cursor;
use broca_proto::session::turn::{Accepted, ToolOutcome};
use broca_proto::{Error, Json};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// One step of a turn or a subscription.
#[derive(Debug)]
#[non_exhaustive]
pub enum Step {
    /// Something the session logged. Its id is the cursor after it.
    Event(Event),
    /// A notification this version does not know, with its raw JSON.
    Notification {
        /// The method.
        method: String,
        /// The whole line.
        raw: Json,
    },
    /// A piece of the display lane: lossy by contract.
    Delta(Delta),
    /// Something was lost.
    Gap(Gap),
    /// The model called a tool of this program. Answer it, unless [`ToolCall::runs_itself`].
    ToolCall(ToolCall),
    /// What runs this call should stop. A result that still comes in the grace of a cancelled turn counts; a
    /// failure then is an interruption, and any later answer changes nothing.
    ToolCancel {
        /// The call, as in [`engine::ToolCall::call`].
        call: CallId,
    },
    /// A call has its one result; what became of it, for the program.
    ToolSettled {
        /// The call's id in the conversation.
        tool_use_id: String,
        /// The tool.
        name: String,
        /// What became of it.
        outcome: ToolOutcome,
    },
    /// Somebody has to allow this call first.
    Approval(Approval),
    /// The question no longer matters.
    ApprovalWithdrawn {
        /// The question.
        call: CallId,
    },
    /// Where the operation stands.
    Status(Status),
    /// Something odd that does not end the stream.
    Warning(Warning),
    /// A message is about to leave; answer it. Only when hooks are on and no `on_sending` handler is set.
    Sending(Sending),
    /// The answer to a message. Only when hooks are on.
    Received(Received),
    /// The turn is done.
    Done(Box<Reply>),
}

/// What takes answers: a session's handle, whichever shell it belongs to.
pub(crate) trait Answers: Send + Sync {
    fn answer(&self, call: CallId, answer: Answer) -> Result<Accepted, Error>;
}

/// The open end of something the application was asked.
#[derive(Clone)]
pub(crate) struct Question {
    call: CallId,
    answers: Arc<dyn Answers>,
}

impl Question {
    pub(crate) fn new(call: CallId, answers: Arc<dyn Answers>) -> Self {
        Self { call, answers }
    }

    fn answer(&self, answer: Answer) -> Result<Accepted, Error> {
        self.answers.answer(self.call, answer)
    }
}

/// A call of one of this program's tools. Its name, input and ids are those of [`engine::ToolCall`].
pub struct ToolCall {
    inner: engine::ToolCall,
    runs_itself: bool,
    question: Question,
}

impl ToolCall {
    pub(crate) fn new(
        inner: engine::ToolCall,
        runs_itself: bool,
        answers: Arc<dyn Answers>,
    ) -> Self {
        let question = Question::new(inner.call, answers);
        Self { inner, runs_itself, question }
    }

    /// Whether the tool's handler has been started already: the step is for display only.
    #[must_use]
    pub fn runs_itself(&self) -> bool {
        self.runs_itself
    }

    /// Answers with the tool's result: a string as it is, everything else as JSON text.
    ///
    /// # Errors
    /// `invalid_argument` when the value is no JSON; `usage` when no such call is open.
    pub fn complete(&self, result: &(impl serde::Serialize + ?Sized)) -> Result<Accepted, Error> {
        self.question.answer(Answer::Complete(crate::tools::content_of(result)?))
    }

    /// Answers with content blocks, a JSON array of them, or a JSON string.
    ///
    /// # Errors
    /// `invalid_argument` for any other JSON; `usage` when no such call is open.
    pub fn complete_with_content(&self, content: Json) -> Result<Accepted, Error> {
        self.question.answer(Answer::Complete(content))
    }

    /// Answers that the tool failed; the model reads this text.
    ///
    /// # Errors
    /// `usage` when no such call is open.
    pub fn fail(&self, message: impl Into<String>) -> Result<Accepted, Error> {
        self.question.answer(Answer::Fail(message.into()))
    }
}

impl Deref for ToolCall {
    type Target = engine::ToolCall;

    fn deref(&self) -> &engine::ToolCall {
        &self.inner
    }
}

impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolCall({}, {})", self.inner.name, self.inner.tool_use_id)
    }
}

/// A call that waits for somebody's consent. Its name, input and ids are those of [`engine::ToolCall`]. The first
/// answer counts; without one the call is denied when its time is over.
pub struct Approval {
    inner: engine::ToolCall,
    question: Question,
}

impl Approval {
    pub(crate) fn new(inner: engine::ToolCall, answers: Arc<dyn Answers>) -> Self {
        let question = Question::new(inner.call, answers);
        Self { inner, question }
    }

    /// Lets the call run as it is.
    ///
    /// # Errors
    /// `usage` when nobody asked.
    pub fn allow(&self) -> Result<Accepted, Error> {
        self.question.answer(Answer::Allow)
    }

    /// Lets the call run with narrower arguments. Arguments that the tool's rules do not admit are a denial.
    ///
    /// # Errors
    /// `usage` when nobody asked.
    pub fn allow_narrowed(&self, input: Json) -> Result<Accepted, Error> {
        self.question.answer(Answer::AllowNarrowed(input))
    }

    /// Does not let the call run; the model reads the reason.
    ///
    /// # Errors
    /// `usage` when nobody asked.
    pub fn deny(&self, reason: impl Into<String>) -> Result<Accepted, Error> {
        self.question.answer(Answer::Deny(reason.into()))
    }

    /// Answers with a decision made elsewhere.
    ///
    /// # Errors
    /// `usage` when nobody asked.
    pub fn decide(&self, decision: Decision) -> Result<Accepted, Error> {
        match decision {
            Decision::Allow => self.allow(),
            Decision::AllowNarrowed(input) => self.allow_narrowed(input),
            Decision::Deny(reason) => self.deny(reason),
        }
    }
}

impl Deref for Approval {
    type Target = engine::ToolCall;

    fn deref(&self) -> &engine::ToolCall {
        &self.inner
    }
}

impl fmt::Debug for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Approval({}, {})", self.inner.name, self.inner.tool_use_id)
    }
}

/// What an approval handler answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Run the call.
    Allow,
    /// Run the call with narrower arguments.
    AllowNarrowed(Json),
    /// Do not run the call; the model reads the reason.
    Deny(String),
}

/// A message that is about to leave. Change it, then [`Sending::send`] it.
pub struct Sending {
    /// Which round of the turn, from 0.
    pub round: u32,
    /// The message.
    pub message: Message,
    /// Trace headers for this request; those of the turn when absent.
    pub trace: Option<Trace>,
    question: Question,
}

impl Sending {
    pub(crate) fn new(round: u32, message: Message, question: Question) -> Self {
        Self { round, message, trace: None, question }
    }

    /// Lets the message go as it now is.
    ///
    /// # Errors
    /// `usage` when nobody asked.
    pub fn send(self) -> Result<Accepted, Error> {
        let Self { message, trace, question, .. } = self;
        question.answer(Answer::Send { message: Some(message), trace })
    }

    /// Does not send the message: the turn ends with a `hook` error of this text.
    ///
    /// # Errors
    /// `usage` when nobody asked.
    pub fn refuse(self, reason: impl Into<String>) -> Result<Accepted, Error> {
        self.question.answer(Answer::Refuse(reason.into()))
    }

    /// The open end, for a handler that may lose the message.
    #[cfg(feature = "tokio")]
    pub(crate) fn question(&self) -> Question {
        self.question.clone()
    }
}

impl Question {
    /// Refuses on behalf of a hook that failed.
    #[cfg(feature = "tokio")]
    pub(crate) fn refuse(&self, reason: String) -> Result<Accepted, Error> {
        self.answer(Answer::Refuse(reason))
    }
}

impl fmt::Debug for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sending(round {})", self.round)
    }
}

/// The answer to a message.
#[derive(Debug, Clone)]
pub struct Received {
    /// Which round of the turn, from 0.
    pub round: u32,
    /// The assistant's message.
    pub message: Message,
}

/// What can be said in a session: a text, or a whole message.
pub trait IntoMessage {
    /// The message.
    fn into_message(self) -> Message;
}

impl IntoMessage for Message {
    fn into_message(self) -> Message {
        self
    }
}

impl IntoMessage for String {
    fn into_message(self) -> Message {
        Message::user(self)
    }
}

impl IntoMessage for &String {
    fn into_message(self) -> Message {
        Message::user(self.as_str())
    }
}

impl IntoMessage for &str {
    fn into_message(self) -> Message {
        Message::user(self)
    }
}

/// What an engine's step is to the application.
pub(crate) enum Presented {
    Step(Step),
    Over(Result<engine::Outcome, Error>),
}

/// The engine's step for the application, or the end of the operation. `runs_itself` says whether a
/// handler answers a call of this name.
pub(crate) fn present(
    step: engine::Step,
    runs_itself: impl FnOnce(&str) -> bool,
    answers: impl FnOnce() -> Arc<dyn Answers>,
) -> Presented {
    use engine::Step as From;
    Presented::Step(match step {
        From::Event(event) => Step::Event(event),
        From::Delta(delta) => Step::Delta(delta),
        From::Notification { method, raw } => Step::Notification { method, raw },
        From::Gap(gap) => Step::Gap(gap),
        From::ToolCall(call) => {
            let runs_itself = runs_itself(&call.name);
            Step::ToolCall(ToolCall::new(call, runs_itself, answers()))
        }
        From::ToolCancel { call } => Step::ToolCancel { call },
        From::ToolSettled { tool_use_id, name, outcome } => {
            Step::ToolSettled { tool_use_id, name, outcome }
        }
        From::Approval(call) => Step::Approval(Approval::new(call, answers())),
        From::ApprovalWithdrawn { call } => Step::ApprovalWithdrawn { call },
        From::Status(status) => Step::Status(status),
        From::Warning(warning) => Step::Warning(warning),
        From::Sending { call, round, message } => {
            Step::Sending(Sending::new(round, message, Question::new(call, answers())))
        }
        From::Received { round, message } => Step::Received(Received { round, message }),
        From::Done(reply) => Step::Done(reply),
        From::Finished(outcome) => return Presented::Over(outcome),
    })
}

/// Moves a cursor behind `step`.
pub(crate) fn follow(cursor: &mut Option<Cursor>, step: &Step) {
    match step {
        Step::Event(event) => *cursor = Some(Cursor::after(event.event_id())),
        // The service forgot the cursor and begins again at the start of its log.
        Step::Gap(Gap { lost: Lost::Cursor(_), .. }) => *cursor = Some(Cursor::start()),
        _ => {}
    }
}
