//! The built-in model: deterministic, without a key or a network, streams its words and calls tools.
//!
//! It understands nothing. [`rules`] says what it does by default: tools named in the message are called, their
//! parameters filled from what stands in it, and the answer quotes the results. A [`script`] can make it say anything.

pub mod rules;
pub mod script;

use super::{
    Delta, DeltaSink, Model, ModelDescription, ModelFailure, ModelFuture, ModelReply, ModelRequest,
    TokenUsage,
};
use broca_proto::Json;
use broca_proto::session::content::{Block, BlockKind, Content, Message, Role, ToolUse};
use script::Script;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::time::Duration;

/// What the scripted model is called in `provider.request`.
const NAME: &str = "scripted";

/// The most deltas that one text is cut into when nobody chose its pieces.
const MAX_PIECES: usize = 1_000;

/// The scripted model.
#[derive(Debug)]
pub struct Scripted {
    script: Option<Script>,
    settings: ScriptedSettings,
}

/// How the scripted model speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptedSettings {
    /// The wait before each word. Default none; a script's `word_delay_ms` goes before it.
    pub word_delay: Duration,
    /// How many characters of one tool result the answer quotes. Default 2,000.
    pub quote_chars: usize,
}

/// What the model is going to say and do in one answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// Waited before anything is said.
    pub(crate) delay: Duration,
    pub(crate) reasoning: String,
    /// Put before the text as they are.
    pub(crate) blocks: Vec<Block>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) calls: Vec<PlannedCall>,
    /// The answer fails after its pieces.
    pub(crate) failure: Option<ModelFailure>,
    /// Why it ends; `stop` or `tool_calls` when absent.
    pub(crate) finish: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) delay: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct PlannedCall {
    /// Made from the conversation when absent.
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) input: Json,
}

/// The last turn of a conversation, as rules and scripts look at it.
#[derive(Debug)]
pub(crate) struct Situation<'a> {
    /// What the person said last.
    pub(crate) text: String,
    /// The results that the last message brings: tool name, text, whether it failed.
    pub(crate) results: Vec<ResultSeen>,
    /// The last message holds text of its own beside results.
    pub(crate) text_is_new: bool,
    /// Which answer of the turn this is, from 1.
    pub(crate) round: u64,
    pub(crate) request: &'a ModelRequest,
}

#[derive(Debug)]
pub(crate) struct ResultSeen {
    pub(crate) tool: String,
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

impl Default for ScriptedSettings {
    fn default() -> Self {
        Self { word_delay: Duration::ZERO, quote_chars: 2_000 }
    }
}

impl Default for Scripted {
    /// The built-in rules alone.
    fn default() -> Self {
        Self { script: None, settings: ScriptedSettings::default() }
    }
}

impl Scripted {
    /// A model that follows a script, and the built-in rules where the script says so.
    #[must_use]
    pub fn new(script: Script) -> Self {
        let word_delay = script.word_delay();
        let settings = ScriptedSettings { word_delay, ..ScriptedSettings::default() };
        Self { script: Some(script), settings }
    }

    /// The same model with other settings.
    #[must_use]
    pub fn with_settings(mut self, settings: ScriptedSettings) -> Self {
        self.settings = settings;
        self
    }

    async fn perform(
        &self,
        request: &ModelRequest,
        sink: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelFailure> {
        let request = &without_reasoning(request);
        let situation = Situation::of(request);
        let planned = self.script.as_ref().map(|script| script.plan(&situation, &self.settings));
        let plan = match planned {
            Some(Some(plan)) => plan?,
            Some(None) | None => rules::plan(&situation, &self.settings),
        };
        wait(plan.delay).await;
        if !plan.reasoning.is_empty() {
            sink.delta(Delta::Reasoning(plan.reasoning.clone()));
        }
        let mut text = String::new();
        for piece in plan.pieces {
            wait(piece.delay).await;
            text.push_str(&piece.text);
            sink.delta(Delta::Text(piece.text));
        }
        if let Some(failure) = plan.failure {
            return Err(failure);
        }
        let base = if plan.calls.is_empty() { String::new() } else { fingerprint(request) };
        let mut content = Vec::with_capacity(plan.calls.len() + 1);
        if !text.is_empty() {
            content.push(Block::of_text(text.as_str()));
        }
        let stop = if plan.calls.is_empty() { "stop" } else { "tool_calls" };
        for (index, call) in plan.calls.into_iter().enumerate() {
            let id = call.id.unwrap_or_else(|| format!("call_{base}_{index}"));
            sink.delta(Delta::ToolInput {
                index,
                id: Some(id.clone()),
                name: Some(call.name.clone()),
                delta: call.input.as_str().to_owned(),
            });
            let (name, input) = (call.name, call.input);
            content.push(Block::of_tool_use(ToolUse { id, name, input, dispatch: None }));
        }
        let mut reply = reply(request, content, plan.finish.unwrap_or_else(|| stop.to_owned()));
        let reasoning = (!plan.reasoning.is_empty()).then(|| Block::of_thinking(&plan.reasoning));
        reply.content.splice(..0, reasoning.into_iter().chain(plan.blocks));
        Ok(reply)
    }
}

impl Model for Scripted {
    fn describe(&self) -> ModelDescription {
        ModelDescription {
            provider: NAME.to_owned(),
            base_url: "builtin".to_owned(),
            model: NAME.to_owned(),
            max_tokens: 4096,
        }
    }

    fn call<'a>(&'a self, request: &'a ModelRequest, sink: &'a dyn DeltaSink) -> ModelFuture<'a> {
        Box::pin(self.perform(request, sink))
    }
}

impl<'a> Situation<'a> {
    fn of(request: &'a ModelRequest) -> Self {
        let messages = &request.messages;
        let said = |message: &&Message| message.role != Role::Assistant && has_words(message);
        let last_said = messages.iter().rposition(|message| said(&message));
        let text = last_said.map_or_else(String::new, |at| messages[at].text());
        let after = last_said.map_or(0, |at| at + 1);
        let answers = messages[after..].iter().filter(|m| m.role == Role::Assistant).count();
        let last = messages.last().filter(|message| message.role != Role::Assistant);
        let results = last.map(|last| results_of(last, messages)).unwrap_or_default();
        Self {
            text,
            results,
            text_is_new: last_said.is_some_and(|at| at + 1 == messages.len()),
            round: answers as u64 + 1,
            request,
        }
    }
}

/// The request without what the model thought before: it answers, and counts, as if it had not.
fn without_reasoning(request: &ModelRequest) -> Cow<'_, ModelRequest> {
    let is_reasoning = |block: &Block| match block.kind() {
        BlockKind::Unknown { block_type } => block_type.ends_with("thinking"),
        _ => false,
    };
    let messages = &request.messages;
    if !messages.iter().any(|message| message.content.blocks().iter().any(is_reasoning)) {
        return Cow::Borrowed(request);
    }
    let mut request = request.clone();
    for message in &mut request.messages {
        if let Content::Blocks(blocks) = &mut message.content {
            blocks.retain(|block| !is_reasoning(block));
        }
    }
    Cow::Owned(request)
}

/// Cuts a text into words for the display lane, each with the blanks after it.
pub(crate) fn words(text: &str, delay: Duration) -> Vec<Piece> {
    let least = text.len() / MAX_PIECES;
    let mut pieces = Vec::new();
    let mut from = 0;
    let mut in_blank = false;
    for (at, c) in text.char_indices() {
        if !c.is_whitespace() && in_blank && at - from > least {
            pieces.push(Piece { text: text[from..at].to_owned(), delay });
            from = at;
        }
        in_blank = c.is_whitespace();
    }
    if from < text.len() {
        pieces.push(Piece { text: text[from..].to_owned(), delay });
    }
    pieces
}

fn has_words(message: &Message) -> bool {
    !message.text().trim().is_empty() || !message.content.has_tool_results()
}

fn results_of(last: &Message, messages: &[Message]) -> Vec<ResultSeen> {
    let name_of = |id: &str| {
        let calls = messages.iter().rev().flat_map(|message| message.content.blocks());
        calls.filter_map(Block::tool_use).find(|call| call.id == id).map(|call| call.name.clone())
    };
    let mut seen = Vec::new();
    for block in last.content.blocks() {
        if let BlockKind::ToolResult(result) = block.kind() {
            seen.push(ResultSeen {
                tool: name_of(&result.tool_use_id).unwrap_or_else(|| "a tool".to_owned()),
                text: broca_proto::provider::openai_chat::request::flattened(&result.content),
                is_error: result.is_error == Some(true),
            });
        }
    }
    seen
}

async fn wait(delay: Duration) {
    if delay.is_zero() {
        // Whoever shows the words gets a turn between two of them.
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(delay).await;
    }
}

/// Twelve hex digits that no other point of this conversation has: ids stay unique without randomness.
fn fingerprint(request: &ModelRequest) -> String {
    let mut hash = Sha256::new();
    for message in &request.messages {
        hash.update(message.to_json().as_bytes());
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

fn reply(request: &ModelRequest, content: Vec<Block>, finish_reason: String) -> ModelReply {
    // A token is taken for four bytes: enough for budgets in tests, and the same every time.
    let tokens = |bytes: usize| (bytes as u64).div_ceil(4);
    let asked = request.messages.iter().map(|m| m.to_json().as_bytes().len()).sum();
    let answered = content.iter().map(|block| block.json().as_bytes().len()).sum();
    let usage = TokenUsage { input_tokens: tokens(asked), output_tokens: tokens(answered) };
    let number = |n: u64| Json::integer(i64::try_from(n).unwrap_or(i64::MAX));
    let usage_json = Json::object([
        ("input_tokens", &number(usage.input_tokens)),
        ("output_tokens", &number(usage.output_tokens)),
    ]);
    let body = Json::object([
        ("model", &Json::string(NAME)),
        ("role", &Json::string("assistant")),
        ("content", &Json::array(content.iter().map(Block::json))),
        ("finish_reason", &Json::string(&finish_reason)),
        ("usage", &usage_json),
    ]);
    let truncated = finish_reason == "length";
    ModelReply { content, body, usage: Some(usage), finish_reason, truncated, warnings: 0 }
}

#[cfg(test)]
mod tests;
