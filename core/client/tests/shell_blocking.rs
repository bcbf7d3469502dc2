//! The blocking shell against a scripted service on real sockets.
#![cfg(feature = "blocking")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod scripted_service;

use broca::blocking::{Client, Next, Session, Turn};
use broca::proto::session::ids::Cursor;
use broca::steps::{Decision, Step};
use broca::tools::{NoArguments, Tool};
use broca::{Error, ErrorKind, Json};
use scripted_service::{Service, busy_ms, calling, endless, results, three_at_a_time};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct ReadFile {
    path: String,
}

fn read_file() -> Tool {
    Tool::blocking("read_file", "Return the text of a file.", |args: ReadFile| {
        Ok::<_, Error>(format!("text of {}", args.path))
    })
}

fn open(service: &Service, tools: Vec<Tool>) -> Session {
    Client::new(service.url(), "bae_key").unwrap().open().tools(tools).start().unwrap()
}

const LONG: Option<Duration> = Some(Duration::from_secs(30));

/// The next step; a turn that takes too long fails the test.
fn next(turn: &mut Turn) -> Result<Option<Step>, Error> {
    match turn.next(LONG)? {
        Next::Step(step) => Ok(Some(step)),
        Next::Finished => Ok(None),
        Next::TimedOut => panic!("the turn hangs"),
    }
}

fn failure(turn: &mut Turn) -> Error {
    loop {
        match next(turn) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the turn did not fail"),
            Err(error) => {
                assert!(next(turn).unwrap().is_none(), "nothing follows an error");
                return error;
            }
        }
    }
}

fn until_streaming(turn: &mut Turn) {
    while !matches!(next(turn).unwrap().unwrap(), Step::Event(_)) {}
}

#[test]
fn a_turn_calls_a_tool_and_replies() {
    let service = Service::start(calling(&[("tu_1", "read_file", r#"{"path":"main.py"}"#)]));
    let session = open(&service, vec![read_file()]);
    assert_eq!(session.id().as_str(), "ses_1");
    let mut turn = session.send("What is in main.py?");
    let steps: Vec<Step> = (&mut turn).into_iter().map(Result::unwrap).collect();
    assert!(steps.iter().any(|s| matches!(s, Step::ToolCall(call) if call.runs_itself())));
    let Some(Step::Done(reply)) = steps.last() else { panic!("{steps:?}") };
    assert_eq!((reply.text().as_str(), reply.rounds), ("done", 2));
    assert_eq!(session.ask("Thanks").unwrap().text(), "done");
    assert_eq!(session.participants().unwrap().drivers, ["key_1"]);
    session.close().unwrap();
    let expected = ("tu_1".to_owned(), "text of main.py".to_owned(), false);
    assert_eq!(results(&service), [expected]);
}

#[test]
fn events_arrive_while_the_stream_is_open_and_waiting_can_be_limited() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let service = Service::start(move |asked, answer| {
        if asked.is("session.sendMessage") {
            answer.event("provider.request", "{}");
            wait.lock().unwrap().recv().unwrap();
            answer.says("now");
        }
    });
    let session = open(&service, vec![]);
    let mut turn = session.send("hi");
    until_streaming(&mut turn);
    let outcome = turn.next(Some(Duration::from_millis(20))).unwrap();
    assert!(matches!(outcome, Next::TimedOut), "{outcome:?}");
    go.send(()).unwrap();
    assert_eq!(turn.reply().unwrap().text(), "now");
}

#[test]
fn parallel_calls_run_on_threads_of_their_own() {
    let service = Service::start(calling(&[("tu_1", "meet", "{}"), ("tu_2", "meet", "{}")]));
    let barrier = Arc::new(Barrier::new(2));
    let meet = Tool::blocking("meet", "", move |_: NoArguments| {
        barrier.wait();
        Ok::<_, String>("met")
    });
    assert_eq!(open(&service, vec![meet]).ask("go").unwrap().text(), "done");
    assert_eq!(results(&service).len(), 2);
}

#[test]
fn tools_that_fail_panic_or_hang_become_failed_results() {
    let service = Service::start(calling(&[
        ("tu_1", "fails", "{}"),
        ("tu_2", "panics", "{}"),
        ("tu_3", "hangs", "{}"),
        ("tu_4", "read_file", "{}"),
    ]));
    let (stopped, told) = channel();
    let tools = vec![
        Tool::blocking("fails", "", |_: NoArguments| Err::<(), _>("no such table")),
        Tool::blocking("panics", "", |_: NoArguments| {
            assert!(std::env::args().count() > 1_000, "it does");
            Ok::<_, String>("")
        }),
        Tool::blocking_with_context("hangs", "", move |_: NoArguments, context| {
            assert!(context.cancel_signal().wait(Duration::from_secs(30)));
            stopped.send(()).unwrap();
            Ok::<_, String>("too late")
        })
        .timeout(Duration::from_millis(200)),
        read_file(),
    ];
    assert_eq!(open(&service, tools).ask("go").unwrap().text(), "done");
    told.recv_timeout(Duration::from_secs(30)).unwrap();
    let results = results(&service);
    assert_eq!(results[0].1, "no such table");
    assert_eq!(results[1].1, "the tool panicked");
    assert!(results[2].1.contains("did not finish in time"), "{results:?}");
    assert!(results[3].1.contains("`path`"), "{results:?}");
    assert!(results.iter().all(|(.., failed)| *failed));
}

#[test]
fn an_async_tool_is_refused_by_name() {
    let service = Service::start(|_, _| {});
    let lazy = Tool::function("lazy", "", |_: NoArguments| async { Ok::<_, String>("") });
    let client = Client::new(service.url(), "bae_key").unwrap();
    let error = client.open().tool(lazy).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.message().contains("\"lazy\""), "{error}");
}

#[test]
fn a_manual_tool_and_an_approval_are_answered_by_the_program() {
    let service = Service::start(calling(&[
        ("tu_1", "ask_human", "{}"),
        ("tu_2", "read_file", "{\"path\":\"a\"}"),
    ]));
    let schema = Json::parse(r#"{"type":"object"}"#.to_owned()).unwrap();
    let tools = vec![Tool::manual("ask_human", "", schema), read_file().approval()];
    let session = open(&service, tools);
    let mut turn = session.send("go");
    for step in &mut turn {
        match step.unwrap() {
            Step::ToolCall(call) if !call.runs_itself() => {
                // From another thread, while this one waits in the next call.
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    call.complete("forty-two").unwrap();
                });
            }
            Step::Approval(call) => drop(call.allow().unwrap()),
            _ => {}
        }
    }
    let texts: Vec<_> = results(&service).into_iter().map(|(_, text, _)| text).collect();
    assert_eq!(texts, ["forty-two", "text of a"]);
}

#[test]
fn hooks_and_approval_handlers_are_asked() {
    let service = Service::start(calling(&[("tu_1", "read_file", r#"{"path":"a"}"#)]));
    let received = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&received);
    let session = Client::new(service.url(), "bae_key")
        .unwrap()
        .open()
        .tool(read_file().approval())
        .on_approval(|call| Decision::Deny(format!("not {}", call.name)))
        .on_sending(|sending| {
            if sending.message.text() == "secret" { Err("that is a secret") } else { Ok(sending) }
        })
        .on_received(move |_| {
            seen.fetch_add(1, Ordering::SeqCst);
        })
        .start()
        .unwrap();
    session.ask("go").unwrap();
    assert!(results(&service)[0].1.contains("not read_file"));
    assert_eq!(received.load(Ordering::SeqCst), 2);
    let refused = session.ask("secret").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Hook);
}

#[test]
fn a_turn_is_cancelled_from_another_thread() {
    for (features, ending) in [("", "gone"), ("cancel", "cancelled")] {
        let (script, end) = endless();
        let service = Service::with(features, None, "127.0.0.1:0", script);
        let session = open(&service, vec![]);
        let mut turn = session.send("endless");
        until_streaming(&mut turn);
        let canceller = turn.canceller();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            canceller.cancel();
        });
        assert_eq!(failure(&mut turn).kind(), ErrorKind::Cancelled);
        other.join().unwrap();
        assert_eq!(session.ask("again").unwrap().text(), "hello");
        assert_eq!(end.recv_timeout(Duration::from_secs(30)), Ok(ending));
    }
}

#[test]
fn a_dropped_turn_is_cancelled_before_the_drop_is_over() {
    let (script, end) = endless();
    let service = Service::with("cancel", None, "127.0.0.1:0", script);
    let session = open(&service, vec![]);
    let mut turn = session.send("endless");
    until_streaming(&mut turn);
    drop(turn);
    assert_eq!(end.try_recv(), Ok("cancelled"));
    assert_eq!(session.ask("again").unwrap().text(), "hello");
}

#[test]
fn two_threads_share_a_session_and_hand_the_leadership_over() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let service = Service::start(move |asked, answer| {
        if asked.is("session.subscribe") {
            answer.event_of("evt_a", "session.join", "{}");
            wait.lock().unwrap().recv().unwrap();
            answer.event_of("evt_b", "session.join", "{}");
            while answer.peer_is_there() {
                std::thread::sleep(Duration::from_millis(10));
            }
            answer.cut();
        }
    });
    let session = open(&service, vec![]);
    let mut watched = session.subscribe_from(Cursor::start());
    let (first, seen) = channel();
    let watcher = std::thread::spawn(move || {
        let mut ids = Vec::new();
        while ids.len() < 2 {
            match watched.next(LONG).unwrap() {
                Next::Step(Step::Event(event)) => {
                    ids.push(event.id().to_owned());
                    first.send(()).unwrap();
                }
                Next::Step(_) => {}
                other => panic!("{other:?}"),
            }
        }
        ids
    });
    seen.recv_timeout(Duration::from_secs(30)).unwrap();
    // The watcher leads; these are followers, one after the other and at once.
    for _ in 0..20 {
        assert_eq!(session.ask("hi").unwrap().text(), "hello");
    }
    let others: Vec<_> = (0..3)
        .map(|_| {
            let session = session.clone();
            std::thread::spawn(move || session.ask("hi").unwrap().text())
        })
        .collect();
    for other in others {
        assert_eq!(other.join().unwrap(), "hello");
    }
    // The leader leaves with its event; whoever waits now must take its place.
    let started = Instant::now();
    let asking = std::thread::spawn(move || (0..20).all(|_| session.ask("hi").is_ok()));
    go.send(()).unwrap();
    assert_eq!(watcher.join().unwrap(), ["evt_a", "evt_b"]);
    assert!(asking.join().unwrap());
    assert!(started.elapsed() < Duration::from_secs(15), "followers waited for their own clock");
}

#[test]
fn what_goes_wrong_has_its_name() {
    let gone = Service::start(|asked, answer| {
        if asked.is("session.sendMessage") {
            answer.event("provider.request", "{}");
            answer.cut();
        } else if asked.is("session.subscribe") {
            answer.error(-32601, "Method not found");
        }
    });
    let error = open(&gone, vec![]).ask("hi").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StreamEndedEarly, "{error}");

    let page = Service::start(|_, answer| answer.respond("200 OK", "text/html", "<html></html>"));
    let error = Client::new(page.url(), "bae_key").unwrap().open().start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotBroca, "{error}");

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    let error = Client::new(url, "bae_key").unwrap().open().start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");

    let full = Service::start(|_, _| {});
    let error = open(&full, vec![]).ask("x".repeat(8 * 1024 * 1024)).unwrap_err();
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
    let session = open(&service, vec![]);
    let mut turn = session.send("hi");
    let steps: Vec<Step> = (&mut turn).into_iter().map(Result::unwrap).collect();
    assert!(steps.iter().any(|step| matches!(step, Step::Gap(_))), "{steps:?}");
    assert!(matches!(steps.last(), Some(Step::Done(reply)) if reply.text() == "still here"));
}

#[test]
fn the_log_is_an_iterator_over_its_pages() {
    let service = Service::start(|asked, answer| {
        if let Some((_, query)) = asked.line.split_once("/events") {
            let (n, next) = if query.contains("cursor=") { (2, "null") } else { (1, "\"more\"") };
            let page = format!(
                r#"{{"items":[{{"id":"evt_{n}","event_type":"x","payload":{{}}}}],"next_cursor":{next}}}"#
            );
            answer.respond("200 OK", "application/json", &page);
        }
    });
    let history = open(&service, vec![]).history();
    let ids: Vec<_> = history.map(|event| event.unwrap().id().to_owned()).collect();
    assert_eq!(ids, ["evt_1", "evt_2"]);
}

#[test]
fn any_mix_of_finished_dropped_and_cancelled_turns_leaves_the_session_usable() {
    for features in ["", "cancel"] {
        let script = calling(&[("tu_1", "nap", "{}"), ("tu_2", "read_file", r#"{"path":"a"}"#)]);
        let service = Service::with(features, None, "127.0.0.1:0", script);
        let nap = Tool::blocking("nap", "", |_: NoArguments| {
            std::thread::sleep(Duration::from_millis(2));
            Ok::<_, String>("rested")
        });
        let session = open(&service, vec![nap, read_file()]);
        let mixed = (0..4_usize).map(|who| {
            let session = session.clone();
            std::thread::spawn(move || {
                for round in 0..30 {
                    let mut turn = session.send("go");
                    let taken = (who * 7 + round * 3) % 8;
                    for _ in 0..taken {
                        if matches!(turn.next(LONG), Ok(Next::Finished)) {
                            break;
                        }
                    }
                    match (who + round) % 3 {
                        0 => {
                            let started = Instant::now();
                            drop(turn);
                            assert!(started.elapsed() < Duration::from_secs(6), "the drop waited");
                        }
                        1 => turn.cancel().unwrap(),
                        _ => while matches!(turn.next(LONG), Ok(Next::Step(_))) {},
                    }
                }
            })
        });
        for done in mixed.collect::<Vec<_>>() {
            done.join().unwrap();
        }
        assert_eq!(session.ask("go").unwrap().text(), "done");
    }
}

#[test]
fn a_subscription_goes_on_after_the_service_restarts() {
    let service = Service::start(three_at_a_time);
    let at = service.addr().to_string();
    let session = open(&service, vec![]);
    let mut watched = session.subscribe_from(Cursor::start());
    let mut ids = Vec::new();
    let mut read = |ids: &mut Vec<String>, count| {
        while ids.len() < count {
            match watched.next(LONG).unwrap() {
                Next::Step(Step::Event(event)) => ids.push(event.id().to_owned()),
                Next::Step(_) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    read(&mut ids, 3);
    drop(service);
    let again = std::thread::spawn(move || Service::with("", None, &at, three_at_a_time));
    read(&mut ids, 6);
    assert_eq!(ids, ["evt_1", "evt_2", "evt_3", "evt_4", "evt_5", "evt_6"]);
    assert_eq!(watched.cursor().unwrap().to_string(), "evt_6");
    drop(watched);
    drop(again.join().unwrap());
}

#[test]
fn who_waits_in_vain_does_not_spin() {
    let service = Service::start(three_at_a_time);
    let session = open(&service, vec![]);
    let mut watched = session.subscribe_from(Cursor::start());
    let mut steps = 0;
    while !matches!(watched.next(Some(Duration::from_millis(200))).unwrap(), Next::TimedOut) {
        steps += 1;
    }
    assert!(steps >= 3);
    let before = busy_ms();
    let outcome = watched.next(Some(Duration::from_millis(1_500))).unwrap();
    assert!(matches!(outcome, Next::TimedOut), "{outcome:?}");
    let busy = busy_ms() - before;
    assert!(busy < 700, "{busy} ms of work in 1.5 s of waiting");
}
