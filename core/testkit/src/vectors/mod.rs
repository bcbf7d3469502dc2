//! The shared cases, played through the public API of the client.
//!
//! A file holds one case on each line. A case is played in every way that its kind demands, and it
//! passes only if each of them gave what the case states. Everything that a case says is used: a
//! member that this player does not know makes the case fail, so that nothing is left out in silence.

mod approval;
mod dispatch_loop;
mod feed;
mod fields;
mod outcome;
mod rpc_stream;
mod service;
mod sse;
mod surface;

use broca::Json;
use serde_json::Value;
use std::fmt;
use std::path::Path;
use thiserror::Error;

pub use fields::Fields;
pub use surface::{Bridge, ChatCame, Core, Surface};

/// Which cases of a file are played.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// Play these kinds and skip the others; when empty, every case is played and an unknown kind is a failure.
    pub kinds: Vec<String>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Cases that gave what they state, however their bytes were cut.
    pub passed: usize,
    /// Those that did not, a line for each thing that was wrong.
    pub failures: Vec<Failure>,
    /// Those that were not played, by selection or because their contract is not built.
    pub skipped: usize,
    /// Why cases were skipped that had been selected.
    pub notes: Vec<String>,
}

/// A case that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The case, or `FILE:LINE` when it has no id.
    pub id: String,
    /// What was wrong: what was expected and what came.
    pub faults: Vec<String>,
}

/// Why a run breaks off.
#[derive(Debug, Error)]
pub enum VectorError {
    /// What the cases were played on is gone.
    #[error("{case}: {cause}")]
    Lost {
        /// The case that was being played.
        case: String,
        /// Why.
        cause: String,
    },
    /// The file cannot be read.
    #[error("{file} cannot be read: {cause}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        cause: std::io::Error,
    },
}

/// One case.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// What goes in.
    pub feed: Value,
    /// What goes in, as text: numbers keep their spelling.
    pub feed_text: Json,
    /// What must come out.
    pub expect: Value,
}

/// What became of a case.
enum Played {
    Done(Vec<String>),
    NotBuilt(String),
}

/// Plays the cases of a file on this surface.
///
/// # Errors
/// When the file cannot be read, or the surface is lost. A line that is no case is a failure in the report.
pub fn play_file(
    path: &Path,
    selection: &Selection,
    surface: &mut impl Surface,
) -> Result<Report, VectorError> {
    let file = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => play_text(&file, &text, selection, surface),
        Err(cause) => Err(VectorError::Read { file, cause }),
    }
}

/// Plays the cases of a text on this surface; `name` stands for the file in messages.
///
/// # Errors
/// When the surface is lost.
pub fn play_text(
    name: &str,
    text: &str,
    selection: &Selection,
    surface: &mut impl Surface,
) -> Result<Report, VectorError> {
    let mut report = Report::default();
    let lines = text.split('\n').enumerate().map(|(i, line)| (i + 1, line.trim()));
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let case = match Case::read(line) {
            Ok(case) => case,
            Err(fault) => {
                let id = format!("{name}:{number}");
                report.failures.push(Failure { id, faults: vec![fault] });
                continue;
            }
        };
        if !selection.kinds.is_empty() && !selection.kinds.contains(&case.kind) {
            report.skipped += 1;
            continue;
        }
        let played = case.play(surface);
        if let Some(cause) = surface.lost() {
            return Err(VectorError::Lost { case: case.id, cause });
        }
        match played {
            Played::Done(faults) if faults.is_empty() => report.passed += 1,
            Played::Done(faults) => report.failures.push(Failure { id: case.id, faults }),
            Played::NotBuilt(why) => {
                report.skipped += 1;
                report.notes.push(format!("{}: skipped: {why}", case.id));
            }
        }
    }
    Ok(report)
}

impl Report {
    /// Adds another run to this one.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.notes.extend(other.notes);
    }
}

/// Every failure and note on its line, the counts last.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        for failure in &self.failures {
            writeln!(f, "{}: {}", failure.id, failure.faults.join("; "))?;
        }
        let failed = self.failures.len();
        write!(f, "{} passed, {failed} failed, {} skipped", self.passed, self.skipped)
    }
}

impl Case {
    /// Reads a case from its line.
    ///
    /// # Errors
    /// What is wrong with the line.
    pub fn read(line: &str) -> Result<Self, String> {
        let raw = Json::parse(line.to_owned()).map_err(|e| format!("the line is not JSON: {e}"))?;
        let value: Value =
            raw.decode().map_err(|e| format!("the line cannot be read as JSON: {e}"))?;
        let mut fields = Fields::of(&value, "the case")?;
        let case = Self {
            id: fields.text("id")?,
            kind: fields.text("kind")?,
            feed: fields.need("feed")?.clone(),
            feed_text: raw.member("feed").unwrap_or_default(),
            expect: fields.need("expect")?.clone(),
        };
        for words in ["title", "basis", "note", "inspired_by"] {
            fields.take(words);
        }
        fields.finish().map_err(|fault| format!("{}: {fault}", case.id))?;
        Ok(case)
    }

    fn play(&self, surface: &mut impl Surface) -> Played {
        let played = match self.kind.as_str() {
            "rpc_stream" => rpc_stream::play(self, surface),
            "dispatch_loop" => dispatch_loop::play(self, surface),
            "sse" => return sse::play(self, surface),
            kind => Err(format!("kind \"{kind}\" is not known to this player")),
        };
        Played::Done(played.unwrap_or_else(|fault| vec![fault]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(name: &str, text: &str, selection: &Selection) -> Report {
        play_text(name, text, selection, &mut Core).unwrap()
    }

    #[test]
    fn lines_that_are_no_cases_are_named_with_file_and_line() {
        let text = "\n{\"id\":\n[1]\n{\"id\":\"X\",\"kind\":\"rpc_stream\"}\n";
        let report = played("some.jsonl", text, &Selection::default());
        let ids: Vec<&str> = report.failures.iter().map(|f| f.id.as_str()).collect();
        assert_eq!(ids, ["some.jsonl:2", "some.jsonl:3", "some.jsonl:4"]);
        assert!(report.failures[0].faults[0].contains("not JSON"), "{report}");
        assert!(report.to_string().ends_with("\n0 passed, 3 failed, 0 skipped"));
    }

    #[test]
    fn an_unknown_kind_fails_unless_other_kinds_are_selected() {
        let text = r#"{"id":"X-1","kind":"telepathy","title":"t","feed":{},"expect":{}}"#;
        let all = played("f", text, &Selection::default());
        assert_eq!((all.passed, all.failures.len(), all.skipped), (0, 1, 0));
        let some = Selection { kinds: vec!["sse".to_owned()] };
        let some = played("f", text, &some);
        assert_eq!((some.passed, some.failures.len(), some.skipped), (0, 0, 1));
    }

    #[test]
    fn a_member_nobody_knows_makes_the_case_fail() {
        let text = r#"{"id":"X-1","kind":"sse","titel":"t","feed":{},"expect":{}}"#;
        let report = played("f", text, &Selection::default());
        assert!(report.to_string().contains("titel"), "{report}");
    }
}
