//! Broca for Rust: take part in agent sessions.
//!
//! * [`engine`]: the whole client of one session as a state machine without I/O. Every language's
//!   package is a shell around it.
//! * `tokio` and `blocking`: the two shells for Rust programs (features of the same names).
//! * [`http1`]: the HTTP/1.1 that the engine speaks.
#![forbid(unsafe_code)]

pub mod engine;
pub mod http1;

#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(feature = "shell")]
mod info;
#[cfg(feature = "shell")]
pub mod media;
#[cfg(feature = "shell")]
pub mod setup;
#[cfg(feature = "shell")]
pub mod steps;
#[cfg(feature = "wire")]
pub mod tls;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "shell")]
pub mod tools;
#[cfg(feature = "wire")]
pub mod wire;

pub use broca_proto::session::approval::{Approvals, Ask};
pub use broca_proto::session::event::Event;
pub use broca_proto::session::ids::{Cursor, SessionId};
pub use broca_proto::session::narrow::{NarrowRule, NarrowRules};
pub use broca_proto::session::saved::SavedSession;
pub use engine::DeltaKind;
#[cfg(feature = "shell")]
pub use steps::{Decision, Step};
#[cfg(feature = "tokio")]
pub use tokio::{Client, Session, Subscription, Turn};
#[cfg(feature = "shell")]
pub use tools::Tool;

pub use broca_proto as proto;
pub use broca_proto::{Error, ErrorKind, Json, Retry, Secret, Time};
