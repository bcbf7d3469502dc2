//! Plays vectors: `vectors [--kind K]… FILE…`.
//!
//! One line for each failure, the counts last. Ends with 1 when a case failed, with 2 when it could not do what it was
//! told.

use broca_testkit::vectors::{Core, Report, Selection, play_file};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: vectors [--kind K]... FILE...";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(report) => {
            let failed = !report.failures.is_empty();
            // A reader that has gone away is no reason to panic; the status still tells.
            let written = writeln!(std::io::stdout(), "{report}");
            ExitCode::from(u8::from(failed || written.is_err()))
        }
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "vectors: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: impl Iterator<Item = String>) -> Result<Report, String> {
    let mut selection = Selection::default();
    let mut files: Vec<PathBuf> = Vec::new();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kind" => {
                let kind = arguments.next().ok_or("--kind needs the name of a kind")?;
                selection.kinds.push(kind);
            }
            option if option.starts_with("--") => {
                return Err(format!("there is no option {option}; {USAGE}"));
            }
            file => files.push(file.into()),
        }
    }
    if files.is_empty() {
        return Err(USAGE.to_owned());
    }
    let mut report = Report::default();
    for file in files {
        report.add(play_file(&file, &selection, &mut Core).map_err(|e| e.to_string())?);
    }
    Ok(report)
}
