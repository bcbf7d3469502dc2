//! Requests: operations with one answer.

use crate::boundary::{call, given, output, value};
use crate::failure::Failure;
use crate::hub::deadline;
use crate::operation::Operation;
use crate::status::Status;
use crate::step::Step;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// A request under way: opening a session, reading a page, closing.
pub struct Request {
    operation: Arc<Operation>,
}

impl Request {
    pub(crate) fn new(operation: Arc<Operation>) -> Self {
        Self { operation }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // In a child of a fork there is nothing to end.
        drop(self.operation.leave());
    }
}

/// The next step, waiting at most `timeout_ms` milliseconds for it (negative: as long as it takes; 0: not at all). `step` is NULL
/// when none came in time or the request is over; `broca_request_is_over` tells which. The last step is
/// `BROCA_STEP_FINISHED`; a request that failed returns its error here.
///
/// Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `request`.
/// Threads: not concurrently with itself on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_request_next(
    request: Option<&Request>,
    timeout_ms: i64,
    step: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let step = output("step", step)?;
        *step = given("request", request)?.operation.next_of_request(deadline(timeout_ms))?;
        Ok(())
    })
}

/// The number of the request among all operations of its client; `broca_step_operation` of its steps is the same.
///
/// Ownership: borrows `request`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_request_id(request: Option<&Request>) -> u64 {
    value(|| request.map_or(0, |request| request.operation.id()))
}

/// Attaches a pointer of the program's to the request; `broca_step_data` of its steps gives it back.
///
/// Ownership: the pointer stays the program's.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_request_set_data(
    request: Option<&Request>,
    data: *mut c_void,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        given("request", request)?.operation.set_data(data);
        Ok(())
    })
}

/// Whether the request is over and nothing follows: 1 or 0.
///
/// Ownership: borrows `request`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_request_is_over(request: Option<&Request>) -> i32 {
    value(|| i32::from(request.is_none_or(|request| request.operation.is_over())))
}

/// Asks for the end of the request: it ends with `BROCA_E_CANCELLED`, or as it would have if that was too late. Nothing is
/// waited for. Any number of times.
///
/// Ownership: borrows `request`.
/// Threads: any, also while another waits in `broca_request_next`.
#[unsafe(no_mangle)]
pub extern "C" fn broca_request_cancel(
    request: Option<&Request>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || given("request", request)?.operation.cancel())
}

/// Frees a request. NULL is fine. One that is not over is cancelled.
///
/// Ownership: takes `request`.
/// Threads: any, but not while another uses it.
#[unsafe(no_mangle)]
pub extern "C" fn broca_request_free(request: Option<Box<Request>>) {
    value(|| drop(request));
}
