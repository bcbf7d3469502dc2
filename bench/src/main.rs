//! `make bench`: rows of the speed table, each side by side with what a competent user would write instead.
//!
//! Contenders and servers are child processes of this program, on loopback. Every round runs all
//! contenders of all rows in a new random order; the table shows medians and their ratio, which is
//! what a row promises. Absolute numbers depend on the machine and on what else it does.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // A table on stdout is what this program is for.

mod contenders;
mod events;
mod meter;
mod rows;
mod servers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["server", kind] => servers::run(kind),
        ["contender", name, address] => contenders::run(name, address),
        rows => rows::run(rows),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Why a run failed.
type Failure = Box<dyn std::error::Error + Send + Sync>;
