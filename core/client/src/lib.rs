//! Broca for Rust: take part in agent sessions.
//!
//! * [`engine`]: the whole client of one session as a state machine without I/O. Every language's
//!   package is a shell around it.
//! * `tokio` and `blocking`: the two shells for Rust programs (features of the same names).
//! * [`http1`]: the HTTP/1.1 that the engine speaks.
#![forbid(unsafe_code)]

pub mod engine;
pub mod http1;

pub use broca_proto as proto;
pub use broca_proto::{Error, ErrorKind, Json, Retry, Secret, Time};
