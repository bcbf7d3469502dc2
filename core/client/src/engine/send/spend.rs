//! What a turn spends, and how one that is over its budget ends: its open calls get results that say so, the history stays
//! valid, and no model round is bought.

use super::{Turn, cancelled};
use crate::engine::command::Trace;
use crate::engine::queue::StepQueue;
use crate::engine::session::Core;
use broca_proto::session::budget::{Scope, Spent};
use broca_proto::session::content::{Block, Message};
use broca_proto::session::method::Cancel;
use broca_proto::{Error, Retry, Time};

impl Turn {
    /// What the turn has spent so far.
    pub(crate) fn spent(&self) -> Spent {
        let usage = self.heard.meter.total().unwrap_or_default();
        Spent {
            rounds: self.round,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            tool_calls: self.tool_calls,
        }
    }

    /// The turn is over: what it has spent is the session's from now on.
    pub(crate) fn settle_accounts(&mut self, core: &mut Core) {
        let spent = self.spent();
        if let Some(memory) = core.memory().filter(|_| !self.accounted) {
            self.accounted = true;
            memory.spent = memory.spent.and(spent);
        }
    }

    /// Whether the session's budget allows a first message.
    pub(super) fn admit_first(core: &mut Core) -> Result<(), Error> {
        let spent = core.memory().map(|memory| memory.spent).unwrap_or_default();
        core.config.session_budget.admits_message(Scope::Session, spent)
    }

    /// Whether the pause of this message may be answered; why not, if it may not.
    pub(super) fn over_budget(&mut self, message: &Message, core: &mut Core) -> Option<Error> {
        let calls = u32::try_from(self.calls.client_calls(message).count()).unwrap_or(u32::MAX);
        if calls == 0 {
            return None;
        }
        self.tool_calls = self.tool_calls.saturating_add(calls);
        let spent = self.spent();
        let before = core.memory().map(|memory| memory.spent).unwrap_or_default();
        let turn = core.config.turn_budget.admits_calls(Scope::Turn, spent);
        let session = || core.config.session_budget.admits_calls(Scope::Session, before.and(spent));
        turn.and_then(|()| session()).err()
    }

    /// Ends a paused turn with these results for its calls, which lead the next message where the service cannot take them
    /// without another round.
    pub(super) fn end_pause(
        &mut self,
        results: Vec<Block>,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        if core.features().cancel {
            self.ask_to_cancel(None, Cancel { request_id: None, results }, core, trace, now);
        } else {
            // Sending them would buy another model round: they lead the next message.
            core.keep_results(results);
            let error = self.ending(Retry::Safe);
            self.finish(Err(error), core, steps);
        }
    }

    /// Why the turn ends that was ended before its time.
    pub(super) fn ending(&mut self, retry: Retry) -> Error {
        self.excess.take().unwrap_or_else(|| cancelled().with_retry(retry))
    }
}
