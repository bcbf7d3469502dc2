//! The client's side of a turn between two rounds: the open calls of a pause (design §4, guarantees 1–5, 10).
//!
//! [`Calls`] is told which calls the model made and what became of each; it says which to start,
//! stop and ask about, and in the end gives exactly one result for each call, in call order,
//! whatever happened. It knows no network and no clock.

use super::content::{Block, Content, Dispatch, Message, ToolResult, ToolUse};
use super::tool::Tool;
use crate::error::{Error, ErrorKind};
use crate::{Json, Time};
use std::collections::{HashMap, VecDeque};

/// What is wrong with a result that is neither.
pub const NO_RESULT: &str =
    "a tool's result is a JSON string or an array of content blocks, each of them an object";

/// What became of a call, for the program; the model reads text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolOutcome {
    /// The tool returned.
    Done,
    /// The tool ran and failed.
    Failed,
    /// The tool was never started.
    NotStarted,
    /// The tool was stopped while it ran: it may have had its effect.
    InterruptedMayHaveRun,
    /// The tool did not finish in time: it may have had its effect, or still have it.
    TimedOutMayHaveRun,
}

impl ToolOutcome {
    /// The word used in every language.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::NotStarted => "not_started",
            Self::InterruptedMayHaveRun => "interrupted_may_have_run",
            Self::TimedOutMayHaveRun => "timed_out_may_have_run",
        }
    }

    /// The outcome that `word` stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        let all = [
            Self::Done,
            Self::Failed,
            Self::NotStarted,
            Self::InterruptedMayHaveRun,
            Self::TimedOutMayHaveRun,
        ];
        all.into_iter().find(|outcome| outcome.as_str() == word)
    }
}

/// How calls are run. Every value can be set; these are the defaults' meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallLimits {
    /// Calls that run at once.
    pub concurrent: usize,
    /// How long the service waits for the results of a pause.
    pub pause_ms: u64,
    /// How long a cancelled tool may take to stop before it is abandoned.
    pub cancel_grace_ms: u64,
    /// Bytes that the results of one pause may have together, because they travel in one request. The largest are
    /// replaced by a result that says so.
    pub results_bytes: usize,
    /// How long a pause is held at most (`session.hold`): it is renewed before its time is over, as long as a tool runs or a
    /// person decides. `None`, the default: it is not held.
    pub hold_ms: Option<u64>,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            concurrent: 16,
            pause_ms: 120_000,
            cancel_grace_ms: 2_000,
            results_bytes: 16 * 1024 * 1024,
            hold_ms: None,
        }
    }
}

impl CallLimits {
    /// When results must leave so that they arrive in time: the margin is 2 s or a tenth, whichever is more, but
    /// never more than half of the time there is.
    #[must_use]
    pub fn continuation_ms(&self) -> u64 {
        in_time(self.pause_ms)
    }
}

/// The least time between two attempts to hold a pause.
const RETRY_HOLD_MS: u64 = 1_000;

/// A program that was away past the deadline asks before it gives up: a pause that nobody has taken over is still its own.
/// For this long it waits for the answer.
const LATE_HOLD_MS: u64 = 5_000;

/// The part of the time that a service waits in which results can be made and still arrive.
fn in_time(ms: u64) -> u64 {
    ms - (ms / 10).max(2_000).min(ms / 2)
}

/// What the machine wants done or has to say.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CallsOutput {
    /// Run this call.
    Start(ToolUse),
    /// Stop this call if it can be stopped; its answer no longer counts.
    Stop {
        /// The call.
        id: String,
    },
    /// Ask somebody whether this call may run.
    Ask(ToolUse),
    /// The question about this call no longer matters.
    Withdraw {
        /// The call.
        id: String,
    },
    /// Renew the pause: ask the service to hold it, then tell [`Calls::held`] what came of it.
    Hold,
    /// A call has its result; the last of these precedes `Results`.
    Settled {
        /// The call.
        id: String,
        /// The tool.
        name: String,
        /// What became of it.
        outcome: ToolOutcome,
    },
    /// Every call has its result: send these, in this order. When the calls were cancelled, keep
    /// them instead, or send them with `session.cancel`.
    Results {
        /// One `tool_result` block for each client call, in call order.
        blocks: Vec<Block>,
        /// Whether the calls were cancelled.
        cancelled: bool,
    },
}

/// A person's answer to an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Run the requested input.
    Allow,
    /// Run a narrower input.
    AllowNarrowed(Json),
    /// Do not run it.
    Deny(String),
}

/// Whether an answer still counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// It was taken.
    Taken,
    /// The call already had its result; this answer changes nothing.
    TooLate,
}

/// The reason with which an approval that widens is refused.
pub const NARROWING_WIDENS: &str = "narrowing_widens";

/// The open calls of one turn. Results are kept by call id until the service has taken them, so that a call
/// that is shown again is not run again.
#[derive(Debug)]
pub struct Calls {
    tools: Vec<Tool>,
    limits: CallLimits,
    open: Vec<Call>,
    kept: HashMap<String, (ToolOutcome, Block)>,
    deadline: Option<Time>,
    hold: Option<Hold>,
    cancel_by: Option<Time>,
    cancelled: bool,
    outputs: VecDeque<CallsOutput>,
}

/// How a pause is held.
#[derive(Debug)]
struct Hold {
    /// When to renew it; nothing while the service is being asked.
    at: Option<Time>,
    /// It is not held beyond.
    until: Time,
}

#[derive(Debug)]
struct Call {
    call: ToolUse,
    tool: Option<usize>,
    state: CallState,
    deadline: Option<Time>,
    /// Another program had the call before, and left no result of it.
    may_have_run: bool,
}

#[derive(Debug)]
enum CallState {
    Asked,
    Waiting,
    Running,
    Stopping,
    Settled,
}

impl Calls {
    /// No open calls yet; `tools` are the client's own.
    #[must_use]
    pub fn new(tools: Vec<Tool>, limits: CallLimits) -> Self {
        Self {
            tools,
            limits,
            open: Vec::new(),
            kept: HashMap::new(),
            deadline: None,
            hold: None,
            cancel_by: None,
            cancelled: false,
            outputs: VecDeque::new(),
        }
    }

    /// The calls of `message` that this client must answer: those dispatched to the client, and
    /// untagged ones (an old service) whose name it has registered.
    pub fn client_calls<'a>(&'a self, message: &'a Message) -> impl Iterator<Item = &'a ToolUse> {
        message.tool_uses().map(|(_, call)| call).filter(|call| match &call.dispatch {
            Some(dispatch) => *dispatch == Dispatch::Client,
            None => self.tools.iter().any(|tool| tool.name() == call.name),
        })
    }

    /// A turn has paused with `message`. Returns whether there is anything for this client to answer.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when two calls share an id; nothing is started then.
    pub fn pause(&mut self, message: &Message, now: Time) -> Result<bool, Error> {
        self.pause_for(message, None, now)
    }

    /// As [`Calls::pause`]; the service has said that it waits for `left_ms`.
    ///
    /// # Errors
    /// As [`Calls::pause`].
    pub fn pause_for(
        &mut self,
        message: &Message,
        left_ms: Option<u64>,
        now: Time,
    ) -> Result<bool, Error> {
        if !self.lay_open(message)? {
            return Ok(false);
        }
        self.wait_for(left_ms.unwrap_or(self.limits.pause_ms), now);
        for i in 0..self.open.len() {
            self.admit(i);
        }
        self.advance(now);
        Ok(true)
    }

    /// Takes up a pause that another program has left, with the results that it had. Every other call
    /// may have run there. `left_ms` is the time until the service's deadline where it is known.
    ///
    /// # Errors
    /// As [`Calls::pause`].
    pub fn take_up(
        &mut self,
        message: &Message,
        results: impl IntoIterator<Item = (ToolOutcome, Block)>,
        left_ms: Option<u64>,
        now: Time,
    ) -> Result<bool, Error> {
        if !self.lay_open(message)? {
            return Ok(false);
        }
        for (outcome, block) in results {
            let id = block.tool_result().map(|result| result.tool_use_id.clone());
            if let Some(id) = id.filter(|id| self.position(id).is_some()) {
                self.kept.insert(id, (outcome, block));
            }
        }
        for call in &mut self.open {
            call.may_have_run = !self.kept.contains_key(&call.call.id);
        }
        self.wait_for(left_ms.unwrap_or(self.limits.pause_ms), now);
        if let Some(hold) = &mut self.hold {
            // Nobody knows how long it was left alone.
            hold.at = Some(now);
        }
        for i in 0..self.open.len() {
            self.admit(i);
        }
        self.advance(now);
        self.renew(now);
        Ok(true)
    }

    /// A turn has paused with `message` although it is to end: no call starts, and each gets a result that says so.
    ///
    /// # Errors
    /// As [`Calls::pause`].
    pub fn decline(&mut self, message: &Message, now: Time) -> Result<bool, Error> {
        self.decline_because(message, "the turn was cancelled", now)
    }

    /// As [`Calls::decline`], for another reason.
    ///
    /// # Errors
    /// As [`Calls::pause`].
    pub fn decline_because(
        &mut self,
        message: &Message,
        why: &str,
        now: Time,
    ) -> Result<bool, Error> {
        if !self.lay_open(message)? {
            return Ok(false);
        }
        self.cancelled = true;
        for i in 0..self.open.len() {
            if self.kept.contains_key(&self.open[i].call.id) {
                self.open[i].state = CallState::Settled;
            } else {
                self.never_started(i, why);
            }
        }
        self.advance(now);
        Ok(true)
    }

    /// The service was asked to hold the pause and says how long it waits now; nothing when it did not answer.
    pub fn held(&mut self, expires_in_ms: Option<u64>, now: Time) {
        let (Some(hold), Some(deadline)) = (&mut self.hold, self.deadline) else { return };
        let Some(expires) = expires_in_ms else {
            // Again, as long as there is time.
            hold.at = Some(now.plus((deadline.since(now) / 4).max(RETRY_HOLD_MS)));
            return;
        };
        let renewed = now.plus(in_time(expires));
        if renewed > deadline {
            self.deadline = Some(renewed);
            hold.at = Some(now.plus(in_time(expires) / 2));
        } else {
            // The service's own bound is reached, or the pause is gone: what is left is all there is.
            self.hold = None;
        }
    }

    /// The service waits for `ms` from now on, as far as is known.
    fn wait_for(&mut self, ms: u64, now: Time) {
        self.deadline = Some(now.plus(in_time(ms)));
        self.hold = self.limits.hold_ms.map(|bound| {
            let until = now.plus(bound);
            Hold { at: Some(now.plus(in_time(ms) / 2)), until }
        });
    }

    /// Asks for the pause to be held when it is time for that and something is still open.
    fn renew(&mut self, now: Time) {
        let open = !self.open.is_empty() && !self.cancelled;
        if let Some(hold) =
            self.hold.as_mut().filter(|hold| open && hold.at.is_some_and(|at| at <= now))
        {
            hold.at = None;
            if now < hold.until {
                self.outputs.push_back(CallsOutput::Hold);
            }
        }
    }

    /// Takes the client's calls of a message; whether there are any.
    fn lay_open(&mut self, message: &Message) -> Result<bool, Error> {
        let mut ids: Vec<&str> = message.tool_uses().map(|(_, c)| c.id.as_str()).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::new(
                ErrorKind::Protocol,
                "two tool calls of one response share an id; nothing was run",
            ));
        }
        let calls: Vec<ToolUse> = self.client_calls(message).cloned().collect();
        let tool_of = |call: &ToolUse| self.tools.iter().position(|tool| tool.name() == call.name);
        self.open = calls
            .into_iter()
            .map(|call| {
                let tool = tool_of(&call);
                let state = CallState::Waiting;
                Call { call, tool, state, deadline: None, may_have_run: false }
            })
            .collect();
        Ok(!self.open.is_empty())
    }

    /// A tool returned `content`: a JSON string or an array of blocks.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when no such call was ever started here, [`ErrorKind::InvalidArgument`] for any other JSON; the
    /// call is still open then.
    pub fn complete(&mut self, id: &str, content: Json, now: Time) -> Result<Accepted, Error> {
        if !Content::is_result(&content) {
            return Err(Error::new(ErrorKind::InvalidArgument, NO_RESULT));
        }
        let result = ToolResult { tool_use_id: id.to_owned(), content, is_error: None };
        self.answer(id, ToolOutcome::Done, result, now)
    }

    /// A tool failed; `message` is what the model reads.
    ///
    /// # Errors
    /// As [`Calls::complete`].
    pub fn fail(&mut self, id: &str, message: &str, now: Time) -> Result<Accepted, Error> {
        self.answer(id, ToolOutcome::Failed, error_result(id, message), now)
    }

    /// What ran the tool was lost before it ended, so that nobody knows how far it came; `message` is what the model reads.
    ///
    /// # Errors
    /// As [`Calls::complete`].
    pub fn interrupt(&mut self, id: &str, message: &str, now: Time) -> Result<Accepted, Error> {
        self.answer(id, ToolOutcome::InterruptedMayHaveRun, error_result(id, message), now)
    }

    /// Somebody answered an approval. The first answer counts.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when nobody was asked about this call.
    pub fn decide(&mut self, id: &str, verdict: Verdict, now: Time) -> Result<Accepted, Error> {
        let Some(i) = self.position(id) else { return self.not_open(id) };
        if !matches!(self.open[i].state, CallState::Asked) {
            return Ok(Accepted::TooLate);
        }
        let denied = match verdict {
            Verdict::Allow => None,
            Verdict::AllowNarrowed(input) => {
                let rules = self.open[i].tool.map(|t| &self.tools[t].narrow);
                if rules.is_some_and(|rules| rules.admit(&self.open[i].call.input, &input)) {
                    self.open[i].call.input = input;
                    None
                } else {
                    Some(NARROWING_WIDENS.to_owned())
                }
            }
            Verdict::Deny(reason) => Some(reason),
        };
        match denied {
            None => self.open[i].state = CallState::Waiting,
            Some(reason) => {
                self.settle_unrun(i, &format!("The call was denied and not run: {reason}"));
            }
        }
        self.advance(now);
        Ok(Accepted::Taken)
    }

    /// The application cancels: nothing new starts, running tools are told to stop and get the grace
    /// time; then [`CallsOutput::Results`] follows with `cancelled`.
    pub fn cancel(&mut self, now: Time) {
        if self.cancelled || self.open.is_empty() {
            return;
        }
        self.cancelled = true;
        self.cancel_by = Some(now.plus(self.limits.cancel_grace_ms));
        for i in 0..self.open.len() {
            match self.open[i].state {
                CallState::Running => self.stop(i),
                CallState::Asked | CallState::Waiting => {
                    self.never_started(i, "the turn was cancelled")
                }
                CallState::Stopping | CallState::Settled => {}
            }
        }
        self.advance(now);
    }

    /// Nobody can run tools here any more (the handler's host is gone): everything unfinished is settled at once.
    pub fn abandon(&mut self, now: Time) {
        self.cancel(now);
        self.cancel_by = Some(now);
        self.handle_timeout(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        let over = |deadline: Option<Time>| deadline.is_some_and(|at| at <= now);
        if over(self.deadline) && self.hold.as_ref().is_some_and(|hold| over(hold.at)) {
            self.deadline = Some(now.plus(LATE_HOLD_MS));
        }
        let all = over(self.deadline);
        let grace = over(self.cancel_by);
        for i in 0..self.open.len() {
            let own = over(self.open[i].deadline);
            match self.open[i].state {
                CallState::Settled => {}
                CallState::Stopping if grace => self.interrupted(i),
                CallState::Running | CallState::Stopping if all || own => self.timed_out(i),
                CallState::Asked if all => {
                    self.outputs
                        .push_back(CallsOutput::Withdraw { id: self.open[i].call.id.clone() });
                    self.never_started_settled(i, "nobody answered the approval in time");
                }
                CallState::Waiting if all => {
                    self.never_started(i, "its time was over before it could start")
                }
                _ => {}
            }
        }
        self.advance(now);
        self.renew(now);
    }

    /// When [`Calls::handle_timeout`] is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let unsettled = || self.open.iter().filter(|c| !matches!(c.state, CallState::Settled));
        unsettled().next()?;
        let own = unsettled().filter_map(|call| call.deadline);
        let hold = self.hold.as_ref().filter(|_| !self.cancelled).and_then(|hold| hold.at);
        own.chain(self.deadline).chain(self.cancel_by).chain(hold).min()
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<CallsOutput> {
        self.outputs.pop_front()
    }

    /// The service has taken the results: what follows is a new round, and a call in it that has the id of
    /// an earlier one (some servers number their calls anew in every answer) is another call.
    pub fn delivered(&mut self) {
        self.kept.clear();
    }

    /// What became of the call `id`, once it is settled.
    #[must_use]
    pub fn outcome(&self, id: &str) -> Option<ToolOutcome> {
        self.kept.get(id).map(|(outcome, _)| *outcome)
    }

    /// Whether the open call `id` was another program's before, so that it may have run.
    #[must_use]
    pub fn may_have_run(&self, id: &str) -> bool {
        self.position(id).is_some_and(|i| self.open[i].may_have_run)
    }

    /// The results of the open calls so far, in call order.
    pub fn settled(&self) -> impl Iterator<Item = (ToolOutcome, &Block)> {
        let kept = self.open.iter().filter_map(|call| self.kept.get(&call.call.id));
        kept.map(|(outcome, block)| (*outcome, block))
    }

    /// Whether calls are open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The tools.
    #[must_use]
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// First look at a call of a new pause: known result, unknown tool, approval or straight to the queue.
    fn admit(&mut self, i: usize) {
        let id = self.open[i].call.id.clone();
        if self.kept.contains_key(&id) {
            self.open[i].state = CallState::Settled;
            return;
        }
        let Some(tool) = self.open[i].tool else {
            let mut names: Vec<&str> = self.tools.iter().map(Tool::name).collect();
            names.sort_unstable();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let name = &self.open[i].call.name;
            let text = format!("There is no tool \"{name}\" here. The tools are: {known}.");
            self.settle_unrun(i, &text);
            return;
        };
        if self.tools[tool].approval {
            self.open[i].state = CallState::Asked;
            self.outputs.push_back(CallsOutput::Ask(self.open[i].call.clone()));
        }
    }

    /// Starts what may start, and gives the results out when every call has one.
    fn advance(&mut self, now: Time) {
        let active = |state: &CallState| matches!(state, CallState::Running | CallState::Stopping);
        let mut running = self.open.iter().filter(|c| active(&c.state)).count();
        let sequential =
            |tools: &[Tool], call: &Call| call.tool.is_some_and(|t| tools[t].sequential);
        let mut busy = self.open.iter().any(|c| active(&c.state) && sequential(&self.tools, c));
        for call in &mut self.open {
            if running >= self.limits.concurrent.max(1) || self.cancelled {
                break;
            }
            let one_at_a_time = sequential(&self.tools, call);
            if !matches!(call.state, CallState::Waiting) || (one_at_a_time && busy) {
                continue;
            }
            running += 1;
            busy |= one_at_a_time;
            call.state = CallState::Running;
            call.deadline = call.tool.and_then(|t| self.tools[t].timeout_ms).map(|ms| now.plus(ms));
            self.outputs.push_back(CallsOutput::Start(call.call.clone()));
        }
        if !self.open.is_empty() && self.open.iter().all(|c| matches!(c.state, CallState::Settled))
        {
            let mut blocks: Vec<Block> = self
                .open
                .iter()
                .filter_map(|c| self.kept.get(&c.call.id).map(|(_, block)| block.clone()))
                .collect();
            fit(&mut blocks, self.limits.results_bytes);
            self.open.clear();
            self.deadline = None;
            self.hold = None;
            self.cancel_by = None;
            let cancelled = std::mem::take(&mut self.cancelled);
            self.outputs.push_back(CallsOutput::Results { blocks, cancelled });
        }
    }

    fn answer(
        &mut self,
        id: &str,
        outcome: ToolOutcome,
        result: ToolResult,
        now: Time,
    ) -> Result<Accepted, Error> {
        let Some(i) = self.position(id) else { return self.not_open(id) };
        match self.open[i].state {
            CallState::Running => {}
            // A tool that was told to stop and then fails was interrupted, whatever it says; one
            // that returns had its effect, and the model must know.
            CallState::Stopping if outcome == ToolOutcome::Failed => {
                self.interrupted(i);
                self.advance(now);
                return Ok(Accepted::Taken);
            }
            CallState::Stopping => {}
            CallState::Settled => return Ok(Accepted::TooLate),
            CallState::Asked | CallState::Waiting => {
                let message = format!("the call \"{id}\" was not started yet");
                return Err(Error::new(ErrorKind::Usage, message));
            }
        }
        self.settle(i, outcome, result);
        self.advance(now);
        Ok(Accepted::Taken)
    }

    fn position(&self, id: &str) -> Option<usize> {
        self.open.iter().position(|call| call.call.id == id)
    }

    fn not_open(&self, id: &str) -> Result<Accepted, Error> {
        if self.kept.contains_key(id) {
            return Ok(Accepted::TooLate);
        }
        Err(Error::new(ErrorKind::Usage, format!("no call \"{id}\" is open in this turn")))
    }

    fn settle(&mut self, i: usize, outcome: ToolOutcome, result: ToolResult) {
        let call = &mut self.open[i];
        call.state = CallState::Settled;
        call.deadline = None;
        let (id, name) = (call.call.id.clone(), call.call.name.clone());
        self.kept.insert(id.clone(), (outcome, Block::of_tool_result(result)));
        self.outputs.push_back(CallsOutput::Settled { id, name, outcome });
    }

    fn stop(&mut self, i: usize) {
        self.open[i].state = CallState::Stopping;
        self.outputs.push_back(CallsOutput::Stop { id: self.open[i].call.id.clone() });
    }

    fn never_started(&mut self, i: usize, why: &str) {
        if matches!(self.open[i].state, CallState::Asked) {
            self.outputs.push_back(CallsOutput::Withdraw { id: self.open[i].call.id.clone() });
        }
        self.never_started_settled(i, why);
    }

    fn never_started_settled(&mut self, i: usize, why: &str) {
        self.settle_unrun(i, &format!("The call was not started: {why}."));
    }

    /// A call that was never started here; another program may have started it.
    fn settle_unrun(&mut self, i: usize, text: &str) {
        let call = &self.open[i];
        let (outcome, text) = if call.may_have_run {
            let text = format!("{text} An earlier attempt may have run, in whole or in part.");
            (ToolOutcome::InterruptedMayHaveRun, text)
        } else {
            (ToolOutcome::NotStarted, text.to_owned())
        };
        let result = error_result(&call.call.id, &text);
        self.settle(i, outcome, result);
    }

    fn interrupted(&mut self, i: usize) {
        let text =
            "The call was interrupted before it finished. It may have run, in whole or in part.";
        let result = error_result(&self.open[i].call.id, text);
        self.settle(i, ToolOutcome::InterruptedMayHaveRun, result);
    }

    fn timed_out(&mut self, i: usize) {
        if matches!(self.open[i].state, CallState::Running) {
            self.outputs.push_back(CallsOutput::Stop { id: self.open[i].call.id.clone() });
        }
        let text = "The call did not finish in time. It may have run, in whole or in part, or still be running.";
        let result = error_result(&self.open[i].call.id, text);
        self.settle(i, ToolOutcome::TimedOutMayHaveRun, result);
    }
}

/// Replaces the largest results until all of them fit into one request.
fn fit(blocks: &mut [Block], limit: usize) {
    let size = |block: &Block| block.json().as_bytes().len() + 1;
    loop {
        let total: usize = blocks.iter().map(size).sum();
        let Some(largest) = blocks.iter_mut().max_by_key(|block| size(block)) else { return };
        let bytes = size(largest);
        let id = largest.tool_result().map(|result| result.tool_use_id.clone()).unwrap_or_default();
        let text = format!(
            "The tool ran, but its result of {bytes} bytes does not fit into one message to the service: {limit} bytes are allowed for all results together. Return less."
        );
        let notice = Block::of_tool_result(error_result(&id, &text));
        if total <= limit || bytes <= size(&notice) {
            return;
        }
        *largest = notice;
    }
}

fn error_result(id: &str, text: &str) -> ToolResult {
    ToolResult { tool_use_id: id.to_owned(), content: Json::string(text), is_error: Some(true) }
}

#[cfg(test)]
mod tests;
