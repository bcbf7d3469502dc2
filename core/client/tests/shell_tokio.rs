//! The tokio shell against a scripted service on real sockets.
#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod scripted_service;

use broca::engine::DeltaKind;
use broca::proto::session::ids::Cursor;
use broca::steps::{Decision, Step};
use broca::tokio::{Client, Session, Turn};
use broca::tools::{NoArguments, Tool};
use broca::{Error, ErrorKind, Json};
use futures_util::StreamExt;
use scripted_service::{Service, busy_ms, calling, endless, results, three_at_a_time};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct ReadFile {
    path: String,
}

fn read_file() -> Tool {
    Tool::function("read_file", "Return the text of a file.", |args: ReadFile| async move {
        Ok::<_, Error>(format!("text of {}", args.path))
    })
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("the test hangs")
    })
}

async fn open(service: &Service, tools: Vec<Tool>) -> Session {
    let client = Client::new(service.url(), "bae_key").unwrap();
    client.open().tools(tools).await.unwrap()
}

async fn steps(turn: &mut Turn) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some(step) = turn.next().await {
        steps.push(step.unwrap());
    }
    steps
}

async fn failure(turn: &mut Turn) -> Error {
    while let Some(step) = turn.next().await {
        if let Err(error) = step {
            assert!(turn.next().await.is_none(), "nothing follows an error");
            return error;
        }
    }
    panic!("the turn did not fail");
}

#[test]
fn a_turn_calls_a_tool_and_replies() {
    let service = Service::start(calling(&[("tu_1", "read_file", r#"{"path":"main.py"}"#)]));
    run(async {
        let session = open(&service, vec![read_file()]).await;
        assert_eq!(session.id().as_str(), "ses_1");
        let mut turn = session.send("What is in main.py?");
        let steps = steps(&mut turn).await;
        let call = steps.iter().find_map(|step| match step {
            Step::ToolCall(call) => Some(call),
            _ => None,
        });
        assert!(call.unwrap().runs_itself());
        assert_eq!(call.unwrap().name, "read_file");
        let Some(Step::Done(reply)) = steps.last() else { panic!("{steps:?}") };
        assert_eq!((reply.text().as_str(), reply.rounds), ("done", 2));
        assert_eq!(session.ask("Thanks").await.unwrap().text(), "done");
        session.close().await.unwrap();
    });
    let expected = ("tu_1".to_owned(), "text of main.py".to_owned(), false);
    assert_eq!(results(&service), [expected]);
    let opened = service.requests().into_iter().find(|r| r.line == "POST /api/v1/sessions");
    assert!(opened.unwrap().body.contains(r#""required":["path"]"#));
}

#[test]
fn events_arrive_while_the_stream_is_open() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let service = Service::start(move |asked, answer| {
        if asked.is("session.sendMessage") {
            answer.event("provider.request", "{}");
            wait.lock().unwrap().recv().unwrap();
            answer.says("now");
        }
    });
    run(async {
        let session = open(&service, vec![]).await;
        let mut turn = session.send("hi");
        loop {
            if let Step::Event(event) = turn.next().await.unwrap().unwrap() {
                assert_eq!(event.type_name(), "provider.request");
                break;
            }
        }
        go.send(()).unwrap();
        assert!(matches!(steps(&mut turn).await.last(), Some(Step::Done(_))));
    });
}

#[test]
fn parallel_calls_run_together_and_their_results_keep_the_order() {
    let service = Service::start(calling(&[
        ("tu_1", "meet", "{}"),
        ("tu_2", "meet", "{}"),
        ("tu_3", "read_file", r#"{"path":"a"}"#),
    ]));
    let barrier = Arc::new(tokio::sync::Barrier::new(2));
    let meet = Tool::function("meet", "", move |_: NoArguments| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok::<_, String>("met")
        }
    });
    run(async {
        let session = open(&service, vec![meet, read_file()]).await;
        assert_eq!(session.ask("go").await.unwrap().text(), "done");
    });
    let ids: Vec<_> = results(&service).into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, ["tu_1", "tu_2", "tu_3"]);
}

#[test]
fn tools_that_fail_panic_or_hang_become_failed_results() {
    let service = Service::start(calling(&[
        ("tu_1", "fails", "{}"),
        ("tu_2", "panics", "{}"),
        ("tu_3", "hangs", "{}"),
        ("tu_4", "read_file", r#"{"path":7}"#),
        ("tu_5", "blocks", "{}"),
        ("tu_6", "unheard_of", "{}"),
    ]));
    let cancelled = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&cancelled);
    let tools = vec![
        Tool::function("fails", "", |_: NoArguments| async { Err::<(), _>("no such table") }),
        Tool::function("panics", "", |_: NoArguments| async {
            assert!(std::env::args().count() > 1_000, "it does");
            Ok::<_, String>("")
        }),
        Tool::function_with_context("hangs", "", move |_: NoArguments, context| {
            let seen = Arc::clone(&seen);
            async move {
                context.cancelled().await;
                seen.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
                Ok::<_, String>("")
            }
        })
        .timeout(Duration::from_millis(200)),
        read_file(),
        Tool::blocking("blocks", "", |_: NoArguments| Ok::<_, String>(vec![1, 2])),
    ];
    run(async {
        let session = open(&service, tools).await;
        assert_eq!(session.ask("go").await.unwrap().text(), "done");
    });
    let results = results(&service);
    assert_eq!(results[0].1, "no such table");
    assert_eq!(results[1].1, "the tool panicked");
    assert!(results[2].1.contains("did not finish in time"), "{results:?}");
    assert!(results[3].1.contains("`path`"), "{results:?}");
    assert_eq!(results[4].1, "[1,2]");
    assert!(results[5].1.contains("unheard_of"), "{results:?}");
    let failed: Vec<_> = results.iter().map(|(.., failed)| *failed).collect();
    assert_eq!(failed, [true, true, true, true, false, true]);
    assert_eq!(cancelled.load(Ordering::SeqCst), 1, "the tool was told to stop");
}

#[test]
fn a_manual_tool_is_answered_by_the_program() {
    let service = Service::start(calling(&[("tu_1", "ask_human", r#"{"q":1}"#)]));
    let schema = Json::parse(r#"{"type":"object"}"#.to_owned()).unwrap();
    run(async {
        let session = open(&service, vec![Tool::manual("ask_human", "", schema)]).await;
        let mut turn = session.send("go");
        while let Some(step) = turn.next().await {
            if let Step::ToolCall(call) = step.unwrap() {
                assert!(!call.runs_itself());
                assert_eq!(call.input.as_str(), r#"{"q":1}"#);
                call.complete("forty-two").unwrap();
            }
        }
    });
    assert_eq!(results(&service)[0].1, "forty-two");
}

#[test]
fn approvals_are_asked_for_and_without_anybody_to_ask_denied() {
    let script = || calling(&[("tu_1", "read_file", r#"{"path":"a"}"#)]);
    let allowed = Service::start(script());
    run(async {
        let session = open(&allowed, vec![read_file().approval()]).await;
        let mut turn = session.send("go");
        while let Some(step) = turn.next().await {
            if let Step::Approval(call) = step.unwrap() {
                call.allow().unwrap();
            }
        }
    });
    assert_eq!(results(&allowed)[0].1, "text of a");

    let unasked = Service::start(script());
    run(async {
        let session = open(&unasked, vec![read_file().approval()]).await;
        session.ask("go").await.unwrap();
    });
    assert!(results(&unasked)[0].1.contains("nobody to ask"), "{:?}", results(&unasked));

    let decided = Service::start(script());
    run(async {
        let client = Client::new(decided.url(), "bae_key").unwrap();
        let session = client
            .open()
            .tool(read_file().approval())
            .on_approval(|call| async move { Decision::Deny(format!("not {}", call.name)) })
            .await
            .unwrap();
        session.ask("go").await.unwrap();
    });
    assert!(results(&decided)[0].1.contains("not read_file"), "{:?}", results(&decided));
}

#[test]
fn hooks_change_what_is_sent_and_see_what_comes() {
    let service = Service::start(|_, _| {});
    let received = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&received);
    run(async {
        let client = Client::new(service.url(), "bae_key").unwrap();
        let session = client
            .open()
            .on_sending(|mut sending| async move {
                if sending.message.text() == "secret" {
                    return Err("that is a secret");
                }
                sending.message = broca::proto::session::content::Message::user("changed");
                Ok(sending)
            })
            .on_received(move |_| {
                seen.fetch_add(1, Ordering::SeqCst);
            })
            .await
            .unwrap();
        session.ask("original").await.unwrap();
        let refused = session.ask("secret").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Hook);
        assert!(refused.message().contains("that is a secret"), "{refused}");
    });
    let sent = service.calls("session.sendMessage");
    assert_eq!(sent.len(), 1);
    assert!(sent[0].body.contains("changed") && !sent[0].body.contains("original"));
    assert_eq!(received.load(Ordering::SeqCst), 1);
}

async fn until_streaming(turn: &mut Turn) {
    while !matches!(turn.next().await.unwrap().unwrap(), Step::Event(_)) {}
}

#[test]
fn cancel_on_a_plain_service_leaves_the_stream_and_the_next_turn_starts() {
    let (script, end) = endless();
    let service = Service::start(script);
    run(async {
        let session = open(&service, vec![]).await;
        let mut turn = session.send("endless");
        until_streaming(&mut turn).await;
        turn.cancel().await.unwrap();
        assert_eq!(session.ask("again").await.unwrap().text(), "hello");
    });
    assert_eq!(end.recv_timeout(Duration::from_secs(30)), Ok("gone"));
    assert!(service.calls("session.cancel").is_empty());
}

#[test]
fn cancel_on_a_service_that_can_is_asked_for() {
    let (script, end) = endless();
    let service = Service::with("cancel", None, "127.0.0.1:0", script);
    run(async {
        let session = open(&service, vec![]).await;
        let mut turn = session.send("endless");
        until_streaming(&mut turn).await;
        let canceller = turn.canceller();
        canceller.cancel();
        canceller.cancel();
        assert_eq!(failure(&mut turn).await.kind(), ErrorKind::Cancelled);
        assert_eq!(session.ask("again").await.unwrap().text(), "hello");
    });
    assert_eq!(end.recv_timeout(Duration::from_secs(30)), Ok("cancelled"));
    assert_eq!(service.calls("session.cancel").len(), 1);
}

#[test]
fn a_tool_that_ignores_its_signal_is_abandoned() {
    let service = Service::start(calling(&[("tu_1", "stubborn", "{}")]));
    let stubborn = Tool::function("stubborn", "", |_: NoArguments| async {
        std::future::pending::<()>().await;
        Ok::<_, String>("")
    });
    run(async {
        let client = Client::builder(service.url(), "bae_key")
            .configure(|config| config.calls.cancel_grace_ms = 50)
            .build()
            .unwrap();
        let session = client.open().tool(stubborn).await.unwrap();
        let mut turn = session.send("go");
        while !matches!(turn.next().await.unwrap().unwrap(), Step::ToolCall(_)) {}
        turn.cancel().await.unwrap();
    });
}

#[test]
fn a_dropped_turn_is_cancelled() {
    let (script, end) = endless();
    let service = Service::with("cancel", None, "127.0.0.1:0", script);
    run(async {
        let session = open(&service, vec![]).await;
        let mut turn = session.send("endless");
        until_streaming(&mut turn).await;
        drop(turn);
        assert_eq!(session.ask("again").await.unwrap().text(), "hello");
    });
    assert_eq!(end.recv_timeout(Duration::from_secs(30)), Ok("cancelled"));
}

#[test]
fn a_dropped_session_still_cancels_its_turn_and_then_its_task_ends() {
    let (script, end) = endless();
    let service = Service::with("cancel", None, "127.0.0.1:0", script);
    run(async {
        let session = open(&service, vec![]).await;
        let mut turn = session.send("endless");
        until_streaming(&mut turn).await;
        drop((session, turn));
        let metrics = tokio::runtime::Handle::current().metrics();
        while metrics.num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!(end.recv_timeout(Duration::from_secs(30)), Ok("cancelled"));
}

#[test]
fn a_service_that_goes_away_in_mid_stream_is_an_unknown_outcome() {
    let service = Service::start(|asked, answer| {
        if asked.is("session.sendMessage") {
            answer.event("provider.request", "{}");
            answer.cut();
        } else if asked.is("session.subscribe") {
            answer.error(-32601, "Method not found");
        }
    });
    let error = run(async {
        let session = open(&service, vec![]).await;
        failure(&mut session.send("hi")).await
    });
    assert_eq!(error.kind(), ErrorKind::StreamEndedEarly, "{error}");
    assert_eq!(error.retry(), broca::Retry::Unknown);
}

#[test]
fn a_page_instead_of_a_service_is_named_as_such() {
    let service = Service::start(|_, answer| {
        answer.respond("200 OK", "text/html", "<html><body>It works!</body></html>");
    });
    let error =
        run(async { Client::new(service.url(), "bae_key").unwrap().open().await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::NotBroca, "{error}");
}

#[test]
fn a_port_where_nobody_listens_is_a_connect_error() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = run(async {
        Client::new(format!("http://{free}"), "bae_key").unwrap().open().await.unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
    assert!(error.message().contains("refused"), "{error}");
}

#[test]
fn an_early_answer_to_a_body_still_being_written_is_read() {
    let service = Service::start(|_, _| {});
    let error = run(async {
        let session = open(&service, vec![]).await;
        failure(&mut session.send("x".repeat(8 * 1024 * 1024))).await
    });
    assert!(error.message().contains("413"), "{error}");
}

#[test]
fn a_line_over_the_limit_is_a_gap_and_the_turn_goes_on() {
    let service = Service::start(|asked, answer| {
        if asked.is("session.sendMessage") {
            answer.line(&"x".repeat(40 * 1024 * 1024));
            answer.says("still here");
        }
    });
    run(async {
        let session = open(&service, vec![]).await;
        let steps = steps(&mut session.send("hi")).await;
        let gap = steps.iter().any(|step| matches!(step, Step::Gap(_)));
        assert!(gap, "{steps:?}");
        let Some(Step::Done(reply)) = steps.last() else { panic!("{steps:?}") };
        assert_eq!(reply.text(), "still here");
    });
}

#[test]
fn a_subscription_goes_on_after_the_service_restarts() {
    let service = Service::start(three_at_a_time);
    let at = service.addr().to_string();
    run(async {
        let session = open(&service, vec![]).await;
        let mut watched = session.subscribe_from(Cursor::start());
        let mut ids = Vec::new();
        while ids.len() < 3 {
            if let Step::Event(event) = watched.next().await.unwrap().unwrap() {
                ids.push(event.id().to_owned());
            }
        }
        assert_eq!(watched.cursor().unwrap().to_string(), "evt_3");
        drop(service);
        let again =
            tokio::task::spawn_blocking(move || Service::with("", None, &at, three_at_a_time));
        while ids.len() < 6 {
            if let Step::Event(event) = watched.next().await.unwrap().unwrap() {
                ids.push(event.id().to_owned());
            }
        }
        assert_eq!(ids, ["evt_1", "evt_2", "evt_3", "evt_4", "evt_5", "evt_6"]);
        drop(watched);
        drop(again.await.unwrap());
    });
}

#[test]
fn deltas_are_shown_as_they_come_and_long_batches_give_others_their_turn() {
    let service = Service::with("display", None, "127.0.0.1:0", |asked, answer| {
        if asked.is("session.sendMessage") {
            for n in 0..2_000 {
                answer.line(&format!(
                    r#"{{"jsonrpc":"2.0","method":"session.display","params":{{"type":"text_delta","message_id":"m","delta":"{n} "}}}}"#
                ));
            }
            answer.says("done");
        }
    });
    run(async {
        let session = open(&service, vec![]).await;
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let other = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        });
        let mut turn = session.send("hi");
        let (mut deltas, mut most, mut streak, mut before) = (0, 0, 0, 0);
        while let Some(step) = turn.next().await {
            if let Step::Delta(delta) = step.unwrap() {
                assert_eq!(delta.kind, DeltaKind::Text);
                assert_eq!(delta.text, format!("{deltas} "));
                deltas += 1;
            }
            let now = turns.load(Ordering::SeqCst);
            streak = if now == before { streak + 1 } else { 0 };
            (most, before) = (most.max(streak), now);
        }
        other.abort();
        assert_eq!(deltas, 2_000);
        assert!(most <= 256, "{most} steps in a row without a pause");
    });
}

#[test]
fn turns_are_streams_and_run_one_after_the_other() {
    let service = Service::start(|_, _| {});
    run(async {
        let session = open(&service, vec![]).await;
        let (first, second) = (session.send("one"), session.send("two"));
        let (second, first) = tokio::join!(second.collect::<Vec<_>>(), first.collect::<Vec<_>>());
        for steps in [first, second] {
            assert!(matches!(steps.last(), Some(Ok(Step::Done(_)))), "{steps:?}");
        }
        let names = session.participants().await.unwrap().drivers;
        assert_eq!(names, ["key_1"]);
        assert_eq!(session.meta().await.unwrap().version, "0.1.0");
    });
    let sent = service.calls("session.sendMessage");
    assert!(sent[0].body.contains("one") && sent[1].body.contains("two"));
}

#[test]
fn tools_can_be_replaced_between_turns() {
    let service = Service::start(calling(&[("tu_1", "new", "{}")]));
    let new = Tool::function("new", "", |_: NoArguments| async { Ok::<_, String>("newer") });
    run(async {
        let session = open(&service, vec![read_file()]).await;
        session.update_tools([new]).await.unwrap();
        session.ask("go").await.unwrap();
    });
    assert_eq!(service.calls("session.updateClientTools").len(), 1);
    assert_eq!(results(&service)[0].1, "newer");
}

#[test]
fn the_log_is_read_page_by_page() {
    let service = Service::start(|asked, answer| {
        if let Some((_, query)) = asked.line.split_once("/events") {
            let event = |n| {
                format!(
                    r#"{{"id":"evt_{n}","session_id":"ses_1","client_key_id":null,"event_type":"x","payload":{{}},"created_at":"2030-01-01T00:00:00.000Z"}}"#
                )
            };
            let (items, next) = if query.contains("cursor=") {
                (event(3), "null".to_owned())
            } else {
                (format!("{},{}", event(1), event(2)), "\"c&2\"".to_owned())
            };
            let page = format!(r#"{{"items":[{items}],"next_cursor":{next}}}"#);
            answer.respond("200 OK", "application/json", &page);
        }
    });
    run(async {
        let session = open(&service, vec![]).await;
        let mut history = session.history().page_size(2);
        let mut ids = Vec::new();
        while let Some(event) = history.next().await {
            ids.push(event.unwrap().id().to_owned());
        }
        assert_eq!(ids, ["evt_1", "evt_2", "evt_3"]);
    });
}

#[test]
fn handles_outlive_their_runtime_with_a_clear_error() {
    let service = Service::start(|_, _| {});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (session, mut turn) = runtime.block_on(async {
        let session = open(&service, vec![]).await;
        let turn = session.send("hi");
        (session, turn)
    });
    drop(runtime);
    let error = run(async { failure(&mut turn).await });
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert_eq!(run(session.ask("hi")).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_session_works_from_other_threads_of_a_larger_runtime() {
    let service = Service::start(calling(&[("tu_1", "read_file", r#"{"path":"a"}"#)]));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut turns = Vec::new();
        for _ in 0..4 {
            let session = open(&service, vec![read_file()]).await;
            turns.push(tokio::spawn(async move {
                for _ in 0..50 {
                    assert_eq!(session.ask("go").await.unwrap().text(), "done");
                }
            }));
        }
        for turn in turns {
            tokio::time::timeout(Duration::from_secs(60), turn).await.unwrap().unwrap();
        }
    });
}

#[test]
fn without_a_runtime_opening_says_so() {
    let client = Client::new("http://127.0.0.1:1", "bae_key").unwrap();
    let mut opening = std::pin::pin!(client.open().into_future());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(outcome) = opening.as_mut().poll(&mut cx) else { panic!("waits") };
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn any_mix_of_finished_dropped_and_cancelled_turns_leaves_the_session_usable() {
    for features in ["", "cancel"] {
        let script = calling(&[("tu_1", "nap", "{}"), ("tu_2", "read_file", r#"{"path":"a"}"#)]);
        let service = Service::with(features, None, "127.0.0.1:0", script);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let nap = Tool::function("nap", "", |_: NoArguments| async {
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok::<_, String>("rested")
            });
            let session = open(&service, vec![nap, read_file()]).await;
            let mixed = (0..4_usize).map(|who| {
                let session = session.clone();
                tokio::spawn(async move {
                    for round in 0..30 {
                        let mut turn = session.send("go");
                        let taken = (who * 7 + round * 3) % 8;
                        for _ in 0..taken {
                            if turn.next().await.is_none() {
                                break;
                            }
                        }
                        match (who + round) % 3 {
                            0 => drop(turn),
                            1 => turn.cancel().await.unwrap(),
                            _ => while turn.next().await.is_some() {},
                        }
                    }
                })
            });
            let all = futures_util::future::join_all(mixed);
            for done in tokio::time::timeout(Duration::from_secs(60), all).await.unwrap() {
                done.unwrap();
            }
            let last = tokio::time::timeout(Duration::from_secs(30), session.ask("go")).await;
            assert_eq!(last.unwrap().unwrap().text(), "done");
        });
    }
}

#[test]
fn who_waits_in_vain_does_not_spin() {
    let service = Service::start(three_at_a_time);
    run(async {
        let session = open(&service, vec![]).await;
        let mut watched = session.subscribe_from(Cursor::start());
        let limit = Duration::from_millis(200);
        while tokio::time::timeout(limit, watched.next()).await.is_ok() {}
        let before = busy_ms();
        let limit = Duration::from_millis(1_500);
        assert!(tokio::time::timeout(limit, watched.next()).await.is_err());
        let busy = busy_ms() - before;
        assert!(busy < 700, "{busy} ms of work in 1.5 s of waiting");
    });
}
