//! An application that takes its steps slowly stalls no stream and loses no event: what is too much to be kept comes from
//! the session's log, in order, before whatever follows it (guarantee 6).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{Answer, CloseReason, Config, Lost, Step, ToolOutcome};
use broca::{ErrorKind, Json};
use engine_host::service::{
    FULL, PLAIN, bare_event, delta, end, failure, head, line, result, results, say, stream, tool,
};
use engine_host::{Act, Host, Request};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

const LIMIT: usize = 20_000;
const CALL: &str = r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"x","input":{},"dispatch":"client"}]}"#;
const BYE: &str = r#"{"role":"assistant","content":[{"type":"text","text":"bye"}]}"#;

/// What a session has logged, line by line.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
    /// Ids of the events that the application must see.
    shown: Vec<String>,
}

impl Log {
    /// Logs an event and gives its line.
    fn add(&mut self, shown: bool, kind: &str, payload: &str) -> String {
        let id = format!("e{}", self.lines.len());
        let event = bare_event(&id, kind, payload);
        let text = format!(r#"{{"jsonrpc":"2.0","method":"session.event","params":{event}}}"#);
        self.lines.push(text.clone());
        if shown {
            self.shown.push(id);
        }
        text
    }

    fn since(&self, request: &Request) -> usize {
        let since = request.body["params"]["since_event_id"].as_str().unwrap();
        since.strip_prefix('e').map_or(0, |n| n.parse::<usize>().unwrap() + 1)
    }

    /// The log after a subscription's cursor; nothing follows it.
    fn replay(&self, request: &Request) -> Vec<Act> {
        let lines = self.lines[self.since(request)..].iter();
        [head()].into_iter().chain(lines.map(|text| line(text))).collect()
    }

    /// One request of a turn: what it says, `count` events of about a thousand bytes, and this message.
    fn round(&mut self, request: &Request, count: usize, message: &str) -> Vec<Act> {
        self.add(false, "client.message.send", &request.body["params"]["message"].to_string());
        for (id, _) in results(request) {
            let payload = format!(r#"{{"tool_use_id":"{id}","dispatch":"client","content":""}}"#);
            self.add(false, "tool.result", &payload);
        }
        let payload = format!(r#"{{"p":"{}"}}"#, "p".repeat(800));
        let mut acts = vec![head()];
        acts.extend((0..count).map(|_| line(&self.add(true, "provider.request", &payload))));
        acts.push(line(&self.add(true, "server.message.send", message)));
        acts.push(line(&result(request, &format!(r#"{{"message":{message},"events":[]}}"#))));
        acts.push(end());
        acts
    }
}

/// A service whose turns have these rounds, of so many events; all but the last pause with one call.
fn host(
    features: &[&str],
    seed: u64,
    change: impl FnOnce(&mut Config),
    rounds: &[usize],
    mut subscribed: impl FnMut(&Log, &Request) -> Vec<Act> + 'static,
) -> (Host, Rc<RefCell<Log>>) {
    let log = Rc::new(RefCell::new(Log::default()));
    log.borrow_mut().add(false, "session.open", "{}");
    let (shared, rounds) = (Rc::clone(&log), rounds.to_vec());
    let mut sent = 0;
    let set = |c: &mut Config| {
        c.step_buffer_bytes = LIMIT;
        change(c);
    };
    let host = Host::opened(set, seed, features, vec![tool("x")], move |r| match r.rpc() {
        "session.subscribe" => subscribed(&shared.borrow(), r),
        "session.cancel" => stream(&[result(r, r#"{"cancelled":true,"was":"running"}"#)]),
        _ => {
            sent += 1;
            let message = if sent < rounds.len() { CALL } else { BYE };
            shared.borrow_mut().round(r, rounds[sent - 1], message)
        }
    });
    (host, log)
}

fn nobody_is_left_unread(host: &Host) {
    assert!(host.open_connections().iter().all(|conn| !host.is_paused(*conn)));
}

/// Takes what there is, again and again, with time between; nothing is ever taken of more than the bound.
fn take_slowly(host: &mut Host) {
    for _ in 0..10_000 {
        if host.outcome(2).is_some() {
            return;
        }
        host.advance(5_000);
        nobody_is_left_unread(host);
        let before = host.said(2).len();
        host.pull_all(2);
        let bytes: usize = host.said(2)[before..].iter().map(Step::bytes).sum();
        // What is behind the missed events may have as much.
        assert!(bytes < 2 * LIMIT + 2_000, "{bytes} bytes at once");
    }
    panic!("it never ends: {:?}", host.said(2).last());
}

fn gaps(host: &Host) -> Vec<Lost> {
    let gap = |step: &Step| match step {
        Step::Gap(gap) => Some(gap.lost.clone()),
        _ => None,
    };
    host.said(2).iter().filter_map(gap).collect()
}

fn place(host: &Host, wanted: impl Fn(&Step) -> bool) -> usize {
    let found = host.said(2).iter().position(wanted);
    found.unwrap_or_else(|| panic!("{:?}", host.said(2)))
}

fn is_event(step: &Step, id: &str) -> bool {
    matches!(step, Step::Event(event) if event.id() == id)
}

#[test]
fn a_turn_is_read_to_its_end_however_slowly_its_steps_are_taken() {
    for features in [PLAIN, FULL] {
        let (mut host, log) = host(features, 0, |_| (), &[400], Log::replay);
        host.pull = 0;
        host.command(2, say("go"));
        host.advance(1_000);
        nobody_is_left_unread(&host);
        assert_eq!(host.left("session.subscribe"), 0, "nothing is fetched before there is room");
        assert!(host.busy, "what was missed is still to come");
        take_slowly(&mut host);
        assert_eq!(host.event_ids(2), log.borrow().shown);
        assert!(gaps(&host).is_empty());
        let done = place(&host, |step| matches!(step, Step::Done(_)));
        assert_eq!(done, host.said(2).len() - 2, "the reply comes after its events");
        assert!(!host.busy && host.timer.is_none_or(|at| at.as_millis() > host.now));
    }
}

#[test]
fn calls_of_tools_come_after_the_events_before_them_and_are_answered() {
    let (mut host, log) = host(PLAIN, 0, |_| (), &[100, 100, 3], Log::replay);
    host.application = Box::new(|_, step| match step {
        Step::ToolCall(call) => Some((call.call, Answer::Complete(Json::string("A")))),
        _ => None,
    });
    host.pull = 0;
    host.command(2, say("go"));
    take_slowly(&mut host);
    assert_eq!(host.event_ids(2), log.borrow().shown, "and nothing that the requests said");
    let call = place(&host, |step| matches!(step, Step::ToolCall(_)));
    let last = log.borrow().shown[100].clone();
    assert!(place(&host, |step| is_event(step, &last)) < call);
    let sent: Vec<_> = host.rpcs("session.sendMessage").iter().map(|r| results(r)).collect();
    let answered = vec![("a".to_owned(), false)];
    assert_eq!(sent, [vec![], answered.clone(), answered]);
}

#[test]
fn a_call_that_is_seen_too_late_has_timed_out_and_the_turn_went_on_without_it() {
    let (mut host, log) = host(PLAIN, 0, |_| (), &[100, 2], Log::replay);
    host.pull = 0;
    host.command(2, say("go"));
    host.advance(300_000);
    let sent: Vec<_> = host.rpcs("session.sendMessage").iter().map(|r| results(r)).collect();
    assert_eq!(sent[1..], [vec![("a".to_owned(), true)]], "the deadline holds for the slow, too");
    take_slowly(&mut host);
    assert_eq!(host.event_ids(2), log.borrow().shown);
    let call = place(&host, |step| matches!(step, Step::ToolCall(_)));
    let stop = place(&host, |step| matches!(step, Step::ToolCancel { .. }));
    let settled = |step: &Step| {
        matches!(step, Step::ToolSettled { outcome: ToolOutcome::TimedOutMayHaveRun, .. })
    };
    assert!(call < stop && call < place(&host, settled));
}

#[test]
fn where_the_log_cannot_be_had_a_gap_stands_for_it_and_the_turn_has_its_outcome() {
    type Subscribed = fn(&Log, &Request) -> Vec<Act>;
    let answers: [Subscribed; 4] = [
        |_, r| stream(&[failure(r, -32601, "unknown method")]),
        |_, r| stream(&[failure(r, -32602, "since_event_id: unknown event")]),
        |_, _| vec![head()],
        |_, _| vec![Act::Close(CloseReason::Reset)],
    ];
    for subscribed in answers {
        let (mut host, log) = host(PLAIN, 0, |_| (), &[100], subscribed);
        host.pull = 0;
        host.command(2, say("go"));
        take_slowly(&mut host);
        let got = host.event_ids(2);
        assert_eq!(got[..], log.borrow().shown[..got.len()]);
        assert!(got.len() < 40);
        assert_eq!(gaps(&host), [Lost::Unseen]);
        assert!(matches!(host.said(2), [.., Step::Done(_), Step::Finished(Ok(_))]));
        host.advance(120_000);
        assert!(host.timer.is_none() && host.open_connections().is_empty());
    }
}

#[test]
fn a_log_that_is_lost_in_the_middle_is_read_on_from_there() {
    let mut times = 0;
    let (mut host, log) = host(
        PLAIN,
        0,
        |_| (),
        &[300],
        move |log, request| {
            times += 1;
            let mut acts = log.replay(request);
            if times % 2 == 1 {
                acts.truncate(7);
                acts.push(Act::Close(CloseReason::Reset));
            }
            acts
        },
    );
    host.pull = 0;
    host.command(2, say("go"));
    take_slowly(&mut host);
    assert_eq!(host.event_ids(2), log.borrow().shown);
    assert!(gaps(&host).is_empty());
}

#[test]
fn words_that_are_not_kept_either_are_one_gap_where_they_were() {
    let (mut host, _) = host(FULL, 0, |_| (), &[], Log::replay);
    host.script = {
        let mut log = Log::default();
        engine_host::service::service(FULL, move |r| match r.rpc() {
            "session.subscribe" => log.replay(r),
            _ => {
                let mut acts = log.round(r, 100, BYE);
                for at in (5..acts.len() - 3).rev() {
                    acts.insert(at, line(&delta("word")));
                }
                acts
            }
        })
    };
    host.pull = 0;
    host.command(2, say("go"));
    take_slowly(&mut host);
    assert_eq!(host.event_ids(2).len(), 101);
    let shown = host.said(2).iter().filter(|step| matches!(step, Step::Delta(_))).count();
    let [Lost::Deltas(shed)] = gaps(&host)[..] else { panic!("{:?}", gaps(&host)) };
    assert_eq!(u64::try_from(shown).unwrap() + shed, 96);
}

#[test]
fn cancelling_does_not_wait_for_what_was_missed() {
    let (mut host, _) = host(FULL, 0, |_| (), &[100, 1], Log::replay);
    host.pull = 0;
    host.command(2, say("go"));
    host.advance(1_000);
    host.cancel(2);
    host.advance(1_000);
    host.pull_all(2);
    host.advance(10_000);
    host.pull_all(2);
    assert_eq!(host.error(2).kind(), ErrorKind::Cancelled);
    assert_eq!(gaps(&host), [Lost::Unseen]);
    assert_eq!(host.left("session.subscribe"), 0);
    assert!(!host.busy);
}

#[test]
fn what_the_log_does_not_have_is_bounded_by_leaving_the_stream_unread() {
    let (mut host, _) = host(PLAIN, 0, |_| (), &[], Log::replay);
    let odd = format!(r#"{{"jsonrpc":"2.0","method":"x","params":"{}"}}"#, "x".repeat(1_000));
    host.script = {
        let mut log = Log::default();
        engine_host::service::service(PLAIN, move |r| match r.rpc() {
            "session.subscribe" => log.replay(r),
            _ => {
                let mut acts = log.round(r, 100, BYE);
                acts.splice(acts.len() - 3..acts.len() - 3, (0..100).map(|_| line(&odd)));
                acts
            }
        })
    };
    host.pull = 0;
    host.command(2, say("go"));
    host.advance(1_000);
    assert!(host.open_connections().iter().any(|conn| host.is_paused(*conn)));
    for _ in 0..1_000 {
        host.pull_all(2);
        host.advance(1_000);
    }
    assert!(matches!(host.outcome(2), Some(Ok(_))));
    assert_eq!(host.event_ids(2).len(), 101);
    let odd = host.said(2).iter().filter(|step| matches!(step, Step::Notification { .. }));
    assert_eq!(odd.count(), 100);
}

#[derive(Debug, Clone)]
enum Fate {
    Whole,
    Cut(usize),
    Lag(usize),
    Page,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        Just(Fate::Whole),
        (1..40_usize).prop_map(Fate::Cut),
        (1..40_usize).prop_map(Fate::Lag),
        Just(Fate::Page),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Any schedule of a slow reader, any cut of the bytes, streams of the log that break: every event once, in order, calls
    /// after the events before them, each pause answered once, and the outcome at the end.
    #[test]
    fn a_slow_reader_gets_every_event_once_and_in_order(
        seed in 1..u64::MAX,
        rounds in prop::collection::vec(0..60_usize, 1..4),
        naps in prop::collection::vec((0..4_000_u64, 1..30_000_usize), 1..40),
        fates in prop::collection::vec(fate(), 0..12),
        breaks in prop::option::of(0..50_usize),
    ) {
        let mut fates = fates.into_iter();
        let lag = r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"lagged; reconnect with since_event_id"}}"#;
        let (mut host, log) = host(PLAIN, seed, |c| c.step_buffer_bytes = 5_000, &rounds, move |log, request| {
            let mut acts = log.replay(request);
            match fates.next() {
                None | Some(Fate::Whole) => {}
                Some(Fate::Cut(at)) => { acts.truncate(at); acts.push(Act::Close(CloseReason::Reset)); }
                Some(Fate::Lag(at)) => { acts.truncate(at); acts.extend([line(lag), end()]); }
                Some(Fate::Page) => return engine_host::service::answer(502, "text/html", "<html>"),
            }
            acts
        });
        if let Some(at) = breaks {
            // The turn's own stream breaks, too.
            let mut script = std::mem::replace(&mut host.script, Box::new(|_| Vec::new()));
            let mut first = true;
            host.script = Box::new(move |request| {
                let mut acts = script(request);
                if request.rpc() == "session.sendMessage" && std::mem::take(&mut first) && acts.len() > at + 3 {
                    acts.truncate(at + 2);
                    acts.push(Act::Close(CloseReason::Reset));
                }
                acts
            });
        }
        host.application = Box::new(|_, step| match step {
            Step::ToolCall(call) => Some((call.call, Answer::Complete(Json::string("A")))),
            _ => None,
        });
        host.pull = 0;
        host.command(2, say("go"));
        for (nap, bytes) in naps {
            host.advance(nap);
            if host.outcome(2).is_some() { break; }
            host.pull_some(2, bytes);
        }
        host.pull = 1;
        host.finish(2);
        prop_assert_eq!(&host.event_ids(2), &log.borrow().shown);
        prop_assert!(gaps(&host).is_empty(), "{:?}", gaps(&host));
        prop_assert!(matches!(host.said(2), [.., Step::Done(_), Step::Finished(Ok(_))]));
        let sent: Vec<_> = host.rpcs("session.sendMessage").iter().map(|r| results(r)).collect();
        prop_assert_eq!(sent.len(), rounds.len());
        prop_assert!(sent[1..].iter().all(|sent| *sent == vec![("a".to_owned(), false)]));
    }
}
