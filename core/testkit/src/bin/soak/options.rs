//! What a run is told on its command line.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) const HELP: &str = "\
soak: agent sessions under faults, on a service of the run's own

  soak [--seed N] [--events N] [--seconds N] [--sessions N] [--faults WORDS] [--broca PATH]

  --seed N       decides every fault, message and decision; without it one is drawn, and printed
  --events N     go on until so many events were logged [default: 20000]
  --seconds N    go on for at most so long; what is under way is finished [default: 600]
  --sessions N   sessions at once, each with two drivers and three observers [default: 8]
  --faults WORDS what goes wrong, with commas: cut, stall, split, delay, repeat, reorder, restart, cancel, kill
                 [default: all of them; none: nothing]
  --broca PATH   the command that serves [default: BROCA_BIN, the folder of this program, PATH]

It ends with one line. When something was lost, doubled, or came out otherwise than it was said, that line says what,
and how to run the same again. A seed decides what is done, not how fast the machine is: two runs of it are alike, not equal.";

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Cut,
    Stall,
    Split,
    Delay,
    Repeat,
    Reorder,
    Restart,
    Cancel,
    Kill,
}

impl Fault {
    pub(crate) const ALL: [(&'static str, Self); 9] = [
        ("cut", Self::Cut),
        ("stall", Self::Stall),
        ("split", Self::Split),
        ("delay", Self::Delay),
        ("repeat", Self::Repeat),
        ("reorder", Self::Reorder),
        ("restart", Self::Restart),
        ("cancel", Self::Cancel),
        ("kill", Self::Kill),
    ];
}

/// The command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) events: u64,
    pub(crate) time: Duration,
    pub(crate) sessions: u64,
    pub(crate) faults: Vec<Fault>,
    pub(crate) broca: Option<String>,
}

impl Options {
    /// Reads the arguments; nothing is asked for when help is.
    pub(crate) fn read(arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            seed: drawn(),
            events: 20_000,
            time: Duration::from_secs(600),
            sessions: 8,
            faults: Fault::ALL.map(|(_, fault)| fault).to_vec(),
            broca: None,
        };
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            if name == "--help" || name == "-h" {
                return Ok(None);
            }
            let mut value =
                || arguments.next().ok_or_else(|| format!("{name} needs a value; see --help"));
            match name.as_str() {
                "--seed" => options.seed = number(&name, &value()?)?,
                "--events" => options.events = number(&name, &value()?)?,
                "--seconds" => options.time = Duration::from_secs(number(&name, &value()?)?),
                "--sessions" => options.sessions = number(&name, &value()?)?.clamp(1, 64),
                "--faults" => options.faults = faults(&value()?)?,
                "--broca" => options.broca = Some(value()?),
                other => return Err(format!("{other} is unknown; see --help")),
            }
        }
        Ok(Some(options))
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// The command line that does the same again.
    pub(crate) fn again(&self) -> String {
        let name = |fault: &Fault| {
            Fault::ALL.iter().find(|(_, other)| other == fault).map_or("", |(name, _)| name)
        };
        let faults: Vec<&str> = self.faults.iter().map(name).collect();
        format!(
            "make soak ARGS='--seed {} --events {} --seconds {} --sessions {} --faults {}'",
            self.seed,
            self.events,
            self.time.as_secs(),
            self.sessions,
            if faults.is_empty() { "none".to_owned() } else { faults.join(",") }
        )
    }
}

fn drawn() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos()) % 1_000_000
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{name} must be a whole number that is not negative"))
}

fn faults(words: &str) -> Result<Vec<Fault>, String> {
    if words == "none" {
        return Ok(Vec::new());
    }
    let known = |word: &str| {
        let found = Fault::ALL.iter().find(|(name, _)| *name == word).map(|(_, fault)| *fault);
        found.ok_or_else(|| format!("--faults: there is no \"{word}\"; see --help"))
    };
    words.split(',').map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Option<Options>, String> {
        Options::read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_a_failed_run_prints_makes_the_same_run() {
        for line in
            ["--seed 7 --faults cut,kill --events 10 --seconds 3 --sessions 2", "--faults none", ""]
        {
            let options = read(line).unwrap().unwrap();
            let again = options.again();
            let arguments = again.split('\'').nth(1).unwrap();
            assert_eq!(read(arguments).unwrap().unwrap(), options, "{line}");
        }
        assert_eq!(read("--help").unwrap(), None);
        for wrong in ["--seed", "--seed x", "--faults cut,dance", "--dance 1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
