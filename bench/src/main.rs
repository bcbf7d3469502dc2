//! `make bench`: rows of the speed table, each side by side with what a competent user would write instead.
//!
//! Contenders and servers are child processes of this program, on loopback. A contender is a program
//! in its own language that measures itself, so that starting an interpreter costs nobody anything.
//! Every round runs all contenders of all rows in a new random order; the table shows medians and their ratio,
//! which is what a row promises. Absolute numbers depend on the machine and on what else it does.
//!
//! ```text
//! broca-bench [ROW…]         measure these rows, or all
//! broca-bench needs [ROW…]   the languages for which their contenders need setting up
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // A table on stdout is what this program is for.

mod contenders;
mod events;
mod meter;
mod process;
mod programs;
mod rounds;
mod rows;
mod scale;
mod servers;
mod summary;

use scale::Scale;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["server", kind] => servers::run(kind),
        ["contender", name, address] => contenders::run(name, address),
        ["needs", names @ ..] => needs(names),
        names => bench(names),
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

fn needs(names: &[&str]) -> Result<(), Failure> {
    let rows = rows::named(names)?;
    let both = rows.iter().flat_map(|row| std::iter::once(row.ours).chain(row.peer));
    let mut languages: Vec<&str> = both.filter_map(|c| c.program.language()).collect();
    languages.sort_unstable();
    languages.dedup();
    println!("{}", languages.join(" "));
    Ok(())
}

fn bench(names: &[&str]) -> Result<(), Failure> {
    let rows = rows::named(names)?;
    let scale = Scale::from_environment()?;
    let played = rounds::play(&rows, &scale)?;
    let lines: Vec<summary::Line> = rows.iter().map(|row| summary::line(row, &played)).collect();
    summary::print(&lines);
    let silent = lines.iter().filter(|line| line.not_measured.is_some()).count();
    let all = lines.len();
    summary::write(lines)?;
    if silent > 0 {
        return Err(format!("{silent} of {all} rows were not measured").into());
    }
    Ok(())
}
