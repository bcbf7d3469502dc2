//! What the client promises where the service offers nothing beyond the plain contract: one test for each guarantee.
#![cfg(feature = "blocking")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod plain_service;
mod scripted_service;

use broca::blocking::{Client, Next, Session, Subscription, Turn};
use broca::engine::{Config, Lost};
use broca::proto::session::ids::Cursor;
use broca::proto::session::turn::ToolOutcome;
use broca::steps::{Decision, Step};
use broca::tools::{NoArguments, Tool, ToolContext};
use broca::{Error, ErrorKind, Retry};
use plain_service::Plain;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LONG: Option<Duration> = Some(Duration::from_secs(30));

fn effect(run: impl Fn(ToolContext) -> Result<String, String> + Send + Sync + 'static) -> Tool {
    Tool::blocking_with_context("effect", "Has an effect.", move |_: NoArguments, context| {
        run(context)
    })
}

fn client(plain: &Plain, change: impl FnOnce(&mut Config)) -> Client {
    let builder = Client::builder(plain.service.url(), "bae_secret");
    builder
        .configure(|config| config.reconnect.max_delay_ms = 50)
        .configure(change)
        .build()
        .unwrap()
}

fn open(plain: &Plain, tool: Tool, change: impl FnOnce(&mut Config)) -> Session {
    client(plain, change).open().tool(tool).start().unwrap()
}

/// A session whose tool answers at once.
fn simple(plain: &Plain) -> Session {
    open(plain, effect(|_| Ok("it was done".to_owned())), |_| {})
}

fn next(turn: &mut Turn) -> Option<Result<Step, Error>> {
    match turn.next(LONG) {
        Ok(Next::Step(step)) => Some(Ok(step)),
        Ok(Next::Finished) => None,
        Ok(Next::TimedOut) => panic!("the turn hangs"),
        Err(error) => Some(Err(error)),
    }
}

fn outcome(turn: &mut Turn) -> Result<String, Error> {
    let mut text = None;
    while let Some(step) = next(turn) {
        if let Step::Done(reply) = step? {
            text = Some(reply.text());
        }
    }
    Ok(text.unwrap())
}

fn until_event(turn: &mut Turn) {
    while !matches!(next(turn).unwrap().unwrap(), Step::Event(_)) {}
}

fn results(content: &Value) -> Vec<(String, bool)> {
    let blocks = content.as_array().unwrap().iter().filter(|block| block["type"] == "tool_result");
    blocks.map(|b| (b["content"].as_str().unwrap().to_owned(), b["is_error"] == true)).collect()
}

/// Events until this many came, gaps apart.
fn seen(subscription: &mut Subscription, count: usize) -> (Vec<String>, Vec<Lost>) {
    let (mut ids, mut gaps) = (Vec::new(), Vec::new());
    while ids.len() < count {
        match subscription.next(LONG).unwrap() {
            Next::Step(Step::Event(event)) => ids.push(event.id().to_owned()),
            Next::Step(Step::Gap(gap)) => gaps.push(gap.lost),
            Next::Step(_) => {}
            Next::Finished => break,
            Next::TimedOut => panic!("the subscription hangs after {ids:?}"),
        }
    }
    (ids, gaps)
}

#[test]
fn guarantee_1_every_call_has_one_result_or_the_session_would_be_lost() {
    let plain = Plain::start();
    let calls = AtomicUsize::new(0);
    let tool = effect(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => panic!("a tool that panics"),
        _ => Err("a tool that fails".to_owned()),
    });
    let session = open(&plain, tool.sequential(), |_| {});
    assert_eq!(session.ask("two tools").unwrap().text(), "done");
    let found = results(&plain.said()[1]);
    assert!(found.len() == 2 && found.iter().all(|(_, failed)| *failed), "{found:?}");
    // A tool that nobody has is answered, too.
    let none = client(&plain, |_| {}).join("ses_1").start().unwrap();
    assert_eq!(none.ask("tool").unwrap().text(), "done");
    assert_eq!(plain.state().state, "open");
}

#[test]
fn guarantee_2_calls_run_at_once_with_keys_of_their_own() {
    let plain = Plain::start();
    let keys = Arc::new(Mutex::new(Vec::new()));
    let both = Arc::new(std::sync::Barrier::new(2));
    let told = Arc::clone(&keys);
    let tool = effect(move |context| {
        both.wait();
        told.lock().unwrap().push(context.idempotency_key().to_owned());
        Ok("done".to_owned())
    });
    assert_eq!(open(&plain, tool, |_| {}).ask("two tools").unwrap().text(), "done");
    let keys = keys.lock().unwrap();
    assert!(keys.len() == 2 && keys[0] != keys[1], "{keys:?}");
}

#[test]
fn guarantee_3_results_leave_before_the_services_time_is_over_which_nothing_renews() {
    let plain = Plain::start();
    let tool = effect(|context| {
        assert!(context.cancel_signal().wait(Duration::from_secs(30)));
        Ok("too late".to_owned())
    });
    let session = open(&plain, tool, |config| config.calls.pause_ms = 1_000);
    let mut settled = None;
    let mut turn = session.send("tool");
    while let Some(step) = next(&mut turn) {
        if let Step::ToolSettled { outcome, .. } = step.unwrap() {
            settled = Some(outcome);
        }
    }
    assert_eq!(settled, Some(ToolOutcome::TimedOutMayHaveRun));
    assert!(results(&plain.said()[1])[0].1);
    assert!(plain.service.calls("session.hold").is_empty());
}

#[test]
fn guarantee_4_a_message_leaves_once_and_a_restart_that_refused_it_is_no_reason_to_fail() {
    let plain = Plain::start();
    let session = open(&plain, effect(|_| Ok(String::new())), |c| c.recovery_timeout_ms = 300);
    let error = outcome(&mut session.send("cut")).unwrap_err();
    assert_eq!(error.retry(), Retry::Unknown, "{error}");
    assert_eq!(plain.service.calls("session.sendMessage").len(), 1);
    plain.restart();
    // -32001 comes before any effect: register again, then send again.
    assert_eq!(session.ask("hi").unwrap().text(), "hello");
    assert_eq!(plain.said(), [json!("cut"), json!("hi")]);
    assert_eq!(plain.service.calls("session.registerDriver").len(), 2);
}

#[test]
fn guarantee_5_results_of_a_cancelled_turn_lead_the_next_message() {
    let plain = Plain::start();
    let tool = effect(|context| {
        assert!(context.cancel_signal().wait(Duration::from_secs(30)));
        Ok("stopped in time".to_owned())
    });
    let session = open(&plain, tool, |_| {});
    let mut turn = session.send("tool");
    while !matches!(next(&mut turn).unwrap().unwrap(), Step::ToolCall(_)) {}
    turn.cancel().unwrap();
    assert_eq!(plain.service.calls("session.sendMessage").len(), 1, "no round is bought");
    assert_eq!(session.ask("go on").unwrap().text(), "hello");
    let led = &plain.said()[1];
    assert_eq!(results(led), [("stopped in time".to_owned(), false)]);
    assert_eq!(led[1]["text"], "go on");
    assert!(plain.service.calls("session.cancel").is_empty());
    assert_eq!(plain.state().state, "open");
}

#[test]
fn guarantee_6_events_come_while_the_stream_runs() {
    let plain = Plain::start();
    let session = simple(&plain);
    let mut turn = session.send("slow");
    // Nothing more is written before the test says so.
    until_event(&mut turn);
    plain.go();
    assert_eq!(outcome(&mut turn).unwrap(), "hello");
}

#[test]
fn guarantee_7_the_log_has_the_outcome_of_a_cut_turn_or_it_is_said_to_be_unknown() {
    let plain = Plain::start();
    let session = open(&plain, effect(|_| Ok(String::new())), |c| c.recovery_timeout_ms = 500);
    assert_eq!(outcome(&mut session.send("unread")).unwrap(), "hello");
    // The turn of a caller that lags is dropped with its stream, and nothing tells so.
    let error = outcome(&mut session.send("lag")).unwrap_err();
    assert!(error.is(ErrorKind::Lagged) && error.retry() == Retry::Unknown, "{error}");
    assert_eq!(session.ask("hi").unwrap().text(), "hello");
    assert_eq!(plain.service.calls("session.sendMessage").len(), 3);
}

#[test]
fn guarantee_8_a_subscription_sees_each_event_once_over_lag_restart_and_a_close_that_nobody_is_told()
 {
    let plain = Plain::start();
    let session = simple(&plain);
    let observer = client(&plain, |_| {}).observe("ses_1").start().unwrap();
    let mut subscription = observer.subscribe_from(Cursor::start());
    session.ask("one").unwrap();
    let mut got = seen(&mut subscription, 4).0;
    plain.state().lags = 2;
    session.ask("two").unwrap();
    got.extend(seen(&mut subscription, 3).0);
    plain.restart();
    // The driver comes back, on a connection of its own.
    let session = client(&plain, |_| {}).join("ses_1").start().unwrap();
    session.ask("three").unwrap();
    session.close().unwrap();
    let (rest, gaps) = seen(&mut subscription, usize::MAX);
    got.extend(rest);
    assert_eq!(got, plain.ids());
    assert!(gaps.is_empty(), "{gaps:?}");
    // Where the session is closed already, the service leaves the stream open for ever; the client does not.
    let mut late = observer.subscribe_from(Cursor::start());
    assert_eq!(seen(&mut late, usize::MAX).0, plain.ids());
}

#[test]
fn guarantee_8_a_cursor_that_the_service_does_not_know_is_a_gap_and_everything_from_the_start() {
    let plain = Plain::start();
    let session = simple(&plain);
    session.ask("one").unwrap();
    let observer = client(&plain, |_| {}).observe("ses_1").start().unwrap();
    let all = plain.ids();
    let mut subscription = observer.subscribe_from(Cursor::after("evt_foreign".into()));
    let (got, gaps) = seen(&mut subscription, all.len());
    assert_eq!(got, all);
    assert!(matches!(gaps[..], [Lost::Cursor(_)]), "{gaps:?}");
}

#[test]
fn guarantee_9_what_is_not_known_is_data() {
    let plain = Plain::start();
    let session = simple(&plain);
    let mut turn = session.send("novel");
    let steps: Vec<Step> = (&mut turn).into_iter().map(Result::unwrap).collect();
    let novel = |step: &Step| match step {
        Step::Event(event) if event.type_name() == "session.novelty" => Some(event.payload()),
        _ => None,
    };
    let payload = steps.iter().find_map(novel).expect("the event is shown");
    assert_eq!(payload.as_str(), r#"{"of":"tomorrow"}"#);
}

#[test]
fn guarantee_10_a_call_that_was_denied_never_runs() {
    let plain = Plain::start();
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&ran);
    let tool = effect(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(String::new())
    });
    let opening = client(&plain, |_| {}).open().tool(tool.approval());
    let session = opening.on_approval(|_| Decision::Deny("not today".to_owned())).start().unwrap();
    assert_eq!(session.ask("tool").unwrap().text(), "done");
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    let (text, failed) = &results(&plain.said()[1])[0];
    assert!(*failed && text.contains("not today"), "{text}");
}

#[test]
fn guarantee_11_a_pause_is_taken_up_and_one_that_a_restart_forgot_leaves_a_usable_session() {
    let left = |plain: &Plain| {
        let session = open(plain, effect(|c| Ok(c.tool_use_id().to_owned())).approval(), |_| {});
        let mut turn = session.send("tool");
        while !matches!(next(&mut turn).unwrap().unwrap(), Step::Approval(_)) {}
        let saved = session.save().unwrap();
        // A program that is killed says nothing more.
        std::mem::forget((turn, session));
        saved
    };
    let taken_up = |plain: &Plain, saved| {
        let flagged = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&flagged);
        let tool = effect(move |context| {
            counted.fetch_add(usize::from(context.may_have_run()), Ordering::SeqCst);
            Ok("the second program's".to_owned())
        });
        let attaching = client(plain, |c| c.recovery_timeout_ms = 300).attach(saved).tool(tool);
        let session = attaching.start().unwrap();
        let outcome = outcome(&mut session.resume().unwrap());
        (session, outcome, flagged.load(Ordering::SeqCst))
    };
    let plain = Plain::start();
    let (_, outcome, flagged) = taken_up(&plain, left(&plain));
    assert_eq!((outcome.unwrap().as_str(), flagged), ("done", 1));

    let plain = Plain::start();
    let saved = left(&plain);
    plain.restart();
    let (session, outcome, _) = taken_up(&plain, saved);
    assert!(outcome.is_err(), "the service has no pause any more");
    assert_eq!(session.ask("hi").unwrap().text(), "hello");
    assert_eq!(plain.state().state, "open");
}

#[test]
fn guarantee_12_a_turn_that_is_left_is_cancelled_and_the_next_one_starts() {
    let plain = Plain::start();
    let tool = effect(|context| {
        assert!(context.cancel_signal().wait(Duration::from_secs(30)));
        Err("stopped".to_owned())
    });
    let session = open(&plain, tool, |_| {});
    let mut turn = session.send("tool");
    while !matches!(next(&mut turn).unwrap().unwrap(), Step::ToolCall(_)) {}
    drop(turn);
    assert_eq!(session.ask("hi").unwrap().text(), "hello");
    assert_eq!(results(&plain.said()[1]).len(), 1);
    assert_eq!(plain.state().state, "open");
}

#[test]
fn guarantee_13_junk_in_a_stream_is_reported_and_does_no_harm() {
    let plain = Plain::start();
    let session = simple(&plain);
    let mut turn = session.send("junk");
    let steps: Vec<Step> = (&mut turn).into_iter().map(Result::unwrap).collect();
    assert!(steps.iter().any(|step| matches!(step, Step::Warning(_))));
    assert!(steps.iter().any(|step| matches!(step, Step::Notification { .. })));
    assert!(matches!(steps.last(), Some(Step::Done(_))));
}

#[test]
fn guarantee_14_neither_keys_nor_words_are_in_errors_and_records() {
    let plain = Plain::start();
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&told);
    let builder = Client::builder(plain.service.url(), "bae_secret")
        .configure(|config| config.recovery_timeout_ms = 300)
        .log(move |record| log.lock().unwrap().push(format!("{record:?}")));
    let client: Client = builder.build().unwrap();
    let session = client.open().start().unwrap();
    for words in ["cut pLaNtEd", "lag pLaNtEd", "junk pLaNtEd"] {
        let mut turn = session.send(words);
        while let Some(step) = next(&mut turn) {
            if let Err(error) = step {
                told.lock().unwrap().push(format!("{error} {error:?}"));
            }
        }
    }
    told.lock().unwrap().push(format!("{client:?} {session:?} {:?}", session.save().unwrap()));
    let told = told.lock().unwrap().join("\n");
    for secret in ["bae_secret", "bae_ses_1", "pLaNtEd"] {
        assert!(!told.contains(secret), "{secret} is in {told}");
    }
    assert!(told.contains("lagged"), "{told}");
}
