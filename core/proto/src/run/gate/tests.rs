use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

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
    assert!(gate.handle_park(ticket, 0, 100, 0));
    gate
}

#[test]
fn calls_go_one_by_one_in_the_order_of_arrival_also_those_of_one_client() {
    let mut gate = Gate::default();
    let tickets: Vec<Ticket> =
        ["a", "b", "a", "c"].iter().map(|who| gate.handle_arrival(key(who), 0)).collect();
    assert_eq!(gate.waiters().position(|w| w.0 == tickets[3]), Some(2));
    for ticket in tickets {
        assert_eq!(granted(&mut gate), Some((ticket, Entry::Fresh)));
        assert_eq!(granted(&mut gate), None);
        assert!(gate.handle_release(ticket));
    }
    assert!(gate.is_idle());
}

#[test]
fn a_waiter_is_told_its_place_when_it_comes_and_when_it_moves_up_and_not_otherwise() {
    let mut gate = Gate::default();
    let first = gate.handle_arrival(key("a"), 0);
    assert_eq!(gate.take_places(), [], "it does not wait");
    let place = |position, waiting| Queued { position, waiting };
    let second = gate.handle_arrival(key("b"), 0);
    assert_eq!(gate.take_places(), [(second, place(1, 1))]);
    let third = gate.handle_arrival(key("c"), 0);
    let fourth = gate.handle_arrival(key("c"), 0);
    assert_eq!(gate.take_places(), [(third, place(2, 3)), (fourth, place(3, 3))]);
    assert_eq!(gate.take_places(), []);
    assert_eq!(gate.place(third), Some(place(2, 3)));
    assert_eq!(gate.place(first), None);
    assert!(gate.handle_leave(fourth));
    assert_eq!(gate.take_places(), [], "nobody has moved");
    assert!(gate.handle_release(first));
    assert_eq!(gate.take_places(), [(third, place(1, 1))]);
    gate.handle_close();
    assert_eq!(gate.take_places(), []);
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
fn a_pause_that_its_owner_holds_waits_longer_and_the_timer_follows() {
    let mut gate = parked();
    let waiter = gate.handle_arrival(key("b"), 10);
    assert_eq!(gate.handle_hold(&key("b"), 100, 1000, 20), None, "not its own");
    assert_eq!(gate.handle_hold(&key("a"), 100, 1000, 90), Some(190));
    assert_eq!(gate.poll_timeout(), Some(190));
    gate.handle_timeout(100);
    assert_eq!(granted(&mut gate), None, "the old deadline means nothing any more");
    gate.handle_timeout(190);
    assert_eq!(granted(&mut gate), Some((waiter, reclaimed("a"))));
    assert_eq!(gate.handle_hold(&key("a"), 100, 1000, 191), None, "it was taken over");
}

#[test]
fn a_pause_is_held_for_no_longer_than_allowed_and_never_shortened() {
    let mut gate = parked();
    assert_eq!(gate.handle_hold(&key("a"), 100, 50, 10), Some(100), "not shortened");
    assert_eq!(gate.handle_hold(&key("a"), 100, 250, 80), Some(180));
    assert_eq!(gate.handle_hold(&key("a"), 100, 250, 170), Some(250), "the end of what is allowed");
    assert_eq!(gate.handle_hold(&key("a"), 100, 250, 249), Some(250));
    assert_eq!(gate.handle_hold(&key("a"), 100, 250, 300), Some(250), "past it, still its own");
    assert_eq!(gate.handle_hold(&key("a"), u64::MAX, u64::MAX, 300), Some(u64::MAX));
}

#[test]
fn a_pause_past_its_deadline_that_nobody_took_over_is_renewed() {
    let mut gate = parked();
    assert_eq!(gate.handle_hold(&key("a"), 100, 1000, 500), Some(600));
    let waiter = gate.handle_arrival(key("b"), 550);
    assert_eq!(granted(&mut gate), None);
    gate.handle_timeout(600);
    assert_eq!(granted(&mut gate), Some((waiter, reclaimed("a"))));
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
    assert_eq!(gate.waiters().next(), Some((second, &key("c"))));
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
    gate.handle_park(turn, 2, 100, 2);
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
    gate.handle_park(turn, 5, 5, 5);
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
    let parking = Parking { owner: key("a"), began: 0, deadline: 100 };
    let mut gate = Gate::parked(8, parking.clone());
    let waiter = gate.handle_arrival(key("b"), 10);
    gate.handle_timeout(100);
    assert_eq!(granted(&mut gate), Some((waiter, reclaimed("a"))));
    assert!(gate.handle_give_back(waiter, parking.clone()));
    assert_eq!(gate.pause(), Some(&parking));
    let back = gate.handle_arrival(key("a"), 200);
    assert_eq!(granted(&mut gate), Some((back, Entry::Resumed)));
}

#[test]
fn a_paused_turn_is_claimed_by_its_owner_only() {
    let mut gate = parked();
    let waiter = gate.handle_arrival(key("b"), 1);
    assert_eq!(gate.claim_parked(&key("b")), None);
    let (claimed, parking) = gate.claim_parked(&key("a")).unwrap();
    assert_eq!((parking.began, parking.deadline), (0, 100));
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
    assert!(!gate.handle_park(turn, 0, 9, 0));
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
    Hold(u8, u64),
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
        2 => (0u8..3, 0u64..80).prop_map(|(n, ms)| Step::Hold(n, ms)),
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
    places: HashMap<Ticket, u64>,
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
        for (ticket, place) in gate.take_places() {
            assert_eq!(place.waiting, self.waiting.len() as u64);
            let told = self.places.insert(ticket, place.position);
            assert!(told.is_none_or(|told| told > place.position), "moved back");
        }
        for (position, ticket) in (1..).zip(&self.waiting) {
            assert_eq!(self.places.get(ticket), Some(&position), "a place nobody was told of");
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
                    prop_assert!(gate.handle_park(ticket, now, now + ms, now));
                },
                Step::Release => if let Some(ticket) = seen.holder.take() {
                    prop_assert!(gate.handle_release(ticket));
                },
                Step::Claim(n) => if let Some((ticket, _)) = gate.claim_parked(&who(n)) {
                    prop_assert_eq!(seen.holder, None);
                    seen.holder = Some(ticket);
                },
                Step::Hold(n, ms) => {
                    let before = gate.pause().cloned();
                    let held = gate.handle_hold(&who(n), ms, 100, now);
                    let own = before.filter(|parking| parking.owner == who(n));
                    prop_assert_eq!(held.is_some(), own.is_some());
                    if let (Some(held), Some(own)) = (held, own) {
                        prop_assert!(held >= own.deadline);
                        prop_assert!(held <= own.deadline.max(own.began + 100));
                    }
                }
                Step::GiveBack => if let Some(ticket) = seen.holder.take() {
                    let parking = Parking { owner: who(0), began: now, deadline: now };
                    prop_assert!(gate.handle_give_back(ticket, parking));
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
