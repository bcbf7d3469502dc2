//! The way in from C and back: every exported function goes through one of these.
//!
//! Nothing unwinds into C, outputs are empty until there is something to put in, and an error has
//! an owner.

use crate::failure::Failure;
use crate::status::{BROCA_OK, Status};
use broca_bridge::errors::of_panic;
use broca_proto::{Error, ErrorKind};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does the work of a function that may fail.
pub(crate) fn call(
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
    work: impl FnOnce() -> Result<(), Error>,
) -> Status {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let outcome = outcome.unwrap_or_else(|payload| Err(of_panic(&*payload)));
    let (status, failure) = match outcome {
        Ok(()) => (BROCA_OK, None),
        Err(error) => (error.code(), Some(error)),
    };
    if let Some(slot) = err {
        slot.write(failure.map(|error| Box::new(Failure::new(&error))));
    }
    status
}

/// Does the work of a function that cannot fail: a panic gives the default.
pub(crate) fn value<T: Default>(work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_default()
}

/// An argument that must not be NULL.
pub(crate) fn given<'a, T>(name: &str, argument: Option<&'a T>) -> Result<&'a T, Error> {
    argument.ok_or_else(|| usage(format!("{name} is NULL")))
}

/// An argument that must not be NULL and that the function changes.
pub(crate) fn given_mut<'a, T>(
    name: &str,
    argument: Option<&'a mut T>,
) -> Result<&'a mut T, Error> {
    argument.ok_or_else(|| usage(format!("{name} is NULL")))
}

/// An output that must be there. It is empty from here on.
pub(crate) fn output<'a, T: Default>(
    name: &str,
    slot: Option<&'a mut MaybeUninit<T>>,
) -> Result<&'a mut T, Error> {
    match slot {
        Some(slot) => Ok(slot.write(T::default())),
        None => Err(usage(format!("there is no place for the output {name}: it is NULL"))),
    }
}

/// An output that may be left out.
pub(crate) fn optional<T: Default>(slot: Option<&mut MaybeUninit<T>>) -> Option<&mut T> {
    slot.map(|slot| slot.write(T::default()))
}

pub(crate) fn usage(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, message)
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{BROCA_E_PANIC, BROCA_E_USAGE};

    #[test]
    fn a_panic_becomes_an_error_with_an_owner() {
        let mut slot = MaybeUninit::uninit();
        let status = call(Some(&mut slot), || panic!("a test asked for it"));
        assert_eq!(status, BROCA_E_PANIC);
        // SAFETY: every call writes its error.
        let failure = unsafe { slot.assume_init() }.unwrap();
        assert!(failure.error().message().contains("a test asked for it"));
        assert_eq!(value::<i32>(|| panic!("again")), 0);
    }

    #[test]
    fn success_leaves_no_old_error_behind() {
        let mut slot = MaybeUninit::uninit();
        assert_eq!(call(Some(&mut slot), || Ok(())), BROCA_OK);
        // SAFETY: every call writes its error.
        assert!(unsafe { slot.assume_init() }.is_none());
    }

    #[test]
    fn what_is_null_is_named() {
        assert_eq!(given::<u8>("turn", None).unwrap_err().message(), "turn is NULL");
        assert_eq!(call(None, || output::<u64>("step", None).map(drop)), BROCA_E_USAGE);
    }
}
