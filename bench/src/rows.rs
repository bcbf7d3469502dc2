//! The rows, their contenders and goals; rounds, medians, the table and the summary file.

use crate::Failure;
use crate::meter::Measured;
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A promise: ours beside a peer, at least `goal` times as much.
struct Row {
    row: &'static str,
    variant: &'static str,
    server: &'static str,
    ours: &'static str,
    peer: &'static str,
    goal: f64,
}

const ROWS: &[Row] = &[
    Row {
        row: "P1",
        variant: "event",
        server: "blast-event",
        ours: "broca-events",
        peer: "reqwest-owned-events",
        goal: 1.4,
    },
    Row {
        row: "P1",
        variant: "64k",
        server: "blast-64k",
        ours: "broca-events",
        peer: "reqwest-owned-events",
        goal: 1.8,
    },
    Row {
        row: "T1",
        variant: "",
        server: "turns",
        ours: "broca-turns",
        peer: "reqwest-turns",
        goal: 1.0,
    },
];

#[derive(Serialize)]
struct Summary {
    rows: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    row: &'static str,
    variant: &'static str,
    ours: f64,
    peer: &'static str,
    peer_value: f64,
    ratio: f64,
    goal: f64,
    met: bool,
    ours_switches_per_1000: f64,
    peer_switches_per_1000: f64,
    ours_p50_us: Option<f64>,
    peer_p50_us: Option<f64>,
    rounds: usize,
}

/// Runs the rows named, or all; `BENCH_ROUNDS` rounds (7).
pub(crate) fn run(names: &[&str]) -> Result<(), Failure> {
    let rows: Vec<&Row> = ROWS
        .iter()
        .filter(|r| names.is_empty() || names.iter().any(|n| n.eq_ignore_ascii_case(r.row)))
        .collect();
    if rows.is_empty() {
        let known: Vec<&str> = ROWS.iter().map(|r| r.row).collect();
        return Err(format!("no such row; the rows are {}", known.join(", ")).into());
    }
    let rounds = match std::env::var("BENCH_ROUNDS") {
        Ok(text) => text.parse::<usize>().map_err(|_| "BENCH_ROUNDS must be a number")?.max(1),
        Err(_) => 7,
    };
    // (row, is ours) for everything that runs in one round.
    let mut jobs: Vec<(usize, bool)> =
        (0..rows.len()).flat_map(|i| [(i, true), (i, false)]).collect();
    let mut results: Vec<[Vec<Measured>; 2]> =
        rows.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    let mut random = u64::from(std::process::id()) | 1;
    for round in 0..rounds {
        for i in (1..jobs.len()).rev() {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let j = usize::try_from((random >> 33) % (i as u64 + 1)).unwrap_or(0);
            jobs.swap(i, j);
        }
        for (i, ours) in &jobs {
            let Some(row) = rows.get(*i) else { continue };
            let who = if *ours { row.ours } else { row.peer };
            let measured = measure(row.server, who)?;
            eprintln!(
                "round {}/{rounds} {} {} {who}: {:.0}/s",
                round + 1,
                row.row,
                row.variant,
                measured.rate
            );
            results[*i][usize::from(!*ours)].push(measured);
        }
    }
    let lines: Vec<Line> =
        rows.iter().zip(&results).map(|(row, [ours, peer])| line(row, ours, peer)).collect();
    print_table(&lines);
    let folder = std::path::Path::new("target/bench");
    std::fs::create_dir_all(folder)?;
    std::fs::write(
        folder.join("summary.json"),
        serde_json::to_string_pretty(&Summary { rows: lines })?,
    )?;
    Ok(())
}

fn line(row: &Row, ours: &[Measured], peer: &[Measured]) -> Line {
    let value = median(ours, |m| m.rate);
    let peer_value = median(peer, |m| m.rate);
    let ratio = value / peer_value;
    Line {
        row: row.row,
        variant: row.variant,
        ours: value,
        peer: row.peer,
        peer_value,
        ratio,
        goal: row.goal,
        met: ratio >= row.goal,
        ours_switches_per_1000: median(ours, |m| m.switches),
        peer_switches_per_1000: median(peer, |m| m.switches),
        ours_p50_us: ours
            .iter()
            .all(|m| m.p50_us.is_some())
            .then(|| median(ours, |m| m.p50_us.unwrap_or(0.0))),
        peer_p50_us: peer
            .iter()
            .all(|m| m.p50_us.is_some())
            .then(|| median(peer, |m| m.p50_us.unwrap_or(0.0))),
        rounds: ours.len(),
    }
}

fn median(all: &[Measured], of: impl Fn(&Measured) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print_table(lines: &[Line]) {
    println!(
        "{:<10} {:>12} {:>22} {:>12} {:>7} {:>6}  {:<4} {:>14}",
        "row", "ours/s", "peer", "peer/s", "ratio", "goal", "met", "switches/1000"
    );
    for l in lines {
        println!(
            "{:<10} {:>12.0} {:>22} {:>12.0} {:>7.2} {:>6.2}  {:<4} {:>6.1} / {:<6.1}",
            format!("{} {}", l.row, l.variant),
            l.ours,
            l.peer,
            l.peer_value,
            l.ratio,
            l.goal,
            if l.met { "yes" } else { "NO" },
            l.ours_switches_per_1000,
            l.peer_switches_per_1000
        );
    }
}

/// One run of one contender against a fresh server.
fn measure(server: &str, contender: &str) -> Result<Measured, Failure> {
    let mut server = Running::start(&["server", server])?;
    let port = server.line()?;
    let address = format!("http://127.0.0.1:{}", port.trim());
    let mut contender_run = Running::start(&["contender", contender, &address])?;
    let line = contender_run.line()?;
    serde_json::from_str(&line).map_err(|e| format!("{contender} printed no result: {e}").into())
}

/// A child process of this program; ended when dropped.
struct Running(Child);

impl Running {
    fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    fn line(&mut self) -> Result<String, Failure> {
        let stdout = self.0.stdout.as_mut().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself; there is nothing more to do about it here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
