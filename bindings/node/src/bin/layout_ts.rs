//! Writes `node/src/layout.ts`, or with `--check` says whether it is up to date.
#![allow(clippy::print_stdout, reason = "a command for people")]

use broca_bridge::Batch;
use broca_bridge::layout::{ABSENT, KINDS};
use std::fmt::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../node/src/layout.ts");
    let wanted = layout();
    if std::env::args().any(|argument| argument == "--check") {
        if std::fs::read_to_string(path).is_ok_and(|found| found == wanted) {
            return ExitCode::SUCCESS;
        }
        println!("node/src/layout.ts is out of date: cargo run -p broca-node --bin layout-ts");
        return ExitCode::FAILURE;
    }
    match std::fs::write(path, wanted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("node/src/layout.ts cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The file: an enumeration of the kinds, and one for each kind of the words at which its fields lie.
fn layout() -> String {
    let mut ts = String::from(
        "// Generated from bindings/bridge/src/layout.rs by `cargo run -p broca-node --bin layout-ts`.\n\n",
    );
    let _ = writeln!(ts, "/** The version of the layout of batches that this file describes. */");
    let _ = writeln!(ts, "export const LAYOUT_VERSION = {};\n", Batch::VERSION);
    let _ =
        writeln!(ts, "/** Stands for an absent text (as its offset) or number (as both words). */");
    let _ = writeln!(ts, "export const ABSENT = {ABSENT};\n");
    ts.push_str("/** Kinds of records. */\nexport const enum Kind {\n");
    for kind in KINDS {
        let _ = writeln!(ts, "  {} = {},", kind.name, kind.number);
    }
    ts.push_str("}\n");
    for kind in KINDS {
        let _ = writeln!(ts, "\nexport const enum {}At {{", camel(kind.name));
        for field in kind.fields {
            let _ = writeln!(ts, "  {} = {},", field.name, field.at);
        }
        ts.push_str("}\n");
    }
    ts
}

fn camel(name: &str) -> String {
    let mut camel = String::new();
    for word in name.split('_') {
        let (first, rest) = word.split_at(1);
        camel.push_str(&first.to_uppercase());
        camel.push_str(rest);
    }
    camel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_file_is_up_to_date() {
        assert!(
            include_str!("../../../../node/src/layout.ts") == layout(),
            "regenerate it: cargo run -p broca-node --bin layout-ts"
        );
    }
}
