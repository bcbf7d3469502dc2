//! Keeps what is made of the C interface's source in step with it.
//!
//! ```text
//! cargo run -p broca-xtask -- header             writes include/broca.h and checks its comments
//! cargo run -p broca-xtask -- header --check     fails if the committed one is another
//! cargo run -p broca-xtask -- symbols LIBRARY    writes bindings/capi/symbols.txt
//! cargo run -p broca-xtask -- symbols --check LIBRARY
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command talks to people")]

mod comments;
mod header;
mod symbols;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["header"] => write_header(false),
        ["header", "--check"] => write_header(true),
        ["symbols", library] => write_symbols(Path::new(library), false),
        ["symbols", "--check", library] => write_symbols(Path::new(library), true),
        _ => Err("usage: broca-xtask header [--check] | symbols [--check] LIBRARY".to_owned()),
    };
    match outcome {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn write_header(check: bool) -> Result<String, String> {
    let place = root().join("include/broca.h");
    let made = header::generate(&root().join("bindings/capi"), env!("CARGO_PKG_VERSION"))?;
    settle(&place, &made, check, "header")?;
    let faults = comments::faults(&made);
    if !faults.is_empty() {
        return Err(faults.join("\n"));
    }
    Ok(format!("include/broca.h: {} functions", comments::functions(&made).len()))
}

fn write_symbols(library: &Path, check: bool) -> Result<String, String> {
    let place = root().join("bindings/capi/symbols.txt");
    let exported = symbols::exported(library)?;
    let header = fs::read_to_string(root().join("include/broca.h"))
        .map_err(|error| format!("include/broca.h cannot be read: {error}"))?;
    let differences = symbols::differences(&exported, &comments::functions(&header));
    if !differences.is_empty() {
        let text = differences.join("\n");
        return Err(format!("the library does not export what the header declares:\n{text}"));
    }
    let mut list = exported.join("\n");
    list.push('\n');
    settle(&place, &list, check, "symbols LIBRARY")?;
    Ok(format!("bindings/capi/symbols.txt: {} names", exported.len()))
}

/// Writes what was made, or says how it differs from what is there.
fn settle(place: &Path, made: &str, check: bool, command: &str) -> Result<(), String> {
    let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let there = fs::read_to_string(place).unwrap_or_default();
    if there == made {
        return Ok(());
    }
    if check {
        let line = there.lines().zip(made.lines()).take_while(|(a, b)| a == b).count() + 1;
        return Err(format!(
            "{name} is not what its source says, from line {line} on: run `cargo run -p broca-xtask -- {command}`"
        ));
    }
    fs::write(place, made).map_err(|error| format!("{name} cannot be written: {error}"))
}
