//! The FIFO gate of one session: one turn at a time, in order of arrival (session service §7).
//!
//! A turn that pauses for client tools keeps the gate, parked. Then:
//!
//! * a call that the owner of the parked turn makes takes it up at once, ahead of the queue, and
//!   also after the deadline as long as nobody else has taken over;
//! * at the deadline the first waiter takes over, woken by the timer;
//! * without waiters the pause stays with its owner past the deadline, and the next arrival of
//!   somebody else takes over.
//!
//! A call that its owner had queued before the turn paused is no continuation: it waits its turn.

use crate::session::ids::KeyId;
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
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Free,
    Held { ticket: Ticket, who: KeyId },
    Parked { owner: KeyId, deadline: u64 },
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
    pub fn parked(max_waiters: usize, owner: KeyId, deadline: u64) -> Self {
        let mut gate = Self::new(max_waiters);
        gate.state = State::Parked { owner, deadline };
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
        if matches!(&self.state, State::Parked { owner, .. } if *owner == who) {
            self.grant(Waiter { ticket, who }, Entry::Resumed);
            return ticket;
        }
        self.handle_timeout(now);
        match &self.state {
            State::Closed => self.refuse(ticket, Refusal::Closed),
            State::Free => self.grant(Waiter { ticket, who }, Entry::Fresh),
            State::Parked { owner, deadline } if *deadline <= now => {
                let from = owner.clone();
                self.grant(Waiter { ticket, who }, Entry::Reclaimed { from });
            }
            State::Held { .. } | State::Parked { .. } => {
                if self.waiters.len() >= self.max_waiters {
                    self.refuse(ticket, Refusal::QueueFull);
                } else {
                    self.waiters.push_back(Waiter { ticket, who });
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

    /// The turn of `ticket` pauses: its owner may take it up until `deadline`, and longer while
    /// nobody waits. Says whether `ticket` held the gate.
    pub fn handle_park(&mut self, ticket: Ticket, deadline: u64, now: u64) -> bool {
        let State::Held { ticket: holder, who } = &self.state else { return false };
        if *holder != ticket {
            return false;
        }
        self.state = State::Parked { owner: who.clone(), deadline };
        self.handle_timeout(now);
        true
    }

    /// Gives back a parked turn that `ticket` was granted but could not take up, such as when the
    /// store failed. Says whether `ticket` held the gate.
    pub fn handle_give_back(&mut self, ticket: Ticket, owner: KeyId, deadline: u64) -> bool {
        if !self.holds(ticket) {
            return false;
        }
        self.state = State::Parked { owner, deadline };
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
    pub fn claim_parked(&mut self, owner: &KeyId) -> Option<Ticket> {
        if !matches!(&self.state, State::Parked { owner: parked, .. } if parked == owner) {
            return None;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.state = State::Held { ticket, who: owner.clone() };
        Some(ticket)
    }

    /// Time has passed: a parked turn past its deadline goes to the first waiter.
    pub fn handle_timeout(&mut self, now: u64) {
        let State::Parked { owner, deadline } = &self.state else { return };
        if *deadline > now {
            return;
        }
        let from = owner.clone();
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
            State::Parked { deadline, .. } if !self.waiters.is_empty() => Some(*deadline),
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

    /// Whose turn is parked, and until when.
    #[must_use]
    pub const fn pause(&self) -> Option<(&KeyId, u64)> {
        match &self.state {
            State::Parked { owner, deadline } => Some((owner, *deadline)),
            _ => None,
        }
    }

    /// The calls that wait, first to go first.
    pub fn waiters(&self) -> impl Iterator<Item = (Ticket, &KeyId)> {
        self.waiters.iter().map(|w| (w.ticket, &w.who))
    }

    /// How many calls go before this waiting one, the turn at work or parked not counted.
    #[must_use]
    pub fn position(&self, ticket: Ticket) -> Option<usize> {
        self.waiters.iter().position(|w| w.ticket == ticket)
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
        let Waiter { ticket, who } = waiter;
        self.state = State::Held { ticket, who: who.clone() };
        self.outputs.push_back(GateOutput::Granted { ticket, who, entry });
    }

    fn refuse(&mut self, ticket: Ticket, why: Refusal) {
        self.outputs.push_back(GateOutput::Refused { ticket, why });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn key(name: &str) -> KeyId {
        KeyId::from(name)
    }

    fn granted(gate: &mut Gate) -> Option<(Ticket, Entry)> {
        match gate.poll_output() {
            Some(GateOutput::Granted { ticket, entry, .. }) => Some((ticket, entry)),
            None => None,
            Some(GateOutput::Refused { .. }) => panic!("refused"),
        }
    }

    fn reclaimed(from: &str) -> Entry {
        Entry::Reclaimed { from: key(from) }
    }

    /// A gate at which a turn of `a` is parked until 100.
    fn parked() -> Gate {
        let mut gate = Gate::default();
        let ticket = gate.handle_arrival(key("a"), 0);
        assert_eq!(granted(&mut gate), Some((ticket, Entry::Fresh)));
        assert!(gate.handle_park(ticket, 100, 0));
        gate
    }

    #[test]
    fn calls_go_one_by_one_in_the_order_of_arrival_also_those_of_one_client() {
        let mut gate = Gate::default();
        let tickets: Vec<Ticket> =
            ["a", "b", "a", "c"].iter().map(|who| gate.handle_arrival(key(who), 0)).collect();
        assert_eq!(gate.position(tickets[3]), Some(2));
        for ticket in tickets {
            assert_eq!(granted(&mut gate), Some((ticket, Entry::Fresh)));
            assert_eq!(granted(&mut gate), None);
            assert!(gate.handle_release(ticket));
        }
        assert!(gate.is_idle());
    }

    #[test]
    fn the_owners_continuation_overtakes_the_queue_before_and_after_the_deadline() {
        for now in [50, 1000] {
            let mut gate = parked();
            gate.handle_arrival(key("b"), 10);
            assert_eq!(granted(&mut gate), None);
            let back = gate.handle_arrival(key("a"), now);
            assert_eq!(granted(&mut gate), Some((back, Entry::Resumed)));
        }
    }

    #[test]
    fn at_the_deadline_the_first_waiter_takes_over_by_the_timer() {
        let mut gate = parked();
        assert_eq!(gate.poll_timeout(), None);
        let first = gate.handle_arrival(key("b"), 10);
        gate.handle_arrival(key("c"), 20);
        assert_eq!(gate.poll_timeout(), Some(100));
        gate.handle_timeout(99);
        assert_eq!(granted(&mut gate), None);
        gate.handle_timeout(100);
        assert_eq!(granted(&mut gate), Some((first, reclaimed("a"))));
        assert_eq!(gate.poll_timeout(), None);
    }

    #[test]
    fn a_later_arrival_never_jumps_the_queue_even_when_the_timer_is_late() {
        let mut gate = parked();
        let first = gate.handle_arrival(key("b"), 10);
        let second = gate.handle_arrival(key("c"), 200);
        assert_eq!(granted(&mut gate), Some((first, reclaimed("a"))));
        assert_eq!(granted(&mut gate), None);
        assert_eq!(gate.position(second), Some(0));
    }

    #[test]
    fn without_waiters_an_expired_pause_stays_with_its_owner() {
        let mut gate = parked();
        gate.handle_timeout(100_000);
        let back = gate.handle_arrival(key("a"), 100_001);
        assert_eq!(granted(&mut gate), Some((back, Entry::Resumed)));
    }

    #[test]
    fn without_waiters_the_next_arrival_takes_over_an_expired_pause() {
        let mut gate = parked();
        let next = gate.handle_arrival(key("b"), 100);
        assert_eq!(granted(&mut gate), Some((next, reclaimed("a"))));
    }

    #[test]
    fn a_call_that_the_owner_queued_before_the_pause_is_no_continuation() {
        let mut gate = Gate::default();
        let turn = gate.handle_arrival(key("a"), 0);
        let queued = gate.handle_arrival(key("a"), 1);
        assert_eq!(granted(&mut gate), Some((turn, Entry::Fresh)));
        gate.handle_park(turn, 100, 2);
        assert_eq!(granted(&mut gate), None);
        let back = gate.handle_arrival(key("a"), 3);
        assert_eq!(granted(&mut gate), Some((back, Entry::Resumed)));
        gate.handle_release(back);
        assert_eq!(granted(&mut gate), Some((queued, Entry::Fresh)));
    }

    #[test]
    fn a_pause_that_begins_past_its_deadline_goes_to_the_waiter_at_once() {
        let mut gate = Gate::default();
        let turn = gate.handle_arrival(key("a"), 0);
        let waiter = gate.handle_arrival(key("b"), 0);
        granted(&mut gate);
        gate.handle_park(turn, 5, 5);
        assert_eq!(granted(&mut gate), Some((waiter, reclaimed("a"))));
    }

    #[test]
    fn a_caller_that_leaves_the_queue_is_never_granted() {
        let mut gate = Gate::default();
        let turn = gate.handle_arrival(key("a"), 0);
        let gone = gate.handle_arrival(key("b"), 0);
        let next = gate.handle_arrival(key("c"), 0);
        granted(&mut gate);
        assert!(gate.handle_leave(gone));
        assert!(!gate.handle_leave(gone));
        assert!(!gate.handle_leave(turn), "the holder does not wait");
        gate.handle_release(turn);
        assert_eq!(granted(&mut gate), Some((next, Entry::Fresh)));
    }

    #[test]
    fn a_pause_survives_a_restart_and_a_take_over_that_failed() {
        let mut gate = Gate::parked(8, key("a"), 100);
        let waiter = gate.handle_arrival(key("b"), 10);
        gate.handle_timeout(100);
        assert_eq!(granted(&mut gate), Some((waiter, reclaimed("a"))));
        assert!(gate.handle_give_back(waiter, key("a"), 100));
        assert_eq!(gate.pause(), Some((&key("a"), 100)));
        let back = gate.handle_arrival(key("a"), 200);
        assert_eq!(granted(&mut gate), Some((back, Entry::Resumed)));
    }

    #[test]
    fn a_paused_turn_is_claimed_by_its_owner_only() {
        let mut gate = parked();
        let waiter = gate.handle_arrival(key("b"), 1);
        assert_eq!(gate.claim_parked(&key("b")), None);
        let claimed = gate.claim_parked(&key("a")).unwrap();
        assert_eq!(gate.holder(), Some((claimed, &key("a"))));
        gate.handle_release(claimed);
        assert_eq!(granted(&mut gate), Some((waiter, Entry::Fresh)));
    }

    #[test]
    fn closing_refuses_everybody_who_waits_or_comes_later() {
        let mut gate = Gate::default();
        let turn = gate.handle_arrival(key("a"), 0);
        let waiter = gate.handle_arrival(key("b"), 0);
        granted(&mut gate);
        gate.handle_close();
        let late = gate.handle_arrival(key("c"), 0);
        for ticket in [waiter, late] {
            let refused = GateOutput::Refused { ticket, why: Refusal::Closed };
            assert_eq!(gate.poll_output(), Some(refused));
        }
        assert!(!gate.handle_release(turn));
        assert!(!gate.handle_park(turn, 9, 0));
        assert_eq!(gate.poll_output(), None);
    }

    #[test]
    fn a_full_queue_refuses_the_newcomer_only() {
        let mut gate = Gate::new(1);
        let turn = gate.handle_arrival(key("a"), 0);
        let waiter = gate.handle_arrival(key("b"), 0);
        granted(&mut gate);
        let late = gate.handle_arrival(key("c"), 0);
        let refused = GateOutput::Refused { ticket: late, why: Refusal::QueueFull };
        assert_eq!(gate.poll_output(), Some(refused));
        gate.handle_release(turn);
        assert_eq!(granted(&mut gate), Some((waiter, Entry::Fresh)));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Arrive(u8),
        Leave(usize),
        Park(u64),
        Release,
        Claim(u8),
        GiveBack,
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u8..3).prop_map(Step::Arrive),
            1 => any::<usize>().prop_map(Step::Leave),
            2 => (0u64..50).prop_map(Step::Park),
            3 => Just(Step::Release),
            1 => (0u8..3).prop_map(Step::Claim),
            1 => Just(Step::GiveBack),
            2 => (0u64..60).prop_map(Step::Wait),
        ]
    }

    /// What the gate must look like, told by its outputs alone.
    #[derive(Default)]
    struct Witness {
        waiting: Vec<Ticket>,
        holder: Option<Ticket>,
        answered: HashSet<Ticket>,
    }

    impl Witness {
        fn watch(&mut self, gate: &mut Gate) {
            while let Some(output) = gate.poll_output() {
                let GateOutput::Granted { ticket, entry, .. } = output else { panic!("refused") };
                assert_eq!(self.holder, None, "two holders");
                assert!(self.answered.insert(ticket), "granted twice");
                match entry {
                    Entry::Resumed => assert_eq!(self.waiting.pop(), Some(ticket)),
                    _ => assert_eq!(self.waiting.remove(0), ticket, "out of order"),
                }
                self.holder = Some(ticket);
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_one_call_goes_at_a_time_in_order_and_none_is_lost(
            steps in proptest::collection::vec(step(), 1..80)
        ) {
            let who = |n: u8| KeyId::from(format!("key_{n}"));
            let (mut gate, mut now, mut seen) = (Gate::default(), 0, Witness::default());
            let mut arrivals = 0;
            for step in steps {
                match step {
                    Step::Arrive(n) => {
                        arrivals += 1;
                        let ticket = gate.handle_arrival(who(n), now);
                        seen.waiting.push(ticket);
                    }
                    Step::Leave(n) if !seen.waiting.is_empty() => {
                        let ticket = seen.waiting.remove(n % seen.waiting.len());
                        prop_assert!(gate.handle_leave(ticket));
                        seen.answered.insert(ticket);
                    }
                    Step::Park(ms) => if let Some(ticket) = seen.holder.take() {
                        prop_assert!(gate.handle_park(ticket, now + ms, now));
                    },
                    Step::Release => if let Some(ticket) = seen.holder.take() {
                        prop_assert!(gate.handle_release(ticket));
                    },
                    Step::Claim(n) => if let Some(ticket) = gate.claim_parked(&who(n)) {
                        prop_assert_eq!(seen.holder, None);
                        seen.holder = Some(ticket);
                    },
                    Step::GiveBack => if let Some(ticket) = seen.holder.take() {
                        prop_assert!(gate.handle_give_back(ticket, who(0), now));
                    },
                    Step::Wait(ms) => {
                        now += ms;
                        if gate.poll_timeout().is_some_and(|at| at <= now) {
                            gate.handle_timeout(now);
                            prop_assert!(gate.holder().is_some(), "nobody was woken");
                        }
                    }
                    Step::Leave(_) => {}
                }
                seen.watch(&mut gate);
                prop_assert_eq!(gate.holder().map(|h| h.0), seen.holder);
                let waiting: Vec<Ticket> = gate.waiters().map(|w| w.0).collect();
                prop_assert_eq!(&waiting, &seen.waiting);
            }
            // In the end everybody gets through: turns end, pauses expire.
            while seen.holder.is_some() || gate.poll_timeout().is_some() {
                match seen.holder.take() {
                    Some(ticket) => prop_assert!(gate.handle_release(ticket)),
                    None => gate.handle_timeout(u64::MAX),
                }
                seen.watch(&mut gate);
            }
            prop_assert!(seen.waiting.is_empty());
            prop_assert_eq!(seen.answered.len(), arrivals);
        }
    }
}
