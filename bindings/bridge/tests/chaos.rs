//! What goes wrong in hosts, played on the bridge: each case bears the name that it has in every language.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod service;

use broca::engine::{Accepted, Answer, Outcome, Step, ToolCall};
use broca_bridge::{Batch, ErrorKind, Handle, layout};
use broca_proto::Json;
use service::{Turns, begin, open, until_finished};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const SEND: &str = r#"{"send":{"message":"go"}}"#;

type Host = broca_testkit::host::Host<Turns, broca_testkit::subject::Bridged>;

/// Runs the turn until its tools have been called.
fn calls(host: &mut Host, op: broca::engine::OpId, count: usize) -> Vec<ToolCall> {
    let mut calls = Vec::new();
    let until = host.now().plus(1_000);
    while calls.len() < count {
        match host.next(until) {
            Some((from, Step::ToolCall(call))) if from == op => calls.push(call),
            Some(_) => {}
            None => panic!("{} of {count} calls came", calls.len()),
        }
    }
    calls
}

fn ends(steps: &[Step]) -> usize {
    steps.iter().filter(|step| matches!(step, Step::Finished(_))).count()
}

#[test]
fn callback_throws() {
    let mut host = open(2);
    let op = begin(&mut host, SEND);
    let tools = calls(&mut host, op, 2);
    host.answer(tools[0].call, Answer::Fail("ValueError: no such file".to_owned())).unwrap();
    host.answer(tools[1].call, Answer::Complete(Json::string("fine"))).unwrap();
    let steps = until_finished(&mut host, op);
    assert!(matches!(steps.last(), Some(Step::Finished(Ok(Outcome::Replied)))), "{steps:?}");
    let sent = host.requests().last().unwrap().rpc().unwrap().params.as_str().to_owned();
    assert!(sent.contains("ValueError: no such file") && sent.contains(r#""is_error":true"#));
    assert!(sent.contains("fine"), "{sent}");
}

/// Between taking a batch and decoding it, the host calls whatever it likes; the batch stays what it was.
#[test]
fn callback_reenters() {
    let mut host = open(1);
    let op = begin(&mut host, SEND);
    let tool = calls(&mut host, op, 1).remove(0);
    let handle = host.subject().handle();
    let now = host.now();
    handle.cancel(op.0, now).unwrap();

    let mut batch = Batch::new();
    handle.steps(op.0, usize::MAX, &mut batch).unwrap();
    let before = batch.clone();
    let stop = batch.records().find(|record| record.kind() == layout::tool_cancel::NUMBER);
    let stop = stop.unwrap().number(layout::tool_cancel::call).unwrap();
    assert_eq!(stop, tool.call.0);
    let answered = handle.answer(stop, Answer::Fail("stopped".to_owned()), now).unwrap();
    assert_eq!(answered, Accepted::Taken);
    handle.cancel(op.0, now).unwrap();
    let other = handle.command(br#"{"meta":{}}"#, Default::default(), now).unwrap();
    let mut effects = Batch::new();
    handle.effects(&mut effects).unwrap();
    assert!(!effects.is_empty());
    handle.cancel(other, now).unwrap();
    assert_eq!(batch, before);
}

#[test]
fn callback_reenters_from_another_thread() {
    let mut host = open(0);
    let handle = host.subject().handle();
    let now = host.now();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let mut given = 0_u32;
            while !over.load(Ordering::Relaxed) {
                // Numbers that were never asked, operations that may be anything by now.
                assert!(handle.answer(9_999, Answer::Allow, now).is_err());
                handle.cancel(u64::from(given % 7) + 1_000, now).unwrap();
                given += 1;
                thread::yield_now();
            }
            given
        });
        for _ in 0..200 {
            let op = begin(&mut host, SEND);
            assert_eq!(ends(&until_finished(&mut host, op)), 1);
        }
        over.store(true, Ordering::Relaxed);
        assert!(answering.join().unwrap() > 0);
    });
}

#[test]
fn cancel_twice() {
    let mut host = open(1);
    let op = begin(&mut host, SEND);
    calls(&mut host, op, 1);
    host.cancel(op);
    host.cancel(op);
    let steps = until_finished(&mut host, op);
    assert_eq!(ends(&steps), 1, "{steps:?}");
    assert!(
        matches!(steps.last(), Some(Step::Finished(Err(e))) if e.kind() == ErrorKind::Cancelled)
    );
    host.cancel(op);
    host.cancel(broca::engine::OpId(u64::MAX));
    assert!(host.next(host.now().plus(600_000)).is_none(), "something followed the end");
    assert_eq!(host.fault(), None);
}

#[test]
fn late_completion_after_close() {
    let mut host = open(1);
    let op = begin(&mut host, SEND);
    let tool = calls(&mut host, op, 1).remove(0);
    let close = begin(&mut host, r#"{"close":{}}"#);
    let closed = until_finished(&mut host, close);
    assert!(matches!(closed.last(), Some(Step::Finished(Ok(Outcome::Closed)))), "{closed:?}");
    let late = host.answer(tool.call, Answer::Complete(Json::string("at last"))).unwrap();
    assert_eq!(late, Accepted::TooLate);
    // The sockets say something after everything is over, too.
    let now = host.now();
    let handle = host.subject().handle();
    for conn in 0..8 {
        handle.data(conn, b"HTTP/1.1 200 OK\r\n\r\n", now).unwrap();
        handle.written(conn, 5, now).unwrap();
        handle.closed(conn, broca_bridge::CloseReason::Reset, now).unwrap();
        handle.connected(conn, now).unwrap();
    }
    host.wake();
    assert!(host.next(now.plus(600_000)).is_none());
    let again = handle.command(SEND.as_bytes(), Default::default(), host.now()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Closed);
}

#[test]
fn panic_is_error() {
    let mut host = open(1);
    let op = begin(&mut host, SEND);
    let tool = calls(&mut host, op, 1).remove(0);
    let handle = host.subject().handle();
    let now = host.now();
    let first = handle.test_panic().unwrap_err();
    assert_eq!(first.kind(), ErrorKind::Panic);
    let mut batch = Batch::new();
    let results = [
        handle.command(SEND.as_bytes(), Default::default(), now).map(drop),
        handle.cancel(op.0, now),
        handle.answer(tool.call.0, Answer::Allow, now).map(drop),
        handle.resolved(1, Ok(Vec::new()), now),
        handle.connected(1, now),
        handle.tls_started(1, now),
        handle.data(1, b"x", now),
        handle.data_owned(1, bytes::Bytes::from_static(b"x"), now),
        handle.written(1, 1, now),
        handle.closed(1, broca_bridge::CloseReason::Eof, now),
        handle.timeout(now),
        handle.wall(1),
        handle.effects(&mut batch),
        handle.next_effect().map(drop),
        handle.steps(op.0, 1, &mut batch).map(drop),
        handle.test_panic(),
    ];
    for (i, result) in results.into_iter().enumerate() {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Panic, "call {i}");
    }
    handle.logs(&mut batch).unwrap();
    assert!(batch.is_empty());

    // Only that handle is lost.
    let mut other = open(0);
    let op = begin(&mut other, SEND);
    assert!(matches!(until_finished(&mut other, op).last(), Some(Step::Finished(Ok(_)))));
}

#[test]
fn every_error_of_the_table_comes_back_as_itself() {
    let handle = Handle::new(br#"{"base_url":"http://h:1","client_key":"k"}"#, 1, 1).unwrap();
    for row in broca_bridge::errors::table() {
        let error = handle.test_throw(row.code).unwrap_err();
        assert_eq!((error.code(), error.kind().as_str()), (row.code, row.kind));
        assert_eq!(error.retry().as_str(), row.retry);
    }
    assert_eq!(handle.test_throw(7).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// Many threads use one handle: some begin and cancel, some take steps, one owns the sockets.
#[test]
fn threads_may_all_use_one_handle() {
    const THREADS: usize = 4;
    const OPS: usize = 150;
    let mut host = open(1);
    let handle = host.subject().handle();
    let now = host.now();
    let begun = Mutex::new(Vec::new());
    let ended: Mutex<BTreeMap<u64, u32>> = Mutex::new(BTreeMap::new());
    let working = Arc::new(());
    thread::scope(|scope| {
        for worker in 0..THREADS {
            let (handle, begun, ended, working) =
                (handle.clone(), &begun, &ended, Arc::clone(&working));
            scope.spawn(move || {
                let mut batch = Batch::new();
                for n in 0..OPS {
                    let command = match (n + worker) % 4 {
                        0 => r#"{"meta":{}}"#,
                        1 => r#"{"history":{"cursor":null,"limit":3}}"#,
                        2 => r#"{"participants":{}}"#,
                        _ => SEND,
                    };
                    let op = handle.command(command.as_bytes(), Default::default(), now).unwrap();
                    begun.lock().unwrap().push(op);
                    if n % 3 == 0 {
                        handle.cancel(op, now).unwrap();
                    }
                    batch.clear();
                    let taken = begun.lock().unwrap()[(n * 7) % (n + 1)];
                    if handle.steps(taken, 300, &mut batch).unwrap() {
                        *ended.lock().unwrap().entry(taken).or_default() += 1;
                    }
                    // A tool that somebody else's thread was told about is answered here.
                    let _ = handle.answer(op % 50, Answer::Fail("no".to_owned()), now);
                }
                drop(working);
            });
        }
        // This thread owns the sockets; time passes when nothing else does.
        loop {
            host.wake();
            while let Some((op, step)) = host.next(host.now()) {
                match step {
                    Step::Finished(_) => *ended.lock().unwrap().entry(op.0).or_default() += 1,
                    Step::ToolCall(call) => {
                        let _ = host.answer(call.call, Answer::Complete(Json::string("x")));
                    }
                    _ => {}
                }
            }
            if Arc::strong_count(&working) == 1 {
                break;
            }
            thread::yield_now();
        }
    });
    // Calls whose record another thread took are nobody's now: their time runs out.
    for _ in 0..2_000 {
        let before = ended.lock().unwrap().len();
        match host.next(host.now().plus(200_000)) {
            Some((op, Step::Finished(_))) => *ended.lock().unwrap().entry(op.0).or_default() += 1,
            Some((_, Step::ToolCall(call))) => {
                let _ = host.answer(call.call, Answer::Complete(Json::string("x")));
            }
            Some(_) => {}
            None if before == begun.lock().unwrap().len() => break,
            None => {}
        }
    }
    assert_eq!(host.fault(), None);
    let begun = begun.into_inner().unwrap();
    assert_eq!(begun.len(), THREADS * OPS);
    let ended = ended.into_inner().unwrap();
    assert!(begun.iter().all(|op| ended.get(op) == Some(&1)), "{ended:?}");
    assert_eq!(ended.len(), begun.len());
}
