//! The FIFO gate of one session: one turn at a time, in order of arrival (session service §7).
//!
//! A turn that pauses for client tools keeps the gate, parked. Then:
//!
//! * a call that the owner of the parked turn makes takes it up at once, ahead of the queue, and
//!   also after the deadline as long as nobody else has taken over;
//! * at the deadline the first waiter takes over, woken by the timer;
//! * the owner may renew the pause for a while (feature `hold`), which moves the deadline;
//! * without waiters the pause stays with its owner past the deadline, and the next arrival of
//!   somebody else takes over.
//!
//! A call that its owner had queued before the turn paused is no continuation: it waits its turn.

use crate::session::ids::KeyId;
use crate::session::notice::Queued;
use std::collections::VecDeque;

/// One arrival at the gate; numbers are not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// The number, for logs.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// How a call came through the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// The gate was free.
    Fresh,
    /// The owner takes up its parked turn.
    Resumed,
    /// A parked turn passed its deadline and was taken over.
    Reclaimed {
        /// Whose turn is abandoned.
        from: KeyId,
    },
}

/// A parked turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parking {
    /// Whose turn it is.
    pub owner: KeyId,
    /// When it was parked.
    pub began: u64,
    /// Until when nobody takes it over.
    pub deadline: u64,
}

/// Why a call was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The session is over.
    Closed,
    /// [`Gate::max_waiters`] calls are waiting already.
    QueueFull,
}

/// What the gate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateOutput {
    /// The call may go; it holds the gate until [`Gate::handle_release`] or [`Gate::handle_park`].
    Granted {
        /// The call.
        ticket: Ticket,
        /// Who makes it.
        who: KeyId,
        /// How it came through.
        entry: Entry,
    },
    /// The call will never go.
    Refused {
        /// The call.
        ticket: Ticket,
        /// Why.
        why: Refusal,
    },
}

/// A call that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiter {
    ticket: Ticket,
    who: KeyId,
    /// The position that [`Gate::take_places`] gave last; none yet is 0.
    told: u64,
}

impl Waiter {
    const fn new(ticket: Ticket, who: KeyId) -> Self {
        Self { ticket, who, told: 0 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Free,
    Held { ticket: Ticket, who: KeyId },
    Parked(Parking),
    Closed,
}

/// The gate of one session. Times are wall-clock milliseconds since the Unix epoch.
#[derive(Debug)]
pub struct Gate {
    state: State,
    waiters: VecDeque<Waiter>,
    outputs: VecDeque<GateOutput>,
    next_ticket: u64,
    max_waiters: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new(Self::DEFAULT_MAX_WAITERS)
    }
}

impl Gate {
    /// How many calls may wait at one gate unless the operator says otherwise.
    pub const DEFAULT_MAX_WAITERS: usize = 1024;

    /// A free gate at which at most `max_waiters` calls may wait.
    #[must_use]
    pub const fn new(max_waiters: usize) -> Self {
        Self {
            state: State::Free,
            waiters: VecDeque::new(),
            outputs: VecDeque::new(),
            next_ticket: 1,
            max_waiters,
        }
    }

    /// A gate with a parked turn, as it was stored before a restart.
    #[must_use]
    pub fn parked(max_waiters: usize, parking: Parking) -> Self {
        let mut gate = Self::new(max_waiters);
        gate.state = State::Parked(parking);
        gate
    }

    /// How many calls may wait.
    #[must_use]
    pub const fn max_waiters(&self) -> usize {
        self.max_waiters
    }

    /// A call arrives. It is granted, refused or queued; [`Gate::poll_output`] says which.
    pub fn handle_arrival(&mut self, who: KeyId, now: u64) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        // The owner comes first: it may be late as long as nobody has taken over.
        if matches!(&self.state, State::Parked(parking) if parking.owner == who) {
            self.grant(Waiter::new(ticket, who), Entry::Resumed);
            return ticket;
        }
        self.handle_timeout(now);
        match &self.state {
            State::Closed => self.refuse(ticket, Refusal::Closed),
            State::Free => self.grant(Waiter::new(ticket, who), Entry::Fresh),
            State::Parked(parking) if parking.deadline <= now => {
                let from = parking.owner.clone();
                self.grant(Waiter::new(ticket, who), Entry::Reclaimed { from });
            }
            State::Held { .. } | State::Parked(_) => {
                if self.waiters.len() >= self.max_waiters {
                    self.refuse(ticket, Refusal::QueueFull);
                } else {
                    self.waiters.push_back(Waiter::new(ticket, who));
                }
            }
        }
        ticket
    }

    /// A queued call goes away. Says whether it was waiting: a call that was granted meanwhile is not.
    pub fn handle_leave(&mut self, ticket: Ticket) -> bool {
        let before = self.waiters.len();
        self.waiters.retain(|w| w.ticket != ticket);
        self.waiters.len() != before
    }

    /// The turn of `ticket` paused when it `began` to wait: its owner may take it up until `deadline`, and longer while
    /// nobody waits. Says whether `ticket` held the gate.
    pub fn handle_park(&mut self, ticket: Ticket, began: u64, deadline: u64, now: u64) -> bool {
        let State::Held { ticket: holder, who } = &self.state else { return false };
        if *holder != ticket {
            return false;
        }
        self.state = State::Parked(Parking { owner: who.clone(), began, deadline });
        self.handle_timeout(now);
        true
    }

    /// The owner renews its parked turn: it waits for `renew` from now on, but for no longer than `longest` after it was
    /// parked, and never shorter than before. Gives the new deadline; nothing when no turn of `who` is parked.
    pub fn handle_hold(&mut self, who: &KeyId, renew: u64, longest: u64, now: u64) -> Option<u64> {
        let State::Parked(parking) = &mut self.state else { return None };
        if parking.owner != *who {
            return None;
        }
        let wished = now.saturating_add(renew).min(parking.began.saturating_add(longest));
        parking.deadline = parking.deadline.max(wished);
        Some(parking.deadline)
    }

    /// Gives back a parked turn that `ticket` was granted but could not take up, such as when the
    /// store failed. Says whether `ticket` held the gate.
    pub fn handle_give_back(&mut self, ticket: Ticket, parking: Parking) -> bool {
        if !self.holds(ticket) {
            return false;
        }
        self.state = State::Parked(parking);
        true
    }

    /// The turn of `ticket` is over; the first waiter goes. Says whether `ticket` held the gate.
    pub fn handle_release(&mut self, ticket: Ticket) -> bool {
        if !self.holds(ticket) {
            return false;
        }
        self.state = State::Free;
        if let Some(first) = self.waiters.pop_front() {
            self.grant(first, Entry::Fresh);
        }
        true
    }

    /// Takes the parked turn of `owner` to end it: the gate is held by the ticket returned, without
    /// an output. Nothing when no turn of this owner is parked.
    pub fn claim_parked(&mut self, owner: &KeyId) -> Option<(Ticket, Parking)> {
        let State::Parked(parking) = &self.state else { return None };
        if parking.owner != *owner {
            return None;
        }
        let parking = parking.clone();
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.state = State::Held { ticket, who: owner.clone() };
        Some((ticket, parking))
    }

    /// Time has passed: a parked turn past its deadline goes to the first waiter.
    pub fn handle_timeout(&mut self, now: u64) {
        let State::Parked(parking) = &self.state else { return };
        if parking.deadline > now {
            return;
        }
        let from = parking.owner.clone();
        if let Some(first) = self.waiters.pop_front() {
            self.grant(first, Entry::Reclaimed { from });
        }
    }

    /// The session is over: every waiter is refused, and so is whoever arrives later.
    pub fn handle_close(&mut self) {
        self.state = State::Closed;
        while let Some(waiter) = self.waiters.pop_front() {
            self.refuse(waiter.ticket, Refusal::Closed);
        }
    }

    /// What the gate has to say, oldest first.
    pub fn poll_output(&mut self) -> Option<GateOutput> {
        self.outputs.pop_front()
    }

    /// When [`Gate::handle_timeout`] should be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        match &self.state {
            State::Parked(parking) if !self.waiters.is_empty() => Some(parking.deadline),
            _ => None,
        }
    }

    /// Who holds the gate, and by which call.
    #[must_use]
    pub const fn holder(&self) -> Option<(Ticket, &KeyId)> {
        match &self.state {
            State::Held { ticket, who } => Some((*ticket, who)),
            _ => None,
        }
    }

    /// The parked turn.
    #[must_use]
    pub const fn pause(&self) -> Option<&Parking> {
        match &self.state {
            State::Parked(parking) => Some(parking),
            _ => None,
        }
    }

    /// The calls that wait, first to go first.
    pub fn waiters(&self) -> impl Iterator<Item = (Ticket, &KeyId)> {
        self.waiters.iter().map(|w| (w.ticket, &w.who))
    }

    /// Where a waiting call stands.
    #[must_use]
    pub fn place(&self, ticket: Ticket) -> Option<Queued> {
        let position = self.waiters.iter().position(|waiter| waiter.ticket == ticket)?;
        Some(Queued { position: position as u64 + 1, waiting: self.waiters.len() as u64 })
    }

    /// Where those calls stand whose place is new since this was last asked: those that have come to wait, and those
    /// that have moved up. The turn at work or parked counts for nothing.
    pub fn take_places(&mut self) -> Vec<(Ticket, Queued)> {
        let waiting = self.waiters.len() as u64;
        let mut places = Vec::new();
        for (position, waiter) in (1_u64..).zip(&mut self.waiters) {
            if std::mem::replace(&mut waiter.told, position) != position {
                places.push((waiter.ticket, Queued { position, waiting }));
            }
        }
        places
    }

    /// Whether nothing is at work, parked or waiting: the gate can be dropped and made anew.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Free) && self.waiters.is_empty() && self.outputs.is_empty()
    }

    fn holds(&self, ticket: Ticket) -> bool {
        matches!(&self.state, State::Held { ticket: holder, .. } if *holder == ticket)
    }

    fn grant(&mut self, waiter: Waiter, entry: Entry) {
        let Waiter { ticket, who, .. } = waiter;
        self.state = State::Held { ticket, who: who.clone() };
        self.outputs.push_back(GateOutput::Granted { ticket, who, entry });
    }

    fn refuse(&mut self, ticket: Ticket, why: Refusal) {
        self.outputs.push_back(GateOutput::Refused { ticket, why });
    }
}

#[cfg(test)]
mod tests;
