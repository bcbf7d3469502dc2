//! A handle that has done ten thousand operations holds no more memory than one that has done a thousand.
//!
//! Alone in its program, because it counts every byte that the program holds.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod service;

use broca::engine::{Answer, Step};
use broca_proto::Json;
use service::{begin, open};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

static LIVE: AtomicIsize = AtomicIsize::new(0);

struct Counting;

fn count(bytes: usize, sign: isize) {
    LIVE.fetch_add(isize::try_from(bytes).unwrap_or(isize::MAX) * sign, Ordering::Relaxed);
}

// SAFETY: every call is handed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller keeps the contract of `dealloc`; `at` came from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// More than this would be something that is kept for each operation: at least a word for each of nine thousand.
const ALLOWED: isize = 48 * 1024;

#[test]
fn ten_thousand_ops() {
    let mut host = open(1);
    let mut after_a_thousand = 0;
    for n in 0..10_000 {
        let command = match n % 5 {
            0 => r#"{"meta":{}}"#,
            1 => r#"{"history":{"cursor":null,"limit":3}}"#,
            2 => r#"{"subscribe":{"from":null}}"#,
            _ => r#"{"send":{"message":"go"}}"#,
        };
        let op = begin(&mut host, command);
        // Every other turn is cancelled in the middle, and every subscription.
        let cancels = n % 5 == 2 || n % 5 == 4;
        if n % 5 == 2 {
            host.cancel(op);
        }
        let until = host.now().plus(600_000);
        let mut ended = false;
        while let Some((from, step)) = host.next(until) {
            match step {
                Step::ToolCall(_) if cancels => host.cancel(op),
                Step::ToolCall(call) => {
                    host.answer(call.call, Answer::Complete(Json::string("x"))).unwrap();
                }
                Step::Finished(_) if from == op => {
                    ended = true;
                    break;
                }
                _ => {}
            }
        }
        assert!(ended, "operation {n} never ended");
        drop(host.take_requests());
        if n == 999 {
            after_a_thousand = LIVE.load(Ordering::Relaxed);
        }
    }
    assert_eq!(host.fault(), None);
    let grown = LIVE.load(Ordering::Relaxed) - after_a_thousand;
    assert!(grown < ALLOWED, "{grown} bytes more after ten thousand operations");
}
