//! Steps of one operation that wait for the application.
//!
//! A queue that holds too much keeps no more events of a turn: it notes from where to where the log has them, and what
//! comes after them waits behind that. [`super::catch_up`] reads them from the log when there is room again.

use super::step::{Delta, DeltaKind, Gap, Lost, Step};
use broca_proto::session::event::Event;
use broca_proto::session::exchange::{Warning, WarningClass};
use broca_proto::session::ids::Cursor;
use broca_proto::session::trail::Said;
use std::collections::VecDeque;

/// So many warnings of one class are reported each; after that only each doubling of their number.
const EACH_WARNING: u64 = 32;

/// Steps of one operation that wait for the application.
#[derive(Debug, Default)]
pub(crate) struct StepQueue {
    /// Warnings so far, by class.
    warned: Vec<(WarningClass, u64)>,
    steps: VecDeque<Step>,
    bytes: usize,
    /// How many of them are deltas that may be shed.
    deltas: usize,
    /// How many were taken so far, and where the gap stands that counts shed deltas: its number
    /// among all steps.
    taken: u64,
    gap: Option<u64>,
    /// The application has been told that steps wait, and has not taken them all since.
    announced: bool,
    finished: bool,
    /// The id of the last event that was taken; its buffer is used again.
    last_event: String,
    /// Events that were not kept, and the steps that wait behind them.
    later: VecDeque<Later>,
    later_bytes: usize,
}

/// Events that came when too much waited. The log has them.
#[derive(Debug)]
pub(crate) struct Missed {
    /// The event before them.
    pub(crate) after: Cursor,
    /// The id of the last of them; its buffer is used again.
    last: Vec<u8>,
    /// What the request has said that brought them: its stream does not show that.
    said: Said,
    /// Pieces of the display lane that were shed among them.
    shed: u64,
}

impl Missed {
    /// Whether an event of the log is one of them.
    pub(crate) fn has(&self, event: &Event) -> bool {
        !self.said.shows(event)
    }

    /// Whether an event of the log is the last of them.
    pub(crate) fn ends_with(&self, event: &Event) -> bool {
        self.last == event.id_bytes()
    }
}

#[derive(Debug)]
struct Later {
    missed: Missed,
    steps: VecDeque<Step>,
}

impl StepQueue {
    /// Adds a step. Nothing is added after `Finished`.
    pub(crate) fn push(&mut self, step: Step) {
        if self.finished {
            return;
        }
        self.finished = matches!(step, Step::Finished(_));
        match self.later.back_mut() {
            None => self.append(step),
            Some(later) => {
                self.later_bytes += step.bytes();
                later.steps.push_back(step);
            }
        }
    }

    #[inline]
    fn append(&mut self, step: Step) {
        self.deltas += usize::from(is_piece(&step));
        self.bytes += step.bytes();
        self.steps.push_back(step);
    }

    /// Whether an event that the log has is better left there: more than `limit` bytes wait, or others were left already.
    #[inline]
    pub(crate) fn is_full(&self, limit: usize) -> bool {
        self.bytes > limit || !self.later.is_empty()
    }

    /// Notes in place of an event that the log has it. `before` is the id of the event that came before it.
    pub(crate) fn miss(&mut self, id: &[u8], before: impl FnOnce() -> Cursor, said: &Said) {
        if self.finished {
            return;
        }
        if let Some(Later { missed, steps }) = self.later.back_mut()
            && steps.is_empty()
        {
            missed.last.clear();
            missed.last.extend_from_slice(id);
            return;
        }
        let missed = Missed { after: before(), last: id.to_vec(), said: said.clone(), shed: 0 };
        self.later_bytes += size_of::<Later>();
        self.later.push_back(Later { missed, steps: VecDeque::new() });
    }

    /// The first events that were missed and are still to be read from the log.
    pub(crate) fn missed(&self) -> Option<&Missed> {
        self.later.front().map(|later| &later.missed)
    }

    /// One of the events that were missed.
    pub(crate) fn found(&mut self, event: Event) {
        self.append(Step::Event(event));
    }

    /// Something among the events that were missed is lost.
    pub(crate) fn found_gap(&mut self, gap: Gap) {
        self.append(Step::Gap(gap));
    }

    /// The first events that were missed are all there, or cannot be had: then `gap` says so.
    pub(crate) fn found_all(&mut self, gap: Option<Gap>) {
        let Some(Later { missed, steps }) = self.later.pop_front() else { return };
        if let Some(gap) = gap {
            self.append(Step::Gap(gap));
        }
        if missed.shed > 0 {
            let after = std::str::from_utf8(&missed.last).unwrap_or_default().into();
            self.append(Step::Gap(Gap { lost: Lost::Deltas(missed.shed), after }));
        }
        let bytes: usize = steps.iter().map(Step::bytes).sum();
        self.later_bytes = self.later_bytes.saturating_sub(bytes + size_of::<Later>());
        steps.into_iter().for_each(|step| self.append(step));
    }

    /// What was missed cannot be had, or is not wanted any more: gaps say so.
    pub(crate) fn give_up_missed(&mut self) {
        while let Some(missed) = self.missed() {
            let gap = Gap { lost: Lost::Unseen, after: missed.after.clone() };
            self.found_all(Some(gap));
        }
    }

    /// Adds a warning. A peer that gives cause for very many is reported ever more rarely, with the count.
    pub(crate) fn push_warning(&mut self, mut warning: Warning) {
        let known = self.warned.iter_mut().find(|(class, _)| *class == warning.class);
        let count = match known {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                self.warned.push((warning.class, 1));
                1
            }
        };
        if count > EACH_WARNING && !count.is_power_of_two() {
            return;
        }
        if count > EACH_WARNING {
            warning.message.push_str(&format!("; {count} such lines so far"));
        }
        self.push(Step::Warning(warning));
    }

    /// Adds a delta. When too many bytes wait, all deltas among them are dropped, and this one: they
    /// become one gap. That everything shown so far is void is never dropped.
    pub(crate) fn push_delta(
        &mut self,
        delta: Delta,
        limit: usize,
        after: impl FnOnce() -> Cursor,
    ) {
        let void = delta.kind == DeltaKind::Reset;
        if let Some(later) = self.later.back_mut() {
            later.missed.shed += u64::from(!void);
            let told = matches!(later.steps.back(), Some(Step::Delta(_)));
            if void && !told {
                self.push(Step::Delta(delta));
            }
            return;
        }
        if self.bytes <= limit {
            self.push(Step::Delta(delta));
            return;
        }
        self.shed(u64::from(!void), after);
        let last_is_void =
            matches!(self.steps.back(), Some(Step::Delta(d)) if d.kind == DeltaKind::Reset);
        if void && !last_is_void {
            self.push(Step::Delta(delta));
        }
    }

    /// The service has shed so many deltas itself.
    pub(crate) fn push_shed(&mut self, dropped: u64, after: impl FnOnce() -> Cursor) {
        match self.later.back_mut() {
            Some(later) => later.missed.shed += dropped,
            None => self.push(Step::Gap(Gap { lost: Lost::Deltas(dropped), after: after() })),
        }
    }

    /// Drops the deltas that wait and counts them, and `more`, in the gap.
    fn shed(&mut self, more: u64, after: impl FnOnce() -> Cursor) {
        let mut dropped = more;
        if self.deltas > 0 {
            let mut kept = VecDeque::with_capacity(self.steps.len());
            let mut gap = None;
            self.deltas = 0;
            for (number, step) in (self.taken..).zip(self.steps.drain(..)) {
                if is_piece(&step) {
                    dropped += 1;
                    continue;
                }
                if self.gap == Some(number) {
                    gap = Some(self.taken + kept.len() as u64);
                }
                kept.push_back(step);
            }
            self.steps = kept;
            self.gap = gap;
            self.bytes = self.steps.iter().map(Step::bytes).sum();
        }
        if dropped == 0 {
            return;
        }
        let place = self.gap.and_then(|gap| usize::try_from(gap.checked_sub(self.taken)?).ok());
        match place.and_then(|place| self.steps.get_mut(place)) {
            Some(Step::Gap(Gap { lost: Lost::Deltas(n), .. })) => *n += dropped,
            _ => {
                self.gap = Some(self.taken + self.steps.len() as u64);
                self.push(Step::Gap(Gap { lost: Lost::Deltas(dropped), after: after() }));
            }
        }
    }

    /// Takes steps of about `max_bytes`, at least one if any waits.
    pub(crate) fn take(&mut self, max_bytes: usize, out: &mut Vec<Step>) {
        let (mut taken, before) = (0, out.len());
        // Each step counts for this many bytes at least.
        out.reserve(self.steps.len().min(max_bytes / Step::OVERHEAD));
        while taken < max_bytes.max(1) {
            let Some(step) = self.steps.pop_front() else { break };
            taken += step.bytes();
            self.taken += 1;
            self.deltas -= usize::from(is_piece(&step));
            out.push(step);
        }
        let last = out[before..].iter().rev().find_map(|step| match step {
            Step::Event(event) => Some(event.id()),
            _ => None,
        });
        if let Some(id) = last {
            self.last_event.clear();
            self.last_event.push_str(id);
        }
        self.bytes -= taken.min(self.bytes);
        // What is left is announced again, so that whoever takes once for each announcement gets all.
        self.announced = false;
        if self.steps.is_empty() {
            self.bytes = 0;
        }
    }

    /// Whether steps wait that the application was not told about; counts as told from now on.
    pub(crate) fn announce(&mut self) -> bool {
        let news = !self.steps.is_empty() && !self.announced;
        self.announced |= news;
        news
    }

    /// Bytes of steps that may be taken now.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of steps that wait behind events which were missed.
    pub(crate) fn later_bytes(&self) -> usize {
        self.later_bytes
    }

    /// The last event that was taken, if any was.
    pub(crate) fn last_event_id(&self) -> Option<&str> {
        (!self.last_event.is_empty()).then_some(self.last_event.as_str())
    }

    /// Whether the reply waits to be taken.
    pub(crate) fn holds_reply(&self) -> bool {
        let later = self.later.iter().flat_map(|later| &later.steps);
        self.steps.iter().chain(later).any(|step| matches!(step, Step::Done(_)))
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Whether everything, `Finished` included, was taken.
    pub(crate) fn is_spent(&self) -> bool {
        self.finished && self.steps.is_empty() && self.later.is_empty()
    }
}

/// Whether the step is a delta that may be shed: anything but the news that all before it is void.
fn is_piece(step: &Step) -> bool {
    matches!(step, Step::Delta(delta) if delta.kind != DeltaKind::Reset)
}
