//! OpenAI Chat Completions and the servers that speak like it (provider streams §2).
//!
//! [`ChatReader`] takes the bytes of an answer, streamed or whole, and gives [`Unit`]s. [`request`]
//! builds what is sent, [`failure_of_body`] reads what comes instead of a stream.

mod calls;
mod chunk;
mod failure;
mod parts;
pub mod request;

pub use failure::failure_of_body;

use super::sse::{SseEnd, SseEvent, SseLimits, SseReader};
use super::unit::{AssistantMessage, ErrorClass, ProviderError, Unit, Usage, Warning, WarningKind};
use crate::Json;
use calls::{Calls, Piece};
use chunk::{CallPiece, Choice, Chunk, FunctionPiece, Text};
use serde_json::value::RawValue;
use std::collections::VecDeque;

/// How an answer is read, and its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatSettings {
    /// Bounds of lines and events.
    pub sse: SseLimits,
    /// The most text, reasoning and arguments of one answer together, in bytes. Default 32 MiB.
    pub max_message: usize,
    /// The most tool calls in one answer. Default 256.
    pub max_calls: usize,
    /// Members of `delta` that hold reasoning; the first one present counts. Default
    /// `reasoning_content`, `reasoning`; none to ignore reasoning.
    pub reasoning_members: Vec<String>,
}

/// Reads one streamed answer.
///
/// Feed it with [`handle_input`](Self::handle_input), say how the body ended, and poll units. After
/// [`is_finished`](Self::is_finished) further bytes are read over, so that the body can be drained.
#[derive(Debug)]
pub struct ChatReader {
    sse: SseReader,
    answer: Answer,
}

/// Reads an answer that came whole, as one `chat.completion` object, into the units that a stream
/// would have given, and says what was odd.
#[must_use]
pub fn read_whole(body: &[u8], settings: &ChatSettings) -> (Vec<Unit>, Vec<Warning>) {
    let mut answer = Answer { whole: true, ..Answer::new(settings.clone()) };
    let text = String::from_utf8_lossy(body);
    answer.take_object(text.trim(), false);
    answer.end_of_answer();
    (answer.units.into(), answer.warnings)
}

impl Default for ChatSettings {
    fn default() -> Self {
        Self {
            sse: SseLimits::default(),
            max_message: 32 << 20,
            max_calls: 256,
            reasoning_members: vec!["reasoning_content".to_owned(), "reasoning".to_owned()],
        }
    }
}

impl ChatReader {
    /// A reader at the start of a body whose status is 200.
    #[must_use]
    pub fn new(settings: ChatSettings) -> Self {
        let sse = SseReader::new(settings.sse).with_end_mark(END_MARK);
        Self { sse, answer: Answer::new(settings) }
    }

    /// Takes the next bytes of the body.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        if self.answer.finished {
            return;
        }
        let outcome = self.sse.handle_input(bytes);
        self.drain();
        if let Err(error) = outcome {
            self.answer.fail(ErrorClass::Permanent, "limit", &error.to_string());
        }
    }

    /// Says that the body ended cleanly.
    pub fn handle_end(&mut self) {
        if self.answer.finished {
            return;
        }
        match self.sse.handle_end() {
            Ok(SseEnd::Clean) => {}
            Ok(SseEnd::Whole(event)) => self.answer.take_event(&event),
            Ok(SseEnd::Fragment) => self.answer.end_early("in the middle of an event"),
            Err(error) => self.answer.fail(ErrorClass::Permanent, "limit", &error.to_string()),
        }
        self.note_replaced();
        self.answer.end_of_body();
    }

    /// Says that the connection broke. What stands unfinished is dropped.
    pub fn handle_broken(&mut self) {
        self.answer.end_early("because the connection broke");
    }

    /// The next unit.
    pub fn poll_unit(&mut self) -> Option<Unit> {
        self.answer.units.pop_front()
    }

    /// Whether the last unit exists: [`Unit::StepFinished`] or [`Unit::Error`].
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.answer.finished
    }

    /// Tokens as far as the provider said; the last totals win.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.answer.usage
    }

    /// What was odd, one entry for each kind.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.answer.warnings
    }

    /// Lines read so far: a silence watchdog restarts when it grows.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.sse.lines()
    }

    fn drain(&mut self) {
        self.note_replaced();
        while let Some(event) = self.sse.poll_event() {
            self.answer.take_event(&event);
        }
    }

    fn note_replaced(&mut self) {
        if self.sse.replaced() > 0 && !self.answer.warned(WarningKind::BadText) {
            self.answer.warn(WarningKind::BadText);
        }
    }
}

/// What ends a stream.
const END_MARK: &str = "[DONE]";

/// The answer while it is put together.
#[derive(Debug)]
struct Answer {
    settings: ChatSettings,
    /// Not streamed: calls stand complete in their order, without an index.
    whole: bool,
    units: VecDeque<Unit>,
    started: bool,
    finished: bool,
    id: Option<String>,
    text: String,
    reasoning: String,
    calls: Calls,
    size: usize,
    finish_reason: Option<String>,
    usage: Option<Usage>,
    warnings: Vec<Warning>,
}

impl Answer {
    fn new(settings: ChatSettings) -> Self {
        Self {
            settings,
            whole: false,
            units: VecDeque::new(),
            started: false,
            finished: false,
            id: None,
            text: String::new(),
            reasoning: String::new(),
            calls: Calls::default(),
            size: 0,
            finish_reason: None,
            usage: None,
            warnings: Vec::new(),
        }
    }

    fn take_event(&mut self, event: &SseEvent) {
        if self.finished {
            return;
        }
        let data = event.data.trim();
        if data == END_MARK {
            self.end_of_answer();
        } else {
            self.take_object(data, event.event == "error");
        }
    }

    fn take_object(&mut self, data: &str, is_error: bool) {
        // Keep-alive words and numbers are no part of the answer; a damaged object may have been.
        if !data.starts_with(['{', '[']) {
            return match is_error {
                true => self.end(failure::failure_of_error(None, &Json::string(data))),
                false => self.warn(WarningKind::UnknownEvent),
            };
        }
        let chunk: Chunk<'_> = match serde_json::from_str(data) {
            Ok(chunk) => chunk,
            Err(_) if Json::parse(data.to_owned()).is_ok_and(|json| !json.is_object()) => {
                return self.warn(WarningKind::UnknownEvent);
            }
            Err(_) => {
                let words =
                    "the provider sent an event that is not JSON; part of the answer is lost";
                return self.fail(ErrorClass::Transient, "malformed_stream", words);
            }
        };
        if let Some(error) = chunk.error.or_else(|| is_error.then(|| read_raw(data)).flatten()) {
            let error = Json::parse(error.get().to_owned()).unwrap_or_default();
            return self.end(failure::failure_of_error(None, &error));
        }
        if let Some(raw) = chunk.usage {
            match chunk::usage(raw) {
                Ok(usage) => self.usage = Some(usage),
                Err(()) => self.warn(WarningKind::PartialUsage),
            }
        }
        match chunk::read::<Vec<&RawValue>>(chunk.choices) {
            Some(choices) => {
                self.start(&chunk);
                for choice in choices {
                    self.take_choice(choice);
                }
            }
            None if chunk.usage.is_some() => {}
            None => self.warn(WarningKind::UnknownEvent),
        }
    }

    fn start(&mut self, chunk: &Chunk<'_>) {
        if !self.started {
            self.started = true;
            self.id = owned(chunk.id);
            self.units
                .push_back(Unit::StreamStart { id: self.id.clone(), model: owned(chunk.model) });
        }
    }

    fn take_choice(&mut self, raw: &RawValue) {
        let Some(choice) = chunk::read::<Choice<'_>>(Some(raw)) else {
            return self.warn(WarningKind::UnknownEvent);
        };
        if chunk::read::<u64>(choice.index).unwrap_or(0) != 0 {
            return self.warn(WarningKind::ExtraChoice);
        }
        if let Some(delta) = choice.delta {
            self.take_delta(delta);
        }
        if let Some(reason) = owned(choice.finish_reason) {
            self.finish_reason = Some(reason);
        }
    }

    fn take_delta(&mut self, raw: &RawValue) {
        let Some(delta) = chunk::read::<
            std::collections::HashMap<std::borrow::Cow<'_, str>, &RawValue>,
        >(Some(raw)) else {
            return self.warn(WarningKind::UnknownEvent);
        };
        let member = |name: &str| delta.get(name).copied();
        let reasoning = self
            .settings
            .reasoning_members
            .iter()
            .find_map(|name| chunk::text(member(name)).filter(|t| !t.text.is_empty()));
        if let Some(piece) = reasoning
            && let Some(piece) = self.admit(piece)
        {
            self.reasoning.push_str(&piece);
            self.units.push_back(Unit::ReasoningDelta(piece));
        }
        for name in ["content", "refusal"] {
            for piece in texts(member(name)) {
                if let Some(piece) = self.admit(piece) {
                    self.text.push_str(&piece);
                    self.units.push_back(Unit::TextDelta(piece));
                }
            }
        }
        let calls = chunk::read::<Vec<&RawValue>>(member("tool_calls")).unwrap_or_default();
        for (position, raw) in (0..).zip(calls) {
            let Some(piece) = chunk::read::<CallPiece<'_>>(Some(raw)) else {
                self.warn(WarningKind::UnknownEvent);
                continue;
            };
            let index = if self.whole { Some(position) } else { chunk::read(piece.index) };
            self.take_call(index, piece.id, piece.function);
        }
        // The form before parallel calls existed: one call, without id or index.
        if let Some(function) = member("function_call") {
            self.take_call(Some(0), None, Some(function));
        }
    }

    fn take_call(
        &mut self,
        index: Option<u64>,
        id: Option<&RawValue>,
        function: Option<&RawValue>,
    ) {
        let function = chunk::read::<FunctionPiece<'_>>(function);
        let (name, arguments) = function.map_or((None, None), |f| (f.name, f.arguments));
        let arguments = match (chunk::text(arguments), arguments) {
            (Some(text), _) => text,
            (None, Some(raw)) => {
                self.warn(WarningKind::ArgumentsNotText);
                Text { text: raw.get().into(), replaced: false }
            }
            (None, None) => Text::default(),
        };
        let delta = if arguments.text.is_empty() {
            String::new()
        } else {
            match self.admit(arguments) {
                Some(delta) => delta,
                None => return,
            }
        };
        let (id, name) = (owned(id).unwrap_or_default(), owned(name).unwrap_or_default());
        let placed = self.calls.add(&Piece { index, id: &id, name: &name, arguments: &delta });
        if placed.loose && !self.warned(WarningKind::LooseToolCalls) {
            self.warn(WarningKind::LooseToolCalls);
        }
        if self.calls.len() > self.settings.max_calls {
            let words = format!(
                "the answer holds more than {} tool calls; raise max_calls if that is right",
                self.settings.max_calls
            );
            return self.fail(ErrorClass::Permanent, "limit", &words);
        }
        if !delta.is_empty() {
            let (id, name) = self.calls.known(placed.call);
            self.units.push_back(Unit::ToolInputDelta { index: placed.call, id, name, delta });
        }
    }

    /// Counts a piece against the bound of the answer; nothing when it is empty or too much.
    fn admit(&mut self, piece: Text<'_>) -> Option<String> {
        if piece.replaced {
            self.warn(WarningKind::BadText);
        }
        if piece.text.is_empty() || self.finished {
            return None;
        }
        self.size += piece.text.len();
        if self.size > self.settings.max_message {
            let words = format!(
                "the answer is larger than {} bytes; raise max_message if that is right",
                self.settings.max_message
            );
            self.fail(ErrorClass::Permanent, "limit", &words);
            return None;
        }
        Some(piece.text.into_owned())
    }

    /// The end mark came, or the one object of an answer that is not streamed was read.
    fn end_of_answer(&mut self) {
        if self.finished {
            return;
        }
        let Some(reason_raw) = self.finish_reason.take() else {
            return self.end_early("without a finish reason");
        };
        self.finished = true;
        let (tool_calls, invalid_calls, made) =
            std::mem::take(&mut self.calls).finish(self.id.as_deref());
        for _ in 0..made {
            self.warn(WarningKind::MissingCallId);
        }
        for _ in &invalid_calls {
            self.warn(WarningKind::InvalidCall);
        }
        let text = std::mem::take(&mut self.text);
        let reasoning = std::mem::take(&mut self.reasoning);
        let message = AssistantMessage { text, reasoning, tool_calls, invalid_calls };
        self.units.push_back(Unit::AssistantMessage(message));
        self.units.push_back(Unit::StepFinished { reason_raw, usage: self.usage });
    }

    fn end_of_body(&mut self) {
        if !self.finished && self.finish_reason.is_some() {
            self.warn(WarningKind::MissingEndMark);
        }
        self.end_of_answer();
    }

    fn end_early(&mut self, how: &str) {
        let words = format!("the provider's answer ended early, {how}");
        self.fail(ErrorClass::Transient, "stream_ended_early", &words);
    }

    fn fail(&mut self, class: ErrorClass, kind: &str, words: &str) {
        self.end(ProviderError::found(class, kind, words));
    }

    fn end(&mut self, error: ProviderError) {
        if !self.finished {
            self.finished = true;
            self.units.push_back(Unit::Error(error));
        }
    }

    fn warned(&self, kind: WarningKind) -> bool {
        self.warnings.iter().any(|warning| warning.kind == kind)
    }

    fn warn(&mut self, kind: WarningKind) {
        match self.warnings.iter_mut().find(|warning| warning.kind == kind) {
            Some(warning) => warning.times += 1,
            None => self.warnings.push(Warning { kind, times: 1 }),
        }
    }
}

/// A string that is not empty.
fn owned(raw: Option<&RawValue>) -> Option<String> {
    chunk::text(raw).map(|text| text.text.into_owned()).filter(|text| !text.is_empty())
}

fn read_raw(data: &str) -> Option<&RawValue> {
    serde_json::from_str(data).ok()
}

/// Content as a string, or as the array of text parts that some servers send.
fn texts(raw: Option<&RawValue>) -> Vec<Text<'_>> {
    if let Some(text) = chunk::text(raw) {
        return vec![text];
    }
    #[derive(serde::Deserialize)]
    struct Part<'a> {
        #[serde(borrow, default)]
        text: Option<&'a RawValue>,
    }
    let parts = chunk::read::<Vec<Part<'_>>>(raw).unwrap_or_default();
    parts.into_iter().filter_map(|part| chunk::text(part.text)).collect()
}

#[cfg(test)]
mod tests;
