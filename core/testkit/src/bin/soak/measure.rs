//! Memory and descriptors of a process, and whether they grow. On Linux; elsewhere nothing is measured, and that is said.

use std::fs;

/// How much more memory the last third of a run may need than the middle one: a part, and some bytes.
const MEMORY_PART: f64 = 1.25;
const MEMORY_BYTES: u64 = 24 << 20;

/// How many more descriptors the last third may need, beside the same part: sessions come and go.
const DESCRIPTORS: u64 = 48;

/// A process to measure.
pub(crate) struct Meter {
    folder: String,
}

/// What a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Held {
    bytes: u64,
    descriptors: u64,
}

/// The most that was held in the middle and in the last third of the run, by process.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    middle: [Held; 2],
    last: [Held; 2],
}

impl Meter {
    pub(crate) fn of(pid: u32) -> Self {
        Self { folder: format!("/proc/{pid}") }
    }

    /// What it holds now, where that can be found out.
    pub(crate) fn read(&self) -> Option<Held> {
        let status = fs::read_to_string(format!("{}/status", self.folder)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        let descriptors = fs::read_dir(format!("{}/fd", self.folder)).ok()?.count();
        Some(Held { bytes: kib << 10, descriptors: descriptors as u64 })
    }
}

impl Seen {
    /// Adds a measurement at this part of the run, 0 to 1.
    pub(crate) fn add(&mut self, process: usize, part: f64, held: Option<Held>) {
        let Some(held) = held else { return };
        let third = match part {
            p if p < 1.0 / 3.0 => return,
            p if p < 2.0 / 3.0 => &mut self.middle,
            _ => &mut self.last,
        };
        if let Some(most) = third.get_mut(process) {
            most.bytes = most.bytes.max(held.bytes);
            most.descriptors = most.descriptors.max(held.descriptors);
        }
    }

    /// Whether nothing grew, in words.
    pub(crate) fn judge(&self, names: [&str; 2]) -> Result<String, String> {
        let mut words = Vec::new();
        for ((name, middle), last) in names.iter().zip(&self.middle).zip(&self.last) {
            if *middle == Held::default() || *last == Held::default() {
                words.push(format!("{name} not measured"));
                continue;
            }
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a bound, not an amount"
            )]
            let bound = |held: u64, more| (held as f64 * MEMORY_PART) as u64 + more;
            if last.bytes > bound(middle.bytes, MEMORY_BYTES) {
                return Err(format!(
                    "{name} grew from {} to {} MiB",
                    middle.bytes >> 20,
                    last.bytes >> 20
                ));
            }
            if last.descriptors > bound(middle.descriptors, DESCRIPTORS) {
                let (from, to) = (middle.descriptors, last.descriptors);
                return Err(format!("{name} went from {from} to {to} descriptors"));
            }
            words.push(format!(
                "{name} {} MiB, {} descriptors",
                last.bytes >> 20,
                last.descriptors
            ));
        }
        Ok(words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(mib: u64, descriptors: u64) -> Option<Held> {
        Some(Held { bytes: mib << 20, descriptors })
    }

    #[test]
    fn growth_of_memory_or_descriptors_is_a_failure() {
        let run = |last| {
            let mut seen = Seen::default();
            for process in [0, 1] {
                seen.add(process, 0.1, held(9_000, 9_000));
                seen.add(process, 0.5, held(100, 20));
                seen.add(process, 0.9, last);
            }
            seen.judge(["a", "b"])
        };
        assert!(run(held(120, 30)).is_ok());
        assert!(run(held(200, 20)).unwrap_err().contains("grew"));
        assert!(run(held(100, 80)).unwrap_err().contains("descriptors"));
        assert!(run(None).unwrap().contains("not measured"));
    }

    #[test]
    fn this_process_can_be_measured_where_there_is_proc() {
        let read = Meter::of(std::process::id()).read();
        assert_eq!(read.is_some(), cfg!(target_os = "linux"));
    }
}
