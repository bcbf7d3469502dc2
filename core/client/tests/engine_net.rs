//! Connections: finding the service, proxies, keep-alive, timeouts, bodies under way.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{CloseReason, Command, Config, Effect, Environment, Outcome, Step};
use broca::{ErrorKind, Retry};
use engine_host::service::{FULL, PLAIN, answer, head, json, reply, say, stream};
use engine_host::{Act, CLIENT_KEY, Dial, Host, config};
use std::net::SocketAddr;

const META: &str = r#"{"version":"0.1.0","api_versions":["v1"]}"#;

/// A host of an engine for `url` that has opened nothing; every request is for its meta.
fn bare(url: &str, environment: Environment) -> Host {
    let mut settings = Config::new(url, CLIENT_KEY);
    settings.rest_timeout_ms = 20_000;
    let mut host = Host::new(settings, environment, 0);
    host.script = Box::new(|_| json(200, META));
    host
}

fn proxied(url: &str, proxy: &str) -> Host {
    let proxy = proxy.to_owned();
    let variables =
        move |name: &str| matches!(name, "http_proxy" | "https_proxy").then(|| proxy.clone());
    bare(url, Environment::from_vars(variables))
}

fn ask(host: &mut Host, op: u64) {
    host.command(op, Command::Meta);
    host.finish(op);
}

fn answered(host: &Host, op: u64) -> bool {
    matches!(host.outcome(op), Some(Ok(Outcome::Meta(_))))
}

fn addresses(host: &mut Host, list: &[&str]) {
    host.addresses = Ok(list.iter().map(|a| a.parse().unwrap()).collect());
}

fn tried(host: &Host) -> Vec<String> {
    host.dialled.iter().map(|(_, a)| a.ip().to_string()).collect()
}

// ---- finding it ------------------------------------------------------------------------------

#[test]
fn an_address_needs_no_resolver_and_a_name_does() {
    let mut host = bare("http://127.0.0.1:81/base", Environment::none());
    ask(&mut host, 2);
    assert!(!host.effects.iter().any(|e| matches!(e, Effect::Resolve { .. })));
    assert_eq!(host.requests[0].target, "/base/api/v1/meta");
    let mut host = bare("https://Example.org", Environment::none());
    ask(&mut host, 2);
    assert!(answered(&host, 2));
    let named = |e: &Effect| matches!(e, Effect::Resolve { host, .. } if host == "example.org");
    assert!(host.effects.iter().any(named));
    let tls = |e: &Effect| matches!(e, Effect::Connect { tls: Some(tls), .. } if tls.server_name == "example.org");
    assert!(host.effects.iter().any(tls));
    assert_eq!(host.dialled[0].1.port(), 443);
    assert_eq!(host.requests[0].header("host"), Some("example.org"));
}

#[test]
fn a_name_that_cannot_be_resolved_is_a_connect_error() {
    for answer in [Err("no such host".to_owned()), Ok(Vec::new())] {
        let mut host = bare("http://example.org", Environment::none());
        host.addresses = answer;
        ask(&mut host, 2);
        assert_eq!(
            (host.error(2).kind(), host.error(2).retry()),
            (ErrorKind::Connect, Retry::Safe)
        );
        assert!(host.error(2).message().contains("example.org"));
    }
}

#[test]
fn a_first_address_that_hangs_delays_by_a_quarter_of_a_second_only() {
    let mut host = bare("http://example.org", Environment::none());
    addresses(&mut host, &["2001:db8::1", "192.0.2.1", "192.0.2.2"]);
    host.dialler =
        Box::new(|addr: SocketAddr| if addr.is_ipv6() { Dial::Hang } else { Dial::Open });
    let before = host.now;
    ask(&mut host, 2);
    assert_eq!(host.now - before, 250);
    assert_eq!(tried(&host), ["2001:db8::1", "192.0.2.1"]);
    let loser = host.dialled[0].0;
    assert_eq!(host.closed, [loser]);
    assert!(answered(&host, 2));
}

#[test]
fn a_first_address_that_refuses_costs_no_time() {
    let mut host = bare("http://example.org", Environment::none());
    addresses(&mut host, &["2001:db8::1", "2001:db8::2", "192.0.2.1"]);
    host.dialler =
        Box::new(
            |addr: SocketAddr| {
                if addr.is_ipv6() { Dial::Fail(CloseReason::Unreachable) } else { Dial::Open }
            },
        );
    let before = host.now;
    ask(&mut host, 2);
    assert_eq!((host.now - before, tried(&host).len()), (0, 2));
    assert!(answered(&host, 2));
}

#[test]
fn when_all_addresses_fail_the_error_says_why() {
    let mut host = bare("https://example.org", Environment::none());
    addresses(&mut host, &["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    let mut first = true;
    host.dialler = Box::new(move |_| {
        if std::mem::take(&mut first) {
            Dial::Fail(CloseReason::TlsCert)
        } else {
            Dial::Fail(CloseReason::Refused)
        }
    });
    ask(&mut host, 2);
    assert_eq!(tried(&host).len(), 3);
    assert_eq!(host.error(2).kind(), ErrorKind::Tls);
    assert!(host.error(2).message().contains("certificate"), "{}", host.error(2));
    host.dialler = Box::new(|_| Dial::Fail(CloseReason::Refused));
    ask(&mut host, 3);
    assert_eq!(host.error(3).kind(), ErrorKind::Connect);
    assert!(host.error(3).message().contains("refused"));
}

#[test]
fn addresses_that_all_hang_are_given_up_after_the_connect_timeout() {
    let mut host = bare("http://example.org", Environment::none());
    addresses(&mut host, &["192.0.2.1", "192.0.2.2"]);
    host.dialler = Box::new(|_| Dial::Hang);
    let before = host.now;
    ask(&mut host, 2);
    assert_eq!((host.now - before, host.error(2).kind()), (10_000, ErrorKind::Connect));
    assert_eq!((host.dialling(), host.closed.len()), (0, 2));
    assert!(!host.busy && host.timer.is_none());
}

// ---- proxies ---------------------------------------------------------------------------------

#[test]
fn a_plain_proxy_gets_the_absolute_form_and_its_password() {
    let mut host = proxied("http://example.org/base", "http://user:pLaNtEd@192.0.2.9:3128");
    ask(&mut host, 2);
    assert!(answered(&host, 2));
    assert_eq!(host.dialled[0].1, "192.0.2.9:3128".parse().unwrap());
    let request = &host.requests[0];
    assert_eq!(request.target, "http://example.org/base/api/v1/meta");
    assert_eq!(request.header("host"), Some("example.org"));
    assert!(request.header("proxy-authorization").unwrap().starts_with("Basic "));
    assert!(request.header("authorization").is_none());
}

#[test]
fn a_tunnel_is_asked_for_and_then_speaks_tls() {
    let mut host = proxied("https://example.org", "http://user:pLaNtEd@192.0.2.9:3128");
    host.script = Box::new(|r| match r.method.as_str() {
        "CONNECT" => vec![Act::Send(b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec())],
        _ => json(200, META),
    });
    ask(&mut host, 2);
    assert!(answered(&host, 2));
    assert_eq!(host.requests[0].target, "example.org:443");
    assert!(host.requests[0].header("proxy-authorization").is_some());
    assert_eq!(host.requests[1].target, "/api/v1/meta");
    assert!(host.requests[1].header("proxy-authorization").is_none());
    let tls =
        |e: &Effect| matches!(e, Effect::StartTls { tls, .. } if tls.server_name == "example.org");
    assert_eq!(host.effects.iter().filter(|e| tls(e)).count(), 1);
    // The tunnel is kept like any connection.
    ask(&mut host, 3);
    assert_eq!(host.dialled.len(), 1);
}

#[test]
fn a_tunnel_that_is_refused_is_a_connect_error_with_the_cure() {
    let close = Act::Close(CloseReason::Eof);
    for (acts, word) in [
        (answer(407, "text/html", "<html>pLaNtEd</html>"), "password"),
        (answer(403, "text/html", "no"), "403"),
        (vec![Act::Send(b"SSH-2.0-x\r\n".to_vec())], "does not answer"),
        (vec![close.clone()], "closed"),
        (vec![Act::Send(b"HTTP/1.1 2".to_vec()), close], "closed"),
        (vec![Act::Send(b"HTTP/1.1 200 OK\r\n\r\nsurplus".to_vec())], "does not answer"),
    ] {
        let mut host = proxied("https://example.org", "http://192.0.2.9:3128");
        let kept = acts.clone();
        host.script = Box::new(move |_| kept.clone());
        ask(&mut host, 2);
        let error = host.error(2);
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Connect, Retry::Safe), "{acts:?}");
        assert!(error.message().contains(word), "{error}");
        assert!(host.open_connections().is_empty());
    }
}

#[test]
fn a_certificate_that_fails_inside_a_tunnel_is_a_tls_error() {
    let mut host = proxied("https://example.org", "http://192.0.2.9:3128");
    host.script = Box::new(|_| vec![Act::Send(b"HTTP/1.1 200 OK\r\n\r\n".to_vec())]);
    host.starts_tls = false;
    host.command(2, Command::Meta);
    host.settle();
    let conn = host.dialled[0].0;
    host.cut(conn, CloseReason::TlsHost);
    host.settle();
    assert_eq!(host.error(2).kind(), ErrorKind::Tls);
}

#[test]
fn a_proxy_that_hangs_is_given_up_after_the_connect_timeout() {
    let mut host = proxied("https://example.org", "http://192.0.2.9:3128");
    host.script = Box::new(|_| Vec::new());
    let before = host.now;
    ask(&mut host, 2);
    assert_eq!((host.now - before, host.error(2).kind()), (10_000, ErrorKind::Connect));
}

// ---- keeping connections ---------------------------------------------------------------------

#[test]
fn a_message_takes_a_kept_connection_only_while_it_is_fresh() {
    for (idle, dials) in [(3_900, 0), (4_000, 1), (30_000, 1)] {
        let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), |r| stream(&[reply(r, "hi")]));
        let before = host.dialled.len();
        host.advance(idle);
        host.command(2, say("go"));
        host.finish(2);
        assert_eq!(host.dialled.len() - before, dials, "{idle}");
    }
}

#[test]
fn a_kept_connection_is_closed_in_the_end() {
    let mut host = bare("http://192.0.2.1", Environment::none());
    ask(&mut host, 2);
    assert_eq!(host.open_connections().len(), 1);
    host.advance(60_000);
    assert!(host.open_connections().is_empty() && host.timer.is_none() && !host.busy);
}

#[test]
fn a_question_is_repeated_once_when_its_kept_connection_turns_out_dead() {
    // Two kept connections, both dead: the second try must not take the other one.
    let mut host = bare("http://192.0.2.1", Environment::none());
    host.command(2, Command::Meta);
    host.command(3, Command::Meta);
    host.finish(2);
    host.finish(3);
    let kept = host.open_connections();
    assert_eq!(kept.len(), 2);
    host.script = Box::new(move |r| {
        if kept.contains(&r.conn) { vec![Act::Close(CloseReason::Reset)] } else { json(200, META) }
    });
    ask(&mut host, 4);
    assert!(answered(&host, 4), "{:?}", host.said(4));
    assert_eq!(host.requests.len(), 4);
    // A new connection that dies is an error.
    host.script = Box::new(|_| vec![Act::Close(CloseReason::Reset)]);
    host.advance(61_000);
    ask(&mut host, 5);
    assert_eq!((host.error(5).kind(), host.requests.len()), (ErrorKind::Io, 5));
}

#[test]
fn bytes_nobody_asked_for_end_a_kept_connection() {
    let mut host = bare("http://192.0.2.1", Environment::none());
    ask(&mut host, 2);
    let conn = host.open_connections()[0];
    host.act(conn, Act::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()));
    host.settle();
    assert_eq!(host.closed, [conn]);
    ask(&mut host, 3);
    assert!(answered(&host, 3));
}

#[test]
fn no_more_connections_are_open_than_allowed_and_those_who_wait_are_served_in_order() {
    let set = |c: &mut Config| c.max_connections = 2;
    let mut host =
        Host::opened(set, 0, PLAIN, Vec::new(), |_| vec![Act::Wait(1_000), Act::Send(Vec::new())]);
    host.advance(61_000);
    for op in 2..7 {
        host.command(op, Command::Participants);
    }
    host.settle();
    assert_eq!(host.open_connections().len(), 2);
    let first: Vec<_> = host.requests.iter().map(|r| r.conn).collect();
    assert_eq!(first.len(), 2);
    for conn in first {
        for act in json(200, r#"{"drivers":["k"]}"#) {
            host.act(conn, act);
        }
    }
    host.advance(1_000);
    assert!(host.outcome(2).is_some() && host.outcome(3).is_some() && host.outcome(4).is_none());
    assert_eq!((host.requests.len(), host.open_connections().len()), (4, 2));
}

#[test]
fn whoever_gets_no_connection_is_told_so() {
    let set = |c: &mut Config| c.max_connections = 1;
    let mut host = Host::opened(set, 0, PLAIN, Vec::new(), |_| vec![head()]);
    host.command(2, Command::Subscribe { from: None });
    host.command(3, say("go"));
    host.finish(3);
    assert_eq!((host.error(3).kind(), host.error(3).retry()), (ErrorKind::Timeout, Retry::Safe));
    assert!(host.error(3).message().contains("max_connections"));
    assert_eq!(host.left("session.sendMessage"), 0);
}

// ---- time ------------------------------------------------------------------------------------

#[test]
fn heads_and_whole_answers_have_their_time() {
    for (acts, after) in [
        (vec![], 20_000),
        (vec![Act::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_vec())], 20_000),
    ] {
        let mut host = bare("http://192.0.2.1", Environment::none());
        let kept = acts.clone();
        host.script = Box::new(move |_| kept.clone());
        let before = host.now;
        ask(&mut host, 2);
        assert_eq!((host.now - before, host.error(2).kind()), (after, ErrorKind::Timeout));
        assert!(host.open_connections().is_empty());
    }
    let change = |config: &mut Config| config.recovery_timeout_ms = 0;
    let mut host = Host::opened(change, 0, PLAIN, Vec::new(), |_| Vec::new());
    let before = host.now;
    host.command(2, say("go"));
    host.finish(2);
    assert_eq!(host.now - before, 30_000);
}

#[test]
fn answers_of_rest_calls_are_bounded() {
    let mut settings = config();
    settings.max_answer_bytes = 1_000;
    let mut host = Host::new(settings, Environment::none(), 0);
    host.script = Box::new(|_| json(200, &format!("[{}0]", "0,".repeat(1_000))));
    ask(&mut host, 2);
    assert_eq!(host.error(2).kind(), ErrorKind::Limit);
    assert!(host.error(2).message().contains("max_answer_bytes"));
    assert!(host.open_connections().is_empty());
}

// ---- bodies under way ------------------------------------------------------------------------

#[test]
fn a_large_message_leaves_as_fast_as_it_is_taken() {
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), |r| stream(&[reply(r, "hi")]));
    host.acknowledges = false;
    let large = "pLaNtEd".repeat(200_000);
    host.command(2, say(&large));
    host.settle();
    assert!(host.requests.is_empty());
    let mut rounds = 0;
    while host.outcome(2).is_none() {
        host.acknowledge();
        host.settle();
        rounds += 1;
        assert!(rounds < 20);
    }
    assert!(rounds >= 5, "{rounds}");
    assert_eq!(
        host.requests[0].body["params"]["message"]["content"].as_str().unwrap().len(),
        large.len()
    );
}

#[test]
fn an_early_refusal_outranks_a_body_that_is_still_under_way() {
    for close in [None, Some(CloseReason::Reset), Some(CloseReason::Eof)] {
        for whole in [true, false] {
            let mut host = Host::opened(|_| (), 0, FULL, Vec::new(), |_| Vec::new());
            host.acknowledges = false;
            host.command(2, say(&"x".repeat(2_000_000)));
            host.settle();
            let conn = host.open_connections()[0];
            let refusal =
                b"HTTP/1.1 413 X\r\nContent-Type: text/plain\r\nContent-Length: 8\r\n\r\n";
            host.act(conn, Act::Send(refusal.to_vec()));
            host.act(conn, Act::Send(if whole { b"too much".to_vec() } else { b"too".to_vec() }));
            if let Some(why) = close {
                host.act(conn, Act::Close(why));
            }
            host.finish(2);
            assert_eq!(
                host.error(2).kind(),
                ErrorKind::Api,
                "{close:?} {whole}: {}",
                host.error(2)
            );
            assert!(host.error(2).message().contains("413"));
            // The rest of the body never goes, so the connection is of no use any more.
            assert!(host.open_connections().is_empty());
        }
    }
}

#[test]
fn a_write_that_stalls_forever_is_a_timeout() {
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), |_| Vec::new());
    host.acknowledges = false;
    host.command(2, say(&"x".repeat(2_000_000)));
    host.finish(2);
    assert_eq!(host.error(2).kind(), ErrorKind::Timeout);
}

#[test]
fn an_answer_of_an_old_server_ends_with_its_connection() {
    let body = |r: &engine_host::Request| {
        vec![
            Act::Send(b"HTTP/1.0 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n".to_vec()),
            Act::Send(reply(r, "hi").into_bytes()),
            Act::Close(CloseReason::Eof),
        ]
    };
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), body);
    host.command(2, say("go"));
    host.finish(2);
    assert!(host.said(2).iter().any(|s| matches!(s, Step::Done(d) if d.text() == "hi")));
}

#[test]
fn what_is_no_http_is_no_session_service() {
    let mut host = bare("http://192.0.2.1:22", Environment::none());
    host.script = Box::new(|_| vec![Act::Send(b"SSH-2.0-OpenSSH\r\n".to_vec())]);
    ask(&mut host, 2);
    assert_eq!(host.error(2).kind(), ErrorKind::NotBroca);
}
