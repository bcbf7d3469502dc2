//! What came out: medians, ratios, the table and the summary file.

use crate::Failure;
use crate::meter::Measured;
use crate::programs::prepared;
use crate::rounds::Played;
use crate::rows::{Figure, Goal, Row};
use serde::Serialize;

/// One promise and what was measured of it.
#[derive(Serialize)]
pub(crate) struct Line {
    row: &'static str,
    /// The median, in `unit`; absent when not measured.
    ours: Option<f64>,
    peer: Option<&'static str>,
    peer_value: Option<f64>,
    ratio: Option<f64>,
    goal: f64,
    /// `at least` or `at most`, and whether the goal is a ratio or a value in `unit`.
    goal_is: &'static str,
    pub(crate) met: bool,
    unit: &'static str,
    ours_switches_per_1000: Option<f64>,
    peer_switches_per_1000: Option<f64>,
    ours_cpu_us: Option<f64>,
    peer_cpu_us: Option<f64>,
    ours_p50_us: Option<f64>,
    peer_p50_us: Option<f64>,
    rounds: usize,
    /// Why there is no ratio or value to judge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_measured: Option<String>,
}

#[derive(Serialize)]
struct Summary {
    rows: Vec<Line>,
}

/// Compares the runs of a row's contenders.
pub(crate) fn line(row: &Row, played: &Played) -> Line {
    let ours = played.runs(row.server, row.ours);
    let peer = row.peer.map(|peer| played.runs(row.server, peer));
    let figure = |runs: &[Measured]| median(runs, |m| row.figure.of(m));
    let value = ours.ok().and_then(figure);
    let peer_value = peer.and_then(Result::ok).and_then(figure);
    let ratio = value.zip(peer_value).map(|(ours, peer)| ours / peer);
    let judged = if row.goal.is_of_a_ratio() { ratio } else { value };
    let why = || {
        let missing = [("ours", Some(ours)), ("peer", peer)]
            .into_iter()
            .find_map(|(who, runs)| runs.and_then(Result::err).map(|why| format!("{who}: {why}")));
        missing.unwrap_or_else(|| "a contender does not report this figure".to_owned())
    };
    let of_ours = |of: fn(&Measured) -> Option<f64>| ours.ok().and_then(|runs| median(runs, of));
    let of_peer = |of: fn(&Measured) -> Option<f64>| {
        peer.and_then(Result::ok).and_then(|runs| median(runs, of))
    };
    Line {
        row: row.name,
        ours: value,
        peer: row.peer.map(|peer| peer.name),
        peer_value,
        ratio,
        goal: row.goal.number(),
        goal_is: row.goal.words(),
        met: judged.is_some_and(|value| row.goal.met_by(value)),
        unit: row.figure.unit(),
        ours_switches_per_1000: of_ours(|m| Some(m.switches)),
        peer_switches_per_1000: of_peer(|m| Some(m.switches)),
        ours_cpu_us: of_ours(|m| m.cpu_us),
        peer_cpu_us: of_peer(|m| m.cpu_us),
        ours_p50_us: of_ours(|m| m.p50_us),
        peer_p50_us: of_peer(|m| m.p50_us),
        rounds: ours.map_or(0, <[Measured]>::len),
        not_measured: judged.is_none().then(why),
    }
}

/// The median; none without runs or if one of them lacks the figure.
fn median(runs: &[Measured], of: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = runs.iter().map(of).collect::<Option<_>>()?;
    values.sort_unstable_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

impl Figure {
    fn of(self, measured: &Measured) -> Option<f64> {
        match self {
            Self::Rate => Some(measured.rate),
            Self::Cpu => measured.cpu_us,
            Self::Idle => measured.idle_kb,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Rate => "1/s",
            Self::Cpu => "us of CPU",
            Self::Idle => "KB",
        }
    }
}

impl Goal {
    fn number(self) -> f64 {
        match self {
            Self::RatioAtLeast(goal) | Self::RatioAtMost(goal) | Self::AtMost(goal) => goal,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::RatioAtLeast(_) => "ratio at least",
            Self::RatioAtMost(_) => "ratio at most",
            Self::AtMost(_) => "ours at most",
        }
    }

    fn is_of_a_ratio(self) -> bool {
        !matches!(self, Self::AtMost(_))
    }

    fn met_by(self, value: f64) -> bool {
        match self {
            Self::RatioAtLeast(goal) => value >= goal,
            Self::RatioAtMost(goal) | Self::AtMost(goal) => value <= goal,
        }
    }
}

/// Prints the table. Beside each row: CPU time of one thing, and voluntary context switches of
/// the process for a thousand things.
pub(crate) fn print(lines: &[Line]) {
    println!(
        "{:<32} {:>10} {:>10} {:<9} {:<20} {:>6} {:>7}  {:<4} {:>15} {:>17}",
        "row", "ours", "peer's", "", "peer", "ratio", "goal", "met", "CPU us", "switches/1000"
    );
    for l in lines {
        let sign = if l.goal_is.ends_with("least") { ">=" } else { "<=" };
        let met = match (l.met, &l.not_measured) {
            (true, _) => "yes",
            (false, None) => "NO",
            (false, Some(_)) => "-",
        };
        println!(
            "{:<32} {:>10} {:>10} {:<9} {:<20} {:>6} {:>7}  {:<4} {:>7} / {:<5} {:>8} / {:<6}",
            l.row,
            number(l.ours, l.unit),
            number(l.peer_value, l.unit),
            l.unit,
            l.peer.unwrap_or("-"),
            l.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            format!("{sign} {}", l.goal),
            met,
            number(l.ours_cpu_us, "us"),
            number(l.peer_cpu_us, "us"),
            number(l.ours_switches_per_1000, "us"),
            number(l.peer_switches_per_1000, "us"),
        );
        if let Some(why) = &l.not_measured {
            println!("    not measured: {why}");
        }
    }
}

fn number(value: Option<f64>, unit: &str) -> String {
    let places = usize::from(unit != "1/s");
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.places$}"))
}

/// Writes `summary.json`.
pub(crate) fn write(rows: Vec<Line>) -> Result<(), Failure> {
    let folder = prepared();
    std::fs::create_dir_all(&folder)?;
    let text = serde_json::to_string_pretty(&Summary { rows })?;
    std::fs::write(folder.join("summary.json"), text + "\n")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rate: f64, cpu_us: Option<f64>) -> Measured {
        Measured { rate, p50_us: None, switches: 0.0, cpu_us, idle_kb: None }
    }

    #[test]
    fn a_median_needs_the_figure_of_every_run() {
        let runs = [run(3.0, Some(1.0)), run(1.0, None), run(2.0, Some(1.0))];
        assert_eq!(median(&runs, |m| Some(m.rate)), Some(2.0));
        assert_eq!(median(&runs[..2], |m| Some(m.rate)), Some(2.0));
        assert_eq!(median(&runs, |m| m.cpu_us), None);
        assert_eq!(median(&[], |m| Some(m.rate)), None);
    }

    #[test]
    fn a_goal_is_met_from_its_own_side() {
        assert!(Goal::RatioAtLeast(2.0).met_by(2.0) && !Goal::RatioAtLeast(2.0).met_by(1.9));
        assert!(Goal::RatioAtMost(0.5).met_by(0.5) && !Goal::RatioAtMost(0.5).met_by(0.6));
        assert!(Goal::AtMost(40.0).met_by(39.0) && !Goal::AtMost(40.0).met_by(41.0));
    }
}
