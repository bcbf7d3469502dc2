//! Turns: what a message sets off, step by step.

use crate::answer::give;
use crate::boundary::{call, given, output, value};
use crate::failure::Failure;
use crate::hub::deadline;
use crate::operation::Operation;
use crate::status::Status;
use crate::step::Step;
use broca::engine::{NOBODY_TO_ASK, NOBODY_TO_RUN};
use broca_bridge::layout::{approval, done, sending, tool_call};
use broca_bridge::{Answer, Error, ErrorKind};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Instant;

/// A turn under way.
pub struct Turn {
    operation: Arc<Operation>,
}

impl Turn {
    pub(crate) fn new(operation: Arc<Operation>) -> Self {
        Self { operation }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // In a child of a fork there is nothing to end.
        drop(self.operation.leave());
    }
}

/// Is shown the steps of a turn that somebody else drives. It may answer a step, not free it.
pub type OnStep = Option<unsafe extern "C" fn(user_data: *mut c_void, step: *const Step)>;

/// Drives a turn to its end.
///
/// # Safety
/// `on_step` may be called with `user_data` and a step.
pub(crate) unsafe fn reply(
    turn: &Turn,
    on_step: OnStep,
    user_data: *mut c_void,
) -> Result<Box<Step>, Error> {
    let mut reply = None;
    while let Some(step) = turn.operation.next_shown(None)? {
        if let Some(on_step) = on_step {
            // SAFETY: the caller vouches for the function; the step lives until it returns.
            unsafe { on_step(user_data, &raw const *step) };
        }
        if !step.is_answered() {
            // An answer may come too late: the call was cancelled meanwhile.
            drop(match step.kind() {
                tool_call::NUMBER => give(&step, Answer::Fail(NOBODY_TO_RUN.to_owned())),
                approval::NUMBER => give(&step, Answer::Deny(NOBODY_TO_ASK.to_owned())),
                sending::NUMBER => give(&step, Answer::Send { message: None, trace: None }),
                _ => Ok(true),
            });
        }
        if step.kind() == done::NUMBER {
            reply = Some(step);
        }
    }
    reply.ok_or_else(|| Error::new(ErrorKind::Internal, "the turn ended without a reply"))
}

/// The next step, waiting at most `timeout_ms` milliseconds for it (negative: as long as it takes; 0: not at all). `step` is NULL
/// when none came in time or the turn is over; `broca_turn_is_over` tells which. What the turn failed with
/// comes once; `BROCA_STEP_DONE` is the last step of one that did not fail.
///
/// Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `turn`.
/// Threads: not concurrently with itself on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_turn_next(
    turn: Option<&Turn>,
    timeout_ms: i64,
    step: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let step = output("step", step)?;
        *step = given("turn", turn)?.operation.next_shown(deadline(timeout_ms))?;
        Ok(())
    })
}

/// Drives the turn to its end and gives its last step, `BROCA_STEP_DONE`. Each step is shown to `on_step` (which may be NULL)
/// while it is valid; a question that it leaves open is answered when it returns: calls fail, approvals are denied, messages leave.
///
/// Ownership: returns `done` owned: free it with `broca_step_free`. Borrows `turn`. `on_step` is called only before this
/// returns, and borrows the step.
/// Threads: not concurrently with `broca_turn_next` on one object. `on_step` runs on the calling thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_turn_reply(
    turn: Option<&Turn>,
    on_step: OnStep,
    user_data: *mut c_void,
    done: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let done = output("done", done)?;
        let turn = given("turn", turn)?;
        // SAFETY: the header says what `on_step` and `user_data` are.
        *done = Some(unsafe { reply(turn, on_step, user_data) }?);
        Ok(())
    })
}

/// Leaves the turn early: asks for its end and waits until it is quiet, bounded by `cancel_timeout_ms`, the grace time of
/// tools and a second. Steps that were still waiting are dropped. A turn that is over is no error.
///
/// Ownership: borrows `turn`; free it as ever.
/// Threads: not concurrently with `broca_turn_next` on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_turn_leave(
    turn: Option<&Turn>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let operation = &given("turn", turn)?.operation;
        operation.leave_and_wait(Instant::now().checked_add(operation.hub().leave_time()))
    })
}

/// The number of the turn among all operations of its client; `broca_step_operation` of its steps is the same.
///
/// Ownership: borrows `turn`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_turn_id(turn: Option<&Turn>) -> u64 {
    value(|| turn.map_or(0, |turn| turn.operation.id()))
}

/// Attaches a pointer of the program's to the turn; `broca_step_data` of its steps gives it back.
///
/// Ownership: the pointer stays the program's.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_turn_set_data(
    turn: Option<&Turn>,
    data: *mut c_void,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        given("turn", turn)?.operation.set_data(data);
        Ok(())
    })
}

/// Whether the turn is over and nothing follows: 1 or 0.
///
/// Ownership: borrows `turn`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_turn_is_over(turn: Option<&Turn>) -> i32 {
    value(|| i32::from(turn.is_none_or(|turn| turn.operation.is_over())))
}

/// Asks for the end of the turn: it ends with `BROCA_E_CANCELLED`, or as it would have if that was too late. Nothing is
/// waited for. Any number of times.
///
/// Ownership: borrows `turn`.
/// Threads: any, also while another waits in `broca_turn_next`.
#[unsafe(no_mangle)]
pub extern "C" fn broca_turn_cancel(
    turn: Option<&Turn>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || given("turn", turn)?.operation.cancel())
}

/// Frees a turn. NULL is fine. One that is not over is cancelled, without waiting; `broca_turn_leave` waits.
///
/// Ownership: takes `turn`.
/// Threads: any, but not while another uses it.
#[unsafe(no_mangle)]
pub extern "C" fn broca_turn_free(turn: Option<Box<Turn>>) {
    value(|| drop(turn));
}
