//! How a session stands, what is kept with it, and the sessions of a client (feature `metadata`); and what requests have cost, as
//! the service says it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their own helpers")]

mod engine_host;

use broca::engine::{Command, Environment, Outcome, Step};
use broca::{ErrorKind, Json, Retry};
use engine_host::service::{PLAIN, event, json, pause, problem, result, say, stream, tool};
use engine_host::{Act, CLIENT_KEY, Host, Request, SESSION_KEY, config};

const METADATA: &[&str] = &["metadata"];

fn object(text: &str) -> Json {
    Json::parse(text.to_owned()).unwrap()
}

fn meta(features: &str) -> Vec<Act> {
    json(200, &format!(r#"{{"version":"0.1.0","api_versions":["v1"],"features":[{features}]}}"#))
}

/// What an operation has brought, raw.
fn told(host: &Host, op: u64) -> String {
    match host.outcome(op) {
        Some(Ok(Outcome::Info(json) | Outcome::Sessions(json))) => json.as_str().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_is_asked_how_it_stands_and_its_metadata_is_patched() {
    let answer = r#"{"session_id":"ses_1","metadata":{"n":1e3},"mood":"fine"}"#;
    let mut host = Host::opened(|_| (), 0, METADATA, Vec::new(), move |_| json(200, answer));
    host.command(2, Command::Info);
    let patch = object(r#"{"title":null,"n":1e3}"#);
    host.command(3, Command::Update { metadata: patch.clone(), version: Some(7) });
    host.command(4, Command::Update { metadata: patch, version: None });
    for op in [2, 3, 4] {
        host.finish(op);
        assert_eq!(told(&host, op), answer, "what nobody here knows is handed on");
    }
    let sent: Vec<(&str, &str, String)> = host
        .requests
        .iter()
        .map(|r| (r.method.as_str(), r.target.as_str(), r.body.to_string()))
        .collect();
    let body = |version: &str| format!(r#"{{"metadata":{{"title":null,"n":1000.0}}{version}}}"#);
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|(_, target, _)| target.ends_with("/api/v1/sessions/ses_1")));
    let methods: Vec<&str> = sent.iter().map(|(method, ..)| *method).collect();
    assert_eq!(methods, ["GET", "PATCH", "PATCH"]);
    let same = |sent: &str, wanted: String| {
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(sent), value(&wanted));
    };
    same(&sent[1].2, body(r#","version":7"#));
    same(&sent[2].2, body(""));
    assert!(host.requests.iter().all(|r| r.header("broca-features") == Some("metadata")));
}

#[test]
fn a_service_that_does_not_offer_it_is_asked_nothing() {
    let mut host = Host::opened(|_| (), 0, PLAIN, Vec::new(), |_| Vec::new());
    for command in
        [Command::Info, Command::Update { metadata: Json::empty_object(), version: None }]
    {
        let refused = host.try_command(2, command).unwrap_err();
        assert_eq!((refused.kind(), refused.retry()), (ErrorKind::NotOffered, Retry::Unsafe));
        assert!(refused.message().contains("\"metadata\""), "{refused}");
    }
    assert!(host.requests.is_empty());
    // Neither does one whose client does not want it.
    let change = |config: &mut broca::engine::Config| config.features.metadata = false;
    let mut host = Host::opened(change, 0, METADATA, Vec::new(), |_| Vec::new());
    assert_eq!(host.try_command(2, Command::Info).unwrap_err().kind(), ErrorKind::NotOffered);
}

#[test]
fn metadata_of_a_new_session_goes_with_its_opening_or_nothing_is_opened() {
    for (features, offered) in [("\"metadata\"", true), ("\"display\"", false)] {
        let mut host = Host::new(config(), Environment::none(), 0);
        host.script = Box::new(move |r| match r.method.as_str() {
            "GET" => meta(features),
            _ => problem(401, "unauthorized"),
        });
        let metadata = Some(object(r#"{"title":"a"}"#));
        host.command(1, Command::Open { tools: vec![tool("x")], metadata });
        host.finish(1);
        let opens: Vec<&Request> = host.requests.iter().filter(|r| r.method == "POST").collect();
        assert_eq!(opens.len(), usize::from(offered));
        let kind = host.error(1).kind();
        if let [open] = opens[..] {
            assert_eq!(kind, ErrorKind::Unauthorized);
            assert_eq!(open.header("broca-features"), Some("metadata"));
            assert_eq!(open.body["metadata"]["title"], "a");
        } else {
            assert_eq!(kind, ErrorKind::NotOffered);
        }
    }
}

#[test]
fn metadata_that_is_no_object_is_refused_before_anything_leaves() {
    let mut host = Host::new(config(), Environment::none(), 0);
    let open = Command::Open { tools: Vec::new(), metadata: Some(Json::array([])) };
    assert_eq!(host.try_command(1, open).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut host = Host::opened(|_| (), 0, METADATA, Vec::new(), |_| Vec::new());
    let update = Command::Update { metadata: Json::string("x"), version: None };
    assert_eq!(host.try_command(2, update).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(host.requests.is_empty());
}

#[test]
fn sessions_are_listed_without_one_and_with_the_key_of_the_client() {
    let mut host = Host::new(config(), Environment::none(), 0);
    host.script = Box::new(|r| {
        if r.target.ends_with("/meta") {
            return meta("\"metadata\"");
        }
        assert_eq!(r.header("authorization"), Some(format!("Bearer {CLIENT_KEY}").as_str()));
        assert_eq!(r.header("broca-features"), Some("metadata"));
        json(200, r#"{"items":[],"next_cursor":null}"#)
    });
    host.command(1, Command::Sessions { cursor: None, limit: None });
    host.finish(1);
    assert_eq!(told(&host, 1), r#"{"items":[],"next_cursor":null}"#);
    host.command(2, Command::Sessions { cursor: Some("s&x".to_owned()), limit: Some(5) });
    host.finish(2);
    let asked: Vec<String> = host
        .requests
        .iter()
        .filter_map(|r| r.target.split_once("/api/v1/sessions").map(|(_, query)| query.to_owned()))
        .collect();
    assert_eq!(asked, ["", "?cursor=s%26x&limit=5"]);
    // A plain service is asked for no list.
    host.script = Box::new(|_| meta(""));
    host.command(3, Command::Sessions { cursor: None, limit: None });
    host.finish(3);
    assert_eq!(host.error(3).kind(), ErrorKind::NotOffered);
}

#[test]
fn sessions_are_listed_beside_one_that_is_open() {
    let mut host = Host::opened(|_| (), 0, METADATA, Vec::new(), |_| Vec::new());
    host.script = Box::new(|r| match r.header("authorization") {
        None => meta("\"metadata\""),
        Some(key) => {
            assert!(!key.contains(SESSION_KEY));
            json(200, r#"{"items":[{}]}"#)
        }
    });
    host.command(2, Command::Sessions { cursor: None, limit: None });
    host.finish(2);
    assert_eq!(told(&host, 2), r#"{"items":[{}]}"#);
}

#[test]
fn what_is_refused_is_said_and_what_is_no_object_is_malformed() {
    let answers = [
        (problem(409, "version_conflict"), ErrorKind::Api),
        (problem(409, "session_closed"), ErrorKind::SessionClosed),
        (json(200, "[]"), ErrorKind::Malformed),
    ];
    for (answer, kind) in answers {
        let mut host = Host::opened(|_| (), 0, METADATA, Vec::new(), move |_| answer.clone());
        host.command(2, Command::Update { metadata: Json::empty_object(), version: Some(1) });
        host.finish(2);
        assert_eq!(host.error(2).kind(), kind);
    }
}

#[test]
fn a_session_that_was_closed_here_still_tells_and_takes_no_change() {
    let mut host = Host::opened(
        |_| (),
        0,
        METADATA,
        Vec::new(),
        |r| match r.method.as_str() {
            "DELETE" => json(200, "{}"),
            _ => json(200, r#"{"state":"closed"}"#),
        },
    );
    host.command(2, Command::Close);
    host.finish(2);
    host.command(3, Command::Info);
    host.finish(3);
    assert_eq!(told(&host, 3), r#"{"state":"closed"}"#);
    let update = Command::Update { metadata: Json::empty_object(), version: None };
    assert_eq!(host.try_command(4, update).unwrap_err().kind(), ErrorKind::Closed);
}

/// A turn of two requests, whose events say 100 and 10 tokens each, and whose results say `usages`.
fn counted(usages: [&'static str; 2]) -> Option<(u64, u64)> {
    let mut round = 0;
    let lean: &[&str] = &["lean-result"];
    let mut host = Host::opened(
        |_| (),
        0,
        lean,
        vec![tool("x")],
        move |r| {
            let usage = r#"{"ok":true,"usage":{"input_tokens":100,"output_tokens":10}}"#;
            let told = event(&format!("evt_{round}"), "provider.response", usage);
            round += 1;
            let last = if round == 1 {
                pause(r, &[("a", "x")])
                    .replace(r#""events":[]"#, &format!(r#""events":[],"lean":true{}"#, usages[0]))
            } else {
                let message = r#"{"role":"assistant","content":"done"}"#;
                result(
                    r,
                    &format!(r#"{{"message":{message},"events":[],"lean":true{}}}"#, usages[1]),
                )
            };
            stream(&[told, last])
        },
    );
    host.application = Box::new(|_, step| match step {
        Step::ToolCall(call) => {
            Some((call.call, broca::engine::Answer::Complete(Json::string("ok"))))
        }
        _ => None,
    });
    host.command(2, say("go"));
    host.finish(2);
    host.said(2).iter().find_map(|step| match step {
        Step::Done(reply) => reply.usage.map(|u| (u.input_tokens, u.output_tokens)),
        _ => None,
    })
}

#[test]
fn a_reply_counts_what_the_service_says_and_else_what_its_events_say() {
    let said = r#","usage":{"input_tokens":3,"output_tokens":2}"#;
    let unknown = r#","usage":{"input_tokens":null,"output_tokens":null}"#;
    assert_eq!(counted(["", ""]), Some((200, 20)));
    assert_eq!(counted([said, said]), Some((6, 4)));
    assert_eq!(counted([said, ""]), Some((103, 12)));
    assert_eq!(counted([unknown, said]), Some((103, 12)));
}
