//! Scripts: a JSON file that says what the scripted model answers.
//!
//! ```json
//! {
//!   "word_delay_ms": 20,
//!   "otherwise": "rules",
//!   "rules": [
//!     {"when": {"contains": "weather", "after_tools": false},
//!      "then": {"tool_calls": [{"name": "weather", "input": {"city": "Oslo"}}]}},
//!     {"when": {"after_tools": true}, "then": {"text": "It rains."}},
//!     {"when": {"equals": "break"}, "times": 1, "then": {"fail": {"status": 500, "error": "down"}}},
//!     {"then": {"pieces": ["Hel", {"text": "lo", "delay_ms": 500}]}}
//!   ]
//! }
//! ```
//!
//! The first rule whose `when` holds, and whose `times` are not used up, answers. An absent `when` always holds.
//! `times` counts over all sessions of the service, from its start.
//!
//! `when` (all that is given must hold): `contains` and `equals` look at what the person said last in the turn, `round` at which
//! answer of the turn this is (from 1), `after_tools` whether the last message brings results, `result_contains` at the text of these, `tool_offered` whether a tool of
//! that name is on offer, `system_contains` at the system prompt.
//!
//! `then`: `text` or `pieces` (the deltas as they shall come, each a string or `{text, delay_ms}`), `show` (`asked`: system prompt and options as JSON), `repeat` (the text so many times), `reasoning`, `blocks` (before the text, as they are written),
//! `tool_calls` (`{name, input, id}`; inputs go out exactly as they are written, names need not exist, ids may repeat), `delay_ms` (before
//! anything), `finish` (the finish reason, such as `length`), `fail` (`{status, error, body, retry_after_ms}`, after the text).
//!
//! `otherwise`: `rules` (the built-in ones, the default) or `fail`.

use super::{Piece, Plan, PlannedCall, ScriptedSettings, Situation, words};
use crate::models::ModelFailure;
use broca_proto::Json;
use broca_proto::provider::openai_chat::failure_of_body;
use broca_proto::provider::unit::ErrorClass;
use broca_proto::session::content::Block;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use thiserror::Error;

/// The largest script, and the largest text that one rule may produce, in bytes.
pub const MAX_SCRIPT_BYTES: usize = 64 << 20;

/// A script that was read and checked.
#[derive(Debug)]
pub struct Script {
    rules: Vec<Rule>,
    otherwise: Otherwise,
    word_delay: Duration,
}

/// Why a script cannot be used.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("script {path}: {cause}; check the path")]
    Unreadable {
        /// The path as given.
        path: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The file is not a script.
    #[error("script {path}, line {line}, column {column}: {reason}")]
    Malformed {
        /// The path as given.
        path: String,
        /// Where, from 1.
        line: usize,
        /// Where, from 1.
        column: usize,
        /// What was wrong and what may stand there.
        reason: String,
    },
}

#[derive(Debug)]
struct Rule {
    when: When,
    then: Then,
    times: Option<u64>,
    used: AtomicU64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<'a> {
    #[serde(borrow)]
    rules: Vec<&'a RawValue>,
    #[serde(default)]
    otherwise: Otherwise,
    #[serde(default)]
    word_delay_ms: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Otherwise {
    #[default]
    Rules,
    Fail,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    #[serde(default)]
    when: When,
    then: Then,
    times: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct When {
    contains: Option<String>,
    equals: Option<String>,
    round: Option<u64>,
    after_tools: Option<bool>,
    result_contains: Option<String>,
    tool_offered: Option<String>,
    system_contains: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Then {
    text: Option<String>,
    pieces: Option<Vec<PieceText>>,
    repeat: Option<usize>,
    reasoning: Option<String>,
    blocks: Vec<Json>,
    tool_calls: Vec<CallText>,
    delay_ms: u64,
    finish: Option<String>,
    fail: Option<Fail>,
    show: Option<Show>,
}

/// What an answer may show of the request.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Show {
    /// System prompt and options.
    Asked,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a piece must be a string or {\"text\": …, \"delay_ms\": …}")]
enum PieceText {
    Plain(String),
    Delayed {
        text: String,
        #[serde(default)]
        delay_ms: u64,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallText {
    name: String,
    #[serde(default = "Json::empty_object")]
    input: Json,
    id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fail {
    status: Option<u16>,
    error: Option<String>,
    body: Option<String>,
    retry_after_ms: Option<u64>,
}

impl Script {
    /// Reads a script from a file.
    ///
    /// # Errors
    /// [`ScriptError`] with the place and the cure.
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        let name = path.display().to_string();
        let unreadable = |cause| ScriptError::Unreadable { path: name.clone(), cause };
        let size = std::fs::metadata(path).map_err(unreadable)?.len();
        if size > MAX_SCRIPT_BYTES as u64 {
            let words = format!("larger than {MAX_SCRIPT_BYTES} bytes");
            return Err(unreadable(std::io::Error::new(std::io::ErrorKind::FileTooLarge, words)));
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        Self::parse(&name, &text)
    }

    /// Reads a script from its text; `name` stands for the path in errors.
    ///
    /// # Errors
    /// [`ScriptError::Malformed`].
    pub fn parse(name: &str, text: &str) -> Result<Self, ScriptError> {
        let file: File<'_> =
            serde_json::from_str(text).map_err(|e| malformed(name, text, 0, &e))?;
        let mut rules = Vec::with_capacity(file.rules.len());
        for raw in file.rules {
            let offset = raw.get().as_ptr() as usize - text.as_ptr() as usize;
            let rule: RuleText =
                serde_json::from_str(raw.get()).map_err(|e| malformed(name, text, offset, &e))?;
            if let Err(reason) = rule.then.check() {
                let (line, column) = place(text, offset);
                return Err(ScriptError::Malformed { path: name.to_owned(), line, column, reason });
            }
            let RuleText { when, then, times } = rule;
            rules.push(Rule { when, then, times, used: AtomicU64::new(0) });
        }
        let word_delay = Duration::from_millis(file.word_delay_ms);
        Ok(Self { rules, otherwise: file.otherwise, word_delay })
    }

    pub(super) fn word_delay(&self) -> Duration {
        self.word_delay
    }

    /// The answer; none when the built-in rules shall decide.
    pub(super) fn plan(
        &self,
        situation: &Situation<'_>,
        settings: &ScriptedSettings,
    ) -> Option<Result<Plan, ModelFailure>> {
        for (i, rule) in self.rules.iter().enumerate() {
            if rule.when.holds(situation) && rule.claim() {
                tracing::debug!(rule = i + 1, "a script's rule answers");
                return Some(Ok(rule.then.plan(situation, settings)));
            }
        }
        let words = "no rule of the script matches; add one without \"when\" or set \"otherwise\" to \"rules\"";
        let failure = ModelFailure::new(ErrorClass::Permanent, words);
        (self.otherwise == Otherwise::Fail).then_some(Err(failure))
    }
}

impl Rule {
    /// Uses the rule once; false when its times are up.
    fn claim(&self) -> bool {
        let Some(times) = self.times else { return true };
        let next = |used: u64| (used < times).then_some(used + 1);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

impl When {
    fn holds(&self, situation: &Situation<'_>) -> bool {
        let holds = |wanted: &Option<String>, test: &dyn Fn(&str) -> bool| {
            wanted.as_deref().is_none_or(test)
        };
        holds(&self.contains, &|part| situation.text.contains(part))
            && holds(&self.equals, &|whole| situation.text == whole)
            && holds(&self.result_contains, &|part| {
                situation.results.iter().any(|result| result.text.contains(part))
            })
            && holds(&self.system_contains, &|part| {
                situation.request.generation.system().is_some_and(|system| system.contains(part))
            })
            && holds(&self.tool_offered, &|name| {
                situation.request.tools.iter().any(|tool| tool.name == name)
            })
            && self.round.is_none_or(|round| round == situation.round)
            && self.after_tools.is_none_or(|after| after != situation.results.is_empty())
    }
}

impl Then {
    fn check(&self) -> Result<(), String> {
        let says = self.text.is_some()
            || self.pieces.is_some()
            || self.show.is_some()
            || !self.blocks.is_empty();
        let is_other = |block: &Json| {
            let block_type = block.member("type").and_then(|word| word.to_text());
            block_type.is_some_and(|word| !["text", "tool_use", "tool_result"].contains(&&*word))
        };
        if !self.blocks.iter().all(is_other) {
            return Err(
                "\"blocks\" must be objects with a \"type\" other than text, tool_use and tool_result"
                    .to_owned(),
            );
        }
        if self.show.is_some() && (self.text.is_some() || self.pieces.is_some()) {
            return Err("\"then\" has both show and text or pieces; keep one".to_owned());
        }
        if !says && self.tool_calls.is_empty() && self.fail.is_none() {
            return Err(
                "\"then\" says nothing; give it text, pieces, show, blocks, tool_calls or fail"
                    .to_owned(),
            );
        }
        if self.text.is_some() && self.pieces.is_some() {
            return Err("\"then\" has both text and pieces; keep one".to_owned());
        }
        if self.fail.is_some() && !self.tool_calls.is_empty() {
            return Err("\"then\" has both tool_calls and fail; keep one".to_owned());
        }
        let once: usize = match (&self.text, &self.pieces) {
            (Some(text), _) => text.len(),
            (None, Some(pieces)) => pieces.iter().map(|piece| piece.parts().0.len()).sum(),
            (None, None) => 0,
        };
        match once.checked_mul(self.repeat.unwrap_or(1)) {
            Some(size) if size <= MAX_SCRIPT_BYTES => Ok(()),
            _ => Err(format!(
                "the text with its repeat is larger than {MAX_SCRIPT_BYTES} bytes; lower repeat"
            )),
        }
    }

    fn plan(&self, situation: &Situation<'_>, settings: &ScriptedSettings) -> Plan {
        let repeat = self.repeat.unwrap_or(1);
        let pieces = match (&self.text, &self.pieces) {
            (Some(text), _) => words(&text.repeat(repeat), settings.word_delay),
            (None, Some(pieces)) => {
                let chosen = pieces.iter().map(|piece| {
                    let (text, delay_ms) = piece.parts();
                    Piece { text: text.to_owned(), delay: Duration::from_millis(delay_ms) }
                });
                let chosen: Vec<Piece> = chosen.collect();
                std::iter::repeat_n(chosen, repeat).flatten().collect()
            }
            (None, None) => match self.show {
                Some(Show::Asked) => {
                    let asked = situation.request.generation.to_json();
                    vec![Piece { text: asked.as_str().to_owned(), delay: settings.word_delay }]
                }
                None => Vec::new(),
            },
        };
        let calls = self.tool_calls.iter().map(|call| PlannedCall {
            id: call.id.clone(),
            name: call.name.clone(),
            input: call.input.clone(),
        });
        Plan {
            delay: Duration::from_millis(self.delay_ms),
            reasoning: self.reasoning.clone().unwrap_or_default(),
            blocks: self.blocks.iter().cloned().map(Block::read).collect(),
            pieces,
            calls: calls.collect(),
            failure: self.fail.as_ref().map(Fail::failure),
            finish: self.finish.clone(),
        }
    }
}

impl PieceText {
    fn parts(&self) -> (&str, u64) {
        match self {
            Self::Plain(text) => (text, 0),
            Self::Delayed { text, delay_ms } => (text, *delay_ms),
        }
    }
}

impl Fail {
    fn failure(&self) -> ModelFailure {
        let body = self.body.as_deref().unwrap_or("");
        let found = self.status.map(|status| failure_of_body(status, body.as_bytes()));
        let class = found.as_ref().map_or(ErrorClass::ProviderUnavailable, |found| found.class);
        let error = self.error.clone().unwrap_or_else(|| match self.status {
            Some(status) => format!("provider returned HTTP {status}"),
            None => "error sending request".to_owned(),
        });
        let failure = ModelFailure::new(class, error);
        let retryable = found.map_or(failure.retryable, |found| found.retryable);
        let retry_after = self.retry_after_ms.map(Duration::from_millis);
        let body = self.body.clone();
        ModelFailure { status: self.status, body, retryable, retry_after, ..failure }
    }
}

/// The fault with its place in the whole text, where `e` counts from `offset`.
fn malformed(name: &str, text: &str, offset: usize, e: &serde_json::Error) -> ScriptError {
    let (line, column) = place(text, offset);
    let (line, column) = match e.line() {
        0 | 1 => (line, (column + e.column()).saturating_sub(1).max(1)),
        lines => (line + lines - 1, e.column()),
    };
    let words = e.to_string();
    let reason = words.rsplit_once(" at line ").map_or(words.as_str(), |(reason, _)| reason);
    ScriptError::Malformed { path: name.to_owned(), line, column, reason: reason.to_owned() }
}

/// Line and column, from 1, of a byte.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    (line, column)
}
