//! How a turn ends early: whatever it was doing, with one `Finished`, and so that the next message can start.

use super::{Overtaken, State, Turn, cancelled};
use crate::engine::answer::{Progress, Rpc};
use crate::engine::command::Trace;
use crate::engine::effect::LogLevel;
use crate::engine::net::{ExchangeId, NetEvent};
use crate::engine::queue::StepQueue;
use crate::engine::session::Core;
use crate::engine::step::Step;
use broca_proto::session::method::{Cancel, Method, SendMessageResult};
use broca_proto::session::turn::CallsOutput;
use broca_proto::{Error, ErrorKind, Json, Retry, Time};

impl Turn {
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
        self.stop_holding(core, now);
        self.end_consent(core, steps, now);
        match &self.state {
            State::Hooked { .. } | State::Registering { .. } => {
                self.cancel_unsent(core, steps, trace, now);
            }
            State::Streaming { rpc, .. } if !core.net.has_left(rpc.exchange) => {
                self.cancel_unsent(core, steps, trace, now);
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
            State::Recovering(recovery) if core.features().cancel => {
                let request = Cancel { request_id: recovery.request(), results: Vec::new() };
                self.drop_now(core, now);
                self.ask_to_cancel(None, request, core, trace, now);
            }
            State::Recovering(_) => {
                self.drop_now(core, now);
                self.finish(Err(cancelled().with_retry(Retry::Unknown)), core, steps);
            }
            State::Paused => {
                self.calls.cancel(now);
                self.calls_moved(core, steps, trace, now);
            }
            State::Following(_) => self.cancel_followed(core, steps, trace, now),
            State::Cancelling { .. } | State::Over => {}
        }
    }

    /// The message under way has not left. If it would have gone on with a paused turn, that turn
    /// still waits for the results in it.
    fn cancel_unsent(&mut self, core: &mut Core, steps: &mut StepQueue, trace: &Trace, now: Time) {
        self.drop_now(core, now);
        if self.round > 0 && core.features().cancel {
            let results = std::mem::take(&mut self.carried);
            self.ask_to_cancel(None, Cancel { request_id: None, results }, core, trace, now);
        } else {
            self.give_up(cancelled(), core, steps);
        }
    }

    /// Sends `session.cancel`. `stream` is the answer under way, if any.
    pub(super) fn ask_to_cancel(
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
        let cancel = Some(Box::new(cancel));
        let overtaken = Overtaken::No;
        self.state = State::Cancelling { stream, cancel, kept, confirmed: false, overtaken, until };
    }

    /// An event of the network while `session.cancel` is out.
    pub(super) fn cancelling(
        &mut self,
        exchange: ExchangeId,
        event: NetEvent,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        let State::Cancelling { stream, cancel, kept, confirmed, overtaken, .. } = &mut self.state
        else {
            return;
        };
        if let Some(rpc) = cancel.as_mut().filter(|rpc| rpc.exchange == exchange) {
            match rpc.take(event, "the service", |_| ()) {
                Progress::Going => {}
                Progress::Answered => core.linger(exchange, now),
                Progress::Refused => core.hear_out(exchange, now),
                Progress::Over(answer) => {
                    *cancel = None;
                    core.net.abort(exchange, now);
                    match answer {
                        Ok(json) => {
                            // Idle: the turn was over before, or the message has not come there yet.
                            let idle =
                                json.member("cancelled").is_some_and(|v| v.as_str() == "false");
                            let early = idle && stream.is_some() && *overtaken == Overtaken::No;
                            if early {
                                *overtaken = Overtaken::Perhaps;
                            } else {
                                *confirmed = true;
                                kept.clear();
                            }
                        }
                        Err(error) => {
                            core.log(LogLevel::Warn, format!("session.cancel failed: {error}"));
                        }
                    }
                    // Nothing is left to wait for, or the stream's own end follows.
                    if stream.is_none() {
                        self.cancel_over(None, core, steps, now);
                    } else {
                        self.ask_again(core, trace, now);
                    }
                }
            }
        } else if let Some(rpc) = stream.as_mut().filter(|rpc| rpc.exchange == exchange) {
            let heard = &mut self.heard;
            match rpc.take(event, "the service", |item| heard.item(item, steps)) {
                Progress::Going => self.ask_again(core, trace, now),
                Progress::Answered => core.linger(exchange, now),
                Progress::Refused => core.hear_out(exchange, now),
                Progress::Over(outcome) => {
                    *stream = None;
                    core.net.abort(exchange, now);
                    self.cancel_over(Some(outcome), core, steps, now);
                }
            }
        }
    }

    /// Asks once more when the first cancel has overtaken its message, as soon as the service knows of that.
    fn ask_again(&mut self, core: &mut Core, trace: &Trace, now: Time) {
        let State::Cancelling { stream: Some(rpc), cancel, overtaken, .. } = &mut self.state else {
            return;
        };
        if *overtaken == Overtaken::Perhaps && rpc.has_begun() {
            *overtaken = Overtaken::Asked;
            let request = Cancel { request_id: Some(rpc.id.clone()), results: Vec::new() };
            let again = core.rpc(self.op, &Method::Cancel, &request.to_json(), trace, now);
            *cancel = Some(Box::new(again));
        }
    }

    /// The turn is quiet. A turn that was faster than its cancellation has a reply all the same,
    /// unless it paused: then its calls never start and their results lead the next message.
    pub(super) fn cancel_over(
        &mut self,
        outcome: Option<Result<Json, Error>>,
        core: &mut Core,
        steps: &mut StepQueue,
        now: Time,
    ) {
        let (mut kept, mut confirmed) = match &mut self.state {
            State::Cancelling { kept, confirmed, .. } => (std::mem::take(kept), *confirmed),
            _ => (Vec::new(), false),
        };
        self.drop_now(core, now);
        // A pause of which we know, and whose results we hold, is no unknown outcome either.
        confirmed |= !kept.is_empty();
        let result = match outcome {
            Some(Ok(json)) => SendMessageResult::read(&json).ok(),
            Some(Err(error)) => {
                confirmed |= error.is(ErrorKind::Cancelled);
                None
            }
            None => None,
        };
        if let Some(result) = result {
            self.round += 1;
            self.events.push(result.events);
            if let Some(failure) = self.heard.failure.take() {
                self.finish(Err(failure), core, steps);
                return;
            }
            if !matches!(self.calls.decline(&result.message, now), Ok(true)) {
                self.replied(result.message, core, steps);
                return;
            }
            confirmed = true;
            while let Some(output) = self.calls.poll() {
                match output {
                    CallsOutput::Results { blocks, .. } => kept = blocks,
                    CallsOutput::Settled { id, name, outcome } => {
                        steps.push(Step::ToolSettled { tool_use_id: id, name, outcome });
                    }
                    _ => {}
                }
            }
        }
        core.keep_results(kept);
        let retry = if confirmed { Retry::Safe } else { Retry::Unknown };
        let error = self.ending(retry);
        self.finish(Err(error), core, steps);
    }
}
