//! How a turn that another program has left is taken up, and how it is saved in the first place.

use super::{Left, State, Turn, cancelled};
use crate::engine::command::Trace;
use crate::engine::effect::OpId;
use crate::engine::memory::{Pending, abandoned, saved_results};
use crate::engine::net::{ExchangeId, NetEvent};
use crate::engine::queue::StepQueue;
use crate::engine::session::Core;
use crate::engine::step::{Gap, Lost, Status, Step};
use crate::engine::subscribe::Watch;
use broca_proto::session::content::{Block, Dispatch, Message, Role};
use broca_proto::session::event::EventType;
use broca_proto::session::ids::Cursor;
use broca_proto::session::method::SendMessage;
use broca_proto::session::payload::ErrorReason;
use broca_proto::session::saved::SavedTurn;
use broca_proto::session::standing::{Ending, LoggedPause, LoggedTurn, Part, Standing};
use broca_proto::session::turn::{Calls, ToolOutcome};
use broca_proto::{Error, ErrorKind, Json, Retry, Time};

/// A turn of which the service knows more than we do: it is watched until it pauses or ends.
pub(super) struct Following {
    log: LoggedTurn,
    watch: Watch,
    queue: StepQueue,
    /// When to stop waiting for more.
    until: Time,
}

impl Following {
    pub(super) fn poll_timeout(&self) -> Time {
        self.watch.poll_timeout().map_or(self.until, |at| at.min(self.until))
    }

    pub(super) fn drop_now(&mut self, core: &mut Core, now: Time) {
        self.watch.drop_now(core, now);
    }

    pub(super) fn stream(&self) -> Option<ExchangeId> {
        self.watch.stream()
    }
}

impl Turn {
    /// Takes up the turn that was left.
    pub(crate) fn resume(
        op: OpId,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) -> Self {
        let mut turn = Self::new(op, Message::user(""), core);
        turn.resumed = true;
        match core.memory().and_then(|memory| memory.pending.take()) {
            Some(pending) => turn.take_up(*pending, core, steps, trace, now),
            None => {
                let message = "the turn that waited to be taken up was given up by a message that was sent first";
                turn.finish(Err(Error::new(ErrorKind::Usage, message)), core, steps);
            }
        }
        turn
    }

    fn take_up(
        &mut self,
        pending: Pending,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        if pending.shed {
            steps.push(Step::Gap(Gap { lost: Lost::Unseen, after: Cursor::start() }));
        }
        for (i, event) in pending.events.iter().enumerate() {
            self.heard.recall(event);
            if i >= pending.news {
                steps.push(Step::Event(event.clone()));
            }
        }
        self.tool_calls = earlier_calls(&pending);
        let events: Vec<Json> = pending.events.iter().map(|event| event.json()).collect();
        self.events.push(Json::array(&events));
        if let (Standing::None, Some((message, id))) =
            (pending.log.standing(), again(&pending, core))
        {
            // Whether it waits there, was lost or has never left: under its id it is the same message.
            self.first = message.clone();
            self.resumed = false;
            if core.features().lean_result {
                self.heard.keep_carried(core.config.reply_bytes);
            }
            self.heard.begin_round(&message);
            let params = SendMessage { message, message_id: Some(id) }.to_json();
            self.leave(Left { params, trace: None }, core, trace, now);
        } else if matches!(pending.log.standing(), Standing::Running) {
            self.follow(pending, core, steps, trace, now);
        } else {
            let left = pending.pause().map(|pause| pending.results(pause));
            self.stand(&pending.log, left, core, steps, trace, now);
        }
    }

    /// Does what follows from where the turn stands; it is not running. `left` are the results of a pause that another
    /// program was shown.
    fn stand(
        &mut self,
        log: &LoggedTurn,
        left: Option<Vec<(ToolOutcome, Block)>>,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        self.round = log.rounds();
        match log.standing() {
            Standing::Paused(pause) => {
                self.excess = self.over_budget(&pause.message, core);
                if self.excess.is_some() {
                    let tools = core.session.as_ref().map(|s| s.tools.clone()).unwrap_or_default();
                    let calls = Calls::new(tools, core.call_limits());
                    let left = left.unwrap_or_default();
                    let results = abandoned(calls, &pause.message, left, now);
                    return self.end_pause(results, core, steps, trace, now);
                }
                let taken = match left {
                    Some(results) => {
                        let left_ms = left_of(pause, core);
                        self.calls.take_up(&pause.message, results, left_ms, now)
                    }
                    None => self.calls.pause(&pause.message, now),
                };
                match taken {
                    Ok(true) => {
                        self.state = State::Paused;
                        self.calls_moved(core, steps, trace, now);
                    }
                    Ok(false) => self.replied(pause.message.clone(), core, steps),
                    Err(error) => self.finish(Err(error), core, steps),
                }
            }
            Standing::Replied(message) => match self.heard.failure.take() {
                Some(failure) => self.finish(Err(failure), core, steps),
                None => self.replied(message.clone(), core, steps),
            },
            Standing::Ended(ending) => {
                let error = self.heard.failure.take().unwrap_or_else(|| ended(ending));
                self.finish(Err(error), core, steps);
            }
            Standing::None | Standing::Running => self.finish(Err(unsent()), core, steps),
            _ => self.finish(Err(unknown()), core, steps),
        }
    }

    /// The service is at work: watches until there is more to say.
    fn follow(
        &mut self,
        pending: Pending,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        if let Some(question) = pending.log.question() {
            self.heard.recall_question(question);
        }
        let mut queue = StepQueue::default();
        let watch = Watch::begin(self.op, Some(pending.last), core, &mut queue, trace, now);
        let until = now.plus(core.config.resume_wait_ms);
        self.state =
            State::Following(Box::new(Following { log: pending.log, watch, queue, until }));
        self.followed(core, steps, trace, now);
    }

    /// An event of the network while the turn is watched.
    pub(super) fn following(
        &mut self,
        exchange: ExchangeId,
        event: NetEvent,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        let State::Following(following) = &mut self.state else { return };
        let Following { watch, queue, .. } = following.as_mut();
        watch.network(exchange, event, core, queue, trace, now);
        self.followed(core, steps, trace, now);
    }

    /// Time has passed while the turn is watched.
    pub(super) fn follow_timeout(
        &mut self,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        let decided_by = self.consent_until();
        let State::Following(following) = &mut self.state else { return };
        if let Some(until) = decided_by {
            // Nothing is logged while a person decides.
            following.until = following.until.max(until.plus(core.config.resume_wait_ms));
        }
        if following.until <= now {
            self.drop_now(core, now);
            self.finish(Err(unknown()), core, steps);
            return;
        }
        let Following { watch, queue, .. } = following.as_mut();
        watch.timeout(core, queue, trace, now);
        self.followed(core, steps, trace, now);
    }

    /// Looks at what the watch has brought.
    fn followed(&mut self, core: &mut Core, steps: &mut StepQueue, trace: &Trace, now: Time) {
        let State::Following(following) = &mut self.state else { return };
        let mut brought = Vec::new();
        following.queue.take(usize::MAX, &mut brought);
        let mut failed = None;
        for step in brought {
            match step {
                Step::Event(event) => {
                    following.until = now.plus(core.config.resume_wait_ms);
                    if following.log.event(&event) != Part::Foreign {
                        self.events.push(Json::array([&event.json()]));
                        self.heard.recall(&event);
                        self.heard.note_consent(&event);
                    }
                    steps.push(Step::Event(event));
                    if !matches!(following.log.standing(), Standing::Running) {
                        break;
                    }
                }
                Step::Finished(Ok(_)) => failed = Some(unknown()),
                Step::Finished(Err(error)) => failed = Some(error.with_retry(Retry::Unknown)),
                Step::Status(Status::Connected) => {}
                other => steps.push(other),
            }
        }
        let log = following.log.clone();
        self.consent_moved(core, steps, now);
        if !matches!(log.standing(), Standing::Running) {
            self.drop_now(core, now);
            self.stand(&log, None, core, steps, trace, now);
        } else if let Some(error) = failed {
            self.drop_now(core, now);
            self.finish(Err(error), core, steps);
        }
    }

    /// Cancels a turn that is watched. Only the service knows how far it is.
    pub(super) fn cancel_followed(
        &mut self,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        self.drop_now(core, now);
        if core.features().cancel {
            let request = broca_proto::session::method::Cancel::default();
            self.ask_to_cancel(None, request, core, trace, now);
        } else {
            self.finish(Err(cancelled().with_retry(Retry::Unknown)), core, steps);
        }
    }

    /// What another program needs to go on with this turn.
    pub(crate) fn save(&self) -> SavedTurn {
        let outcome = |id: &str| self.calls.outcome(id);
        let settled: Vec<Block> = self.calls.settled().map(|(_, block)| block.clone()).collect();
        let results = match &self.state {
            State::Cancelling { kept, .. } => kept,
            State::Paused => &settled,
            _ => &self.carried,
        };
        // Results that lead a first message are those of a turn that was cancelled.
        let leads = self.round == 0 && !self.carried.is_empty();
        let logged = self.resumed || self.round > 0 || self.heard.has_events();
        let left = self.left.as_ref().filter(|_| !logged && !leads);
        let message_id = left.and_then(|left| left.params.member("message_id"));
        // A hook may have changed it on its way.
        let message =
            left.and_then(|left| Message::read(&left.params.member("message")?, Role::User).ok());
        SavedTurn {
            message: (!logged).then(|| message.unwrap_or_else(|| self.first.clone())),
            message_id: message_id.and_then(|id| id.to_text()),
            pause: match self.heard.message() {
                "" => None,
                id => Some(id.into()),
            },
            results: saved_results(results, outcome),
            cancelled: self.cancelled || leads,
        }
    }
}

/// The message that was open, if it may be sent again.
fn again(pending: &Pending, core: &Core) -> Option<(Message, String)> {
    let SavedTurn { message, message_id, .. } = &pending.saved;
    let known = core.features().message_id;
    message.clone().zip(message_id.clone()).filter(|_| known)
}

/// Calls of client tools in the turn before the pause that is to be answered.
fn earlier_calls(pending: &Pending) -> u32 {
    let calls = |message: &Message| {
        let of_client = |dispatch: &Option<Dispatch>| *dispatch == Some(Dispatch::Client);
        message.tool_uses().filter(|(_, call)| of_client(&call.dispatch)).count()
    };
    let shown = pending.events.iter().filter(|event| event.is(&EventType::ServerMessageSend));
    let shown = shown.filter_map(|event| Message::read(&event.payload(), Role::Assistant).ok());
    let shown = shown.map(|message| calls(&message));
    let open = pending.pause().map_or(0, |pause| calls(&pause.message));
    u32::try_from(shown.sum::<usize>().saturating_sub(open)).unwrap_or(u32::MAX)
}

/// How long the service still waits for the results of this pause, by its clock and ours. A deadline that has passed binds
/// nobody: the pause is still its owner's until somebody else comes.
fn left_of(pause: &LoggedPause, core: &Core) -> Option<u64> {
    let pause_ms = core.call_limits().pause_ms;
    let left = pause.logged_ms?.saturating_add(pause_ms).checked_sub(core.wall_now_ms)?;
    (left > 0).then(|| left.min(pause_ms))
}

fn unsent() -> Error {
    let message = "the message that was open when the session was saved is not in its log: the service had not begun it; \
                   send it again";
    Error::new(ErrorKind::StreamEndedEarly, message)
}

fn unknown() -> Error {
    let message = "nothing more came of the turn that was taken up; what became of it is unknown until the log shows more";
    Error::new(ErrorKind::StreamEndedEarly, message)
}

fn ended(ending: &Ending) -> Error {
    match ending {
        Ending::Abandoned => {
            let message = "the service has given the paused turn up, because nobody answered its calls in time: their results \
                           are marked as abandoned in the log, and the session goes on with the next message";
            Error::new(ErrorKind::Timeout, message)
        }
        Ending::Cancelled => Error::new(ErrorKind::Cancelled, "the turn was cancelled"),
        Ending::SessionClosed => {
            Error::new(ErrorKind::SessionClosed, "the session was closed; open a new session")
        }
        Ending::Failed(ErrorReason::LoopLimit) => {
            Error::new(ErrorKind::LoopLimit, "the turn reached the service's limit of model rounds")
        }
        Ending::Failed(ErrorReason::AllProvidersFailed) => {
            Error::new(ErrorKind::ProvidersFailed, "every model provider failed")
        }
        Ending::Failed(reason) => {
            Error::new(ErrorKind::Rpc, format!("the turn ended with {}", reason.as_str()))
        }
        _ => unknown(),
    }
}
