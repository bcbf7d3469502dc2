//! From the units of one answer to a reply or a failed attempt.

use crate::models::{Delta, DeltaSink, ModelFailure, ModelReply, TokenUsage};
use broca_proto::Json;
use broca_proto::provider::unit::{AssistantMessage, ErrorClass, Unit, Usage};

/// What the units of one answer have brought.
#[derive(Default)]
pub(super) struct Gathered {
    id: Option<String>,
    model: Option<String>,
    message: AssistantMessage,
    end: Option<Result<(String, Option<Usage>), ModelFailure>>,
}

impl Gathered {
    pub(super) fn take(&mut self, unit: Unit, sink: &dyn DeltaSink) {
        match unit {
            Unit::StreamStart { id, model } => (self.id, self.model) = (id, model),
            Unit::TextDelta(text) => sink.delta(Delta::Text(text)),
            Unit::ReasoningDelta(text) => sink.delta(Delta::Reasoning(text)),
            Unit::ToolInputDelta { index, id, name, delta } => {
                sink.delta(Delta::ToolInput { index, id, name, delta });
            }
            Unit::AssistantMessage(message) => self.message = message,
            Unit::StepFinished { reason_raw, usage } => self.end = Some(Ok((reason_raw, usage))),
            Unit::Error(error) => {
                let mut failure = ModelFailure::new(error.class, error.message);
                failure.retryable = error.retryable;
                self.end = Some(Err(failure));
            }
            _ => {}
        }
    }

    pub(super) fn reply(
        self,
        status: u16,
        body: Option<Json>,
        warnings: u64,
    ) -> Result<ModelReply, ModelFailure> {
        let Self { id, model, message, end } = self;
        let early = || ModelFailure::new(ErrorClass::Transient, "the provider's answer has no end");
        let (finish_reason, usage) =
            end.unwrap_or_else(|| Err(early())).map_err(|failure| failure.with_status(status))?;
        if let Some(call) = message.invalid_calls.first() {
            let words = format!(
                "provider returned a call of tool {:?} that cannot run: {}",
                call.name, call.reason
            );
            return Err(ModelFailure::new(ErrorClass::Transient, words).with_status(status));
        }
        let written =
            || completion(id.as_deref(), model.as_deref(), &message, &finish_reason, usage);
        Ok(ModelReply {
            body: body.unwrap_or_else(written),
            content: message.blocks(),
            usage: usage.map(|usage| TokenUsage {
                input_tokens: usage.fill_tokens(),
                output_tokens: usage.output,
            }),
            truncated: finish_reason == "length",
            finish_reason,
            warnings,
        })
    }
}

/// The streamed answer as the object that the server would have sent without streaming.
fn completion(
    id: Option<&str>,
    model: Option<&str>,
    message: &AssistantMessage,
    finish_reason: &str,
    usage: Option<Usage>,
) -> Json {
    let number = |n: u64| Json::integer(i64::try_from(n).unwrap_or(i64::MAX));
    let calls = message.tool_calls.iter().map(|call| {
        let (name, arguments) = (Json::string(&call.name), Json::string(call.input.as_str()));
        let function = Json::object([("name", &name), ("arguments", &arguments)]);
        Json::object([
            ("id", &Json::string(&call.id)),
            ("type", &Json::string("function")),
            ("function", &function),
        ])
    });
    let calls: Vec<Json> = calls.collect();
    let calls = (!calls.is_empty()).then(|| Json::array(&calls));
    let text = if message.text.is_empty() { Json::null() } else { Json::string(&message.text) };
    let role = Json::string("assistant");
    let members = [("role", &role), ("content", &text)];
    let message = Json::object(members.into_iter().chain(calls.iter().map(|c| ("tool_calls", c))));
    let choice = Json::object([
        ("index", &Json::integer(0)),
        ("message", &message),
        ("finish_reason", &Json::string(finish_reason)),
    ]);
    let usage = usage.map_or_else(Json::null, |usage| {
        Json::object([
            ("prompt_tokens", &number(usage.fill_tokens())),
            ("completion_tokens", &number(usage.output)),
            (
                "prompt_tokens_details",
                &Json::object([("cached_tokens", &number(usage.cached_input))]),
            ),
        ])
    });
    Json::object([
        ("id", &id.map_or_else(Json::null, Json::string)),
        ("object", &Json::string("chat.completion")),
        ("model", &model.map_or_else(Json::null, Json::string)),
        ("choices", &Json::array([&choice])),
        ("usage", &usage),
    ])
}
