//! What a case says about consent: who answers what, and what a tool lets a consent narrow.

use super::fields::{Fields, short, text};
use broca::Json;
use broca::engine::Answer;
use broca::proto::session::narrow::{NarrowRule, NarrowRules};
use serde_json::Value;

/// The answer to the approval of one call.
#[derive(Debug, Clone)]
pub(super) struct Approval {
    pub(super) answer: Option<Answer>,
    pub(super) after_ms: u64,
}

impl Approval {
    /// Reads `"allow"`, `{"allow": true}`, `{"allow_narrowed": {"input": …}}`, `"deny"`,
    /// `{"deny": {"reason": …}}` or `"no_answer"`, with `after_ms` where it is an object.
    pub(super) fn read(value: &Value) -> Result<Self, String> {
        if let Some(word) = value.as_str() {
            let answer = match word {
                "allow" => Some(Answer::Allow),
                "deny" => Some(Answer::Deny("denied".to_owned())),
                "no_answer" => None,
                other => return Err(format!("an approval cannot be \"{other}\"")),
            };
            return Ok(Self { answer, after_ms: 0 });
        }
        let mut fields = Fields::of(value, "an approval")?;
        let after_ms = fields.number("after_ms")?.unwrap_or(0);
        let answer = if let Some(narrowed) = fields.take("allow_narrowed") {
            let mut narrowed = Fields::of(narrowed, "allow_narrowed")?;
            let input = Json::encode(narrowed.need("input")?).map_err(|e| e.to_string())?;
            narrowed.finish()?;
            Some(Answer::AllowNarrowed(input))
        } else if let Some(deny) = fields.take("deny") {
            Some(Answer::Deny(match deny {
                Value::Object(_) => {
                    let mut deny = Fields::of(deny, "deny")?;
                    let reason = deny.maybe_text("reason")?.unwrap_or_else(|| "denied".to_owned());
                    deny.finish()?;
                    reason
                }
                Value::Bool(true) => "denied".to_owned(),
                other => text(other).map_err(|e| format!("deny {e}"))?,
            }))
        } else if let Some(allow) = fields.take("allow") {
            if !matches!(allow, Value::Bool(true) | Value::Object(_)) {
                return Err(format!("allow cannot be {}", short(allow)));
            }
            Some(Answer::Allow)
        } else if fields.truth("no_answer")? == Some(true) {
            None
        } else {
            return Err(format!(
                "an approval must say allow, allow_narrowed, deny or no_answer: {}",
                short(value)
            ));
        };
        fields.finish()?;
        Ok(Self { answer, after_ms })
    }
}

/// Reads a tool's rules: JSON pointer to word.
pub(super) fn rules(value: &Value) -> Result<NarrowRules, String> {
    let mut fields = Fields::of(value, "narrowing")?;
    let mut rules = Vec::new();
    for pointer in fields.rest() {
        let word = fields.text(pointer)?;
        let rule = NarrowRule::parse(&word)
            .ok_or_else(|| format!("narrowing: \"{word}\" is no rule known to the client"))?;
        rules.push((pointer.to_owned(), rule));
    }
    Ok(NarrowRules::new(rules))
}
