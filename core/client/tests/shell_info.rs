//! How a session stands, what is kept with it, and the sessions of a client, through both shells.
#![cfg(all(feature = "tokio", feature = "blocking"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod scripted_service;

use broca::proto::session::info::{SessionInfo, SessionState, TurnStatus};
use broca::{Error, ErrorKind, Json};
use scripted_service::{Answer, Asked, Service};
use std::time::Duration;

const JSON: &str = "application/json";

/// A session that stands as this says, with a version and a number that is kept with it.
fn standing(id: &str, version: u64, n: u64) -> String {
    format!(
        r#"{{"session_id":"{id}","state":"open","created_at":"a","updated_at":"b","created_by":"key_1","drivers":["key_1"],
           "turn":{{"status":"paused","owner":"key_1","expires_in_ms":5,"waiting":2}},"metadata":{{"n":{n}}},
           "metadata_version":{version},"events":7,"last_event_id":"evt_7","mood":"fine"}}"#
    )
}

fn script(asked: &Asked, answer: &mut Answer<'_>) {
    match asked.line.as_str() {
        "GET /api/v1/sessions/ses_1" => answer.respond("200 OK", JSON, &standing("ses_1", 3, 1)),
        "PATCH /api/v1/sessions/ses_1" if asked.body.contains("\"version\":2") => {
            let problem =
                r#"{"type":"version_conflict","title":"Conflict","status":409,"detail":"3"}"#;
            answer.respond("409 Conflict", JSON, problem);
        }
        "PATCH /api/v1/sessions/ses_1" => answer.respond("200 OK", JSON, &standing("ses_1", 4, 2)),
        "GET /api/v1/sessions?limit=2" => {
            let items = format!("{},{}", standing("ses_3", 0, 3), standing("ses_2", 0, 2));
            let page = format!(r#"{{"items":[{items}],"next_cursor":"ses_2"}}"#);
            answer.respond("200 OK", JSON, &page);
        }
        "GET /api/v1/sessions?cursor=ses_2&limit=2" => {
            let page = format!(r#"{{"items":[{}],"next_cursor":null}}"#, standing("ses_1", 3, 1));
            answer.respond("200 OK", JSON, &page);
        }
        _ => {}
    }
}

fn service() -> Service {
    Service::with("metadata", None, "127.0.0.1:0", script)
}

fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).unwrap()
}

fn is_as_it_stands(info: &SessionInfo) {
    assert_eq!((info.session_id.as_str(), &info.state), ("ses_1", &SessionState::Open));
    assert_eq!((&info.turn.status, info.turn.waiting), (&TurnStatus::Paused, 2));
    assert_eq!((info.metadata.as_str(), info.metadata_version), (r#"{"n":1}"#, 3));
    assert_eq!(info.last_event_id.as_ref().map(|id| id.as_str()), Some("evt_7"));
}

fn was_refused(late: &Error) {
    assert_eq!(late.kind(), ErrorKind::Api);
    let kind = late.details().unwrap().member("type").unwrap().to_text();
    assert_eq!(kind.as_deref(), Some("version_conflict"));
}

fn was_asked_for(service: &Service) {
    let opened = service.requests().into_iter().find(|r| r.line == "POST /api/v1/sessions");
    let opened = opened.unwrap();
    assert!(opened.body.contains(r#""metadata":{"title":"a"}"#), "{}", opened.body);
    assert!(opened.head.to_ascii_lowercase().contains("broca-features: metadata"));
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limited = async { tokio::time::timeout(Duration::from_secs(60), test).await };
    runtime.block_on(limited).expect("the test hangs")
}

#[test]
fn the_shell_on_tokio_tells_how_sessions_stand_and_changes_what_is_kept_with_them() {
    let service = service();
    run(async {
        let client = broca::tokio::Client::new(service.url(), "bae_key").unwrap();
        let session = client.open().metadata(json(r#"{"title":"a"}"#)).await.unwrap();
        is_as_it_stands(&session.info().await.unwrap());
        was_refused(&session.update(json("{}"), Some(2)).await.unwrap_err());
        let changed = session.update(json(r#"{"n":2}"#), Some(3)).await.unwrap();
        assert_eq!((changed.metadata.as_str(), changed.metadata_version), (r#"{"n":2}"#, 4));
        let mut sessions = client.sessions().unwrap().page_size(2);
        let mut ids = Vec::new();
        while let Some(info) = sessions.next().await {
            ids.push(info.unwrap().session_id.to_string());
        }
        assert_eq!(ids, ["ses_3", "ses_2", "ses_1"]);
        let joining = client.join("ses_1").metadata(json("{}")).await.unwrap_err();
        assert_eq!(joining.kind(), ErrorKind::Usage);
    });
    was_asked_for(&service);
}

#[test]
fn the_blocking_shell_does_the_same() {
    let service = service();
    let client = broca::blocking::Client::new(service.url(), "bae_key").unwrap();
    let session = client.open().metadata(json(r#"{"title":"a"}"#)).start().unwrap();
    is_as_it_stands(&session.info().unwrap());
    was_refused(&session.update(json("{}"), Some(2)).unwrap_err());
    let changed = session.update(json(r#"{"n":2}"#), None).unwrap();
    assert_eq!((changed.metadata.as_str(), changed.metadata_version), (r#"{"n":2}"#, 4));
    let sessions = client.sessions().unwrap().page_size(2);
    let ids: Vec<String> = sessions.map(|info| info.unwrap().session_id.to_string()).collect();
    assert_eq!(ids, ["ses_3", "ses_2", "ses_1"]);
    was_asked_for(&service);
}

#[test]
fn a_plain_service_is_named_as_one_that_does_not_offer_it() {
    let plain = Service::start(|_, _| {});
    let client = broca::blocking::Client::new(plain.url(), "bae_key").unwrap();
    let session = client.open().start().unwrap();
    let refused = [
        session.info().unwrap_err(),
        session.update(json("{}"), None).unwrap_err(),
        client.open().metadata(json("{}")).start().unwrap_err(),
        client.sessions().unwrap().next().unwrap().unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::NotOffered), "{refused:?}");
}
