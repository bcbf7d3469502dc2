//! Errors on their way to the host, and the guard around every export.

use broca_bridge::errors::{of_panic, push_failed};
use broca_bridge::layout::failed;
use broca_bridge::{Batch, Error};
use napi::{Env, JsError, Status};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a conversion can fail with.
pub(crate) enum Fault {
    /// An error of the table.
    Broca(Error),
    /// An error of the host.
    Host(napi::Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Broca(error)
    }
}

impl From<napi::Error> for Fault {
    fn from(error: napi::Error) -> Self {
        Self::Host(error)
    }
}

/// Runs an export: errors of the table are thrown in their form, and a panic is one of them.
pub(crate) fn guard<R>(env: &Env, export: impl FnOnce() -> Result<R, Fault>) -> napi::Result<R> {
    let outcome = catch_unwind(AssertUnwindSafe(export))
        .unwrap_or_else(|payload| Err(Fault::Broca(of_panic(&*payload))));
    outcome.map_err(|fault| match fault {
        Fault::Host(error) => error,
        Fault::Broca(error) => {
            let thrown = napi::Error::new("Broca".to_owned(), to_json(&error));
            // SAFETY: `env` belongs to the call that this export is in, on the thread of the host.
            unsafe { JsError::from(thrown).throw_into(env.raw()) };
            napi::Error::from_status(Status::PendingException)
        }
    })
}

/// An error as a JSON object.
pub(crate) fn to_json(error: &Error) -> String {
    let mut batch = Batch::new();
    push_failed(&mut batch, error);
    let mut json = format!("{{\"code\":{}", error.code());
    if let Some(record) = batch.records().next() {
        let texts =
            [("kind", failed::kind), ("message", failed::message), ("retry", failed::retry)];
        for (name, field) in texts {
            let _ = write!(json, ",\"{name}\":");
            push_string(&mut json, record.text(field).unwrap_or_default());
        }
        if let Some(details) = record.text(failed::details) {
            let _ = write!(json, ",\"details\":{details}");
        }
    }
    json.push('}');
    json
}

fn push_string(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            c if c < ' ' => {
                let _ = write!(json, "\\u{:04x}", c as u32);
            }
            c => json.push(c),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use broca_bridge::ErrorKind;

    #[test]
    fn an_error_becomes_a_json_object_whatever_its_text_holds() {
        let error = Error::new(ErrorKind::Connect, "a \"b\" \\ \n é");
        assert_eq!(
            to_json(&error),
            r#"{"code":-101,"kind":"connect","message":"a \"b\" \\ \u000a é","retry":"safe"}"#
        );
    }
}
