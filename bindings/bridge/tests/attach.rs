//! A session goes from one program to another through the bridge, as the JSON that every language hands on.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod service;

use broca::engine::{Answer, Config, Outcome, Step};
use broca_testkit::host::Host;
use broca_testkit::subject::Bridged;
use service::{Turns, begin, until_finished};

fn host() -> Host<Turns, Bridged> {
    let config = Config::new("http://127.0.0.1:9", "a-key");
    Host::over(Bridged::new(&config).unwrap(), Turns { calls: 2 })
}

/// Runs an operation to its end and gives what it came to.
fn outcome(host: &mut Host<Turns, Bridged>, command: &str) -> Outcome {
    let op = begin(host, command);
    match until_finished(host, op).pop() {
        Some(Step::Finished(Ok(outcome))) => outcome,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_one_program_saved_another_one_takes_up() {
    let mut first = host();
    outcome(&mut first, r#"{"open":{"tools":[{"name":"t"}]}}"#);
    let turn = begin(&mut first, r#"{"send":{"message":"go"}}"#);
    let mut open = Vec::new();
    while let Some((op, step)) = first.next(first.now()) {
        if let (true, Step::ToolCall(call)) = (op == turn, step) {
            open.push(call);
        }
    }
    assert_eq!(open.len(), 2);
    first.answer(open[0].call, Answer::Complete(broca::Json::string("one"))).unwrap();
    let Outcome::Saved(saved) = outcome(&mut first, r#"{"save":{}}"#) else { panic!() };
    assert_eq!(saved.turn.as_ref().unwrap().results.len(), 1);

    let mut second = host();
    let command = format!(
        r#"{{"attach":{{"saved":{},"tools":[{{"name":"t"}}]}}}}"#,
        saved.to_json().expose()
    );
    // The log of this service in memory shows no turn, so nothing is there to be taken up.
    let Outcome::Opened { session_id, pending, .. } = outcome(&mut second, &command) else {
        panic!()
    };
    assert_eq!((session_id.as_str(), pending), ("ses_demo", false));
    let asked: Vec<String> = second
        .requests()
        .iter()
        .map(|r| r.rpc().map_or_else(|| r.path.clone(), |call| call.method))
        .collect();
    assert_eq!(asked[..3], ["/api/v1/meta", "session.registerDriver", "session.updateClientTools"]);
    assert_eq!(second.requests()[1].header("authorization"), Some("Bearer a-session-key"));
}
