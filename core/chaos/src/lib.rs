//! A TCP proxy that misbehaves on demand, for tests against real servers.
//!
//! [`ChaosProxy`] stands between a client and a server. What goes wrong is the plan of the test: a [`Fault`] is for
//! a whole connection, a [`ResponseFault`] for one HTTP response and the lines in it. [`command`] is the same as
//! lines of JSON, which is how tests in other languages drive it through `broca proxy`.
#![forbid(unsafe_code)]

pub mod command;
mod fault;
mod link;
mod proxy;
mod response;

pub use fault::{Fault, ResponseFault};
pub use proxy::ChaosProxy;
