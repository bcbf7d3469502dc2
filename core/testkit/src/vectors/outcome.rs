//! How an operation ended, compared with what a case states.

use super::fields::{Fields, same, short};
use broca::{Error, ErrorKind, Json, Retry};
use serde_json::Value;

/// How the operation of a case ended.
#[derive(Debug, Clone)]
pub(super) enum Ending {
    /// It did not: the service is silent, or the turn is paused.
    Open,
    /// With a reply of this text.
    Replied(String),
    /// With the end of the session.
    Ended,
    /// With an error.
    Failed(Error),
}

impl Ending {
    /// In words, for messages and comparisons.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Open => "no outcome".to_owned(),
            Self::Replied(text) => format!("reply {text:?}"),
            Self::Ended => "the end of the session".to_owned(),
            Self::Failed(error) => format!("{error}"),
        }
    }
}

/// Whether an error belongs to a class of the cases: its own kind, one it is a special case of, or
/// `rpc_error` for every answer that was a JSON-RPC error.
pub(super) fn is_of_class(error: &Error, class: &str) -> bool {
    if class == "rpc_error" {
        let is_own_kind = error.is(ErrorKind::Lagged);
        return !is_own_kind && (error.is(ErrorKind::Rpc) || detail(error, "code").is_some());
    }
    let mut kind = Some(error.kind());
    while let Some(now) = kind {
        if now.as_str() == class {
            return true;
        }
        kind = now.parent();
    }
    false
}

fn detail(error: &Error, name: &str) -> Option<Json> {
    error.details().and_then(|details| details.member(name)).filter(|value| !value.is_null())
}

/// Compares an ending with `outcome` of a case; `resent` is how often the request went out again.
pub(super) fn check(
    expected: &Value,
    came: &Ending,
    resent: usize,
    faults: &mut Vec<String>,
) -> Result<(), String> {
    let mut fields = Fields::of(expected, "outcome")?;
    if let Some(text) = fields.maybe_text("result_text")? {
        match came {
            Ending::Replied(reply) => same(faults, "result_text", &text, reply),
            other => {
                faults.push(format!("result_text: expected {text:?}, came {}", other.describe()))
            }
        }
    }
    if fields.truth("ended")? == Some(true) && !matches!(came, Ending::Ended) {
        faults.push(format!("expected the end of the session, came {}", came.describe()));
    }
    let error = match came {
        Ending::Failed(error) => Some(error),
        _ => None,
    };
    if let Some(class) = fields.maybe_text("error_class")?
        && !error.is_some_and(|error| is_of_class(error, &class))
    {
        faults.push(format!("error_class: expected {class}, came {}", came.describe()));
    }
    for name in ["code", "message", "last_event_id", "bytes", "limit", "status"] {
        let Some(expected) = fields.take(name) else { continue };
        let came = error.and_then(|e| detail(e, name)).and_then(|v| v.decode::<Value>().ok());
        if came.as_ref().unwrap_or(&Value::Null) != expected {
            let came = came.as_ref().map_or_else(|| "none".to_owned(), short);
            faults.push(format!("{name}: expected {}, came {came}", short(expected)));
        }
    }
    if let Some(part) = fields.maybe_text("message_contains")?
        && !error.is_some_and(|e| e.message().contains(&part))
    {
        faults.push(format!("message_contains: {part:?} is not in {}", came.describe()));
    }
    if let Some(expected) = fields.truth("request_may_have_run")? {
        let may = error.map_or(matches!(came, Ending::Replied(_)), |e| {
            e.retry() != Retry::Safe && !matches!(e.kind(), ErrorKind::Connect | ErrorKind::Tls)
        });
        same(faults, "request_may_have_run", &expected, &may);
    }
    if let Some(word) = fields.maybe_text("retry")? {
        let came = error.map_or("none", |e| e.retry().as_str());
        same(faults, "retry", &word.as_str(), &came);
    }
    if let Some(expected) = fields.truth("auto_resend")? {
        same(faults, "auto_resend", &expected, &(resent > 0));
    }
    fields.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_include_what_an_error_is_a_special_case_of() {
        let error = Error::new(ErrorKind::TurnInProgress, "x");
        assert!(is_of_class(&error, "turn_in_progress"));
        assert!(is_of_class(&error, "rpc") && is_of_class(&error, "rpc_error"));
        assert!(!is_of_class(&error, "lagged"));
        let lagged = Error::new(ErrorKind::Lagged, "x")
            .with_details(Json::object([("code", &Json::integer(-32000))]));
        assert!(!is_of_class(&lagged, "rpc_error"));
    }

    #[test]
    fn an_unknown_member_of_the_outcome_is_a_fault() {
        let mut faults = Vec::new();
        assert!(check(&json!({"colour": 1}), &Ending::Open, 0, &mut faults).is_err());
    }
}
