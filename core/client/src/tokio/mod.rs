//! The Rust SDK on tokio.
//!
//! ```no_run
//! use broca::tokio::Client;
//! use broca::steps::Step;
//! use broca::tools::Tool;
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct ReadFile {
//!     path: String,
//! }
//!
//! # async fn example() -> Result<(), broca_proto::Error> {
//! let client = Client::new("http://127.0.0.1:8080", "bae_…")?;
//! let read_file = Tool::function("read_file", "Return the text of a file.", |args: ReadFile| async {
//!     std::fs::read_to_string(args.path)
//! });
//! let session = client.open().tool(read_file).await?;
//!
//! let mut turn = session.send("What does read_file say about main.py?");
//! while let Some(step) = turn.next().await {
//!     match step? {
//!         Step::Delta(delta) => print!("{}", delta.text),
//!         Step::Approval(call) => drop(call.allow()?),
//!         Step::Done(reply) => println!("{}", reply.text()),
//!         _ => {}
//!     }
//! }
//! let reply = session.ask("And in one line?").await?; // the loop, driven for you
//! # Ok(()) }
//! ```
//!
//! Each session has one task on the runtime that it was opened on. Turns may be polled anywhere, from
//! other runtimes and executors too. When the last handle of a session is dropped, what is under way is
//! cancelled and the task ends.

mod driver;
mod operation;
mod reading;
mod running;
mod session;
mod sessions;
mod state;
mod turn;

pub use reading::{History, Subscription};
pub use session::{Client, Opening, Session};
pub use sessions::Sessions;
pub use turn::{Canceller, Turn};
