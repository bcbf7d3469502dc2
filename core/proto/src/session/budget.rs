//! What turns and sessions spend, and how much they may (design §4).

use super::payload::TokenUsage;
use crate::Json;
use crate::error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

/// Limits for a turn or a session. What is absent is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// Messages to the service: the application's, and those that bring results.
    pub rounds: Option<u32>,
    /// Tokens read and written together, as far as providers count them.
    pub tokens: Option<u64>,
    /// Calls of this client's tools.
    pub tool_calls: Option<u32>,
}

/// What was spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Messages to the service that were answered.
    #[serde(default)]
    pub rounds: u32,
    /// Tokens that models read, as far as providers count them.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens that models wrote, as far as providers count them.
    #[serde(default)]
    pub output_tokens: u64,
    /// Calls of this client's tools.
    #[serde(default)]
    pub tool_calls: u32,
}

/// Whose budget it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One turn's.
    Turn,
    /// The session's, in all its turns.
    Session,
}

impl Scope {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Session => "session",
        }
    }
}

impl Spent {
    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            rounds: self.rounds.saturating_add(other.rounds),
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            tool_calls: self.tool_calls.saturating_add(other.tool_calls),
        }
    }

    /// All tokens.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl Budget {
    /// Whether another message may be sent after so much was spent.
    ///
    /// # Errors
    /// [`ErrorKind::LoopLimit`], which names the limit, its value and what was spent.
    pub fn admits_message(&self, scope: Scope, spent: Spent) -> Result<(), Error> {
        let rounds = (u64::from(spent.rounds), self.rounds.map(u64::from));
        used_up(scope, "rounds", rounds, false)?;
        used_up(scope, "tokens", (spent.tokens(), self.tokens), false)
    }

    /// Whether a pause may be answered after so much was spent, its own calls among it: they run, and their results are
    /// another message.
    ///
    /// # Errors
    /// As [`Budget::admits_message`].
    pub fn admits_calls(&self, scope: Scope, spent: Spent) -> Result<(), Error> {
        let calls = (u64::from(spent.tool_calls), self.tool_calls.map(u64::from));
        used_up(scope, "tool_calls", calls, true)?;
        self.admits_message(scope, spent)
    }
}

/// The error of a limit that leaves no room. What `counts_ahead` is over only when it is exceeded.
fn used_up(
    scope: Scope,
    limit: &str,
    (spent, allowed): (u64, Option<u64>),
    counts_ahead: bool,
) -> Result<(), Error> {
    let over = |allowed: &u64| if counts_ahead { spent > *allowed } else { spent >= *allowed };
    let Some(allowed) = allowed.filter(over) else { return Ok(()) };
    let whose = scope.as_str();
    let message = format!(
        "the budget of the {whose} is used up: {limit} are limited to {allowed}, and {spent} were needed; \
         raise the limit, or ask for less in one {whose}"
    );
    let number = |n: u64| Json::integer(i64::try_from(n).unwrap_or(i64::MAX));
    let details = Json::object([
        ("scope", &Json::string(whose)),
        ("limit", &Json::string(limit)),
        ("allowed", &number(allowed)),
        ("spent", &number(spent)),
    ]);
    Err(Error::new(ErrorKind::LoopLimit, message).with_details(details))
}

/// Provider messages whose usage is remembered.
const REMEMBERED: usize = 64;

/// Adds up what providers say they counted. One message of a provider may come in several records that all repeat its
/// usage, or let it grow: it is counted once, with the largest.
#[derive(Debug, Default)]
pub struct Meter {
    total: Option<TokenUsage>,
    /// The sum when the request under way left.
    before: Option<TokenUsage>,
    counted: Vec<(String, TokenUsage)>,
}

impl Meter {
    /// Counts the payload of a `provider.response`.
    pub fn count(&mut self, payload: &Json) {
        let usage = payload.member("usage").and_then(|usage| usage.decode::<TokenUsage>().ok());
        let Some(usage) = usage else { return };
        let total = self.total.get_or_insert_default();
        let id = payload.member("body").and_then(|body| body.member("id"));
        let id = id.and_then(|id| id.to_text()).filter(|id| !id.is_empty());
        let mut before = TokenUsage::default();
        if let Some(id) = id {
            match self.counted.iter_mut().find(|(known, _)| *known == id) {
                Some((_, known)) => {
                    before = *known;
                    known.input_tokens = known.input_tokens.max(usage.input_tokens);
                    known.output_tokens = known.output_tokens.max(usage.output_tokens);
                }
                None => {
                    if self.counted.len() >= REMEMBERED {
                        self.counted.remove(0);
                    }
                    self.counted.push((id, usage));
                }
            }
        }
        let more = |now: u64, before: u64| now.saturating_sub(before);
        total.input_tokens =
            total.input_tokens.saturating_add(more(usage.input_tokens, before.input_tokens));
        total.output_tokens =
            total.output_tokens.saturating_add(more(usage.output_tokens, before.output_tokens));
    }

    /// A request leaves: what is counted from now on is its own.
    pub const fn begin(&mut self) {
        self.before = self.total;
    }

    /// The request is answered. Where the service says what it has cost, that takes the place of what its events have
    /// said: some of them may not have come.
    pub fn told(&mut self, usage: Option<TokenUsage>) {
        let Some(usage) = usage else { return };
        let before = self.before.unwrap_or_default();
        self.total = Some(TokenUsage {
            input_tokens: before.input_tokens.saturating_add(usage.input_tokens),
            output_tokens: before.output_tokens.saturating_add(usage.output_tokens),
        });
    }

    /// The sum; nothing when nobody counted.
    #[must_use]
    pub const fn total(&self) -> Option<TokenUsage> {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn response(id: &str, input: u64, output: u64) -> Json {
        let text = format!(
            r#"{{"ok":true,"body":{{"id":"{id}"}},"usage":{{"input_tokens":{input},"output_tokens":{output}}}}}"#
        );
        Json::parse(text).unwrap()
    }

    #[test]
    fn one_provider_message_is_counted_once_however_often_it_is_told() {
        let mut meter = Meter::default();
        assert_eq!(meter.total(), None);
        for (id, input, output) in [("m1", 100, 1), ("m1", 100, 7), ("m2", 50, 2), ("m1", 100, 7)] {
            meter.count(&response(id, input, output));
        }
        let total = meter.total().unwrap();
        assert_eq!((total.input_tokens, total.output_tokens), (150, 9));
    }

    #[test]
    fn what_the_service_says_of_a_request_counts_instead_of_its_events_and_nothing_said_changes_nothing()
     {
        let mut meter = Meter::default();
        meter.begin();
        meter.count(&response("m1", 100, 7));
        meter.told(None);
        meter.begin();
        meter.count(&response("m2", 50, 2));
        meter.told(Some(TokenUsage { input_tokens: 80, output_tokens: 3 }));
        let total = |meter: &Meter| meter.total().map(|t| (t.input_tokens, t.output_tokens));
        assert_eq!(total(&meter), Some((180, 10)));
        // An event that comes late, or again, is a request's own all the same.
        meter.begin();
        meter.count(&response("m3", 5, 5));
        meter.told(Some(TokenUsage::default()));
        assert_eq!(total(&meter), Some((180, 10)));
    }

    #[test]
    fn messages_without_an_id_are_each_counted() {
        let mut meter = Meter::default();
        for payload in [response("", 5, 1), response("", 5, 1)] {
            meter.count(&payload);
        }
        meter.count(&Json::parse(r#"{"ok":true,"usage":null,"body":{"id":"m"}}"#).unwrap());
        assert_eq!(meter.total().unwrap().input_tokens, 10);
    }

    #[test]
    fn a_limit_is_named_with_its_value() {
        let budget = Budget { rounds: Some(3), tokens: Some(100), tool_calls: Some(2) };
        let details = |spent: Spent| {
            let error = budget.admits_calls(Scope::Turn, spent).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LoopLimit);
            error.details().unwrap().as_str().to_owned()
        };
        let calls = details(Spent { tool_calls: 3, ..Spent::default() });
        assert_eq!(calls, r#"{"scope":"turn","limit":"tool_calls","allowed":2,"spent":3}"#);
        let rounds = details(Spent { rounds: 3, ..Spent::default() });
        assert_eq!(rounds, r#"{"scope":"turn","limit":"rounds","allowed":3,"spent":3}"#);
        let tokens = details(Spent { input_tokens: 60, output_tokens: 41, ..Spent::default() });
        assert_eq!(tokens, r#"{"scope":"turn","limit":"tokens","allowed":100,"spent":101}"#);
    }

    proptest! {
        #[test]
        fn a_budget_admits_what_is_below_every_limit_and_nothing_else(
            limits in (prop::option::of(0..5_u32), prop::option::of(0..5_u64), prop::option::of(0..5_u32)),
            spent in (0..6_u32, 0..6_u64, 0..6_u64, 0..6_u32),
        ) {
            let budget = Budget { rounds: limits.0, tokens: limits.1, tool_calls: limits.2 };
            let spent = Spent { rounds: spent.0, input_tokens: spent.1, output_tokens: spent.2, tool_calls: spent.3 };
            let message = limits.0.is_none_or(|n| spent.rounds < n) && limits.1.is_none_or(|n| spent.tokens() < n);
            prop_assert_eq!(budget.admits_message(Scope::Session, spent).is_ok(), message);
            let calls = limits.2.is_none_or(|n| spent.tool_calls <= n);
            prop_assert_eq!(budget.admits_calls(Scope::Session, spent).is_ok(), message && calls);
        }

        #[test]
        fn the_order_of_records_does_not_change_a_sum(records in prop::collection::vec((0..4_u8, 0..50_u64, 0..50_u64), 0..20)) {
            let sum = |records: &[(u8, u64, u64)]| {
                let mut meter = Meter::default();
                for (id, input, output) in records {
                    meter.count(&response(&format!("m{id}"), *input, *output));
                }
                meter.total()
            };
            let mut backwards = records.clone();
            backwards.reverse();
            prop_assert_eq!(sum(&records), sum(&backwards));
        }
    }
}
