//! The rows of the speed table: who runs beside whom, against which server, and what is promised.
//!
//! The peers are what a competent user would write; the programs are in `bench/python`,
//! `bench/node` and `bench/c`, and for Rust in [`crate::contenders`].

use crate::Failure;
use crate::programs::{Contender, Program};

/// A promise.
#[derive(Debug)]
pub(crate) struct Row {
    /// What `ROWS` asks for; several rows may share it.
    pub(crate) id: &'static str,
    /// As it stands in the table: the id, and what sets it apart from others with that id.
    pub(crate) name: &'static str,
    pub(crate) server: &'static str,
    pub(crate) ours: &'static Contender,
    /// None where the goal is a value and not a ratio.
    pub(crate) peer: Option<&'static Contender>,
    pub(crate) figure: Figure,
    pub(crate) goal: Goal,
}

/// What is compared.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Figure {
    /// Things done for each second.
    Rate,
    /// CPU time of one thing.
    Cpu,
    /// Memory of an idle session.
    Idle,
}

/// When the promise is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    /// Ours divided by the peer's is at least this.
    RatioAtLeast(f64),
    /// Ours divided by the peer's is at most this.
    RatioAtMost(f64),
    /// Ours is at most this.
    AtMost(f64),
}

/// The rows with these ids, in the table's order; all without any.
pub(crate) fn named(ids: &[&str]) -> Result<Vec<&'static Row>, Failure> {
    if let Some(unknown) = ids.iter().find(|id| !ROWS.iter().any(|r| r.id.eq_ignore_ascii_case(id)))
    {
        let mut known: Vec<&str> = ROWS.iter().map(|row| row.id).collect();
        known.dedup();
        return Err(format!("no row {unknown}; the rows are {}", known.join(", ")).into());
    }
    let asked = |row: &&Row| ids.is_empty() || ids.iter().any(|id| row.id.eq_ignore_ascii_case(id));
    Ok(ROWS.iter().filter(asked).collect())
}

// ---- the servers, see `servers.rs` -------------------------------------------------------------

/// A stream of events, one HTTP chunk for each.
const EVENT: &str = "events-each";
/// The same in chunks of 64 KiB.
const LARGE: &str = "events-64k";
/// Turns with one tool call.
const TURNS: &str = "turns";
/// None: the contender reads from its own memory.
const MEMORY: &str = "none";

// ---- the contenders ----------------------------------------------------------------------------

const fn rust(name: &'static str, function: &'static str) -> Contender {
    Contender { name, program: Program::Rust(function) }
}

const fn python(
    name: &'static str,
    file: &'static str,
    words: &'static [&'static str],
    modules: &'static [&'static str],
) -> Contender {
    Contender { name, program: Program::Python { file, words, modules } }
}

const fn node(
    name: &'static str,
    file: &'static str,
    words: &'static [&'static str],
    packages: &'static [&'static str],
) -> Contender {
    Contender { name, program: Program::Node { file, words, packages } }
}

const fn c(name: &'static str, source: &'static str) -> Contender {
    Contender { name, program: Program::C { source } }
}

static RUST_EVENTS: Contender = rust("broca, Rust", "broca-events");
static RUST_TURNS: Contender = rust("broca, Rust", "broca-turns");
static REQWEST_EVENTS: Contender = rust("reqwest, owned", "reqwest-owned-events");
static REQWEST_TURNS: Contender = rust("reqwest", "reqwest-turns");

static PYTHON_EVENTS: Contender = python("broca, async", "events.py", &["broca-async"], &["broca"]);
static PYTHON_PAYLOADS: Contender =
    python("broca, async, payload", "events.py", &["broca-async", "payload"], &["broca"]);
static AIOHTTP_EVENTS: Contender =
    python("aiohttp+orjson", "events.py", &["aiohttp"], &["aiohttp", "orjson"]);
static AIOHTTP_PAYLOADS: Contender =
    python("aiohttp+orjson", "events.py", &["aiohttp", "payload"], &["aiohttp", "orjson"]);
static HTTPX_EVENTS: Contender =
    python("httpx+orjson", "events.py", &["httpx"], &["httpx", "orjson"]);
static PYTHON_SYNC_EVENTS: Contender =
    python("broca, sync", "events.py", &["broca-sync"], &["broca"]);
static REQUESTS_EVENTS: Contender = python("requests", "events.py", &["requests"], &["requests"]);
static HTTP_CLIENT_EVENTS: Contender =
    python("http.client+msgspec", "events.py", &["http-client"], &["msgspec"]);

static ORJSON_LINES: Contender = python("orjson", "boundary.py", &["orjson"], &["orjson"]);
static PYTHON_STEPS: Contender = python("broca, steps", "boundary.py", &["broca"], &["broca"]);

static PYTHON_TURNS: Contender = python("broca, async", "turns.py", &["broca-async"], &["broca"]);
static AIOHTTP_TURNS: Contender = python("aiohttp", "turns.py", &["aiohttp"], &["aiohttp"]);
static HTTPX_TURNS: Contender = python("httpx", "turns.py", &["httpx"], &["httpx"]);
static PYTHON_SYNC_TURNS: Contender =
    python("broca, sync, inline", "turns.py", &["broca-sync"], &["broca"]);
static PYTHON_POOL_TURNS: Contender =
    python("broca, sync, pool", "turns.py", &["broca-sync-pool"], &["broca"]);
static HTTP_CLIENT_TURNS: Contender = python("http.client", "turns.py", &["http-client"], &[]);
static REQUESTS_TURNS: Contender = python("requests", "turns.py", &["requests"], &["requests"]);
static PYTHON_SESSIONS: Contender = python("broca, async", "sessions.py", &["broca"], &["broca"]);
static AIOHTTP_SESSIONS: Contender = python("aiohttp", "sessions.py", &["aiohttp"], &["aiohttp"]);

static NODE_EVENTS: Contender = node("broca, Node", "events.mjs", &["broca"], &["@broca/sdk"]);
static HTTP_EVENTS: Contender = node("node:http by hand", "events.mjs", &["http"], &[]);
static FETCH_EVENTS: Contender = node("fetch+readline", "events.mjs", &["fetch"], &[]);
static NODE_TURNS: Contender = node("broca, Node", "turns.mjs", &["broca"], &["@broca/sdk"]);
static FETCH_TURNS: Contender = node("fetch", "turns.mjs", &["fetch"], &[]);
static UNDICI_TURNS: Contender = node("undici", "turns.mjs", &["undici"], &["undici"]);

static C_EVENTS: Contender = c("broca, C", "events");

// ---- the rows ----------------------------------------------------------------------------------

const fn row(
    id: &'static str,
    name: &'static str,
    server: &'static str,
    ours: &'static Contender,
    peer: &'static Contender,
    goal: f64,
) -> Row {
    let goal = Goal::RatioAtLeast(goal);
    Row { id, name, server, ours, peer: Some(peer), figure: Figure::Rate, goal }
}

static ROWS: &[Row] = &[
    row("P1", "P1 event", EVENT, &RUST_EVENTS, &REQWEST_EVENTS, 1.4),
    row("P1", "P1 64k", LARGE, &RUST_EVENTS, &REQWEST_EVENTS, 1.8),
    row("P2", "P2 event beside aiohttp", EVENT, &PYTHON_EVENTS, &AIOHTTP_EVENTS, 2.0),
    row("P2", "P2 event beside httpx", EVENT, &PYTHON_EVENTS, &HTTPX_EVENTS, 10.0),
    row("P2", "P2 payload beside aiohttp", EVENT, &PYTHON_PAYLOADS, &AIOHTTP_PAYLOADS, 1.3),
    row("P3", "P3 event beside requests", EVENT, &PYTHON_SYNC_EVENTS, &REQUESTS_EVENTS, 3.5),
    row("P3", "P3 event beside http.client", EVENT, &PYTHON_SYNC_EVENTS, &HTTP_CLIENT_EVENTS, 1.3),
    row("P4", "P4 event beside node:http", EVENT, &NODE_EVENTS, &HTTP_EVENTS, 1.3),
    row("P4", "P4 event beside fetch", EVENT, &NODE_EVENTS, &FETCH_EVENTS, 1.7),
    row("P5", "P5 event", EVENT, &C_EVENTS, &RUST_EVENTS, 0.85),
    row("P5", "P5 64k", LARGE, &C_EVENTS, &RUST_EVENTS, 0.85),
    Row {
        id: "P6",
        name: "P6 CPU beside aiohttp",
        server: EVENT,
        ours: &PYTHON_EVENTS,
        peer: Some(&AIOHTTP_EVENTS),
        figure: Figure::Cpu,
        goal: Goal::RatioAtMost(0.5),
    },
    row("P7", "P7 beside orjson", MEMORY, &PYTHON_STEPS, &ORJSON_LINES, 1.2),
    row("T1", "T1", TURNS, &RUST_TURNS, &REQWEST_TURNS, 1.0),
    row("T2", "T2 beside aiohttp", TURNS, &PYTHON_TURNS, &AIOHTTP_TURNS, 2.2),
    row("T2", "T2 beside httpx", TURNS, &PYTHON_TURNS, &HTTPX_TURNS, 7.5),
    row("T3", "T3 beside http.client", TURNS, &PYTHON_SYNC_TURNS, &HTTP_CLIENT_TURNS, 1.6),
    row("T3", "T3 beside requests", TURNS, &PYTHON_SYNC_TURNS, &REQUESTS_TURNS, 5.0),
    row("T3", "T3 pool beside http.client", TURNS, &PYTHON_POOL_TURNS, &HTTP_CLIENT_TURNS, 1.6),
    row("T3", "T3 pool beside requests", TURNS, &PYTHON_POOL_TURNS, &REQUESTS_TURNS, 5.0),
    row("T4", "T4 beside fetch", TURNS, &NODE_TURNS, &FETCH_TURNS, 3.6),
    row("T4", "T4 beside undici", TURNS, &NODE_TURNS, &UNDICI_TURNS, 1.8),
    row("T5", "T5 turns beside aiohttp", TURNS, &PYTHON_SESSIONS, &AIOHTTP_SESSIONS, 2.0),
    Row {
        id: "T5",
        name: "T5 memory of an idle session",
        server: TURNS,
        ours: &PYTHON_SESSIONS,
        peer: None,
        figure: Figure::Idle,
        goal: Goal::AtMost(40.0),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_id_and_an_unknown_id_is_an_error() {
        let found = named(&["p6", "T1"]).map(|rows| rows.iter().map(|r| r.id).collect::<Vec<_>>());
        assert_eq!(found.ok(), Some(vec!["P6", "T1"]));
        assert!(named(&["P2", "X9"]).is_err_and(|e| e.to_string().contains("X9")));
    }

    #[test]
    fn every_row_has_a_name_of_its_own() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(row.name.starts_with(row.id));
            assert!(ROWS.iter().skip(at + 1).all(|other| other.name != row.name), "{}", row.name);
        }
    }
}
