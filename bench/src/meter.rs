//! What one run cost: wall time, CPU time, and how often the process waited.

use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The result of one contender's run, printed as a line of JSON by programs in every language.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Things done for each second.
    pub(crate) rate: f64,
    /// Median time of one thing in microseconds, where single things were timed.
    #[serde(default)]
    pub(crate) p50_us: Option<f64>,
    /// Voluntary context switches of the whole process for each thousand things.
    pub(crate) switches: f64,
    /// CPU time of the whole process for each thing, in microseconds.
    #[serde(default)]
    pub(crate) cpu_us: Option<f64>,
    /// Resident memory that one idle session adds, in units of 1,024 bytes, where that was measured.
    #[serde(default)]
    pub(crate) idle_kb: Option<f64>,
}

/// A stopwatch for one run.
pub(crate) struct Meter {
    start: Instant,
    cost: Cost,
    singles: Vec<u64>,
}

impl Meter {
    /// Starts it.
    pub(crate) fn start() -> Self {
        let cost = Cost::of_this_process();
        Self { start: Instant::now(), cost, singles: Vec::new() }
    }

    /// Notes the time of one thing.
    pub(crate) fn single(&mut self, since: Instant) {
        self.singles.push(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    /// Stops it after `things`.
    pub(crate) fn stop(mut self, things: usize) -> Measured {
        let seconds = self.start.elapsed().as_secs_f64();
        let cost = Cost::of_this_process();
        self.singles.sort_unstable();
        let things = as_f64(things as u64);
        let cpu = self.cost.cpu_ns.zip(cost.cpu_ns).map(|(from, to)| to.saturating_sub(from));
        Measured {
            rate: things / seconds,
            p50_us: self.singles.get(self.singles.len() / 2).map(|ns| as_f64(*ns) / 1e3),
            switches: as_f64(cost.switches.saturating_sub(self.cost.switches)) * 1e3 / things,
            cpu_us: cpu.map(|ns| as_f64(ns) / 1e3 / things),
            idle_kb: None,
        }
    }
}

#[allow(clippy::cast_precision_loss)] // Counts far below 2^52.
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// What all living threads of this process have used so far.
#[derive(Debug, Default)]
struct Cost {
    switches: u64,
    /// Absent where the kernel does not tell.
    cpu_ns: Option<u64>,
}

impl Cost {
    fn of_this_process() -> Self {
        let mut cost = Self::default();
        let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return cost };
        for thread in threads.flatten() {
            let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
            cost.switches += line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0);
            let times =
                std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            if let Some(ns) = times.split(' ').next().and_then(|n| n.parse::<u64>().ok()) {
                cost.cpu_ns = Some(cost.cpu_ns.unwrap_or(0) + ns);
            }
        }
        cost
    }
}
