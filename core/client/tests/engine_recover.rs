//! A turn survives a stream that lagged, was cut or ended early: what was missed is delivered once and in
//! order, and the outcome is taken from the log (guarantee 7).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{Answer, CallId, CloseReason, Command, OpId, Outcome, Reply, Status, Step};
use broca::proto::session::turn::ToolOutcome;
use broca::{ErrorKind, Json, Retry};
use engine_host::service::{
    FULL, PLAIN, bare_event, end, failure, head, line, reply, result, results, say, stream, tool,
};
use engine_host::{Act, Dial, Host, Request};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

const LAG: &str = r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"lagged; reconnect with since_event_id"}}"#;
const ASKED: (&str, &str) = ("provider.request", "{}");
const CALLED: (&str, &str) = ("tool.call", r#"{"id":"t","name":"x","input":{}}"#);
const HI: (&str, &str) =
    ("server.message.send", r#"{"role":"assistant","content":[{"type":"text","text":"hi"}]}"#);
const PAUSED: (&str, &str) = (
    "server.message.send",
    r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"x","input":{},"dispatch":"client"}]}"#,
);

/// The log of a session, as a plain service keeps it.
#[derive(Default)]
struct Log {
    events: Vec<(String, String, String)>,
    /// What is logged only after a subscription has seen the rest, and when.
    later: Vec<(String, String, String)>,
}

impl Log {
    fn new() -> Self {
        let mut log = Self::default();
        log.add("session.open", "{}");
        log
    }

    fn add(&mut self, kind: &str, payload: &str) -> String {
        let id = format!("e{}", self.events.len() + self.later.len());
        self.events.push((id.clone(), kind.to_owned(), payload.to_owned()));
        id
    }

    fn later(&mut self, (kind, payload): (&str, &str)) {
        let id = format!("e{}", self.events.len() + self.later.len());
        self.later.push((id, kind.to_owned(), payload.to_owned()));
    }

    fn said(&mut self, request: &Request) {
        let payload = request.body["params"]["message"].to_string();
        self.add("client.message.send", &payload);
    }

    fn line_of((id, kind, payload): &(String, String, String)) -> String {
        let event = bare_event(id, kind, payload);
        format!(r#"{{"jsonrpc":"2.0","method":"session.event","params":{event}}}"#)
    }

    /// The answer to a subscription: the past, then a second later what follows, then nothing.
    fn subscribed(&mut self, request: &Request) -> Vec<Act> {
        let since = request.body["params"]["since_event_id"].as_str().unwrap();
        let from = self.events.iter().position(|(id, ..)| id == since).map_or(0, |at| at + 1);
        let mut acts = vec![head()];
        acts.extend(self.events[from..].iter().map(|event| line(&Self::line_of(event))));
        for event in std::mem::take(&mut self.later) {
            acts.extend([Act::Wait(1_000), line(&Self::line_of(&event))]);
            self.events.push(event);
        }
        acts
    }

    /// Logs these and gives the lines of those of them that a stream shows.
    fn run(&mut self, events: &[(&str, &str)]) -> Vec<Act> {
        let from = self.events.len();
        for (kind, payload) in events {
            self.add(kind, payload);
        }
        self.events[from..].iter().map(|event| line(&Self::line_of(event))).collect()
    }
}

/// A service whose answers to messages are made by `turn`, with the log at hand.
fn host(
    features: &[&str],
    seed: u64,
    mut turn: impl FnMut(usize, &Request, &mut Log) -> Vec<Act> + 'static,
) -> (Host, Rc<RefCell<Log>>) {
    let log = Rc::new(RefCell::new(Log::new()));
    let shared = Rc::clone(&log);
    let mut sent = 0;
    let service = move |r: &Request| match r.rpc() {
        "session.subscribe" => shared.borrow_mut().subscribed(r),
        "session.cancel" => stream(&[result(r, r#"{"cancelled":true,"was":"running"}"#)]),
        _ => {
            sent += 1;
            turn(sent, r, &mut shared.borrow_mut())
        }
    };
    let host = Host::opened(|_| (), seed, features, vec![tool("x")], service);
    (host, log)
}

/// A turn that has logged `events`, of which the stream shows the first `shown` and then breaks in this way.
fn broken(
    features: &[&str],
    events: &'static [(&'static str, &'static str)],
    shown: usize,
    ends: Vec<Act>,
) -> (Host, Rc<RefCell<Log>>) {
    host(features, 0, move |_, r, log| {
        log.said(r);
        let mut acts = vec![head()];
        acts.extend(log.run(events).into_iter().take(shown));
        acts.extend(ends.clone());
        acts
    })
}

fn cut() -> Vec<Act> {
    vec![Act::Close(CloseReason::Reset)]
}

fn done(host: &Host, op: u64) -> &Reply {
    let found = host.said(op).iter().find_map(|step| match step {
        Step::Done(reply) => Some(&**reply),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no reply: {:?}", host.said(op)))
}

fn ids(reply: &Reply) -> Vec<String> {
    reply.turn_events().iter().map(|event| event.id().to_owned()).collect()
}

fn complete(_: OpId, step: &Step) -> Option<(CallId, Answer)> {
    match step {
        Step::ToolCall(call) => Some((call.call, Answer::Complete(Json::string("R")))),
        _ => None,
    }
}

#[test]
fn what_a_broken_stream_did_not_bring_is_delivered_once_and_in_order() {
    let breaks = [vec![line(LAG), end()], cut(), vec![end()], vec![Act::Close(CloseReason::Eof)]];
    for ends in breaks {
        for shown in 0..=3 {
            let (mut host, _) = broken(PLAIN, &[ASKED, CALLED, HI], shown, ends.clone());
            host.command(2, say("go"));
            host.finish(2);
            assert!(matches!(host.outcome(2), Some(Ok(Outcome::Replied))), "{:?}", host.said(2));
            assert_eq!(done(&host, 2).text(), "hi");
            assert_eq!(host.event_ids(2), ["e2", "e3", "e4"], "{shown} shown");
            assert_eq!(ids(done(&host, 2)), ["e1", "e2", "e3", "e4"]);
            assert_eq!(host.left("session.sendMessage"), 1, "a message is never sent again");
        }
    }
}

#[test]
fn a_break_before_the_head_is_a_break_too() {
    let (mut host, _) = host(PLAIN, 0, |_, r, log| {
        log.said(r);
        log.run(&[ASKED, HI]);
        cut()
    });
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(done(&host, 2).text(), "hi");
}

#[test]
fn a_turn_that_still_runs_is_followed() {
    let (mut host, log) = broken(PLAIN, &[ASKED], 1, cut());
    host.command(2, say("go"));
    log.borrow_mut().later(CALLED);
    log.borrow_mut().later(HI);
    host.finish(2);
    assert_eq!(host.event_ids(2), ["e2", "e3", "e4"]);
    assert_eq!(done(&host, 2).text(), "hi");
    let told = |step: &Step| matches!(step, Step::Status(Status::Reconnecting { .. }));
    assert!(host.said(2).iter().any(told));
}

#[test]
fn a_pause_in_the_log_runs_its_calls_and_the_turn_goes_on() {
    let (mut host, _) = host(PLAIN, 0, |sent, r, log| {
        log.said(r);
        if sent > 1 {
            log.run(&[HI]);
            return stream(&[reply(r, "hi")]);
        }
        log.run(&[ASKED, PAUSED]);
        [vec![head()], cut()].concat()
    });
    host.application = Box::new(complete);
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(done(&host, 2).text(), "hi");
    assert_eq!(done(&host, 2).rounds, 2);
    let settled = |s: &Step| matches!(s, Step::ToolSettled { outcome: ToolOutcome::Done, .. });
    assert_eq!(host.said(2).iter().filter(|s| settled(s)).count(), 1);
    assert_eq!(results(host.rpcs("session.sendMessage")[1]), [("a".into(), false)]);
}

#[test]
fn the_results_of_a_pause_are_looked_for_and_not_sent_again() {
    let (mut host, _) = host(PLAIN, 0, |sent, r, log| {
        log.said(r);
        if sent == 1 {
            let mut acts = vec![head()];
            acts.extend(log.run(&[ASKED, PAUSED]));
            let message = PAUSED.1;
            acts.push(line(&result(r, &format!(r#"{{"message":{message},"events":[]}}"#))));
            acts.push(end());
            return acts;
        }
        log.run(&[HI]);
        cut()
    });
    host.application = Box::new(complete);
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(done(&host, 2).text(), "hi");
    assert_eq!(host.left("session.sendMessage"), 2);
    let since = &host.rpcs("session.subscribe")[0].body["params"]["since_event_id"];
    assert_eq!(since, "e3", "from before the request, not from the beginning of the log");
    assert_eq!(host.event_ids(2), ["e2", "e3", "e5"]);
}

#[test]
fn how_a_turn_ended_otherwise_is_told_as_what_it_is() {
    let error = |reason: &'static str| -> &'static str {
        match reason {
            "providers" => r#"{"reason":"all_providers_failed","attempts":1}"#,
            "limit" => r#"{"reason":"loop_limit","max_iterations":8}"#,
            _ => r#"{"reason":"tool_result_merge_invalid","detail":"x"}"#,
        }
    };
    let cases: [(&str, &'static str, ErrorKind, Retry); 6] = [
        ("session.error", error("providers"), ErrorKind::ProvidersFailed, Retry::Safe),
        ("session.error", error("limit"), ErrorKind::LoopLimit, Retry::Unsafe),
        ("session.error", error("merge"), ErrorKind::SessionClosed, Retry::Unsafe),
        ("session.turn.cancelled", "{}", ErrorKind::Cancelled, Retry::Safe),
        ("session.close", r#"{"reason":"client_close"}"#, ErrorKind::SessionClosed, Retry::Unsafe),
        (
            "client.message.send",
            r#"{"role":"user","content":"other"}"#,
            ErrorKind::StreamEndedEarly,
            Retry::Unknown,
        ),
    ];
    for (kind, payload, expected, retry) in cases {
        for shown in [0, 1] {
            let (mut host, log) = broken(FULL, &[ASKED], shown, cut());
            host.command(2, say("go"));
            log.borrow_mut().later((kind, payload));
            host.finish(2);
            assert_eq!((host.error(2).kind(), host.error(2).retry()), (expected, retry), "{kind}");
            assert!(host.event_ids(2).contains(&"e3".to_owned()), "{kind}");
            assert_eq!(host.left("session.sendMessage"), 1);
        }
    }
}

#[test]
fn a_failure_that_the_stream_brought_needs_no_log() {
    let failed = ("session.error", r#"{"reason":"all_providers_failed","attempts":1}"#);
    let (mut host, _) = host(PLAIN, 0, move |_, r, log| {
        log.said(r);
        [vec![head()], log.run(&[ASKED, failed]), cut()].concat()
    });
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(host.error(2).kind(), ErrorKind::ProvidersFailed);
    assert_eq!(host.left("session.subscribe"), 0);
}

#[test]
fn a_log_without_news_leaves_the_outcome_unknown_after_a_time() {
    for shown in [0, 1] {
        let (mut host, log) = broken(PLAIN, &[ASKED], shown, vec![line(LAG), end()]);
        host.command(2, say("go"));
        log.borrow_mut().later(CALLED);
        let begun = host.now;
        host.finish(2);
        let error = host.error(2);
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Lagged, Retry::Unknown));
        assert!(error.message().contains("no news of the turn for 120000 ms"), "{error}");
        assert!(error.details().is_some());
        assert_eq!(host.now - begun, 121_000, "the time counts from the last news");
        assert!(host.event_ids(2).ends_with(&["e3".to_owned()]));
    }
}

#[test]
fn news_of_others_are_no_news_of_the_turn() {
    let (mut host, log) = broken(PLAIN, &[ASKED], 1, cut());
    host.command(2, say("go"));
    for _ in 0..200 {
        log.borrow_mut().later(("session.join", "{}"));
    }
    let begun = host.now;
    host.finish(2);
    assert_eq!((host.error(2).retry(), host.now - begun), (Retry::Unknown, 120_000));
}

#[test]
fn the_time_is_a_setting_and_0_means_that_the_log_is_not_read() {
    for (ms, subscriptions) in [(0, 0), (500, 1)] {
        let service = |r: &Request| match r.rpc() {
            "session.subscribe" => vec![head()],
            _ => cut(),
        };
        let change = move |config: &mut broca::engine::Config| config.recovery_timeout_ms = ms;
        let mut host = Host::opened(change, 0, PLAIN, Vec::new(), service);
        let begun = host.now;
        host.command(2, say("go"));
        host.finish(2);
        assert_eq!(host.now - begun, ms);
        assert_eq!(host.left("session.subscribe"), subscriptions);
        assert_eq!(host.error(2).retry(), Retry::Unknown);
    }
}

#[test]
fn a_service_that_cannot_be_reached_is_given_up_sooner() {
    let (mut host, _) = broken(PLAIN, &[ASKED], 1, cut());
    let begun = host.now;
    host.command(2, say("go"));
    host.dialler = Box::new(|_| Dial::Fail(CloseReason::Refused));
    host.finish(2);
    assert_eq!((host.error(2).retry(), host.now - begun), (Retry::Unknown, 10_000));
    assert!(host.error(2).message().contains("could not be read"), "{}", host.error(2));
}

#[test]
fn a_service_that_only_ever_breaks_off_counts_as_not_reached() {
    let service = |r: &Request| match r.rpc() {
        "session.subscribe" => [vec![head()], cut()].concat(),
        _ => cut(),
    };
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), service);
    let begun = host.now;
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!((host.error(2).retry(), host.now - begun), (Retry::Unknown, 10_000));
}

#[test]
fn a_log_that_cannot_be_followed_leaves_the_outcome_unknown_at_once() {
    let service = |r: &Request| match r.rpc() {
        "session.subscribe" => stream(&[failure(r, -32601, "Method not found")]),
        _ => cut(),
    };
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), service);
    let begun = host.now;
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!((host.error(2).retry(), host.now - begun), (Retry::Unknown, 0));
    assert!(host.error(2).message().contains("cannot be followed"), "{}", host.error(2));
}

#[test]
fn a_lost_subscription_is_taken_up_again_while_the_log_is_read() {
    let mut asked = 0;
    let log = Rc::new(RefCell::new(Log::new()));
    let service = move |r: &Request| {
        let mut log = log.borrow_mut();
        if r.rpc() != "session.subscribe" {
            log.said(r);
            log.run(&[ASKED, CALLED, HI]);
            return cut();
        }
        asked += 1;
        let mut acts = log.subscribed(r);
        acts.truncate(1 + asked);
        acts.extend(cut());
        acts
    };
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), service);
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(done(&host, 2).text(), "hi");
    assert_eq!(host.event_ids(2), ["e2", "e3", "e4"]);
}

#[test]
fn cancelling_while_the_log_is_read_ends_the_turn() {
    for (features, cancels, retry) in [(FULL, 1, Retry::Safe), (PLAIN, 0, Retry::Unknown)] {
        let (mut host, _) = broken(features, &[ASKED], 1, cut());
        host.command(2, say("go"));
        host.advance(2_000);
        host.cancel(2);
        host.finish(2);
        assert_eq!((host.error(2).kind(), host.error(2).retry()), (ErrorKind::Cancelled, retry));
        assert_eq!(host.left("session.cancel"), cancels);
        host.advance(200_000);
        assert_eq!(host.said(2).iter().filter(|s| matches!(s, Step::Finished(_))).count(), 1);
    }
}

#[test]
fn a_joined_session_of_which_nothing_was_seen_is_followed_from_where_the_stream_broke() {
    for shown in [0, 1, 2] {
        let log = Rc::new(RefCell::new(Log::new()));
        let service = move |r: &Request| {
            let mut log = log.borrow_mut();
            if r.rpc() == "session.registerDriver" {
                return stream(&[result(r, "{}")]);
            }
            if r.rpc() == "session.subscribe" {
                return log.subscribed(r);
            }
            log.said(r);
            let shown = log.run(&[ASKED, HI]).into_iter().take(shown);
            [vec![head()], shown.collect(), cut()].concat()
        };
        let mut host = Host::new(engine_host::config(), broca::engine::Environment::none(), 0);
        host.script = engine_host::service::service(PLAIN, service);
        host.pull = usize::MAX;
        host.command(1, Command::Join { session_id: "ses_1".into(), tools: Vec::new() });
        host.finish(1);
        host.command(2, say("go"));
        host.finish(2);
        if shown == 0 {
            // An old message with the same words could be taken for this one.
            assert_eq!(host.error(2).retry(), Retry::Unknown);
            assert_eq!(host.left("session.subscribe"), 0);
        } else {
            assert_eq!(done(&host, 2).text(), "hi");
            assert_eq!(host.event_ids(2), ["e2", "e3"]);
        }
    }
}

#[test]
fn the_same_words_said_before_are_not_taken_for_the_message() {
    let (mut host, _) = host(PLAIN, 0, |sent, r, log| {
        if sent > 1 {
            return cut();
        }
        log.said(r);
        [vec![head()], log.run(&[ASKED, HI]), vec![line(&reply(r, "hi")), end()]].concat()
    });
    host.command(2, say("go"));
    host.finish(2);
    assert!(matches!(host.outcome(2), Some(Ok(_))));
    host.command(3, say("go"));
    host.finish(3);
    assert_eq!(host.error(3).retry(), Retry::Unknown);
    assert_eq!(host.event_ids(3), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Any number of events, any place and way of the break, any cuts of the bytes.
    #[test]
    fn every_event_once_and_in_order_wherever_the_stream_breaks(total in 1..40_usize, shown in 0..40_usize, later in 0..5_usize, lag: bool, seed: u64) {
        let shown = shown.min(total);
        let (mut host, log) = host(PLAIN, seed, move |_, r, log| {
            log.said(r);
            let events = vec![CALLED; total];
            let mut acts = vec![head()];
            acts.extend(log.run(&events).into_iter().take(shown));
            acts.extend(if lag { vec![line(LAG), end()] } else { cut() });
            acts
        });
        host.command(2, say("go"));
        for _ in 0..later {
            log.borrow_mut().later(CALLED);
        }
        log.borrow_mut().later(HI);
        host.finish(2);
        let expected: Vec<String> = (2..=total + later + 2).map(|i| format!("e{i}")).collect();
        prop_assert_eq!(host.event_ids(2), expected);
        let all: Vec<String> = (1..=total + later + 2).map(|i| format!("e{i}")).collect();
        prop_assert_eq!(ids(done(&host, 2)), all);
        prop_assert_eq!(host.left("session.sendMessage"), 1);
    }
}
