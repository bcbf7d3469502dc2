//! The wire contracts of agent sessions: types, codecs and state machines.
//!
//! Nothing in this crate opens a socket or a file, reads a clock, draws a random number or starts a
//! thread. Bytes, time and identifiers are arguments; events and effects are return values. The
//! client engine, the service and every language binding are shells around what is decided here.
//!
//! * [`session`]: the session service — JSON-RPC 2.0 over NDJSON, its methods, events, content and
//!   errors, and the client's state machines (exchange, turn, subscription).
//! * [`run`]: the service's side of a turn — rounds, dispatch, pauses, the FIFO gate.
//! * [`provider`]: the streams of model vendors, read into assembled messages.
//! * [`error`]: the one table of error kinds that every language's classes come from.
#![forbid(unsafe_code)]

mod backoff;
pub mod base64;
pub mod error;
pub mod json;
pub mod provider;
pub mod run;
pub mod secret;
pub mod session;

pub use error::{Error, ErrorKind, Retry};
pub use json::Json;
pub use secret::Secret;

/// A point in monotonic time: milliseconds since an origin that the caller chooses.
///
/// State machines only compare and add, so tests may start at zero and a shell at its own start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The time `ms` milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the origin.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// This time plus `ms` milliseconds, or the end of time.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this time; zero when it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
