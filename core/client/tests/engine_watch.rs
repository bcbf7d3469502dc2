//! A subscription delivers every event once and in order, over any number of connections (guarantee 8).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::ErrorKind;
use broca::engine::{CloseReason, Command, Config, Lost, Outcome, Status, Step};
use broca::proto::session::ids::Cursor;
use engine_host::service::{FULL, PLAIN, answer, end, event, failure, head, line, problem, stream};
use engine_host::{Act, Dial, Host, Request};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

const LAG: &str = r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"lagged; reconnect with since_event_id"}}"#;

fn logged(i: usize, total: usize) -> String {
    match i {
        0 => event("e0", "session.open", "{}"),
        _ if i + 1 == total => {
            event(&format!("e{i}"), "session.close", r#"{"reason":"client_close"}"#)
        }
        _ => event(&format!("e{i}"), "x.y", "{\"pad\":\"pLaNtEd\"}"),
    }
}

fn ids(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|i| format!("e{i}")).collect()
}

/// What a subscription asks to be replayed from: the index of the first event.
fn from(request: &Request) -> usize {
    match request.body["params"]["since_event_id"].as_str() {
        None => usize::MAX,
        Some("") => 0,
        Some(id) => id.strip_prefix('e').and_then(|n| n.parse().ok()).map_or(0, |n: usize| n + 1),
    }
}

fn subscribed(host: &mut Host, from: Option<Cursor>) {
    host.command(2, Command::Subscribe { from });
}

fn ended(host: &Host) -> bool {
    matches!(host.outcome(2), Some(Ok(Outcome::Ended)))
}

fn gaps(host: &Host) -> Vec<Lost> {
    let gap = |s: &Step| if let Step::Gap(gap) = s { Some(gap.lost.clone()) } else { None };
    host.said(2).iter().filter_map(gap).collect()
}

#[test]
fn it_ends_with_the_session_even_where_the_stream_stays_open() {
    let mut host = Host::opened(
        |_| (),
        0,
        PLAIN,
        Vec::new(),
        |_| vec![head(), line(&logged(0, 2)), line(&logged(1, 2))],
    );
    subscribed(&mut host, Some(Cursor::start()));
    host.settle();
    assert!(ended(&host), "{:?}", host.said(2));
    assert_eq!(host.event_ids(2), ids(0..2));
    assert!(host.open_connections().is_empty());
    assert_eq!(host.rpcs("session.subscribe")[0].body["params"]["since_event_id"], "");
}

#[test]
fn a_live_subscription_names_no_event_and_resumes_after_the_last_one() {
    let mut asked = 0;
    let mut host = Host::opened(
        |_| (),
        0,
        PLAIN,
        Vec::new(),
        move |_| {
            asked += 1;
            match asked {
                1 => vec![head(), line(&logged(5, 9)), Act::Close(CloseReason::Reset)],
                _ => vec![head(), line(&logged(6, 9))],
            }
        },
    );
    subscribed(&mut host, None);
    host.until(|h| h.event_ids(2).len() == 2);
    let since =
        |i: usize| host.rpcs("session.subscribe")[i].body["params"]["since_event_id"].clone();
    assert!(since(0).is_null());
    assert_eq!(since(1), "e5");
    assert!(gaps(&host).is_empty());
    let again = |s: &Step| matches!(s, Step::Status(Status::Reconnecting { .. }));
    assert!(host.said(2).iter().any(again));
}

#[test]
fn a_live_subscription_that_lost_its_stream_before_any_event_says_so() {
    let mut asked = 0;
    let mut host = Host::opened(
        |_| (),
        0,
        PLAIN,
        Vec::new(),
        move |_| {
            asked += 1;
            if asked == 1 {
                vec![head(), Act::Close(CloseReason::Eof)]
            } else {
                vec![head(), line(&logged(3, 9))]
            }
        },
    );
    subscribed(&mut host, None);
    host.until(|h| h.event_ids(2).len() == 1);
    assert_eq!(gaps(&host), [Lost::Unseen]);
}

#[test]
fn a_refused_key_is_final_and_gateways_pages_are_not() {
    let mut asked = 0;
    let mut host = Host::opened(
        |_| (),
        0,
        PLAIN,
        Vec::new(),
        move |_| {
            asked += 1;
            match asked {
            1 | 2 => answer(502, "text/html", "<html>bad gateway</html>"),
            3 => problem(503, "unavailable"),
            4 => vec![Act::Send(b"HTTP/1.1 500 X\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"ty".to_vec()), Act::Close(CloseReason::Reset)],
            _ => problem(401, "unauthorized"),
        }
        },
    );
    subscribed(&mut host, None);
    host.finish(2);
    assert_eq!(host.error(2).kind(), ErrorKind::Unauthorized);
    assert_eq!(host.rpcs("session.subscribe").len(), 5);
}

#[test]
fn a_service_that_is_away_is_awaited() {
    let tries = Rc::new(RefCell::new(0));
    let mut host =
        Host::opened(|_| (), 0, PLAIN, Vec::new(), |_| vec![head(), line(&logged(1, 2))]);
    host.advance(70_000);
    let count = Rc::clone(&tries);
    host.dialler = Box::new(move |_| {
        *count.borrow_mut() += 1;
        if *count.borrow() < 8 { Dial::Fail(CloseReason::Refused) } else { Dial::Open }
    });
    let before = host.now;
    subscribed(&mut host, None);
    host.finish(2);
    assert!(ended(&host));
    assert_eq!(*tries.borrow(), 8);
    assert!((3_000..13_000).contains(&(host.now - before)), "{}", host.now - before);
    assert!(gaps(&host).is_empty());
}

#[test]
fn it_gives_up_after_as_many_failures_as_it_is_told() {
    let set = |c: &mut Config| c.reconnect.max_failures = Some(3);
    let mut host = Host::opened(set, 0, PLAIN, Vec::new(), |_| Vec::new());
    host.advance(70_000);
    host.dialler = Box::new(|_| Dial::Fail(CloseReason::Refused));
    subscribed(&mut host, None);
    host.finish(2);
    assert_eq!(host.error(2).kind(), ErrorKind::Connect);
}

#[test]
fn a_cursor_the_service_does_not_know_is_a_gap_and_then_everything() {
    for (stays_open, closed) in [(true, false), (true, true), (false, true)] {
        let total = if closed { 4 } else { 9 };
        let mut host = Host::opened(
            |_| (),
            0,
            PLAIN,
            Vec::new(),
            move |_| {
                let mut acts = vec![head()];
                acts.extend((0..4).map(|i| line(&logged(i, total))));
                if !stays_open {
                    acts.push(end());
                }
                acts
            },
        );
        let foreign = Cursor::after("foreign".into());
        subscribed(&mut host, Some(foreign.clone()));
        host.until(|h| h.event_ids(2).len() == 4);
        host.advance(30_000);
        assert_eq!(gaps(&host), [Lost::Cursor(foreign)]);
        assert_eq!(host.event_ids(2), ids(0..4));
        assert_eq!(host.rpcs("session.subscribe")[1].body["params"]["since_event_id"], "");
        assert_eq!(ended(&host), closed);
    }
}

#[test]
fn a_live_cursor_that_the_service_loses_is_a_gap_and_then_everything() {
    let mut asked = 0;
    let mut host = Host::opened(
        |_| (),
        0,
        PLAIN,
        Vec::new(),
        move |_| {
            asked += 1;
            let whole = (0..3).map(|i| line(&logged(i, 9)));
            match asked {
                1 => vec![head(), line(&event("gone", "x", "{}")), Act::Close(CloseReason::Eof)],
                _ => std::iter::once(head()).chain(whole).collect(),
            }
        },
    );
    subscribed(&mut host, None);
    host.until(|h| h.event_ids(2).len() == 4);
    assert_eq!(gaps(&host), [Lost::Cursor(Cursor::after("gone".into()))]);
    assert_eq!(host.rpcs("session.subscribe")[2].body["params"]["since_event_id"], "");
}

#[test]
fn somebody_elses_unsubscribe_does_not_end_it() {
    let mut asked = 0;
    let mut host = Host::opened(
        |_| (),
        0,
        PLAIN,
        Vec::new(),
        move |r| {
            asked += 1;
            match asked {
                1 => stream(&[logged(0, 3), logged(1, 3)]),
                2 => stream(&[failure(r, -32000, "replay failed")]),
                _ => vec![head(), line(&logged(2, 3))],
            }
        },
    );
    subscribed(&mut host, Some(Cursor::start()));
    host.finish(2);
    assert!(ended(&host));
    assert_eq!(host.event_ids(2), ids(0..3));
}

#[test]
fn an_event_over_the_limit_is_a_gap_and_costs_no_connection() {
    let set = |c: &mut Config| c.max_line_bytes = 1_000;
    let mut host = Host::opened(set, 0, PLAIN, Vec::new(), |_| {
        let huge = event("e1", "x.y", &format!("{{\"p\":\"{}\"}}", "p".repeat(5_000)));
        vec![head(), line(&logged(0, 3)), line(&huge), line(&logged(2, 3))]
    });
    subscribed(&mut host, Some(Cursor::start()));
    host.finish(2);
    assert!(ended(&host), "{:?}", host.said(2).last());
    assert_eq!(host.event_ids(2), ["e0", "e2"]);
    assert!(matches!(gaps(&host)[..], [Lost::Line { limit: 1_000, bytes }] if bytes > 5_000));
    assert_eq!(host.rpcs("session.subscribe").len(), 1);
}

#[test]
fn every_connection_of_it_asks_for_the_same() {
    let mut asked = 0;
    let mut host = Host::opened(
        |_| (),
        0,
        FULL,
        Vec::new(),
        move |_| {
            asked += 1;
            match asked {
                1 => vec![head(), line(&logged(0, 3)), Act::Close(CloseReason::Reset)],
                2 => stream(&[logged(1, 3)]),
                _ => vec![head(), line(&logged(2, 3))],
            }
        },
    );
    subscribed(&mut host, Some(Cursor::start()));
    host.finish(2);
    let features: Vec<Option<&str>> =
        host.rpcs("session.subscribe").iter().map(|r| r.header("broca-features")).collect();
    assert_eq!(features.len(), 3);
    assert!(features[0].is_some() && features.iter().all(|f| *f == features[0]), "{features:?}");
}

#[test]
fn cancelling_ends_it_at_any_time() {
    for wait in [0, 50, 5_000] {
        let mut host = Host::opened(
            |_| (),
            0,
            PLAIN,
            Vec::new(),
            |_| vec![head(), Act::Wait(60), Act::Close(CloseReason::Eof)],
        );
        subscribed(&mut host, None);
        host.advance(wait);
        host.cancel(2);
        host.settle();
        assert_eq!(host.error(2).kind(), ErrorKind::Cancelled);
        host.advance(60_000);
        assert!(!host.busy && host.open_connections().is_empty() && host.timer.is_none());
    }
}

#[test]
fn an_application_that_does_not_read_bounds_what_comes_however_often_the_stream_is_cut() {
    let set = |c: &mut Config| c.step_buffer_bytes = 20_000;
    let mut host = Host::opened(set, 0, PLAIN, Vec::new(), |r| {
        let at = from(r);
        let mut acts = vec![head()];
        for i in at..at + 10 {
            acts.push(line(&event(
                &format!("e{i}"),
                "x",
                &format!("{{\"p\":\"{}\"}}", "p".repeat(1_000)),
            )));
        }
        acts.push(Act::Close(CloseReason::Reset));
        acts
    });
    host.pull = 0;
    subscribed(&mut host, Some(Cursor::start()));
    host.advance(600_000);
    let connections = host.dialled.len();
    host.advance(600_000);
    assert_eq!(
        host.dialled.len(),
        connections,
        "a stream that is not read is not opened again and again"
    );
    host.pull_all(2);
    let got = host.event_ids(2);
    assert!(got.len() < 40, "{}", got.len());
    host.pull = usize::MAX;
    host.until(|h| h.event_ids(2).len() >= 100);
    assert_eq!(host.event_ids(2)[..100], ids(0..100));
}

#[test]
fn the_log_keeps_what_an_application_does_not_take_and_no_socket_is_left_unread() {
    let set = |c: &mut Config| c.step_buffer_bytes = 20_000;
    let total = 400;
    let mut host = Host::opened(set, 0, PLAIN, Vec::new(), move |r| {
        let mut acts = vec![head()];
        acts.extend((from(r)..total).map(|i| {
            let payload = format!("{{\"p\":\"{}\"}}", "p".repeat(1_000));
            line(&event(&format!("e{i}"), "x", &payload))
        }));
        acts
    });
    host.pull = 0;
    subscribed(&mut host, Some(Cursor::start()));
    let mut got = 0;
    while got < total {
        host.advance(10_000);
        assert!(host.open_connections().iter().all(|conn| !host.is_paused(*conn)));
        let before = host.event_ids(2).len();
        host.pull_all(2);
        let all = host.event_ids(2);
        assert!(all.len() - before <= 20, "{} at once", all.len() - before);
        assert!(all.len() > got, "it goes on whenever the application does");
        got = all.len();
    }
    assert_eq!(host.event_ids(2), ids(0..total));
    assert!(gaps(&host).is_empty());
}

#[derive(Debug, Clone)]
enum Fate {
    Reset(usize),
    Eof(usize),
    Clean(usize),
    Lag(usize),
    Page,
    Replay(usize),
    Overlap(usize),
    Silent,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        (0..30_usize).prop_map(Fate::Reset),
        (0..30_usize).prop_map(Fate::Eof),
        (0..30_usize).prop_map(Fate::Clean),
        (0..30_usize).prop_map(Fate::Lag),
        Just(Fate::Page),
        (0..60_usize).prop_map(Fate::Replay),
        (0..30_usize).prop_map(Fate::Overlap),
        Just(Fate::Silent),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_event_once_in_order_whatever_the_network_does(
        seed in 1..u64::MAX,
        total in 2..120_usize,
        fates in prop::collection::vec(fate(), 0..12),
        refused in 0..4_usize,
        pull in prop::sample::select(vec![1_usize, usize::MAX]),
    ) {
        let mut fates = fates.into_iter();
        let mut host = Host::opened(|c| c.step_buffer_bytes = 3_000, seed, PLAIN, Vec::new(), move |r| {
            let at = from(r);
            let all = |from: usize, n: usize| (from..total).take(n).map(|i| line(&logged(i, total)));
            let mut acts = vec![head()];
            match fates.next() {
                None => acts.extend(all(at, total)),
                Some(Fate::Reset(n)) => { acts.extend(all(at, n)); acts.push(Act::Close(CloseReason::Reset)); }
                Some(Fate::Eof(n)) => { acts.extend(all(at, n)); acts.push(Act::Close(CloseReason::Eof)); }
                Some(Fate::Clean(n)) => { acts.extend(all(at, n)); acts.push(end()); }
                Some(Fate::Lag(n)) => { acts.extend(all(at, n)); acts.push(line(LAG)); acts.push(end()); }
                Some(Fate::Page) => return answer(502, "text/html", "<html>"),
                Some(Fate::Replay(n)) => { acts.extend(all(0, n.max(at))); acts.push(Act::Close(CloseReason::Eof)); }
                Some(Fate::Overlap(n)) => { acts.extend(all(at.saturating_sub(3), n)); acts.push(Act::Close(CloseReason::Reset)); }
                Some(Fate::Silent) => return vec![Act::Close(CloseReason::UncleanEof)],
            }
            acts
        });
        host.pull = pull;
        let mut left = refused;
        host.dialler = Box::new(move |_| {
            if left > 0 { left -= 1; Dial::Fail(CloseReason::Refused) } else { Dial::Open }
        });
        subscribed(&mut host, Some(Cursor::start()));
        host.finish(2);
        prop_assert!(ended(&host), "{:?}", host.said(2).last());
        prop_assert_eq!(host.event_ids(2), ids(0..total));
        prop_assert_eq!(gaps(&host).len(), 0);
    }
}

#[test]
fn a_cut_after_a_turns_error_does_not_end_a_subscription_where_sessions_stay_open() {
    let error =
        || event("e1", "session.error", r#"{"reason":"all_providers_failed","attempts":1}"#);
    let observed = |features| {
        let mut asked = 0;
        let mut host = Host::opened(
            |_| (),
            0,
            features,
            Vec::new(),
            move |_| {
                asked += 1;
                match asked {
                    1 => vec![head(), line(&error()), Act::Close(CloseReason::Reset)],
                    _ => vec![head(), line(&logged(2, 4)), line(&logged(3, 4))],
                }
            },
        );
        subscribed(&mut host, Some(Cursor::start()));
        host.until(ended);
        host.event_ids(2)
    };
    assert_eq!(observed(&["keep-open"]), ids(1..4));
    // Elsewhere nothing follows it, and asking for more would hang.
    assert_eq!(observed(PLAIN), ids(1..2));
}
