//! Plays vectors: `vectors [--through COMMAND] [--kind K]… FILE…`.
//!
//! With `--through`, the cases are played on the client in another process, which the command starts; its words are
//! separated by spaces.
//!
//! One line for each failure, the counts last. Ends with 1 when a case failed, with 2 when it could not do what it was
//! told.

use broca_testkit::spoken::Through;
use broca_testkit::vectors::{Core, Report, Selection, Surface, play_file};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: vectors [--through COMMAND] [--kind K]... FILE...";

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
    let mut through = None;
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kind" => {
                let kind = arguments.next().ok_or("--kind needs the name of a kind")?;
                selection.kinds.push(kind);
            }
            "--through" => {
                through = Some(arguments.next().ok_or("--through needs a command")?);
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
    let Some(command) = through else { return play(&files, &selection, &mut Core) };
    let mut child = Through::start(&command)?;
    let report = play(&files, &selection, &mut child)?;
    child.finish()?;
    Ok(report)
}

fn play(
    files: &[PathBuf],
    selection: &Selection,
    surface: &mut impl Surface,
) -> Result<Report, String> {
    let mut report = Report::default();
    for file in files {
        report.add(play_file(file, selection, surface).map_err(|e| e.to_string())?);
    }
    Ok(report)
}
