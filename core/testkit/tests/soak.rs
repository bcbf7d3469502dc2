//! Sessions under every fault, with fixed seeds: a short run of what `make soak` does for as long as one likes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::path::Path;
use std::process::Command;

/// Runs until so many events were logged, or for so many seconds.
fn soak(seed: u64, more: &[&str]) -> String {
    let soak = Path::new(env!("CARGO_BIN_EXE_soak"));
    let broca = soak.with_file_name("broca");
    assert!(broca.is_file(), "there is no {broca:?}; cargo build -p broca-cli makes it");
    let mut command = Command::new(soak);
    command.arg("--broca").arg(broca).args(["--seed", &seed.to_string()]);
    let ended = command.args(["--seconds", "20", "--sessions", "4"]).args(more).output().unwrap();
    let out = String::from_utf8(ended.stdout).unwrap();
    assert!(ended.status.success(), "{out}");
    out
}

#[test]
fn nothing_is_lost_or_doubled_while_everything_goes_wrong() {
    let out = soak(7, &["--events", "2000"]);
    assert!(out.contains("each seen once and in order"), "{out}");
    // This seed has one before the second second.
    assert!(!out.contains(" 0 restarts"), "{out}");
}

#[test]
fn programs_that_die_in_their_turns_are_taken_up_by_the_next_ones() {
    let out = soak(8, &["--events", "1500", "--faults", "kill,cancel"]);
    assert!(out.contains("each seen once and in order"), "{out}");
}
