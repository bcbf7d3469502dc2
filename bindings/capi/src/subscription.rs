//! Subscriptions: the events of a session as they happen.

use crate::boundary::{call, given, output, value};
use crate::failure::Failure;
use crate::hub::deadline;
use crate::operation::Operation;
use crate::status::Status;
use crate::step::Step;
use crate::text::{Bytes, Text};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};

/// A session watched: every event once and in order, over as many connections as it takes, until the session ends. What cannot
/// be had is a visible gap.
pub struct Subscription {
    operation: Arc<Operation>,
    cursor: Mutex<Text>,
}

impl Subscription {
    pub(crate) fn new(operation: Arc<Operation>) -> Self {
        Self { operation, cursor: Mutex::default() }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // In a child of a fork there is nothing to end.
        drop(self.operation.leave());
    }
}

/// The next step, waiting at most `timeout_ms` milliseconds for it (negative: as long as it takes; 0: not at all). `step` is NULL
/// when none came in time or the subscription is over; `broca_subscription_is_over` tells which. What the subscription
/// failed with comes once.
///
/// Ownership: returns `step` owned: free it with `broca_step_free`. Borrows `subscription`.
/// Threads: not concurrently with itself on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_subscription_next(
    subscription: Option<&Subscription>,
    timeout_ms: i64,
    step: Option<&mut MaybeUninit<Option<Box<Step>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let step = output("step", step)?;
        *step = given("subscription", subscription)?.operation.next_shown(deadline(timeout_ms))?;
        Ok(())
    })
}

/// Just after the last event handed out: store it to go on from there, in this process or another. Nothing before the first
/// event of a subscription that began with what happens from now on.
///
/// Ownership: returns borrowed from `subscription` until the next call of this function.
/// Threads: not concurrently with itself or `broca_subscription_next` on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_subscription_cursor(subscription: Option<&Subscription>) -> Bytes {
    value(|| {
        let Some(subscription) = subscription else { return Bytes::NONE };
        let Some(cursor) = subscription.operation.cursor() else { return Bytes::NONE };
        let mut text = subscription.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        text.set(cursor.as_bytes());
        text.bytes()
    })
}

/// The number of the subscription among all operations of its client; `broca_step_operation` of its steps is the same.
///
/// Ownership: borrows `subscription`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_subscription_id(subscription: Option<&Subscription>) -> u64 {
    value(|| subscription.map_or(0, |subscription| subscription.operation.id()))
}

/// Attaches a pointer of the program's to the subscription; `broca_step_data` of its steps gives it back.
///
/// Ownership: the pointer stays the program's.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_subscription_set_data(
    subscription: Option<&Subscription>,
    data: *mut c_void,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        given("subscription", subscription)?.operation.set_data(data);
        Ok(())
    })
}

/// Whether the subscription is over and nothing follows: 1 or 0.
///
/// Ownership: borrows `subscription`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_subscription_is_over(subscription: Option<&Subscription>) -> i32 {
    value(|| i32::from(subscription.is_none_or(|subscription| subscription.operation.is_over())))
}

/// Asks for the end of the subscription: it ends with `BROCA_E_CANCELLED`, or as it would have if that was too late. Nothing is
/// waited for. Any number of times.
///
/// Ownership: borrows `subscription`.
/// Threads: any, also while another waits in `broca_subscription_next`.
#[unsafe(no_mangle)]
pub extern "C" fn broca_subscription_cancel(
    subscription: Option<&Subscription>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || given("subscription", subscription)?.operation.cancel())
}

/// Frees a subscription, which ends it. NULL is fine.
///
/// Ownership: takes `subscription`.
/// Threads: any, but not while another uses it.
#[unsafe(no_mangle)]
pub extern "C" fn broca_subscription_free(subscription: Option<Box<Subscription>>) {
    value(|| drop(subscription));
}
