//! How an application that was slow gets the events of its turn (design §4, guarantee 6): the stream is read on while too
//! many steps wait, events that come meanwhile are left in the log, and are read from there when there is room again.

use super::command::Trace;
use super::effect::{LogLevel, OpId};
use super::net::{ExchangeId, NetEvent};
use super::queue::StepQueue;
use super::session::Core;
use super::step::{Gap, Lost, Step};
use super::subscribe::Watch;
use broca_proto::Time;

/// Reads what was missed. Nothing is read while the application does not take what is there.
#[derive(Default)]
pub(crate) enum CatchUp {
    #[default]
    Idle,
    /// There is room: it begins with the next look at the clock.
    Due,
    Reading(Box<Reading>),
}

pub(crate) struct Reading {
    watch: Watch,
    /// What the log has brought and nobody has looked at yet.
    found: StepQueue,
    /// When it is given up without news. Not while it waits for the application.
    until: Option<Time>,
}

impl CatchUp {
    pub(crate) fn has(&self, exchange: ExchangeId) -> bool {
        matches!(self, Self::Reading(reading) if reading.watch.stream() == Some(exchange))
    }

    /// The application has taken steps, and there is room for more.
    pub(crate) fn wake(&mut self, core: &mut Core, steps: &StepQueue) {
        match self {
            Self::Idle if steps.missed().is_some() => *self = Self::Due,
            Self::Reading(reading) => reading.watch.come_back(core, &mut reading.found),
            Self::Idle | Self::Due => {}
        }
    }

    pub(crate) fn network(
        &mut self,
        exchange: ExchangeId,
        event: NetEvent,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        let Self::Reading(reading) = self else { return };
        reading.watch.network(exchange, event, core, &mut reading.found, trace, now);
        self.advance(core, steps, now);
    }

    pub(crate) fn timeout(
        &mut self,
        op: OpId,
        core: &mut Core,
        steps: &mut StepQueue,
        trace: &Trace,
        now: Time,
    ) {
        match (&mut *self, steps.missed()) {
            (Self::Idle, _) => return,
            (_, None) => return self.stop(core, now),
            (Self::Due, Some(missed)) => {
                let mut found = StepQueue::default();
                let after = Some(missed.after.clone());
                let watch = Watch::begin(op, after, core, &mut found, trace, now);
                let until = Some(now.plus(core.config.reach_timeout_ms));
                *self = Self::Reading(Box::new(Reading { watch, found, until }));
            }
            (Self::Reading(reading), Some(_)) => {
                reading.watch.timeout(core, &mut reading.found, trace, now);
                if reading.until.is_none() && !reading.watch.is_away() {
                    reading.until = Some(now.plus(core.config.reach_timeout_ms));
                }
                if reading.until.is_some_and(|at| at <= now) {
                    let ms = core.config.reach_timeout_ms;
                    let message = format!(
                        "events that a slow application had left in the log did not come for {ms} ms"
                    );
                    core.log(LogLevel::Warn, message);
                    return self.give_up(core, steps, now);
                }
            }
        }
        self.advance(core, steps, now);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match self {
            Self::Idle => None,
            Self::Due => Some(Time::default()),
            Self::Reading(reading) => {
                reading.watch.poll_timeout().into_iter().chain(reading.until).min()
            }
        }
    }

    /// What was missed is not to come any more: gaps take its place.
    pub(crate) fn give_up(&mut self, core: &mut Core, steps: &mut StepQueue, now: Time) {
        self.stop(core, now);
        steps.give_up_missed();
    }

    fn stop(&mut self, core: &mut Core, now: Time) {
        if let Self::Reading(mut reading) = std::mem::take(self) {
            reading.watch.drop_now(core, now);
        }
    }

    /// Takes what the log has brought.
    fn advance(&mut self, core: &mut Core, steps: &mut StepQueue, now: Time) {
        let Self::Reading(reading) = self else { return };
        let mut brought = Vec::new();
        reading.found.take(usize::MAX, &mut brought);
        for step in brought {
            let Some(missed) = steps.missed() else { break };
            match step {
                Step::Event(event) => {
                    reading.until = Some(now.plus(core.config.reach_timeout_ms));
                    let (shown, last) = (missed.has(&event), missed.ends_with(&event));
                    if shown {
                        steps.found(event);
                    }
                    if last {
                        steps.found_all(None);
                    }
                }
                Step::Gap(gap) if matches!(gap.lost, Lost::Line { .. }) => steps.found_gap(gap),
                Step::Gap(Gap { lost: Lost::Cursor(_), .. }) | Step::Finished(_) => {
                    return self.give_up(core, steps, now);
                }
                // The stream of the turn has brought everything that is no event.
                _ => {}
            }
        }
        if steps.missed().is_none() {
            return self.stop(core, now);
        }
        if steps.bytes() > core.config.step_buffer_bytes && reading.watch.leave(core, now) {
            reading.until = None;
        }
    }
}
