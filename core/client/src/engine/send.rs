//! A turn: from the application's message to the model's last one, over as many requests as its tools need.

use super::answer::{Progress, Rpc};
use super::command::{Answer, Trace};
use super::effect::{CallId, LogLevel, OpId};
use super::net::{ExchangeId, NetEvent};
use super::ops::show;
use super::session::Core;
use super::step::{Outcome, Reply, Status, Step, StepQueue, ToolCall, warning};
use broca_proto::session::content::{Block, Content, Message, Role, ToolUse};
use broca_proto::session::event::{Event, EventType};
use broca_proto::session::exchange::{Item, WarningClass};
use broca_proto::session::ids::Cursor;
use broca_proto::session::method::{Cancel, Method, SendMessage, SendMessageResult};
use broca_proto::session::payload::{ErrorReason, TokenUsage};
use broca_proto::session::turn::{Accepted, Calls, CallsOutput, Verdict};
use broca_proto::{Error, ErrorKind, Json, Retry, Time};
use std::collections::BTreeMap;

/// The text of the refusal of results that nobody waits for any more (session service §7).
const NO_PAUSE: &str = "tool result merge invalid: no paused turn";

pub(crate) struct Turn {
    op: OpId,
    calls: Calls,
    /// What the application was asked, and about which call.
    questions: BTreeMap<CallId, String>,
    state: State,
    round: u32,
    /// Kept results that lead the first message, and the message without them, for a second try.
    led_by: Vec<Block>,
    first: Message,
    registered_again: bool,
    /// The id of the last event; its buffer is used again for every one.
    cursor: String,
    failure: Option<Error>,
    usage: Option<TokenUsage>,
    events: Vec<Json>,
    cancelled: bool,
}

enum State {
    /// The application looks at the message before it leaves.
    Hooked {
        call: CallId,
        message: Message,
        until: Time,
    },
    /// The service had forgotten us: register, then send.
    Registering {
        rpc: Rpc,
        message: Message,
    },
    Streaming {
        rpc: Rpc,
        continuation: bool,
    },
    /// Tools are at work.
    Paused,
    /// `session.cancel` is out.
    Cancelling {
        stream: Option<Rpc>,
        cancel: Option<Rpc>,
        kept: Vec<Block>,
        until: Time,
    },
    Over,
}

impl Turn {
    pub(crate) fn begin(
        op: OpId,
        message: Message,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) -> Self {
        let tools = core.session.as_ref().map(|s| s.tools.clone()).unwrap_or_default();
        let led_by =
            core.session.as_mut().map(|s| std::mem::take(&mut s.kept_results)).unwrap_or_default();
        let mut turn = Self {
            op,
            calls: Calls::new(tools, core.call_limits()),
            questions: BTreeMap::new(),
            state: State::Over,
            round: 0,
            led_by,
            first: message,
            registered_again: false,
            cursor: String::new(),
            failure: None,
            usage: None,
            events: Vec::new(),
            cancelled: false,
        };
        match turn.led_message() {
            Ok(message) => turn.send(message, core, steps, trace, now),
            Err(error) => turn.finish(Err(error), core, steps),
        }
        turn
    }

    #[inline]
    pub(crate) fn network(
        &mut self,
        exchange: ExchangeId,
        event: NetEvent,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        match &mut self.state {
            State::Streaming { rpc, .. } if rpc.exchange == exchange => {
                if matches!(event, NetEvent::Sent) {
                    steps.push(Step::Status(Status::Sent));
                }
                let delta_limit = core.config.delta_buffer_bytes;
                let (cursor, failure, usage) =
                    (&mut self.cursor, &mut self.failure, &mut self.usage);
                let progress = rpc.take(event, "the service", |item| match item {
                    Item::Event(event) => {
                        look_at(&event, failure, usage);
                        cursor.clear();
                        cursor.push_str(event.id());
                        steps.push(Step::Event(event));
                    }
                    other => show(other, steps, delta_limit, || after(cursor)),
                });
                match progress {
                    Progress::Going => {}
                    Progress::Answered => core.linger(exchange, now),
                    Progress::Over(outcome) => self.answered(outcome, core, steps, trace, now),
                }
            }
            State::Registering { rpc, .. } if rpc.exchange == exchange => {
                match rpc.take(event, "the service", |_| ()) {
                    Progress::Going => {}
                    Progress::Answered => core.linger(exchange, now),
                    Progress::Over(Ok(_)) => {
                        if let State::Registering { message, .. } =
                            std::mem::replace(&mut self.state, State::Over)
                        {
                            self.send_now(message, core, trace, now);
                        }
                    }
                    Progress::Over(Err(error)) => self.finish(Err(error), core, steps),
                }
            }
            State::Cancelling { .. } => self.cancelling(exchange, event, core, steps, now),
            _ => {}
        }
    }

    pub(crate) fn answer(
        &mut self,
        call: CallId,
        answer: Answer,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) -> Result<Accepted, Error> {
        if let State::Hooked { call: asked, .. } = &self.state {
            if *asked == call {
                return self.hook_answered(answer, core, steps, trace, now);
            }
        }
        let Some(id) = self.questions.get(&call).cloned() else { return Ok(Accepted::TooLate) };
        let accepted = match answer {
            Answer::Complete(content) => self.calls.complete(&id, content, now),
            Answer::Fail(message) => self.calls.fail(&id, &message, now),
            Answer::Allow => self.calls.decide(&id, Verdict::Allow, now),
            Answer::AllowNarrowed(input) => {
                self.calls.decide(&id, Verdict::AllowNarrowed(input), now)
            }
            Answer::Deny(reason) => self.calls.decide(&id, Verdict::Deny(reason), now),
            Answer::Send { .. } | Answer::Refuse(_) => {
                let message = "this question is about a tool call, not about a message that leaves";
                Err(Error::new(ErrorKind::Usage, message))
            }
        };
        self.calls_moved(core, steps, trace, now);
        accepted
    }

    pub(crate) fn cancel(
        &mut self,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        if self.cancelled {
            return;
        }
        self.cancelled = true;
        match &self.state {
            State::Hooked { .. } | State::Registering { .. } => {
                self.drop_now(core, now);
                keep(core, std::mem::take(&mut self.led_by));
                self.finish(Err(cancelled()), core, steps);
            }
            State::Streaming { rpc, .. } if !core.net.has_left(rpc.exchange) => {
                self.drop_now(core, now);
                keep(core, std::mem::take(&mut self.led_by));
                self.finish(Err(cancelled()), core, steps);
            }
            State::Streaming { .. } if core.features().cancel => {
                let State::Streaming { rpc, .. } = std::mem::replace(&mut self.state, State::Over)
                else {
                    return;
                };
                let request = Cancel { request_id: Some(rpc.id.clone()), results: Vec::new() };
                self.ask_to_cancel(Some(rpc), request, core, trace, now);
            }
            State::Streaming { .. } => {
                // The service keeps going; all we can do is not to listen.
                self.drop_now(core, now);
                let error = cancelled().with_retry(Retry::Unknown);
                self.finish(Err(error), core, steps);
            }
            State::Paused => {
                self.calls.cancel(now);
                self.calls_moved(core, steps, trace, now);
            }
            State::Cancelling { .. } | State::Over => {}
        }
    }

    pub(crate) fn timeout(
        &mut self,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        match &self.state {
            State::Hooked { until, .. } if *until <= now => {
                let message = format!(
                    "the Sending hook did not answer within {} ms",
                    core.config.hook_timeout_ms
                );
                keep(core, std::mem::take(&mut self.led_by));
                self.finish(
                    Err(Error::new(ErrorKind::Hook, message).with_retry(Retry::Safe)),
                    core,
                    steps,
                );
            }
            State::Paused => {
                if self.calls.poll_timeout().is_some_and(|at| at <= now) {
                    self.calls.handle_timeout(now);
                    self.calls_moved(core, steps, trace, now);
                }
            }
            State::Cancelling { until, .. } if *until <= now => {
                core.log(
                    LogLevel::Warn,
                    "session.cancel was not answered in time; the stream was dropped".to_owned(),
                );
                self.cancel_over(None, core, steps, now);
            }
            _ => {}
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Hooked { until, .. } | State::Cancelling { until, .. } => Some(*until),
            State::Paused => self.calls.poll_timeout(),
            State::Registering { .. } | State::Streaming { .. } | State::Over => None,
        }
    }

    /// Drops whatever is under way on the network.
    pub(crate) fn drop_now(&mut self, core: &mut Core, now: Time) {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Streaming { rpc, .. } | State::Registering { rpc, .. } => {
                core.net.abort(rpc.exchange, now)
            }
            State::Cancelling { stream, cancel, .. } => {
                for rpc in stream.into_iter().chain(cancel) {
                    core.net.abort(rpc.exchange, now);
                }
            }
            State::Hooked { .. } | State::Paused | State::Over => {}
        }
    }

    // ---- sending ----------------------------------------------------------------------------

    /// The first message, led by results that were kept when an earlier turn was cancelled.
    fn led_message(&self) -> Result<Message, Error> {
        if self.led_by.is_empty() {
            return Ok(self.first.clone());
        }
        let mut blocks = self.led_by.clone();
        match &self.first.content {
            Content::Text(text) => blocks.push(Block::of_text(text.clone())),
            Content::Blocks(more) => blocks.extend(more.iter().cloned()),
            _ => {
                let message = "after a cancelled turn the next message must be text or blocks, so that its tool results can lead it";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
        }
        Ok(Message { role: Role::User, content: Content::Blocks(blocks) })
    }

    /// Sends a message, after asking the hook if there is one.
    fn send(
        &mut self,
        message: Message,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        if core.config.hooks {
            let call = core.ask(self.op);
            steps.push(Step::Sending { call, round: self.round, message: message.clone() });
            let until = now.plus(core.config.hook_timeout_ms);
            self.state = State::Hooked { call, message, until };
            return;
        }
        self.send_now(message, core, trace, now);
    }

    fn send_now(&mut self, message: Message, core: &mut Core, trace: &Trace, now: Time) {
        let continuation = self.round > 0;
        let params = SendMessage { message }.to_json();
        let rpc = core.rpc(self.op, &Method::SendMessage, &params, trace, now);
        self.state = State::Streaming { rpc, continuation };
    }

    fn hook_answered(
        &mut self,
        answer: Answer,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) -> Result<Accepted, Error> {
        let (replaced, own_trace) = match answer {
            Answer::Send { message, trace } => (message, trace),
            Answer::Refuse(why) => {
                keep(core, std::mem::take(&mut self.led_by));
                let error = Error::new(ErrorKind::Hook, why).with_retry(Retry::Safe);
                self.finish(Err(error), core, steps);
                return Ok(Accepted::Taken);
            }
            _ => {
                let message =
                    "this question is about a message that leaves; answer it with Send or Refuse";
                return Err(Error::new(ErrorKind::Usage, message));
            }
        };
        if let State::Hooked { message, .. } = std::mem::replace(&mut self.state, State::Over) {
            let trace = own_trace.as_ref().unwrap_or(trace);
            self.send_now(replaced.unwrap_or(message), core, trace, now);
        }
        Ok(Accepted::Taken)
    }

    // ---- answers ----------------------------------------------------------------------------

    /// A request of the turn is over.
    fn answered(
        &mut self,
        outcome: Result<Json, Error>,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        let State::Streaming { rpc, continuation } =
            std::mem::replace(&mut self.state, State::Over)
        else {
            return;
        };
        let result = match outcome {
            Ok(json) => SendMessageResult::read(&json).map_err(|e| {
                Error::new(ErrorKind::Malformed, format!("the turn's result cannot be read: {e}"))
                    .with_retry(Retry::Unknown)
            }),
            Err(error) => Err(error),
        };
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                let first = !continuation && !rpc.has_events();
                self.failed(error, first, core, steps, trace, now);
                return;
            }
        };
        self.led_by.clear();
        self.events.push(result.events);
        if core.config.hooks {
            steps.push(Step::Received { round: self.round, message: result.message.clone() });
        }
        self.round += 1;
        if let Some(failure) = self.failure.take() {
            self.finish(Err(failure), core, steps);
            return;
        }
        match self.calls.pause(&result.message, now) {
            Ok(true) => {
                self.state = State::Paused;
                self.calls_moved(core, steps, trace, now);
            }
            Ok(false) => {
                let reply = Reply {
                    message: result.message,
                    usage: self.usage,
                    rounds: self.round,
                    events: std::mem::take(&mut self.events),
                };
                steps.push(Step::Done(Box::new(reply)));
                self.finish(Ok(Outcome::Replied), core, steps);
            }
            Err(error) => self.finish(Err(error), core, steps),
        }
    }

    /// A request was refused or lost. Only what provably had no effect is tried again.
    fn failed(
        &mut self,
        error: Error,
        first: bool,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        if first && error.kind() == ErrorKind::DriverNotRegistered && !self.registered_again {
            self.registered_again = true;
            core.log(
                LogLevel::Info,
                "the service had forgotten this driver; registering again".to_owned(),
            );
            match self.led_message() {
                Ok(message) => {
                    let params = Json::empty_object();
                    let rpc = core.rpc(self.op, &Method::RegisterDriver, &params, trace, now);
                    self.state = State::Registering { rpc, message };
                }
                Err(error) => self.finish(Err(error), core, steps),
            }
            return;
        }
        if first && !self.led_by.is_empty() && error.message().contains(NO_PAUSE) {
            self.led_by.clear();
            let text =
                "results of the cancelled turn came too late for the service and were left out";
            steps.push(warning(WarningClass::Notice, text));
            self.send_now(self.first.clone(), core, trace, now);
            return;
        }
        if first && error.retry() == Retry::Safe {
            keep(core, std::mem::take(&mut self.led_by));
        }
        self.finish(Err(error), core, steps);
    }

    /// Carries out what the open calls want.
    fn calls_moved(&mut self, core: &mut Core, steps: &mut StepQueue, trace: &Trace, now: Time) {
        while let Some(output) = self.calls.poll() {
            match output {
                CallsOutput::Start(call) => {
                    let step = self.question(call, core);
                    steps.push(Step::ToolCall(step));
                }
                CallsOutput::Ask(call) => {
                    let step = self.question(call, core);
                    steps.push(Step::Approval(step));
                }
                CallsOutput::Stop { id } => {
                    if let Some(call) = self.question_about(&id) {
                        steps.push(Step::ToolCancel { call });
                    }
                }
                CallsOutput::Withdraw { id } => {
                    if let Some(call) = self.question_about(&id) {
                        steps.push(Step::ApprovalWithdrawn { call });
                    }
                }
                CallsOutput::Results { blocks, cancelled: false } => {
                    self.questions.clear();
                    self.send(Message::user_blocks(blocks), core, steps, trace, now);
                }
                CallsOutput::Results { blocks, cancelled: true } => {
                    self.questions.clear();
                    if core.features().cancel {
                        let request = Cancel { request_id: None, results: blocks };
                        self.ask_to_cancel(None, request, core, trace, now);
                    } else {
                        // Sending them would buy another model round: they lead the next message.
                        keep(core, blocks);
                        self.finish(Err(cancelled()), core, steps);
                    }
                }
                _ => {}
            }
        }
    }

    fn question(&mut self, call: ToolUse, core: &mut Core) -> ToolCall {
        let number = core.ask(self.op);
        self.questions.insert(number, call.id.clone());
        let session = core.session_info().map(|info| info.id.to_string()).unwrap_or_default();
        ToolCall {
            call: number,
            idempotency_key: format!("{session}/{}", call.id),
            tool_use_id: call.id,
            name: call.name,
            input: call.input,
        }
    }

    /// The last question about a call.
    fn question_about(&self, id: &str) -> Option<CallId> {
        self.questions.iter().rev().find(|(_, asked)| *asked == id).map(|(call, _)| *call)
    }

    // ---- cancelling -------------------------------------------------------------------------

    fn ask_to_cancel(
        &mut self,
        stream: Option<Rpc>,
        request: Cancel,
        core: &mut Core,
        trace: &Trace,
        now: Time,
    ) {
        let kept = request.results.clone();
        let cancel = core.rpc(self.op, &Method::Cancel, &request.to_json(), trace, now);
        let until = now.plus(core.config.cancel_timeout_ms);
        self.state = State::Cancelling { stream, cancel: Some(cancel), kept, until };
    }

    fn cancelling(
        &mut self,
        exchange: ExchangeId,
        event: NetEvent,
        core: &mut Core,
        steps: &mut StepQueue,
        now: Time,
    ) {
        let State::Cancelling { stream, cancel, kept, .. } = &mut self.state else { return };
        if cancel.as_ref().is_some_and(|rpc| rpc.exchange == exchange) {
            let progress = cancel.as_mut().map(|rpc| rpc.take(event, "the service", |_| ()));
            match progress {
                Some(Progress::Answered) => core.linger(exchange, now),
                Some(Progress::Over(answer)) => {
                    *cancel = None;
                    match answer {
                        Ok(_) => kept.clear(),
                        Err(error) => {
                            core.log(LogLevel::Warn, format!("session.cancel failed: {error}"))
                        }
                    }
                    // Nothing is left to wait for, or the stream's own end follows.
                    if stream.is_none() {
                        self.cancel_over(None, core, steps, now);
                    }
                }
                Some(Progress::Going) | None => {}
            }
        } else if stream.as_ref().is_some_and(|rpc| rpc.exchange == exchange) {
            let (cursor, failure, usage) = (&mut self.cursor, &mut self.failure, &mut self.usage);
            let delta_limit = core.config.delta_buffer_bytes;
            let progress = stream.as_mut().map(|rpc| {
                rpc.take(event, "the service", |item| match item {
                    Item::Event(event) => {
                        look_at(&event, failure, usage);
                        cursor.clear();
                        cursor.push_str(event.id());
                        steps.push(Step::Event(event));
                    }
                    other => show(other, steps, delta_limit, || after(cursor)),
                })
            });
            match progress {
                Some(Progress::Answered) => core.linger(exchange, now),
                Some(Progress::Over(outcome)) => {
                    *stream = None;
                    self.cancel_over(outcome.ok(), core, steps, now);
                }
                Some(Progress::Going) | None => {}
            }
        }
    }

    /// The turn is quiet. A turn that was faster than its cancellation has a reply all the same,
    /// unless it paused: then its calls never start and their results lead the next message.
    fn cancel_over(
        &mut self,
        result: Option<Json>,
        core: &mut Core,
        steps: &mut StepQueue,
        now: Time,
    ) {
        let mut kept = match &mut self.state {
            State::Cancelling { kept, .. } => std::mem::take(kept),
            _ => Vec::new(),
        };
        self.drop_now(core, now);
        let result = result.and_then(|json| SendMessageResult::read(&json).ok());
        if let Some(result) = result {
            self.round += 1;
            self.events.push(result.events);
            if matches!(self.calls.pause(&result.message, now), Ok(true)) {
                self.calls.abandon(now);
                while let Some(output) = self.calls.poll() {
                    if let CallsOutput::Results { blocks, .. } = output {
                        kept = blocks;
                    }
                }
            } else {
                let reply = Reply {
                    message: result.message,
                    usage: self.usage,
                    rounds: self.round,
                    events: std::mem::take(&mut self.events),
                };
                steps.push(Step::Done(Box::new(reply)));
                self.finish(Ok(Outcome::Replied), core, steps);
                return;
            }
        }
        keep(core, kept);
        self.finish(Err(cancelled()), core, steps);
    }

    fn finish(&mut self, outcome: Result<Outcome, Error>, core: &mut Core, steps: &mut StepQueue) {
        self.state = State::Over;
        core.forget_questions(self.op);
        steps.push(Step::Finished(outcome));
    }
}

/// Keeps results for the next message.
fn keep(core: &mut Core, blocks: Vec<Block>) {
    if let Some(session) = core.session.as_mut().filter(|_| !blocks.is_empty()) {
        session.kept_results = blocks;
    }
}

/// What a turn's events say about its outcome: failures that come as ordinary results, and tokens.
fn look_at(event: &Event, failure: &mut Option<Error>, usage: &mut Option<TokenUsage>) {
    match event.type_name() {
        name if name == EventType::SessionError.as_str() => {
            let payload = event.payload();
            let reason = payload.member("reason").and_then(|r| r.to_text()).unwrap_or_default();
            *failure = match ErrorReason::parse(&reason) {
                ErrorReason::AllProvidersFailed => Some(
                    Error::new(
                        ErrorKind::ProvidersFailed,
                        "every model provider failed; see the provider.response events of the turn",
                    )
                    .with_details(payload),
                ),
                ErrorReason::ProviderConfig => Some(
                    Error::new(
                        ErrorKind::ProvidersFailed,
                        "the profile's provider is not configured on the service",
                    )
                    .with_details(payload),
                ),
                ErrorReason::LoopLimit => Some(
                    Error::new(
                        ErrorKind::LoopLimit,
                        "the turn reached the service's limit of model rounds; the session is over",
                    )
                    .with_details(payload),
                ),
                _ => return,
            };
        }
        name if name == EventType::ProviderResponse.as_str() => {
            let counted =
                event.payload().member("usage").and_then(|u| u.decode::<TokenUsage>().ok());
            if let Some(counted) = counted {
                let total = usage.get_or_insert_default();
                total.input_tokens += counted.input_tokens;
                total.output_tokens += counted.output_tokens;
            }
        }
        _ => {}
    }
}

fn after(event_id: &str) -> Cursor {
    if event_id.is_empty() { Cursor::start() } else { Cursor::after(event_id.into()) }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "cancelled by the application")
}
