//! What the checks found: one line each, for people or for programs.

use crate::fault::{Fault, one_line, written};
use crate::view::write_object;
use broca::Json;
use std::io::{self, Write};

/// The longest text of a finding, in characters.
const MAX_CHARS: usize = 600;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Ok,
    Warning,
    Failed,
}

impl Level {
    const fn shown(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "FAILED",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            other => other.shown(),
        }
    }
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) found: String,
    /// What to do about it; nothing where all is well.
    pub(super) cure: String,
}

impl Finding {
    pub(super) fn ok(found: impl Into<String>) -> Self {
        Self { level: Level::Ok, found: found.into(), cure: String::new() }
    }

    pub(super) fn warning(found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { level: Level::Warning, found: found.into(), cure: cure.into() }
    }

    pub(super) fn failed(found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { level: Level::Failed, found: found.into(), cure: cure.into() }
    }
}

/// An error that this command has words for elsewhere.
impl From<Fault> for Finding {
    fn from(fault: Fault) -> Self {
        let (what, cure) = fault.parts();
        Self::failed(what, cure)
    }
}

/// The findings so far.
#[derive(Debug)]
pub(super) struct Report {
    json: bool,
    warnings: i64,
    failed: i64,
}

impl Report {
    pub(super) const fn new(json: bool) -> Self {
        Self { json, warnings: 0, failed: 0 }
    }

    /// Tells what a check found; whether what builds upon it can be checked.
    pub(super) fn add(&mut self, check: &str, finding: &Finding) -> Result<bool, Fault> {
        match finding.level {
            Level::Ok => {}
            Level::Warning => self.warnings += 1,
            Level::Failed => self.failed += 1,
        }
        let found = one_line(&finding.found, MAX_CHARS);
        let cure = one_line(&finding.cure, MAX_CHARS);
        let mut out = io::stdout().lock();
        written(if self.json {
            let shown = if cure.is_empty() { Json::null() } else { Json::string(&cure) };
            let members = [
                ("check", &Json::string(check)),
                ("level", &Json::string(finding.level.word())),
                ("found", &Json::string(&found)),
                ("cure", &shown),
            ];
            write_object(&mut out, "check", &members)
        } else {
            let cure = if cure.is_empty() { cure } else { format!("; {cure}") };
            let level = finding.level.shown();
            writeln!(out, "{level:<8} {check:<11} {found}{cure}").and_then(|()| out.flush())
        })?;
        Ok(finding.level != Level::Failed)
    }

    /// The last line, and the exit code.
    pub(super) fn finish(self) -> Result<(), Fault> {
        let mut out = io::stdout().lock();
        written(if self.json {
            let members = [
                ("ok", &Json::encode(&(self.failed == 0)).unwrap_or_default()),
                ("warnings", &Json::integer(self.warnings)),
                ("failed", &Json::integer(self.failed)),
            ];
            write_object(&mut out, "summary", &members)
        } else {
            let told = match (self.failed, self.warnings) {
                (0, 0) => "all is well".to_owned(),
                (0, warnings) => format!("it works; warnings: {warnings}"),
                (failed, warnings) => format!("failed: {failed}, warnings: {warnings}"),
            };
            writeln!(out, "{told}").and_then(|()| out.flush())
        })?;
        // The lines above have told everything.
        if self.failed > 0 { Err(Fault::failed("", "")) } else { Ok(()) }
    }
}
