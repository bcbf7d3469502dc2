//! `clock`: the time, so that every service has a tool of its own.

use super::{ServerTool, ToolAnswer, ToolFuture};
use broca_proto::Json;
use broca_proto::provider::ToolSpec;
use jiff::Timestamp;
use std::fmt;
use std::sync::Arc;

/// Tells the time in UTC.
pub struct Clock {
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Clock {
    /// A clock that reads `now` for each call.
    #[must_use]
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { now: Arc::new(now) }
    }

    /// The clock of this machine.
    #[must_use]
    pub fn system() -> Self {
        Self::new(Timestamp::now)
    }

    fn answer(&self, input: &Json) -> ToolAnswer {
        let zone = match input.member("timezone") {
            _ if !input.is_object() => return ToolAnswer::failed("the input must be an object"),
            None => "UTC".to_owned(),
            Some(zone) if zone.is_null() => "UTC".to_owned(),
            Some(zone) => match zone.to_text() {
                Some(zone) => zone,
                None => return ToolAnswer::failed("\"timezone\" must be a string"),
            },
        };
        if !["UTC", "ETC/UTC", "GMT", "Z", ""].contains(&zone.to_ascii_uppercase().as_str()) {
            return ToolAnswer::failed(
                "this clock knows only UTC; leave \"timezone\" out or say \"UTC\"",
            );
        }
        ToolAnswer::text(format!("{:.3}", (self.now)()))
    }
}

impl ServerTool for Clock {
    fn spec(&self) -> ToolSpec {
        let schema = r#"{"type":"object","properties":{"timezone":{"type":"string","description":"UTC, the only one known"}}}"#;
        ToolSpec {
            name: "clock".to_owned(),
            description: Some("Tells the current date and time in UTC.".to_owned()),
            input_schema: Json::parse(schema).unwrap_or_else(|_| Json::empty_object()),
        }
    }

    fn server_name(&self) -> &str {
        "builtin"
    }

    fn call<'a>(&'a self, input: &'a Json) -> ToolFuture<'a> {
        Box::pin(std::future::ready(Ok(self.answer(input))))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(input: &str) -> ToolAnswer {
        let clock = Clock::new(|| "2026-07-06T18:26:10.5Z".parse().unwrap());
        clock.answer(&Json::parse(input.to_owned()).unwrap())
    }

    #[test]
    fn it_tells_the_given_time_in_milliseconds() {
        for input in ["{}", r#"{"timezone":"utc"}"#, r#"{"timezone":null}"#] {
            let result = ask(input).result();
            let expected = r#"{"content":[{"type":"text","text":"2026-07-06T18:26:10.500Z"}],"isError":false}"#;
            assert_eq!(result.as_str(), expected);
        }
    }

    #[test]
    fn what_it_cannot_do_is_an_error_result_with_the_cure() {
        for input in [r#"{"timezone":"Europe/Berlin"}"#, r#"{"timezone":3}"#, "[]"] {
            let answer = ask(input);
            assert!(answer.is_error, "{input}");
        }
        assert!(ask(r#"{"timezone":"Mars"}"#).result().as_str().contains("only UTC"));
    }

    #[test]
    fn its_schema_is_an_object_schema() {
        assert!(Clock::system().spec().input_schema.member("properties").is_some());
    }
}
