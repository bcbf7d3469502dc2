//! Errors with an owner: what went wrong, in numbers, in words and as JSON.

use crate::boundary::value;
use crate::status::{BROCA_OK, Status};
use crate::text::{Bytes, Text};
use broca_bridge::layout::failed;
use broca_bridge::{Error, ErrorKind, Record, Retry};
use broca_proto::Json;

/// Nothing happened: the call may be repeated at once.
pub const BROCA_RETRY_SAFE: i32 = 1;
/// Repeating would do harm or fail the same way.
pub const BROCA_RETRY_UNSAFE: i32 = 2;
/// The other side may or may not have acted: look before repeating.
pub const BROCA_RETRY_UNKNOWN: i32 = 3;

/// Why a call failed. It never holds keys or payloads.
pub struct Failure {
    error: Error,
    kind: Text,
    message: Text,
    details: Text,
}

impl Failure {
    pub(crate) fn new(error: &Error) -> Self {
        let details = error.details().map(|json| Text::new(json.as_bytes()));
        Self {
            error: error.clone(),
            kind: Text::new(error.kind().as_str().as_bytes()),
            message: Text::new(error.message().as_bytes()),
            details: details.unwrap_or_default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn error(&self) -> &Error {
        &self.error
    }
}

/// The error that a record tells of.
pub(crate) fn of_record(record: &Record<'_>) -> Error {
    let code = record.word(failed::code).cast_signed();
    let kind = ErrorKind::ALL.iter().copied().find(|kind| kind.code() == code);
    let message = record.text(failed::message).unwrap_or_default();
    let retry = match record.text(failed::retry) {
        Some("safe") => Retry::Safe,
        Some("unsafe") => Retry::Unsafe,
        _ => Retry::Unknown,
    };
    let error = Error::new(kind.unwrap_or(ErrorKind::Internal), message).with_retry(retry);
    match record.bytes(failed::details).and_then(|json| Json::parse(json.to_vec()).ok()) {
        Some(details) => error.with_details(details),
        None => error,
    }
}

/// The status that the call returned.
///
/// Ownership: borrows `error`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_error_code(error: Option<&Failure>) -> Status {
    value(|| error.map_or(BROCA_OK, |failure| failure.error.code()))
}

/// The kind as a word, the same in every language, such as `session_closed`.
///
/// Ownership: returns borrowed from `error` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_error_kind(error: Option<&Failure>) -> Bytes {
    value(|| error.map(|failure| failure.kind.bytes()).unwrap_or_default())
}

/// What was wrong, where, and the cure: a sentence for people.
///
/// Ownership: returns borrowed from `error` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_error_message(error: Option<&Failure>) -> Bytes {
    value(|| error.map(|failure| failure.message.bytes()).unwrap_or_default())
}

/// Whether the same call may be made again: `BROCA_RETRY_SAFE`, `BROCA_RETRY_UNSAFE` or `BROCA_RETRY_UNKNOWN`.
///
/// Ownership: borrows `error`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_error_retry(error: Option<&Failure>) -> i32 {
    value(|| match error.map(|failure| failure.error.retry()) {
        Some(Retry::Safe) => BROCA_RETRY_SAFE,
        Some(Retry::Unsafe) => BROCA_RETRY_UNSAFE,
        _ => BROCA_RETRY_UNKNOWN,
    })
}

/// Details for programs: a JSON object, or nothing.
///
/// Ownership: returns borrowed from `error` until it is freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_error_details(error: Option<&Failure>) -> Bytes {
    value(|| error.map(|failure| failure.details.bytes()).unwrap_or_default())
}

/// Frees an error. NULL is fine.
///
/// Ownership: takes `error`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_error_free(error: Option<Box<Failure>>) {
    value(|| drop(error));
}
