//! Where cases are played: on the engine itself, or on whatever stands above it.

use crate::host::End;
use crate::subject::{Bridged, Direct, Subject};
use broca::engine::Config;
use broca::proto::provider::openai_chat::{ChatReader, ChatSettings, failure_of_body};
use broca::proto::provider::unit::{
    AssistantMessage, ErrorClass, InvalidCall, InvalidReason, ProviderError, ToolCall, Unit, Usage,
    Warning, WarningKind,
};
use broca::{Error, Json};
use bytes::Bytes;
use serde::de::DeserializeOwned;

/// What makes the things that cases are played on.
pub trait Surface {
    /// The client of one session.
    type Client: Subject;

    /// A client of this configuration.
    ///
    /// # Errors
    /// When it cannot be made.
    fn client(&mut self, config: Config) -> Result<Self::Client, Error>;

    /// Reads the answer of a Chat Completions server with this HTTP status, in these pieces. One of another status
    /// than 2xx always ends.
    ///
    /// # Errors
    /// When something else went wrong than the answer.
    fn chat(&mut self, status: u16, pieces: &[Bytes], end: End) -> Result<ChatCame, String>;

    /// Why nothing more can be played here.
    fn lost(&self) -> Option<String> {
        None
    }
}

/// What a provider's answer became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatCame {
    /// Units, in order.
    pub units: Vec<Unit>,
    /// What was odd.
    pub warnings: Vec<Warning>,
    /// Tokens, when the provider counted them.
    pub usage: Option<Usage>,
}

/// The engine and the reader themselves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Core;

/// The bridge that all bindings stand on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bridge;

impl Surface for Core {
    type Client = Direct;

    fn client(&mut self, config: Config) -> Result<Direct, Error> {
        Direct::new(config)
    }

    fn chat(&mut self, status: u16, pieces: &[Bytes], end: End) -> Result<ChatCame, String> {
        if !(200..300).contains(&status) {
            let units = vec![Unit::Error(failure_of_body(status, &pieces.concat()))];
            return Ok(ChatCame { units, warnings: Vec::new(), usage: None });
        }
        let mut reader = ChatReader::new(ChatSettings::default());
        pieces.iter().for_each(|piece| reader.handle_input(piece));
        match end {
            End::Eof => reader.handle_end(),
            End::Reset => reader.handle_broken(),
            End::Hold => {}
        }
        let units = std::iter::from_fn(|| reader.poll_unit()).collect();
        Ok(ChatCame { units, warnings: reader.warnings().to_vec(), usage: reader.usage() })
    }
}

impl Surface for Bridge {
    type Client = Bridged;

    fn client(&mut self, config: Config) -> Result<Bridged, Error> {
        Bridged::new(&config)
    }

    fn chat(&mut self, status: u16, pieces: &[Bytes], end: End) -> Result<ChatCame, String> {
        let mut stream = broca_bridge::ChatStream::new(status);
        pieces.iter().for_each(|piece| stream.data(piece));
        match end {
            End::Eof => stream.end(),
            End::Reset => stream.broken(),
            End::Hold => {}
        }
        ChatCame::read(&stream.take())
    }
}

impl ChatCame {
    /// Reads what [`ChatStream::take`](broca_bridge::ChatStream::take) wrote.
    ///
    /// # Errors
    /// When something is missing or unknown.
    pub fn read(text: &str) -> Result<Self, String> {
        let came = Json::parse(text.to_owned()).map_err(|e| format!("the units: {e}"))?;
        let list = |name: &str| {
            let list = came.member(name).and_then(|list| list.elements());
            list.ok_or_else(|| format!("the answer has no list \"{name}\""))
        };
        let warning = |warning: &Json| {
            let kind = word(warning, "kind", &WARNINGS, WarningKind::as_str)?;
            Ok(Warning { kind, times: member(warning, "times")? })
        };
        Ok(Self {
            units: list("units")?.iter().map(unit).collect::<Result<_, _>>()?,
            warnings: list("warnings")?.iter().map(warning).collect::<Result<_, String>>()?,
            usage: usage(&came)?,
        })
    }
}

const WARNINGS: [WarningKind; 9] = [
    WarningKind::MissingEndMark,
    WarningKind::LooseToolCalls,
    WarningKind::ArgumentsNotText,
    WarningKind::MissingCallId,
    WarningKind::InvalidCall,
    WarningKind::UnknownEvent,
    WarningKind::ExtraChoice,
    WarningKind::PartialUsage,
    WarningKind::BadText,
];

const INVALID: [InvalidReason; 3] =
    [InvalidReason::Truncated, InvalidReason::NotAnObject, InvalidReason::NoName];

const CLASSES: [ErrorClass; 5] = [
    ErrorClass::Transient,
    ErrorClass::Permanent,
    ErrorClass::Auth,
    ErrorClass::ContextOverflow,
    ErrorClass::ProviderUnavailable,
];

fn unit(unit: &Json) -> Result<Unit, String> {
    let kind: String = member(unit, "unit")?;
    Ok(match kind.as_str() {
        "stream_start" => {
            Unit::StreamStart { id: member(unit, "id")?, model: member(unit, "model")? }
        }
        "text_delta" => Unit::TextDelta(member(unit, "delta")?),
        "reasoning_delta" => Unit::ReasoningDelta(member(unit, "delta")?),
        "tool_input_delta" => Unit::ToolInputDelta {
            index: member(unit, "index")?,
            id: member(unit, "id")?,
            name: member(unit, "name")?,
            delta: member(unit, "delta")?,
        },
        "assistant_message" => {
            let call = |call: &Json| {
                let input = call.member("input").ok_or("a call has no input")?;
                Ok(ToolCall { id: member(call, "id")?, name: member(call, "name")?, input })
            };
            let invalid = |call: &Json| {
                let reason = word(call, "reason", &INVALID, InvalidReason::as_str)?;
                Ok(InvalidCall { id: member(call, "id")?, name: member(call, "name")?, reason })
            };
            let (calls, invalid_calls): (Vec<Json>, Vec<Json>) =
                (member(unit, "tool_calls")?, member(unit, "invalid_calls")?);
            Unit::AssistantMessage(AssistantMessage {
                text: member(unit, "text")?,
                reasoning: member(unit, "reasoning")?,
                tool_calls: calls.iter().map(call).collect::<Result<_, String>>()?,
                invalid_calls: invalid_calls.iter().map(invalid).collect::<Result<_, String>>()?,
            })
        }
        "step_finished" => {
            Unit::StepFinished { reason_raw: member(unit, "reason_raw")?, usage: usage(unit)? }
        }
        "error" => Unit::Error(ProviderError {
            class: word(unit, "class", &CLASSES, ErrorClass::as_str)?,
            retryable: member(unit, "retryable")?,
            kind: member(unit, "type")?,
            code: member(unit, "code")?,
            message: member(unit, "message")?,
        }),
        other => return Err(format!("unit \"{other}\" is unknown here")),
    })
}

fn usage(of: &Json) -> Result<Option<Usage>, String> {
    let usage = of.member("usage").ok_or("there is no usage")?;
    if usage.is_null() {
        return Ok(None);
    }
    Ok(Some(Usage {
        input: member(&usage, "input")?,
        cached_input: member(&usage, "cached_input")?,
        cache_write: member(&usage, "cache_write")?,
        output: member(&usage, "output")?,
        reasoning: member(&usage, "reasoning")?,
    }))
}

fn member<T: DeserializeOwned>(of: &Json, name: &str) -> Result<T, String> {
    let value = of.member(name).ok_or_else(|| format!("there is no \"{name}\""))?;
    value.decode().map_err(|e| format!("\"{name}\": {e}"))
}

fn word<T: Copy>(
    of: &Json,
    name: &str,
    all: &[T],
    as_str: impl Fn(T) -> &'static str,
) -> Result<T, String> {
    let word: String = member(of, name)?;
    let found = all.iter().copied().find(|value| as_str(*value) == word);
    found.ok_or_else(|| format!("\"{name}\" is \"{word}\", which is unknown here"))
}
