//! What one run cost: wall time, and how often the process waited.

use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The result of one contender's run, printed as a line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Things done for each second.
    pub(crate) rate: f64,
    /// Median time of one thing in microseconds, where single things were timed.
    pub(crate) p50_us: Option<f64>,
    /// Voluntary context switches for each thousand things.
    pub(crate) switches: f64,
}

/// A stopwatch for one run.
pub(crate) struct Meter {
    start: Instant,
    switches: u64,
    singles: Vec<u64>,
}

impl Meter {
    /// Starts it.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), switches: voluntary_switches(), singles: Vec::new() }
    }

    /// Notes the time of one thing.
    pub(crate) fn single(&mut self, since: Instant) {
        self.singles.push(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    /// Stops it after `things`.
    pub(crate) fn stop(mut self, things: usize) -> Measured {
        let seconds = self.start.elapsed().as_secs_f64();
        let switches = voluntary_switches().saturating_sub(self.switches);
        self.singles.sort_unstable();
        let p50 = self.singles.get(self.singles.len() / 2).map(|ns| as_f64(*ns) / 1e3);
        let things = as_f64(things as u64);
        Measured { rate: things / seconds, p50_us: p50, switches: as_f64(switches) * 1e3 / things }
    }
}

#[allow(clippy::cast_precision_loss)] // Counts far below 2^52.
fn as_f64(count: u64) -> f64 {
    count as f64
}

fn voluntary_switches() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}
