//! Consent to calls of the service's own tools (feature `approve`).
//!
//! The calls of one response are asked for one after the other, in their order, as they run. What the model called stays
//! as it is in the history; a narrowed input is only what runs.

use super::exchange::Exchange;
use super::{Doing, Effect, Turn};
use crate::run::log::LogEvent;
use crate::run::toolbox::Route;
use crate::session::approval::{Answer, Consent, Decision, Question, SettledBy};
use crate::session::content::ToolUse;

/// The result of a call that needs consent where the request did not ask for the feature.
pub(super) const CANNOT_BE_ASKED: &str = "The call was not run: this tool needs a person's approval, \
     and the request that began this turn cannot be asked for it.";

/// Why a call is denied when nobody answered.
const NOBODY_ANSWERED: &str = "nobody answered in time";

/// Why a call is denied when nobody says.
const NO_REASON: &str = "no reason was given";

impl Turn {
    /// A person answered. Ignored when nobody was asked.
    pub fn handle_answer(&mut self, answer: Answer) {
        let by = &SettledBy::Person;
        let Some((exchange, question)) = self.asked() else { return };
        let (decision, reason) = (answer.consent().decision(), answer.reason());
        let input = match answer.consent() {
            Consent::Narrowed(input) => Some(input),
            Consent::Allow | Consent::Deny => None,
        };
        self.log_resolved(&question, (&decision, by), input, reason);
        match (answer.consent(), exchange.calls.get(exchange.at).cloned()) {
            (Consent::Allow | Consent::Narrowed(_), Some((call, Route::Mcp(Some(server))))) => {
                let input = input.cloned().unwrap_or_else(|| call.input.clone());
                self.call_tool(exchange, ToolUse { input, ..call }, server);
            }
            _ => self.deny(exchange, reason.unwrap_or(NO_REASON)),
        }
    }

    /// Nobody answered in time: that is a deny. Ignored when nobody was asked.
    pub fn handle_approval_deadline(&mut self) {
        let Some((exchange, question)) = self.asked() else { return };
        let settled = (&Decision::Deny, &SettledBy::Deadline);
        self.log_resolved(&question, settled, None, Some(NOBODY_ANSWERED));
        self.deny(exchange, NOBODY_ANSWERED);
    }

    pub(super) fn needs_consent(&self, call: &ToolUse) -> bool {
        self.consent.approvals.ask.covers(&call.name)
    }

    /// What is asked about a call; nothing when nobody can be asked.
    pub(super) fn question(&self, call: &ToolUse) -> Option<Question> {
        Some(Question {
            tool_use_id: call.id.clone(),
            name: call.name.clone(),
            input: call.input.clone(),
            narrow: self.consent.approvals.rules_of(&call.name),
            expires_in_ms: self.consent.wait_ms?,
        })
    }

    pub(super) fn ask(&mut self, exchange: Exchange, question: Question) {
        self.pending.push(LogEvent::approval_requested(&self.actor, &question));
        // The events go with it when it is taken: until then a cancel may add to them.
        self.next = Some(Effect::Ask { events: Vec::new(), question: question.clone() });
        self.doing = Doing::Asking(exchange, question);
    }

    pub(super) fn log_withdrawn(&mut self, question: &Question) {
        let settled = (&Decision::Withdrawn, &SettledBy::Cancel);
        self.log_resolved(question, settled, None, None);
    }

    fn asked(&mut self) -> Option<(Exchange, Question)> {
        let doing = std::mem::replace(&mut self.doing, Doing::Over);
        let Doing::Asking(exchange, question) = doing else {
            self.doing = doing;
            return None;
        };
        Some((exchange, question))
    }

    fn deny(&mut self, mut exchange: Exchange, reason: &str) {
        self.refuse(&mut exchange, &format!("The call was denied and not run: {reason}"));
        self.run_tools(exchange);
    }

    fn log_resolved(
        &mut self,
        question: &Question,
        settled: (&Decision, &SettledBy),
        input: Option<&crate::Json>,
        reason: Option<&str>,
    ) {
        let id = &question.tool_use_id;
        let event = LogEvent::approval_resolved(&self.actor, id, settled, input, reason);
        self.pending.push(event);
    }
}
