//! Asks whoever gives the input for consent to calls of tools, one question at a time.

use crate::fault::Fault;
use crate::view::View;
use broca::engine::{CallId, NOBODY_TO_ASK};
use broca::steps::{Approval, Decision};
use std::collections::VecDeque;

/// What the model reads when somebody said no and not why.
const REFUSED: &str = "The call was not allowed.";

/// The questions that are open; the first one has been asked.
#[derive(Debug, Default)]
pub(crate) struct Consent(VecDeque<Approval>);

impl Consent {
    /// Whether the next line of the input is an answer.
    pub(crate) fn is_asked(&self) -> bool {
        !self.0.is_empty()
    }

    /// Asks, when those before are answered.
    pub(crate) fn ask(&mut self, approval: Approval, view: &mut View) -> Result<(), Fault> {
        self.0.push_back(approval);
        if self.0.len() == 1 { self.show(view) } else { Ok(()) }
    }

    /// The line that answers the question that was asked; nothing at the end of the input.
    pub(crate) fn decide(&mut self, line: Option<String>, view: &mut View) -> Result<(), Fault> {
        let Some(line) = line else {
            for approval in self.0.drain(..) {
                approval.deny(NOBODY_TO_ASK)?;
            }
            return Ok(());
        };
        if let Some(decision) = read(&line) {
            let Some(approval) = self.0.pop_front() else { return Ok(()) };
            approval.decide(decision)?;
        }
        self.show(view)
    }

    /// The question no longer matters.
    pub(crate) fn withdraw(&mut self, call: CallId, view: &mut View) -> Result<(), Fault> {
        let Some(at) = self.0.iter().position(|approval| approval.call == call) else {
            return Ok(());
        };
        self.0.remove(at);
        if at > 0 {
            return Ok(());
        }
        view.note("the question no longer matters")?;
        self.show(view)
    }

    /// The turn is over, and its questions with it.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }

    fn show(&self, view: &mut View) -> Result<(), Fault> {
        let Some(approval) = self.0.front() else { return Ok(()) };
        view.approval(&approval.tool_use_id, &approval.name, &approval.input)
    }
}

/// What a line says; nothing when it says nothing.
fn read(line: &str) -> Option<Decision> {
    let line = line.trim();
    match line.to_ascii_lowercase().as_str() {
        "" => None,
        "y" | "yes" => Some(Decision::Allow),
        "n" | "no" => Some(Decision::Deny(REFUSED.to_owned())),
        _ => Some(Decision::Deny(line.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_yes_no_or_a_reason() {
        for line in ["y", " Yes ", "Y\r"] {
            assert_eq!(read(line), Some(Decision::Allow), "{line:?}");
        }
        assert_eq!(read("NO"), Some(Decision::Deny(REFUSED.to_owned())));
        assert_eq!(read("yes, later"), Some(Decision::Deny("yes, later".to_owned())));
        assert_eq!(read("  "), None);
    }
}
