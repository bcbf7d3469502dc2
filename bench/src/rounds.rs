//! Rounds: every contender runs once in each, in a new random order, so that drift of the machine
//! falls on all alike.

use crate::Failure;
use crate::meter::Measured;
use crate::process;
use crate::programs::Contender;
use crate::rows::Row;
use crate::scale::Scale;

/// What became of everybody who was to run.
pub(crate) struct Played {
    jobs: Vec<Job>,
}

/// One contender against one server; rows that compare the same run share it.
struct Job {
    server: &'static str,
    contender: &'static Contender,
    measured: Vec<Measured>,
    /// Why it does not run, or does not run any more.
    failed: Option<String>,
}

impl Played {
    /// The runs of a contender, or why there are none.
    pub(crate) fn runs(&self, server: &str, contender: &Contender) -> Result<&[Measured], &str> {
        let job =
            self.jobs.iter().find(|j| j.is(server, contender)).ok_or("it was not asked to run")?;
        match &job.failed {
            Some(why) => Err(why),
            None => Ok(&job.measured),
        }
    }
}

impl Job {
    fn is(&self, server: &str, contender: &Contender) -> bool {
        self.server == server && std::ptr::eq(self.contender, contender)
    }
}

/// Plays all rounds. A contender that fails once is out; the others go on.
pub(crate) fn play(rows: &[&'static Row], scale: &Scale) -> Result<Played, Failure> {
    let mut jobs: Vec<Job> = Vec::new();
    for row in rows {
        for contender in std::iter::once(row.ours).chain(row.peer) {
            if !jobs.iter().any(|job| job.is(row.server, contender)) {
                let failed = contender.program.missing();
                jobs.push(Job { server: row.server, contender, measured: Vec::new(), failed });
            }
        }
    }
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    let mut random = u64::from(std::process::id()) | 1;
    for round in 1..=scale.rounds {
        shuffle(&mut order, &mut random);
        for at in &order {
            let Some(job) = jobs.get_mut(*at).filter(|job| job.failed.is_none()) else { continue };
            let said = match process::measure(job.server, job.contender, scale) {
                Ok(measured) => {
                    let said = format!("{:.0}/s", measured.rate);
                    job.measured.push(measured);
                    said
                }
                Err(why) => {
                    let why = why.to_string();
                    job.failed = Some(why.clone());
                    why
                }
            };
            eprintln!(
                "round {round}/{} {} {}: {said}",
                scale.rounds, job.server, job.contender.name
            );
        }
    }
    Ok(Played { jobs })
}

/// Fisher and Yates, with a linear congruential generator: good enough for an order.
fn shuffle(order: &mut [usize], random: &mut u64) {
    for i in (1..order.len()).rev() {
        *random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let j = usize::try_from((*random >> 33) % (i as u64 + 1)).unwrap_or(0);
        order.swap(i, j);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::Program;
    use crate::rows::{Figure, Goal};
    use crate::summary;

    static ABSENT: Contender =
        Contender { name: "nobody", program: Program::C { source: "no such" } };

    #[test]
    fn a_row_whose_contender_is_missing_is_not_measured_and_says_why() -> Result<(), Failure> {
        static ROW: Row = Row {
            id: "X1",
            name: "X1",
            server: "none",
            ours: &ABSENT,
            peer: None,
            figure: Figure::Rate,
            goal: Goal::AtMost(1.0),
        };
        let scale = Scale { rounds: 1, events: 1, turns: 1, sessions: 1, session_turns: 1 };
        let line = summary::line(&ROW, &play(&[&ROW], &scale)?);
        let why = line.not_measured.unwrap_or_default();
        assert!(why.starts_with("ours: ") && why.ends_with("no such"), "{why}");
        assert!(!line.met);
        Ok(())
    }

    #[test]
    fn an_order_keeps_everybody() {
        let mut order: Vec<usize> = (0..20).collect();
        let mut random = 7;
        shuffle(&mut order, &mut random);
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert_eq!(order, (0..20).collect::<Vec<_>>());
    }
}
