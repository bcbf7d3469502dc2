//! How much is measured: the defaults, and the environment variables that change them.
//!
//! The numbers of a promise come from the defaults. Smaller ones show that everything runs.

use crate::Failure;
use std::process::Command;

/// The amounts of one run, the same for every contender of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Rounds in which each contender runs once (`BENCH_ROUNDS`, 7).
    pub(crate) rounds: usize,
    /// Events of a stream (`BENCH_EVENTS`, 200,000).
    pub(crate) events: usize,
    /// Turns of one session, after a tenth of them to warm up (`BENCH_TURNS`, 2,000).
    pub(crate) turns: usize,
    /// Sessions at once in one process (`BENCH_SESSIONS`, 1,000).
    pub(crate) sessions: usize,
    /// Turns of each of them (`BENCH_SESSION_TURNS`, 5).
    pub(crate) session_turns: usize,
}

impl Scale {
    /// Reads the environment.
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        Ok(Self {
            rounds: amount("BENCH_ROUNDS", 7)?,
            events: amount("BENCH_EVENTS", 200_000)?,
            turns: amount("BENCH_TURNS", 2_000)?,
            sessions: amount("BENCH_SESSIONS", 1_000)?,
            session_turns: amount("BENCH_SESSION_TURNS", 5)?,
        })
    }

    /// Tells a child process; programs in other languages know no defaults of their own.
    pub(crate) fn tell(&self, command: &mut Command) {
        command
            .env("BENCH_EVENTS", self.events.to_string())
            .env("BENCH_TURNS", self.turns.to_string())
            .env("BENCH_SESSIONS", self.sessions.to_string())
            .env("BENCH_SESSION_TURNS", self.session_turns.to_string());
    }
}

fn amount(name: &str, default: usize) -> Result<usize, Failure> {
    match std::env::var(name) {
        Ok(text) => match text.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{name} must be a number above 0").into()),
        },
        Err(_) => Ok(default),
    }
}
