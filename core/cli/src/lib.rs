//! The `broca` command: runs the bundled session service, takes part in a session from a terminal
//! or a script, and watches one.
//!
//! What a person types is in [`arguments`]; [`fault`] says what becomes of errors and what the exit
//! codes mean; [`place`] finds the service and its key. [`summary`] tells an event in one line.
#![forbid(unsafe_code)]

pub mod arguments;
mod chat;
mod consent;
mod desk;
mod doctor;
pub mod fault;
mod input;
mod interrupt;
mod key;
mod message;
pub mod place;
mod program;
mod proxy;
mod serve;
pub mod summary;
mod view;
mod watch;

use arguments::{Arguments, Command};
use clap::Parser;
use clap::error::ErrorKind as Wrong;
use fault::{Exit, Fault};
use std::io::Write;
use std::process::ExitCode;

/// Runs the command with the arguments and the environment of this process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    let json = arguments.command.json();
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            fault.report(json);
            fault.exit.into()
        }
    }
}

fn run(command: Command) -> Result<(), Fault> {
    // The service gets every core; the client is one task and needs one thread.
    let mut runtime = match command {
        Command::Version => return version(),
        Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime.enable_all().build().map_err(|e| {
        Fault::failed(
            format!("the runtime could not be started: {e}"),
            "free some memory or descriptors",
        )
    })?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Serve(serve) => serve::run(serve).await,
            Command::Chat(chat) => chat::run(chat).await,
            Command::Watch(watch) => watch::run(watch).await,
            Command::Doctor(doctor) => doctor::run(doctor).await,
            Command::Key(command) => key::run(command).await,
            Command::Proxy(proxy) => proxy::run(proxy).await,
            Command::Version => Ok(()),
        }
    });
    // A thread that still waits for a line of the terminal must not hold the program.
    runtime.shutdown_background();
    outcome
}

fn version() -> Result<(), Fault> {
    let mut out = std::io::stdout().lock();
    fault::written(writeln!(out, "broca {}", env!("CARGO_PKG_VERSION")))
}

/// Help and version go to the standard output; a wrong use becomes one line.
fn explain(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), Wrong::DisplayHelp | Wrong::DisplayVersion) {
        return match fault::written(write!(std::io::stdout().lock(), "{error}")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(fault) => fault.exit.into(),
        };
    }
    if error.kind() == Wrong::DisplayHelpOnMissingArgumentOrSubcommand {
        let _closed = write!(std::io::stderr().lock(), "{error}");
        return Exit::Usage.into();
    }
    let fault = arguments::wrong_use(&error.to_string(), std::env::args_os());
    fault.report(std::env::args_os().any(|argument| argument == "--json"));
    fault.exit.into()
}
