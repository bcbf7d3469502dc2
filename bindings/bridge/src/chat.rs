//! The answer of a Chat Completions server, read piece by piece: the contract of provider streams for every language.

use broca_proto::Json;
use broca_proto::provider::openai_chat::{ChatReader, ChatSettings, failure_of_body};
use broca_proto::provider::unit::{ProviderError, Unit, Usage};
use serde_json::{Value, json};

/// Bytes of an answer of another status than 2xx that are looked at.
const MAX_FAILURE_BYTES: usize = 64 * 1024;

/// Reads one answer. Feed it bytes as they come, say how the body ended, and take what they became.
#[derive(Debug)]
pub struct ChatStream(State);

#[derive(Debug)]
enum State {
    Reading(Box<ChatReader>),
    /// The answer is a failure; its status and its first bytes.
    Failing(u16, Vec<u8>),
    /// What it failed with, until it is taken.
    Failed(Option<ProviderError>),
}

impl ChatStream {
    /// A reader at the start of a body that came with this HTTP status.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self(match status {
            200..300 => State::Reading(Box::new(ChatReader::new(ChatSettings::default()))),
            _ => State::Failing(status, Vec::new()),
        })
    }

    /// The next bytes of the body.
    pub fn data(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Reading(reader) => reader.handle_input(bytes),
            State::Failing(_, body) => {
                let room = MAX_FAILURE_BYTES.saturating_sub(body.len());
                body.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            State::Failed(_) => {}
        }
    }

    /// The body ended cleanly.
    pub fn end(&mut self) {
        match &mut self.0 {
            State::Reading(reader) => reader.handle_end(),
            _ => self.fail(),
        }
    }

    /// The connection broke.
    pub fn broken(&mut self) {
        match &mut self.0 {
            State::Reading(reader) => reader.handle_broken(),
            _ => self.fail(),
        }
    }

    /// What came since the last call, as a JSON object: `units`, an array of objects that each bear the name of their
    /// kind in `unit`; `warnings`, all so far, with `kind` and `times`; and `usage` as far as the provider said.
    ///
    /// An answer of another status than 2xx becomes one unit, `error`, when it has ended.
    #[must_use]
    pub fn take(&mut self) -> String {
        let (units, warnings, usage): (Vec<Json>, _, _) = match &mut self.0 {
            State::Reading(reader) => {
                let units = std::iter::from_fn(|| reader.poll_unit()).map(|unit| unit_json(&unit));
                (units.collect(), reader.warnings(), reader.usage())
            }
            State::Failing(..) => (Vec::new(), &[][..], None),
            State::Failed(error) => {
                let unit = error.take().map(|error| unit_json(&Unit::Error(error)));
                (unit.into_iter().collect(), &[][..], None)
            }
        };
        let warnings: Vec<Value> = warnings
            .iter()
            .map(|warning| json!({"kind": warning.kind.as_str(), "times": warning.times}))
            .collect();
        let answer = Json::object([
            ("units", &Json::array(&units)),
            ("warnings", &encoded(&warnings.into())),
            ("usage", &encoded(&usage_json(usage))),
        ]);
        answer.as_str().to_owned()
    }

    fn fail(&mut self) {
        if let State::Failing(status, body) = &self.0 {
            self.0 = State::Failed(Some(failure_of_body(*status, body)));
        }
    }
}

fn unit_json(unit: &Unit) -> Json {
    let object = match unit {
        Unit::StreamStart { id, model } => {
            json!({"unit": "stream_start", "id": id, "model": model})
        }
        Unit::TextDelta(delta) => json!({"unit": "text_delta", "delta": delta}),
        Unit::ReasoningDelta(delta) => json!({"unit": "reasoning_delta", "delta": delta}),
        Unit::ToolInputDelta { index, id, name, delta } => {
            json!({"unit": "tool_input_delta", "index": index, "id": id, "name": name, "delta": delta})
        }
        Unit::AssistantMessage(message) => {
            // The arguments keep the spelling of the model.
            let calls = message.tool_calls.iter().map(|call| {
                let (id, name) = (Json::string(&call.id), Json::string(&call.name));
                Json::object([("id", &id), ("name", &name), ("input", &call.input)])
            });
            let calls: Vec<Json> = calls.collect();
            let invalid = message.invalid_calls.iter().map(
                |call| json!({"id": call.id, "name": call.name, "reason": call.reason.as_str()}),
            );
            let rest = json!({
                "unit": "assistant_message",
                "text": message.text,
                "reasoning": message.reasoning,
                "invalid_calls": invalid.collect::<Vec<Value>>(),
            });
            return encoded(&rest).with_member("tool_calls", &Json::array(&calls));
        }
        Unit::StepFinished { reason_raw, usage } => {
            json!({"unit": "step_finished", "reason_raw": reason_raw, "usage": usage_json(*usage)})
        }
        Unit::Error(error) => json!({
            "unit": "error",
            "class": error.class.as_str(),
            "retryable": error.retryable,
            "type": error.kind,
            "code": error.code,
            "message": error.message,
        }),
        _ => json!({"unit": "unknown"}),
    };
    encoded(&object)
}

fn usage_json(usage: Option<Usage>) -> Value {
    usage.map_or(Value::Null, |usage| {
        json!({
            "input": usage.input,
            "cached_input": usage.cached_input,
            "cache_write": usage.cache_write,
            "output": usage.output,
            "reasoning": usage.reasoning,
        })
    })
}

/// A value of `serde_json` can always be written.
fn encoded(value: &Value) -> Json {
    Json::encode(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(stream: &mut ChatStream) -> Value {
        serde_json::from_str(&stream.take()).unwrap()
    }

    #[test]
    fn units_are_taken_as_they_come_and_each_once() {
        let mut stream = ChatStream::new(200);
        stream.data(b"data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n");
        let first = taken(&mut stream);
        assert_eq!(first["units"][0], json!({"unit": "stream_start", "id": "c", "model": "m"}));
        assert_eq!(first["units"][1], json!({"unit": "text_delta", "delta": "hi"}));
        stream.broken();
        let second = taken(&mut stream);
        assert_eq!(second["units"].as_array().unwrap().len(), 1, "{second}");
        assert_eq!(second["units"][0]["type"], "stream_ended_early");
    }

    #[test]
    fn arguments_keep_their_spelling() {
        let mut stream = ChatStream::new(200);
        stream.data(b"data: {\"id\":\"c\",\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"t\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"n\\\":12345678901234567890.10}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n");
        stream.end();
        assert!(stream.take().contains(r#""input":{"n":12345678901234567890.10}"#));
    }

    #[test]
    fn a_failure_is_one_error_however_much_follows() {
        let mut stream = ChatStream::new(429);
        stream.data(br#"{"error":{"message":"slow down","type":"rate_limit_error"}}"#);
        stream.data(&vec![b' '; MAX_FAILURE_BYTES * 2]);
        assert_eq!(taken(&mut stream)["units"], json!([]));
        stream.end();
        stream.broken();
        let answer = taken(&mut stream);
        assert_eq!(answer["units"].as_array().unwrap().len(), 1);
        assert_eq!(answer["units"][0]["class"], "transient");
        stream.data(b"more");
        assert_eq!(taken(&mut stream)["units"], json!([]));
    }
}
