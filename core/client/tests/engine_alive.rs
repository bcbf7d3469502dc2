//! What a service adds to a stream where it was asked: signs of life, and results that say nothing twice.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{Config, Environment, Reply, Status, Step};
use broca::{ErrorKind, Retry};
use engine_host::service::{PLAIN, bare_event, end, event, head, json, line, result, say, stream};
use engine_host::{Act, CLIENT_KEY, Host, Request};

const HI: &str = r#"{"role":"assistant","content":"hi"}"#;
const BEAT: &str = r#"{"jsonrpc":"2.0","method":"session.heartbeat"}"#;

/// A service that shows every second that it lives, and answers messages like this.
fn alive(
    change: impl FnOnce(&mut Config),
    mut rest: impl FnMut(&Request) -> Vec<Act> + 'static,
) -> Host {
    let mut settings = engine_host::config();
    settings.client_key = CLIENT_KEY.to_owned().into();
    settings.recovery_timeout_ms = 0;
    change(&mut settings);
    let mut opens = engine_host::service::service(PLAIN, move |r: &Request| rest(r));
    let mut host = Host::new(settings, Environment::none(), 0);
    host.script = Box::new(move |request| {
        if request.target.ends_with("/meta") {
            let meta = r#"{"version":"1","api_versions":["v1"],"features":["heartbeat","lean-result"],"limits":{"heartbeat_ms":1000}}"#;
            return json(200, meta);
        }
        opens(request)
    });
    host.pull = usize::MAX;
    host.command(1, broca::engine::Command::Open { tools: Vec::new(), metadata: None });
    host.finish(1);
    host
}

fn reply(host: &Host) -> &Reply {
    let found = host.said(2).iter().find_map(|step| match step {
        Step::Done(reply) => Some(&**reply),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no reply: {:?}", host.said(2)))
}

#[test]
fn a_stream_without_signs_of_life_is_dead_after_three_of_them() {
    let mut host = alive(|_| (), |_| vec![head(), line(BEAT), Act::Wait(2_500), line(BEAT)]);
    let begun = host.now;
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!((host.error(2).kind(), host.error(2).retry()), (ErrorKind::Timeout, Retry::Unknown));
    assert_eq!(host.now - begun, 5_500);
}

#[test]
fn signs_of_life_are_shown_to_nobody() {
    let mut host = alive(
        |_| (),
        |r| {
            let mut acts = vec![head()];
            for _ in 0..10 {
                acts.extend([Act::Wait(2_000), line(BEAT)]);
            }
            acts.extend([line(&result(r, &format!(r#"{{"message":{HI},"events":[]}}"#))), end()]);
            acts
        },
    );
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(reply(&host).text(), "hi");
    assert!(!host.said(2).iter().any(|step| matches!(step, Step::Notification { .. })));
}

#[test]
fn how_many_may_be_missing_is_a_setting_and_a_time_of_its_own_counts_before_it() {
    type Case = (fn(&mut Config), Option<u64>);
    let cases: [Case; 3] = [
        (|c| c.silence_intervals = 7, Some(7_000)),
        (|c| c.silence_intervals = 0, None),
        (|c| c.silence_timeout_ms = Some(1_500), Some(1_500)),
    ];
    for (change, expected) in cases {
        let mut host = alive(change, |_| vec![head()]);
        let begun = host.now;
        host.command(2, say("go"));
        match expected {
            Some(ms) => {
                host.finish(2);
                assert_eq!(host.now - begun, ms);
            }
            None => {
                host.advance(3_600_000);
                assert!(host.outcome(2).is_none());
            }
        }
    }
}

#[test]
fn a_subscription_that_fell_silent_is_taken_up_again() {
    let mut host = alive(|_| (), |_| vec![head(), line(BEAT)]);
    host.command(2, broca::engine::Command::Subscribe { from: None });
    host.advance(7_000);
    assert!(host.rpcs("session.subscribe").len() >= 2);
    assert!(host.outcome(2).is_none());
}

/// A turn whose result holds only what its stream did not.
fn lean(r: &Request) -> Vec<Act> {
    let said = bare_event("e1", "client.message.send", "{}");
    let result = result(r, &format!(r#"{{"message":{HI},"events":[{said}],"lean":true}}"#));
    stream(&[
        event("e2", "provider.request", "{}"),
        event("e3", "session.join", "{}"),
        event(
            "e4",
            "provider.response",
            r#"{"ok":true,"usage":{"input_tokens":3,"output_tokens":4}}"#,
        ),
        event("e5", "server.message.send", HI),
        result,
    ])
}

fn ids(reply: &Reply) -> Vec<String> {
    reply.turn_events().iter().map(|event| event.id().to_owned()).collect()
}

#[test]
fn a_reply_has_all_events_of_the_turn_although_they_came_once() {
    let mut host = alive(|_| (), lean);
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(ids(reply(&host)), ["e1", "e2", "e4", "e5"], "those of others are left out");
    assert_eq!(host.event_ids(2), ["e2", "e3", "e4", "e5"]);
    assert_eq!(reply(&host).usage.unwrap().output_tokens, 4);
    // The next request begins anew.
    host.command(3, say("more"));
    host.finish(3);
    let whole = |s: &Step| matches!(s, Step::Done(reply) if ids(reply).len() == 4);
    assert!(host.said(3).iter().any(whole), "{:?}", host.said(3));
}

#[test]
fn what_is_kept_for_the_reply_is_bounded() {
    let mut host = alive(|c| c.reply_bytes = 350, lean);
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(ids(reply(&host)), ["e1", "e5"]);
    assert_eq!(host.event_ids(2).len(), 4, "every event is delivered all the same");
}

#[test]
fn a_call_that_waits_at_the_service_is_told_its_place() {
    let place = |at: u32| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session.queued","params":{{"position":{at},"waiting":2}}}}"#
        )
    };
    let mut host = alive(
        |_| (),
        move |r| {
            let result = result(r, &format!(r#"{{"message":{HI},"events":[]}}"#));
            vec![head(), line(&place(2)), line(&place(1)), line(&result), end()]
        },
    );
    host.command(2, say("go"));
    host.finish(2);
    let places: Vec<u64> = host
        .said(2)
        .iter()
        .filter_map(|step| match step {
            Step::Status(Status::Queued { place: Some(place) }) => Some(place.position),
            _ => None,
        })
        .collect();
    assert_eq!(places, [2, 1]);
}
