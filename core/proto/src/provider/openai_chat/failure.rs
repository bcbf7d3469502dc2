//! What a failure of a Chat Completions server means: classes from status, type, code and words
//! (provider streams §2, Errors).

use super::super::unit::{ErrorClass, ProviderError};
use crate::Json;

/// The provider's sentence is cut after this many bytes.
const MAX_MESSAGE: usize = 2_000;

/// Reads the body of an answer whose status is not 2xx. Any body will do: JSON, HTML or nothing.
#[must_use]
pub fn failure_of_body(status: u16, body: &[u8]) -> ProviderError {
    let text = String::from_utf8_lossy(body);
    let json = Json::parse(text.trim().to_owned()).ok();
    let error = json.as_ref().and_then(|json| json.member("error")).or_else(|| json.clone());
    match error.filter(|error| error.is_object() || error.to_text().is_some()) {
        Some(error) => failure_of_error(Some(status), &error),
        None => classified(Some(status), None, None, &format!("the provider answered {status}")),
    }
}

/// Reads an `error` object, or a bare string in its place.
pub(super) fn failure_of_error(status: Option<u16>, error: &Json) -> ProviderError {
    let text = |name: &str| error.member(name).and_then(|v| v.to_text()).filter(|t| !t.is_empty());
    let code = error.member("code").filter(|code| !code.is_null());
    // Gateways put the upstream's status into `code`, as a number.
    let number = code.as_ref().and_then(|code| code.decode::<u16>().ok());
    let status = status.or_else(|| number.filter(|n| (400..600).contains(n)));
    let code = code.map(|code| code.to_text().unwrap_or_else(|| code.as_str().to_owned()));
    let message = error.to_text().or_else(|| text("message"));
    let message = message.as_deref().unwrap_or("the provider reported an error without words");
    classified(status, text("type"), code, message)
}

fn classified(
    status: Option<u16>,
    kind: Option<String>,
    code: Option<String>,
    message: &str,
) -> ProviderError {
    let (class, retryable) = classify(status, kind.as_deref(), code.as_deref(), message);
    let mut end = message.len().min(MAX_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    ProviderError { class, retryable, kind, code, message: message[..end].to_owned() }
}

fn classify(
    status: Option<u16>,
    kind: Option<&str>,
    code: Option<&str>,
    message: &str,
) -> (ErrorClass, bool) {
    let is = |word: &str| kind == Some(word) || code == Some(word);
    // A 429 that waiting does not cure.
    if is("insufficient_quota") {
        return (ErrorClass::Permanent, false);
    }
    let class = if is("context_length_exceeded") || is("exceed_context_size_error") {
        ErrorClass::ContextOverflow
    } else if is("invalid_api_key")
        || is("authentication_error")
        || is("permission_error")
        || is("billing_error")
    {
        ErrorClass::Auth
    } else if is("rate_limit_exceeded") || is("rate_limit_error") || is("overloaded_error") {
        ErrorClass::Transient
    } else {
        match status {
            Some(401..=403) => ErrorClass::Auth,
            Some(408 | 409 | 425 | 429 | 500..=599) => ErrorClass::Transient,
            _ if is("invalid_request_error") || status.is_some() => match speaks_of_length(message)
            {
                true => ErrorClass::ContextOverflow,
                false => ErrorClass::Permanent,
            },
            // The request had been accepted and the answer begun: it may well work next time.
            _ => ErrorClass::Transient,
        }
    };
    (class, class.retryable())
}

/// Compatible servers have no code for it, only words.
fn speaks_of_length(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["context length", "context window", "context size", "prompt is too long", "too many tokens"]
        .iter()
        .any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(status: u16, body: &str) -> (ErrorClass, bool) {
        let failure = failure_of_body(status, body.as_bytes());
        (failure.class, failure.retryable)
    }

    #[test]
    fn status_type_and_code_decide_the_class() {
        let body = |kind: &str, code: &str| {
            format!(
                "{{\"error\":{{\"message\":\"m\",\"type\":\"{kind}\",\"param\":null,\"code\":\"{code}\"}}}}"
            )
        };
        for (status, kind, code, expected) in [
            (400, "invalid_request_error", "context_length_exceeded", ErrorClass::ContextOverflow),
            (400, "invalid_request_error", "x", ErrorClass::Permanent),
            (401, "invalid_request_error", "invalid_api_key", ErrorClass::Auth),
            (403, "x", "x", ErrorClass::Auth),
            (404, "x", "model_not_found", ErrorClass::Permanent),
            (422, "x", "x", ErrorClass::Permanent),
            (408, "x", "x", ErrorClass::Transient),
            (429, "x", "rate_limit_exceeded", ErrorClass::Transient),
            (429, "x", "insufficient_quota", ErrorClass::Permanent),
            (500, "server_error", "x", ErrorClass::Transient),
            (503, "x", "x", ErrorClass::Transient),
        ] {
            assert_eq!(class(status, &body(kind, code)).0, expected, "{status} {kind} {code}");
        }
        assert!(!class(429, &body("x", "insufficient_quota")).1, "waiting does not bring money");
    }

    #[test]
    fn words_about_length_make_a_context_overflow_where_no_code_does() {
        let body =
            "{\"error\":{\"message\":\"This model's maximum context length is 4096 tokens\"}}";
        assert_eq!(class(400, body).0, ErrorClass::ContextOverflow);
    }

    #[test]
    fn any_body_is_read() {
        assert_eq!(class(502, "<html>bad gateway</html>"), (ErrorClass::Transient, true));
        assert_eq!(class(401, ""), (ErrorClass::Auth, false));
        assert_eq!(failure_of_body(400, b"{\"error\":\"no such model\"}").message, "no such model");
        assert_eq!(failure_of_body(400, b"{\"message\":\"flat\"}").message, "flat");
        let long = format!("{{\"error\":\"{}\"}}", "\u{e9}".repeat(3_000));
        assert!(failure_of_body(400, long.as_bytes()).message.len() <= MAX_MESSAGE);
    }

    #[test]
    fn a_number_in_code_counts_as_the_status() {
        let error = Json::parse("{\"code\":401,\"message\":\"m\"}").unwrap();
        assert_eq!(failure_of_error(None, &error).class, ErrorClass::Auth);
        assert_eq!(failure_of_error(None, &Json::string("boom")).class, ErrorClass::Transient);
    }
}
