//! Faults on demand, for the tests of the interface. Not in the header, and not in a released library.

/// cbindgen:ignore
pub mod vectors;

use crate::boundary::{call, given};
use crate::failure::Failure;
use crate::session::Session;
use crate::status::Status;
use std::mem::MaybeUninit;

/// Has the engine of a session panic.
///
/// Ownership: borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_panic(
    session: Option<&Session>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let session = given("session", session)?.attached();
        session.hub().with(session.key(), |_, _| session.handle().test_panic())?
    })
}

/// Fails with the kind of this number.
///
/// Ownership: borrows `session`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_testing_throw(
    session: Option<&Session>,
    code: i32,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || given("session", session)?.attached().handle().test_throw(code))
}
