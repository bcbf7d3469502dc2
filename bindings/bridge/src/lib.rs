//! The bridge: everything that is the same for every language, so that a binding only converts.
//!
//! * [`Handle`]: one engine, safe from any thread. Commands and what sockets and clock say go in; batches
//!   of effects and steps come out. It calls nobody, so no code of the host runs while its lock is held.
//! * [`Batch`] and [`layout`]: what comes out, in one buffer with one documented layout that is decoded
//!   lazily where it is needed.
//! * [`options`] and [`command`]: what goes in as JSON, for the calls that are rare.
//! * [`content`]: images, files and results of MCP servers as content blocks.
//! * [`ChatStream`]: the reader of a provider's answer, with units as JSON.
//! * [`errors`]: the one table of errors as rows that a language makes its classes of.
//!
//! There is no runtime here, no thread, no clock and no global: two copies of this code in one process
//! do not know of each other.
#![forbid(unsafe_code)]

mod batch;
mod chat;
pub mod command;
pub mod content;
mod effect;
pub mod errors;
mod handle;
pub mod layout;
pub mod options;
mod refused;
mod ring;
mod step;

pub use batch::{Batch, BatchFault, Record, Records};
pub use chat::ChatStream;
pub use handle::Handle;

pub use broca::engine::{Accepted, Answer, CloseReason, Effect, Trace};
pub use broca_proto::{Error, ErrorKind, Retry, Time};
