//! libbroca: agent sessions from C.
//!
//! `include/broca.h` is made of this crate and is its documentation; `docs/c.md` is the guide. The crate converts
//! between C and the bridge, and owns sockets and clock; the protocol is decided in the engine.
//!
//! * What C sees: [`status`], [`failure`], [`version`], [`options`], [`tool`], [`client`], [`session`], [`saved`], [`info`],
//!   [`turn`], [`subscription`], [`request`], [`step`], [`answer`], [`io`].
//! * Below it: [`hub`] (who waits for the sockets of a client), `state` (what is behind its lock), `operation` (one command
//!   under way), `link` (one socket), `boundary` and `cast` (the way in and out).

// The header says what a caller has to promise: every pointer is NULL or what its type says, with as many bytes as the length
// beside it.
#![allow(clippy::missing_safety_doc, reason = "the header says it once for all functions")]
#![allow(clippy::too_many_arguments, reason = "a text is two arguments in C")]

mod boundary;
mod callback;
mod cast;
mod fork;
mod link;
mod operation;
mod state;
mod text;
mod waker;

// In the order of the header.
pub mod status;

pub mod failure;

pub mod version;

pub mod options;

pub mod tool;

pub mod client;

pub mod session;

pub mod saved;

pub mod info;

pub mod turn;

pub mod subscription;

pub mod request;

pub mod step;

pub mod answer;
pub mod content;

pub mod io;

pub mod hub;

#[cfg(feature = "testing")]
pub mod testing;

pub use text::Bytes;
