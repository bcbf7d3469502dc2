//! How a paused turn is held: the service is asked again and again to wait, while tools run or a person decides.

use super::Turn;
use crate::engine::answer::{Progress, Rpc};
use crate::engine::command::Trace;
use crate::engine::effect::LogLevel;
use crate::engine::net::NetEvent;
use crate::engine::queue::StepQueue;
use crate::engine::session::Core;
use broca_proto::session::method::{HoldResult, Method};
use broca_proto::{Error, ErrorKind, Json, Retry, Time};

impl Turn {
    /// Asks the service to hold the pause.
    pub(super) fn ask_to_hold(&mut self, core: &mut Core, trace: &Trace, now: Time) {
        self.stop_holding(core, now);
        let rpc = core.rpc(self.op, &Method::Hold, &Json::empty_object(), trace, now);
        self.hold = Some(Box::new(rpc));
    }

    /// An event of the request that asks for it.
    pub(super) fn holding(
        &mut self,
        event: NetEvent,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        let Some(rpc) = &mut self.hold else { return };
        let exchange = rpc.exchange;
        match rpc.take(event, "the service", |_| ()) {
            Progress::Going => {}
            Progress::Answered => core.linger(exchange, now),
            Progress::Refused => core.hear_out(exchange, now),
            Progress::Over(answer) => {
                self.stop_holding(core, now);
                let left = expires(answer).unwrap_or_else(|error| {
                    core.log(LogLevel::Warn, format!("session.hold failed: {error}"));
                    // What was refused for good is not asked again.
                    (error.retry() == Retry::Unsafe).then_some(0)
                });
                self.calls.held(left, now);
                self.calls_moved(core, steps, trace, now);
            }
        }
    }

    /// The pause is over, or something more urgent needs the connection.
    pub(super) fn stop_holding(&mut self, core: &mut Core, now: Time) {
        if let Some(rpc) = self.hold.take().map(|rpc: Box<Rpc>| rpc.exchange) {
            core.net.abort(rpc, now);
        }
    }
}

/// How long the service waits now: no time when nothing of ours is paused there.
fn expires(answer: Result<Json, Error>) -> Result<Option<u64>, Error> {
    let malformed = |e: &broca_proto::json::JsonError| {
        Error::new(ErrorKind::Malformed, format!("its answer cannot be read: {e}"))
    };
    let result: HoldResult = answer?.decode().map_err(|e| malformed(&e))?;
    Ok(Some(result.expires_in_ms.filter(|_| result.held).unwrap_or(0)))
}
