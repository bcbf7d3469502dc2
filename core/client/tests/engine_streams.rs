//! What a turn's stream shows, while it runs and however it is written (guarantees 6, 9 and 13).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::ErrorKind;
use broca::engine::{Config, ConnId, DeltaKind, Lost, Status, Step};
use broca::proto::session::exchange::WarningClass;
use engine_host::service::{
    FULL, PLAIN, answer, bare_event, delta, end, event, head, line, problem, reply, result, say,
    stream,
};
use engine_host::{Act, Host, SECRET};
use proptest::prelude::*;

fn host(change: impl FnOnce(&mut Config)) -> Host {
    Host::opened(change, 0, FULL, Vec::new(), |_| vec![head()])
}

/// Begins operation 2; the test writes its stream.
fn begin(host: &mut Host) -> ConnId {
    host.command(2, say("go"));
    host.settle();
    host.requests.last().unwrap().conn
}

fn lines(host: &mut Host, conn: ConnId, lines: impl IntoIterator<Item = String>) {
    for text in lines {
        host.act(conn, line(&text));
    }
    host.settle();
}

fn gaps(host: &Host) -> Vec<Lost> {
    let gap = |s: &Step| if let Step::Gap(gap) = s { Some(gap.lost.clone()) } else { None };
    host.said(2).iter().filter_map(gap).collect()
}

fn warnings(host: &Host) -> Vec<WarningClass> {
    let class = |s: &Step| if let Step::Warning(w) = s { Some(w.class) } else { None };
    host.said(2).iter().filter_map(class).collect()
}

fn event_of(bytes: usize, id: usize) -> String {
    event(&format!("e{id}"), "x.y", &format!("{{\"t\":\"{}\"}}", "p".repeat(bytes)))
}

/// A line that the log does not have.
fn odd_line(bytes: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"x.y","params":"{}"}}"#, "p".repeat(bytes))
}

#[test]
fn events_and_deltas_arrive_while_the_stream_runs() {
    let mut host = host(|_| ());
    let conn = begin(&mut host);
    assert!(matches!(host.said(2), [Step::Status(Status::Sent)]));
    lines(&mut host, conn, [event("e1", "tool.call", "{}"), delta(SECRET)]);
    assert_eq!(host.event_ids(2), ["e1"]);
    let Some(Step::Delta(shown)) = host.said(2).last() else { panic!() };
    assert_eq!(
        (shown.kind, shown.text.as_str(), shown.link.as_str()),
        (DeltaKind::Text, SECRET, "m")
    );
    assert!(host.outcome(2).is_none());
}

#[test]
fn very_many_junk_lines_are_counted_and_not_each_reported() {
    let mut host = host(|_| ());
    let conn = begin(&mut host);
    let asked = host.requests.len();
    lines(&mut host, conn, (0..1_000).map(|i| format!("junk {i}\n")));
    assert_eq!(host.requests.len(), asked, "nobody answers junk");
    // 32 one by one, then at 64, 128, 256 and 512.
    assert_eq!(warnings(&host).len(), 36);
    let Some(Step::Warning(last)) = host.said(2).last() else { panic!() };
    assert!(last.message.contains("512"), "{}", last.message);
}

#[test]
fn an_event_that_comes_twice_is_delivered_once() {
    let mut host = host(|_| ());
    let conn = begin(&mut host);
    let (first, second) = (event("e1", "tool.call", "{}"), event("e2", "tool.call", "{}"));
    lines(&mut host, conn, [first.clone(), second.clone(), first, second]);
    assert_eq!(host.event_ids(2), ["e1", "e2"]);
}

#[test]
fn what_this_version_does_not_know_is_delivered_raw() {
    let mut host = host(|_| ());
    let conn = begin(&mut host);
    let raw = r#"{"method":"session.hologram","params":{"x":[1.50]},"jsonrpc":"2.0"}"#;
    let future = event("e1", "session.hologram.opened", r#"{"deep":{"n":9007199254740993}}"#);
    lines(&mut host, conn, [raw.to_owned(), future]);
    let shown = |s: &Step| matches!(s, Step::Notification { method, raw: r } if method == "session.hologram" && r.as_str() == raw);
    assert!(host.said(2).iter().any(shown));
    let Some(Step::Event(event)) = host.said(2).last() else { panic!() };
    assert_eq!(event.payload().as_str(), r#"{"deep":{"n":9007199254740993}}"#);
}

#[test]
fn a_junk_line_is_warned_of_and_skipped_and_its_text_shown_nowhere() {
    let mut host = host(|_| ());
    let conn = begin(&mut host);
    let request = host.requests.last().unwrap().clone();
    let junk = [
        format!("{SECRET} not json"),
        "[1,2]".to_owned(),
        format!("{{\"method\":\"session.event\",\"params\":{{\"{SECRET}\":1}}}}"),
        String::new(),
    ];
    lines(&mut host, conn, junk);
    lines(&mut host, conn, [event("e1", "x", "{}"), reply(&request, "hi")]);
    host.act(conn, end());
    host.settle();
    assert_eq!(warnings(&host), [WarningClass::MalformedLine; 3]);
    assert!(matches!(host.outcome(2), Some(Ok(_))));
}

#[test]
fn an_oversized_line_is_a_gap_and_an_oversized_terminal_an_error() {
    let mut host = host(|c| {
        c.max_line_bytes = 1_000;
        c.recovery_timeout_ms = 0;
    });
    let conn = begin(&mut host);
    let request = host.requests.last().unwrap().clone();
    lines(&mut host, conn, [event_of(5_000, 1), event_of(10, 2)]);
    assert!(matches!(gaps(&host)[..], [Lost::Line { limit: 1_000, bytes }] if bytes > 5_000));
    assert_eq!(host.event_ids(2), ["e2"]);
    lines(&mut host, conn, [reply(&request, &"x".repeat(2_000))]);
    host.act(conn, end());
    host.settle();
    assert_eq!(host.error(2).kind(), ErrorKind::LineTooLong);
    // The client is usable afterwards.
    host.command(3, say("more"));
    host.settle();
    assert_eq!(host.left("session.sendMessage"), 2);
}

#[test]
fn a_line_of_eight_mebibytes_needs_no_setting() {
    let mut host = host(|_| ());
    let conn = begin(&mut host);
    let request = host.requests.last().unwrap().clone();
    let long = "x".repeat(8 << 20);
    lines(&mut host, conn, [event_of(8 << 20, 1), event_of(10, 2), reply(&request, &long)]);
    host.act(conn, end());
    host.settle();
    assert_eq!(host.event_ids(2), ["e1", "e2"]);
    assert!(gaps(&host).is_empty());
    let whole = |s: &Step| matches!(s, Step::Done(done) if done.text().len() == long.len());
    assert!(host.said(2).iter().any(whole), "{:?}", host.outcome(2));
}

#[test]
fn tokens_are_counted_once_however_often_their_event_is_shown() {
    let counted = |input: u64, output: u64| {
        format!(r#"{{"usage":{{"input_tokens":{input},"output_tokens":{output}}}}}"#)
    };
    let kind = "provider.response";
    for missed in [false, true] {
        let mut host = host(|c| c.max_line_bytes = 1_000);
        let conn = begin(&mut host);
        let request = host.requests.last().unwrap().clone();
        let first = event("u1", kind, &counted(3, 2));
        lines(&mut host, conn, [first.clone(), first, event("u2", kind, &counted(4, 1))]);
        if missed {
            lines(&mut host, conn, [event_of(2_000, 3)]);
        }
        let again = [
            bare_event("u1", kind, &counted(3, 2)),
            bare_event("u2", kind, &counted(4, 1)),
            bare_event("u3", kind, &counted(10, 10)),
        ];
        let events = again[..if missed { 3 } else { 2 }].join(",");
        let said =
            format!(r#"{{"message":{{"role":"assistant","content":"hi"}},"events":[{events}]}}"#);
        lines(&mut host, conn, [result(&request, &said)]);
        host.act(conn, end());
        host.settle();
        let usage = host.said(2).iter().find_map(|s| match s {
            Step::Done(done) => done.usage,
            _ => None,
        });
        let usage = usage.map(|u| (u.input_tokens, u.output_tokens));
        assert_eq!(usage, Some(if missed { (17, 13) } else { (7, 3) }));
    }
}

#[test]
fn an_id_that_came_back_as_a_string_is_accepted_with_a_warning() {
    let mut host = host(|_| ());
    let conn = begin(&mut host);
    let request = host.requests.last().unwrap().clone();
    let id = request.id();
    let odd = reply(&request, "hi").replace(&format!("\"id\":{id}"), &format!("\"id\":\"{id}\""));
    let foreign = reply(&request, "no").replace(&format!("\"id\":{id}"), "\"id\":77");
    lines(&mut host, conn, [foreign, odd]);
    host.act(conn, end());
    host.settle();
    assert_eq!(warnings(&host), [WarningClass::UnexpectedId, WarningClass::IdTypeChanged]);
    assert!(matches!(host.outcome(2), Some(Ok(_))));
}

#[test]
fn what_is_no_stream_is_told_apart() {
    let page = format!("<html>{SECRET}</html>");
    for (acts, kind) in [
        (answer(200, "text/html", &page), ErrorKind::NotBroca),
        (answer(502, "text/html; charset=x", &page), ErrorKind::NotBroca),
        (answer(404, "", ""), ErrorKind::NotBroca),
        (problem(401, "unauthorized"), ErrorKind::Unauthorized),
        (problem(409, "session_closed"), ErrorKind::SessionClosed),
        (problem(500, "internal"), ErrorKind::Api),
        (answer(413, "text/plain", "too much"), ErrorKind::Api),
    ] {
        let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), move |_| acts.clone());
        host.command(2, say("go"));
        host.finish(2);
        assert_eq!(host.error(2).kind(), kind, "{}", host.error(2));
        assert!(host.event_ids(2).is_empty());
    }
}

#[test]
fn a_refusal_without_end_ends_all_the_same() {
    let endless = |n: usize| {
        let mut acts =
            vec![Act::Send(b"HTTP/1.1 502 X\r\nContent-Type: text/html\r\n\r\n".to_vec())];
        acts.extend((0..n).map(|_| Act::Send(vec![b'x'; 4_096])));
        acts
    };
    for n in [0, 3, 1_000] {
        let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), move |_| endless(n));
        let before = host.now;
        host.command(2, say("go"));
        host.finish(2);
        assert_eq!(host.error(2).kind(), ErrorKind::NotBroca, "{n}: {}", host.error(2));
        // Enough of it is enough, and too little is waited for as long as for a head.
        assert_eq!(host.now - before, if n == 1_000 { 0 } else { 30_000 });
        assert!(host.open_connections().is_empty());
    }
}

#[test]
fn a_body_that_never_ends_after_its_terminal_line_does_not_hold_the_turn() {
    let mut host = host(|_| ());
    let conn = begin(&mut host);
    let request = host.requests.last().unwrap().clone();
    lines(&mut host, conn, [reply(&request, "hi")]);
    for _ in 0..100 {
        host.act(conn, Act::Send(format!("1000\r\n{}\r\n", "y".repeat(4_096)).into_bytes()));
    }
    let before = host.now;
    host.finish(2);
    assert!(matches!(host.outcome(2), Some(Ok(_))));
    assert!(host.now - before <= 500);
}

#[test]
fn a_slow_application_loses_deltas_in_one_gap_and_no_event() {
    let mut host = host(|c| c.delta_buffer_bytes = 20_000);
    host.pull = 0;
    let conn = begin(&mut host);
    for i in 0..500 {
        lines(&mut host, conn, [delta("word"), event_of(50, i), delta("more")]);
    }
    assert!(!host.is_paused(conn));
    host.pull_all(2);
    assert_eq!(host.event_ids(2), (0..500).map(|i| format!("e{i}")).collect::<Vec<_>>());
    let deltas = host.said(2).iter().filter(|s| matches!(s, Step::Delta(_))).count() as u64;
    let [Lost::Deltas(lost)] = gaps(&host)[..] else { panic!("{:?}", gaps(&host)) };
    assert_eq!(lost + deltas, 1_000);
    // Once it has caught up, deltas come again.
    lines(&mut host, conn, [delta("again")]);
    host.pull_all(2);
    assert!(matches!(host.said(2).last(), Some(Step::Delta(d)) if d.text == "again"));
}

#[test]
fn that_everything_shown_is_void_is_never_shed() {
    let mut host = host(|c| c.delta_buffer_bytes = 1_000);
    host.pull = 0;
    let conn = begin(&mut host);
    let reset = r#"{"jsonrpc":"2.0","method":"session.display","params":{"type":"display_reset"}}"#;
    lines(&mut host, conn, [delta("old"), event_of(5_000, 1), delta("old")]);
    lines(&mut host, conn, [reset.to_owned(), reset.to_owned(), delta("new")]);
    host.pull_all(2);
    let resets =
        host.said(2).iter().filter(|s| matches!(s, Step::Delta(d) if d.kind == DeltaKind::Reset));
    assert_eq!(resets.count(), 1);
}

#[test]
fn reading_stops_at_the_bound_and_goes_on_below_it() {
    let mut host = host(|c| {
        c.step_buffer_bytes = 10_000;
        c.silence_timeout_ms = Some(1_000);
    });
    host.pull = 0;
    let conn = begin(&mut host);
    let request = host.requests.last().unwrap().clone();
    lines(&mut host, conn, (0..40).map(|_| odd_line(1_000)));
    assert!(host.is_paused(conn));
    // A silence of ours is not the peer's.
    host.advance(600_000);
    assert!(host.is_paused(conn));
    let mut rounds = 0;
    host.act(conn, line(&reply(&request, "hi")));
    host.act(conn, end());
    while host.outcome(2).is_none() {
        host.pull_all(2);
        host.settle();
        rounds += 1;
        assert!(rounds < 100, "{:?}", host.said(2).len());
    }
    assert!(rounds > 2);
    let odd = host.said(2).iter().filter(|step| matches!(step, Step::Notification { .. }));
    assert_eq!(odd.count(), 40);
}

#[test]
fn an_answer_that_is_whole_needs_no_reading_to_end() {
    let mut host = host(|c| c.step_buffer_bytes = 1_000);
    host.pull = 0;
    let conn = begin(&mut host);
    let request = host.requests.last().unwrap().clone();
    let mut at_once = Vec::new();
    for text in [odd_line(5_000), odd_line(5_000), reply(&request, "hi")] {
        let Act::Send(bytes) = line(&text) else { panic!() };
        at_once.extend(bytes);
    }
    host.act(conn, Act::Send(at_once));
    host.advance(1_000);
    host.pull_all(2);
    assert_eq!(host.said(2).len(), 5, "{:?}", host.said(2));
    assert!(matches!(host.outcome(2), Some(Ok(_))), "{:?}", host.said(2));
}

#[test]
fn silence_is_dead_after_its_time_when_it_has_one() {
    let mut host = host(|c| {
        c.silence_timeout_ms = Some(3_000);
        c.recovery_timeout_ms = 0;
    });
    let conn = begin(&mut host);
    host.advance(2_900);
    lines(&mut host, conn, [event("e1", "x", "{}")]);
    host.advance(2_900);
    assert!(host.outcome(2).is_none());
    host.advance(200);
    assert_eq!(host.error(2).kind(), ErrorKind::Timeout);
}

#[test]
fn silence_is_normal_when_it_has_no_time() {
    let mut host = host(|_| ());
    begin(&mut host);
    host.advance(24 * 3_600_000);
    assert!(host.outcome(2).is_none());
}

#[test]
fn providers_that_failed_make_the_turn_fail_although_its_answer_is_ordinary() {
    for (reason, kind) in
        [("all_providers_failed", ErrorKind::ProvidersFailed), ("loop_limit", ErrorKind::LoopLimit)]
    {
        let mut host = host(|_| ());
        let conn = begin(&mut host);
        let request = host.requests.last().unwrap().clone();
        let counts = r#"{"usage":{"input_tokens":18446744073709551615,"output_tokens":1}}"#;
        let said = format!("{{\"reason\":\"{reason}\"}}");
        lines(
            &mut host,
            conn,
            [
                event("u1", "provider.response", counts),
                event("u2", "provider.response", counts),
                event("e1", "session.error", &said),
                reply(&request, "The provider is currently unavailable."),
            ],
        );
        host.act(conn, end());
        host.settle();
        assert_eq!(host.error(2).kind(), kind);
        assert!(!host.said(2).iter().any(|s| matches!(s, Step::Done(_))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Any cut, any order, any appetite: an application that only pulls on `Ready` gets every event, in
    /// order, and the end.
    #[test]
    fn every_step_reaches_an_application_that_pulls_on_ready(
        seed in 1..u64::MAX,
        count in 0..60_usize,
        pull in prop::sample::select(vec![1_usize, 300, 5_000, usize::MAX]),
        bound in prop::sample::select(vec![500_usize, 4_000, 1 << 20]),
        oversized in any::<bool>(),
    ) {
        let set = |c: &mut Config| {
            c.step_buffer_bytes = bound;
            c.delta_buffer_bytes = bound / 2;
            c.max_line_bytes = 4_000;
        };
        let mut host = Host::opened(set, seed, FULL, Vec::new(), move |r| {
            let mut all: Vec<String> = Vec::new();
            for i in 0..count {
                all.push(event_of(i * 7, i));
                all.push(delta("d"));
                if oversized && i % 9 == 0 { all.push(event_of(5_000, 1_000 + i)); }
            }
            all.push(reply(r, "hi"));
            stream(&all)
        });
        host.pull = pull;
        host.command(2, say("go"));
        host.settle();
        prop_assert!(matches!(host.outcome(2), Some(Ok(_))), "{:?}", host.said(2).last());
        prop_assert_eq!(host.event_ids(2), (0..count).map(|i| format!("e{i}")).collect::<Vec<_>>());
        let sizes: Vec<Lost> = gaps(&host).into_iter().filter(|g| matches!(g, Lost::Line { .. })).collect();
        prop_assert_eq!(sizes.len(), if oversized { count.div_ceil(9) } else { 0 });
    }
}
