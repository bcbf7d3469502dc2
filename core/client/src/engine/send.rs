//! A turn: from the application's message to the model's last one, over as many requests as its tools need.

mod cancel;
mod consent;
mod heard;
mod hold;
mod recover;
mod resend;
mod resume;
mod spend;

use super::answer::{Progress, Rpc};
use super::command::{Answer, Trace};
use super::effect::{CallId, LogLevel, OpId};
use super::net::{ExchangeId, NetEvent};
use super::queue::StepQueue;
use super::session::Core;
use super::step::{Outcome, Reply, Status, Step, ToolCall, warning};
use broca_proto::session::content::{Block, Content, Message, Role, ToolUse};
use broca_proto::session::exchange::WarningClass;
use broca_proto::session::method::{Method, SendMessage, SendMessageResult};
use broca_proto::session::rpc::RpcFailure;
use broca_proto::session::turn::{Accepted, Calls, CallsOutput, Verdict};
use broca_proto::{Error, ErrorKind, Json, Retry, Time};
use consent::Asked;
use heard::Heard;
use recover::Recovery;
use resume::Following;
use std::collections::BTreeMap;

pub(crate) struct Turn {
    op: OpId,
    calls: Calls,
    /// What the application was asked, and about which call.
    questions: BTreeMap<CallId, String>,
    /// What the service asks about its own tools.
    asked: Vec<Asked>,
    state: State,
    round: u32,
    /// The results in the message under way: they are kept if it turns out not to have arrived.
    carried: Vec<Block>,
    /// What the application said, without results that lead it.
    first: Message,
    /// The request under way as it left.
    left: Option<Left>,
    registered_again: bool,
    heard: Heard,
    events: Vec<Json>,
    /// `session.hold` is out.
    hold: Option<Box<Rpc>>,
    /// Calls of this client's tools.
    tool_calls: u32,
    /// The budget that the turn has used up, while it is being ended for that.
    excess: Option<Error>,
    /// What it has spent was added to the session's.
    accounted: bool,
    cancelled: bool,
    /// Another program began the turn.
    resumed: bool,
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
    },
    Streaming {
        rpc: Rpc,
        continuation: bool,
    },
    /// The stream broke: the log is followed for what became of the request.
    Recovering(Box<Recovery>),
    /// Tools are at work.
    Paused,
    /// The service is at work on a turn that another program began.
    Following(Box<Following>),
    /// `session.cancel` is out.
    Cancelling {
        stream: Option<Rpc>,
        cancel: Option<Box<Rpc>>,
        kept: Vec<Block>,
        /// The service says that the turn is over.
        confirmed: bool,
        /// Whether the cancel may have overtaken its message.
        overtaken: Overtaken,
        until: Time,
    },
    Over,
}

/// A request as it left.
#[derive(Debug, Clone)]
struct Left {
    params: Json,
    /// Trace headers of this request alone.
    trace: Option<Trace>,
}

/// `session.cancel` travels on a connection of its own, so it may arrive before the message that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overtaken {
    /// Nothing says so.
    No,
    /// The service knew of nothing to cancel, and the message has had no answer yet: ask again when it has.
    Perhaps,
    /// Asked again.
    Asked,
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
        let mut turn = Self::new(op, message, core);
        core.give_up_pending(now);
        turn.carried =
            core.session.as_mut().map(|s| std::mem::take(&mut s.kept_results)).unwrap_or_default();
        match Self::admit_first(core).and_then(|()| turn.led_message()) {
            Ok(message) => turn.send(message, core, steps, trace, now),
            Err(error) => turn.give_up(error, core, steps),
        }
        turn
    }

    fn new(op: OpId, message: Message, core: &Core) -> Self {
        let tools = core.session.as_ref().map(|s| s.tools.clone()).unwrap_or_default();
        Self {
            op,
            calls: Calls::new(tools, core.call_limits()),
            questions: BTreeMap::new(),
            asked: Vec::new(),
            state: State::Over,
            round: 0,
            carried: Vec::new(),
            first: message,
            left: None,
            registered_again: false,
            heard: Heard::new(&core.config),
            events: Vec::new(),
            hold: None,
            tool_calls: 0,
            excess: None,
            accounted: false,
            cancelled: false,
            resumed: false,
        }
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
        if self.hold.as_ref().is_some_and(|hold| hold.exchange == exchange) {
            return self.holding(event, core, steps, trace, now);
        }
        if self.tells_consent(exchange) {
            return self.consent_network(exchange, event, core, now);
        }
        match &mut self.state {
            State::Streaming { rpc, .. } if rpc.exchange == exchange => {
                if matches!(event, NetEvent::Sent) {
                    steps.push(Step::Status(Status::Sent));
                }
                let heard = &mut self.heard;
                let progress = rpc.take(event, "the service", |item| heard.item(item, steps));
                self.consent_moved(core, steps, now);
                match progress {
                    Progress::Going => {}
                    Progress::Answered => core.linger(exchange, now),
                    Progress::Refused => core.hear_out(exchange, now),
                    Progress::Over(outcome) => {
                        core.net.abort(exchange, now);
                        self.answered(outcome, core, steps, trace, now);
                    }
                }
            }
            State::Registering { rpc, .. } if rpc.exchange == exchange => {
                match rpc.take(event, "the service", |_| ()) {
                    Progress::Going => {}
                    Progress::Answered => core.linger(exchange, now),
                    Progress::Refused => core.hear_out(exchange, now),
                    Progress::Over(answer) => {
                        core.net.abort(exchange, now);
                        self.registered(answer, core, steps, trace, now);
                    }
                }
            }
            State::Recovering(recovery) => {
                recovery.network(exchange, event, core, trace, now);
                self.recovery_moved(core, steps, trace, now);
            }
            State::Cancelling { .. } => {
                self.cancelling(exchange, event, core, steps, trace, now);
            }
            State::Following(_) => self.following(exchange, event, core, steps, trace, now),
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
        if matches!(&self.state, State::Hooked { call: asked, .. } if *asked == call) {
            return self.hook_answered(answer, core, steps, trace, now);
        }
        let Some(id) = self.questions.get(&call).cloned() else {
            return self.consent(call, answer, core, trace, now);
        };
        let accepted = match answer {
            Answer::Complete(content) => {
                self.calls.complete(&id, core.result_content(content), now)
            }
            Answer::Fail(message) => self.calls.fail(&id, &message, now),
            Answer::Interrupted(message) => self.calls.interrupt(&id, &message, now),
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

    pub(crate) fn timeout(
        &mut self,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        self.consent_timeout(core, trace, now);
        match &mut self.state {
            State::Recovering(recovery) => {
                recovery.timeout(core, trace, now);
                self.recovery_moved(core, steps, trace, now);
            }
            State::Hooked { until, .. } if *until <= now => {
                let message = format!(
                    "the Sending hook did not answer within {} ms",
                    core.config.hook_timeout_ms
                );
                self.give_up(
                    Error::new(ErrorKind::Hook, message).with_retry(Retry::Safe),
                    core,
                    steps,
                );
            }
            State::Paused if self.calls.poll_timeout().is_some_and(|at| at <= now) => {
                self.calls.handle_timeout(now);
                self.calls_moved(core, steps, trace, now);
            }
            State::Cancelling { until, .. } if *until <= now => {
                core.log(
                    LogLevel::Warn,
                    "session.cancel was not answered in time; the stream was dropped".to_owned(),
                );
                self.cancel_over(None, core, steps, now);
            }
            State::Following(_) => self.follow_timeout(core, steps, trace, now),
            _ => {}
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.state_timeout().into_iter().chain(self.consent_poll_timeout()).min()
    }

    fn state_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Hooked { until, .. } | State::Cancelling { until, .. } => Some(*until),
            State::Paused => self.calls.poll_timeout(),
            State::Following(following) => Some(following.poll_timeout()),
            State::Recovering(recovery) => recovery.poll_timeout(),
            State::Registering { .. } | State::Streaming { .. } | State::Over => None,
        }
    }

    /// Drops whatever is under way on the network.
    pub(crate) fn drop_now(&mut self, core: &mut Core, now: Time) {
        self.stop_holding(core, now);
        self.drop_consent(core, now);
        match std::mem::replace(&mut self.state, State::Over) {
            State::Streaming { rpc, .. } | State::Registering { rpc } => {
                core.net.abort(rpc.exchange, now);
            }
            State::Recovering(mut recovery) => recovery.drop_now(core, now),
            State::Cancelling { stream, cancel, .. } => {
                let cancel = cancel.map(|rpc| rpc.exchange);
                for exchange in stream.map(|rpc| rpc.exchange).into_iter().chain(cancel) {
                    core.net.abort(exchange, now);
                }
            }
            State::Following(mut following) => following.drop_now(core, now),
            State::Hooked { .. } | State::Paused | State::Over => {}
        }
    }

    /// The exchange that brings events.
    pub(crate) fn stream(&self) -> Option<ExchangeId> {
        match &self.state {
            State::Streaming { rpc, .. } | State::Cancelling { stream: Some(rpc), .. } => {
                Some(rpc.exchange)
            }
            State::Following(following) => following.stream(),
            State::Recovering(recovery) => recovery.stream(),
            _ => None,
        }
    }

    /// Whether its stream is read however much waits: the log keeps what the application does not take. Not before there
    /// was an event to read on from.
    pub(crate) fn reads_on(&self) -> bool {
        !matches!(self.state, State::Following(_)) && self.heard.has_events()
    }

    /// Tells the application to stop what it runs for this turn: the turn ends at once.
    pub(crate) fn stop_calls(&mut self, steps: &mut StepQueue, now: Time) {
        self.calls.abandon(now);
        while let Some(output) = self.calls.poll() {
            self.show_stop(output, steps);
        }
        self.withdraw_consent(steps);
    }

    // ---- sending ----------------------------------------------------------------------------

    /// The first message, led by results that were kept when an earlier turn was cancelled.
    fn led_message(&self) -> Result<Message, Error> {
        if self.carried.is_empty() {
            return Ok(self.first.clone());
        }
        let mut blocks = self.carried.clone();
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
        self.send_now(message, None, core, trace, now);
    }

    /// Sends a message. `own` are trace headers of this request alone.
    fn send_now(
        &mut self,
        message: Message,
        own: Option<Trace>,
        core: &mut Core,
        trace: &Trace,
        now: Time,
    ) {
        let message_id = core.features().message_id.then(|| core.message_id());
        if core.features().lean_result {
            self.heard.keep_carried(core.config.reply_bytes);
        }
        self.heard.begin_round(&message);
        let params = SendMessage { message, message_id }.to_json();
        self.leave(Left { params, trace: own }, core, trace, now);
    }

    /// Makes the request, which may have left before.
    fn leave(&mut self, left: Left, core: &mut Core, trace: &Trace, now: Time) {
        let trace = left.trace.as_ref().unwrap_or(trace);
        let rpc = core.rpc(self.op, &Method::SendMessage, &left.params, trace, now);
        self.state = State::Streaming { rpc, continuation: self.round > 0 };
        self.left = Some(left);
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
                let error = Error::new(ErrorKind::Hook, why).with_retry(Retry::Safe);
                self.give_up(error, core, steps);
                return Ok(Accepted::Taken);
            }
            _ => {
                let message =
                    "this question is about a message that leaves; answer it with Send or Refuse";
                return Err(Error::new(ErrorKind::Usage, message));
            }
        };
        if let Some(Err(error)) = replaced.as_ref().map(|message| core.check_message(message)) {
            self.give_up(error, core, steps);
            return Ok(Accepted::Taken);
        }
        if let State::Hooked { message, .. } = std::mem::replace(&mut self.state, State::Over) {
            self.send_now(replaced.unwrap_or(message), own_trace, core, trace, now);
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
                if self.recover(&error, &rpc, core, steps, trace, now) {
                    return;
                }
                let first = !continuation && !rpc.has_events();
                self.failed(error, first, rpc.has_left(), core, steps, trace, now);
                return;
            }
        };
        let mut result = result;
        self.heard.catch_up(&result.events);
        self.heard.complete(&mut result);
        self.concluded(result, core, steps, trace, now);
    }

    /// A request has its answer: the turn is over, or pauses.
    fn concluded(
        &mut self,
        result: SendMessageResult,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        self.carried.clear();
        self.left = None;
        self.calls.delivered();
        self.heard.meter.told(result.usage);
        core.learn_driver(self.heard.driver());
        self.events.push(result.events);
        if core.config.hooks {
            steps.push(Step::Received { round: self.round, message: result.message.clone() });
        }
        self.round += 1;
        if let Some(failure) = self.heard.failure.take() {
            self.finish(Err(failure), core, steps);
            return;
        }
        self.excess = self.over_budget(&result.message, core);
        let paused = match &self.excess {
            None => self.calls.pause_for(&result.message, result.pause_ms, now),
            Some(excess) => self.calls.decline_because(&result.message, excess.message(), now),
        };
        match paused {
            Ok(true) => {
                self.state = State::Paused;
                self.calls_moved(core, steps, trace, now);
            }
            Ok(false) => self.replied(result.message, core, steps),
            Err(error) => self.finish(Err(error), core, steps),
        }
    }

    fn replied(&mut self, message: Message, core: &mut Core, steps: &mut StepQueue) {
        self.settle_accounts(core);
        let reply = Reply {
            message,
            usage: self.heard.meter.total(),
            rounds: self.round,
            tool_calls: self.tool_calls,
            session: core.memory().map(|memory| memory.spent).unwrap_or_default(),
            events: std::mem::take(&mut self.events),
        };
        steps.push(Step::Done(Box::new(reply)));
        self.finish(Ok(Outcome::Replied), core, steps);
    }

    /// A request was refused or lost. Only what provably had no effect is tried again.
    #[expect(clippy::too_many_arguments, reason = "four of them are the turn's surroundings")]
    fn failed(
        &mut self,
        error: Error,
        first: bool,
        left: bool,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        // The service looks at this first, before anything has an effect.
        let harmless = first || core.features().message_id;
        if harmless && error.kind() == ErrorKind::DriverNotRegistered && !self.registered_again {
            self.registered_again = true;
            core.log(
                LogLevel::Info,
                "the service had forgotten this driver; registering again".to_owned(),
            );
            let params = Json::empty_object();
            let rpc = core.rpc(self.op, &Method::RegisterDriver, &params, trace, now);
            self.state = State::Registering { rpc };
            return;
        }
        if first && !self.carried.is_empty() && RpcFailure::is_no_pause(&error) {
            self.carried.clear();
            let text =
                "results of the cancelled turn came too late for the service and were left out";
            steps.push(warning(WarningClass::Notice, text));
            self.send(self.first.clone(), core, steps, trace, now);
            return;
        }
        let refused = error.retry() == Retry::Safe && error.kind() != ErrorKind::Cancelled;
        if refused || !left {
            self.give_up(error, core, steps);
        } else {
            self.finish(Err(error), core, steps);
        }
    }

    /// The service was asked to know us again.
    fn registered(
        &mut self,
        answer: Result<Json, Error>,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        match (answer, self.left.take()) {
            (Ok(_), Some(left)) => self.leave(left, core, trace, now),
            (Ok(_), None) => {
                let error = Error::new(ErrorKind::Internal, "the message to send again is gone");
                self.give_up(error, core, steps);
            }
            (Err(error), _) => self.give_up(error, core, steps),
        }
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
                CallsOutput::Settled { id, name, outcome } => {
                    steps.push(Step::ToolSettled { tool_use_id: id, name, outcome });
                }
                CallsOutput::Hold => self.ask_to_hold(core, trace, now),
                CallsOutput::Results { blocks, cancelled: false } => {
                    self.stop_holding(core, now);
                    self.questions.clear();
                    self.carried.clone_from(&blocks);
                    self.send(Message::user_blocks(blocks), core, steps, trace, now);
                }
                CallsOutput::Results { blocks, cancelled: true } => {
                    self.questions.clear();
                    self.end_pause(blocks, core, steps, trace, now);
                }
                other => self.show_stop(other, steps),
            }
        }
    }

    /// Takes back what the application was asked.
    fn show_stop(&self, output: CallsOutput, steps: &mut StepQueue) {
        let (id, stop) = match output {
            CallsOutput::Stop { id } => (id, true),
            CallsOutput::Withdraw { id } => (id, false),
            _ => return,
        };
        if let Some(call) = self.question_about(&id) {
            steps.push(if stop {
                Step::ToolCancel { call }
            } else {
                Step::ApprovalWithdrawn { call }
            });
        }
    }

    fn question(&mut self, call: ToolUse, core: &mut Core) -> ToolCall {
        let number = core.ask(self.op);
        self.questions.insert(number, call.id.clone());
        let session = core.session_info().map(|info| info.id.to_string()).unwrap_or_default();
        ToolCall {
            call: number,
            idempotency_key: match self.heard.message() {
                "" => format!("{session}/{}", call.id),
                message => format!("{session}/{message}/{}", call.id),
            },
            may_have_run: self.calls.may_have_run(&call.id),
            server_side: false,
            tool_use_id: call.id,
            name: call.name,
            input: call.input,
        }
    }

    /// The last question about a call.
    fn question_about(&self, id: &str) -> Option<CallId> {
        self.questions.iter().rev().find(|(_, asked)| *asked == id).map(|(call, _)| *call)
    }

    /// Ends with an error although nothing had an effect: results on their way are kept.
    fn give_up(&mut self, error: Error, core: &mut Core, steps: &mut StepQueue) {
        core.keep_results(std::mem::take(&mut self.carried));
        self.finish(Err(error), core, steps);
    }

    fn finish(&mut self, outcome: Result<Outcome, Error>, core: &mut Core, steps: &mut StepQueue) {
        self.state = State::Over;
        self.withdraw_consent(steps);
        self.asked.clear();
        self.settle_accounts(core);
        core.forget_questions(self.op);
        core.know(self.heard.cursor());
        steps.push(Step::Finished(outcome));
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "cancelled by the application")
}
