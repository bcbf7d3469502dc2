//! The Rust SDK on the calling thread: no runtime, and no thread behind the program's back.
//!
//! ```no_run
//! use broca::blocking::Client;
//! use broca::steps::Step;
//! use broca::tools::Tool;
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct ReadFile {
//!     path: String,
//! }
//!
//! # fn example() -> Result<(), broca_proto::Error> {
//! let client = Client::new("http://127.0.0.1:8080", "bae_…")?;
//! let read_file = Tool::blocking("read_file", "Return the text of a file.", |args: ReadFile| {
//!     std::fs::read_to_string(args.path)
//! });
//! let session = client.open().tool(read_file).start()?;
//!
//! let mut turn = session.send("What does read_file say about main.py?");
//! for step in &mut turn {
//!     match step? {
//!         Step::Delta(delta) => print!("{}", delta.text),
//!         Step::Approval(call) => drop(call.allow()?),
//!         Step::Done(reply) => println!("{}", reply.text()),
//!         _ => {}
//!     }
//! }
//! let reply = session.ask("And in one line?")?; // the loop, driven for you
//! # Ok(()) }
//! ```
//!
//! # Who moves the session
//!
//! A session moves only while some thread is inside a call that waits: [`Turn::next`], [`Turn::reply`],
//! [`Subscription::next`], [`History::next_page`], [`Session::close`] and the like. Between such calls
//! nothing is kept alive: a paused turn's deadline can pass, a subscription lags and recovers at the next
//! call. A program that must not let that happen gives the session a thread of its own, or uses the tokio client.
//!
//! Any number of threads may be inside calls of one session:
//!
//! 1. The first becomes the **leader**: it waits for the sockets of the whole session, and moves every
//!    operation, not just its own. The lock is not held while it waits.
//! 2. The others are **followers**: they wait for a signal. The leader gives it when steps came that may be
//!    theirs.
//! 3. When the leader has got what it came for, it leaves, and one of the followers takes the place.
//! 4. Calls that do not wait ([`Session::send`], answers, [`Canceller::cancel`]) reach the engine from any
//!    thread at once, and write to the sockets themselves. When they concern the leader, they end its wait.
//!
//! Tool handlers, `on_sending` and `on_approval` run on threads of a pool that belongs to the session: started when
//! needed, at most as many as calls may run at once (`calls.concurrent`), ended with the session. A handler that
//! never returns keeps its thread, and with all threads kept no further call starts. Names are looked up
//! on a thread that lives as long as the look-up, because the system's resolver cannot be interrupted.

mod driver;
mod operation;
mod pool;
mod reading;
mod session;
mod sessions;
mod state;
mod turn;

pub use reading::{History, Subscription};
pub use session::{Client, Opening, Session};
pub use sessions::Sessions;
pub use turn::{Canceller, Next, Steps, Turn};
