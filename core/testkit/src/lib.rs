//! What the tests of every crate and language share.
//!
//! * [`vectors`]: plays the shared cases through the public API of the client; the program `vectors` is its shell.
//! * [`host`]: a host of the engine in memory, with a scripted service behind it: no socket, no real time.
//! * [`subject`]: the engine in whoever's hands: its own, the bridge's, a language's.
//! * [`spoken`]: the same in another process, over a protocol of lines.
//! * [`clock`]: the clock of such a host.
//! * [`proxy`]: a TCP proxy that delays, cuts, resets and stalls, for tests against real servers; a crate of its own,
//!   because the command has it too.
#![forbid(unsafe_code)]

pub mod clock;
pub mod host;
pub mod spoken;
pub mod subject;
pub mod vectors;

pub use broca_chaos as proxy;
