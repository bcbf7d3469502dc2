//! What a driver's message becomes when a turn is paused (session service §7).
//!
//! A continuation is merged strictly: every call of the paused message gets exactly one result,
//! the service's own results win, and they stand in the order of the calls. A plain message of the
//! owner abandons its open calls, a message after the deadline abandons somebody else's: then the
//! open calls get synthetic results, and the new content follows in the same message.

use super::gate::Entry;
use crate::Json;
use crate::json::JsonError;
use crate::session::content::{Block, BlockKind, Content, Message, Role, ToolResult};
use crate::session::generation::Generation;
use crate::session::ids::KeyId;
use crate::session::rpc::{RpcFailure, code};
use thiserror::Error;

/// The result of a client call that was abandoned.
pub const ABANDONED: &str = "Client tool call was abandoned before returning a result.";

/// The result of a call whose turn was cancelled.
pub const CANCELLED: &str = "Tool call was cancelled before returning a result.";

/// A turn that waits for its owner's results, as it is kept while it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Whose turn it is.
    pub owner: KeyId,
    /// The ids of all calls of the paused message, in order.
    pub expected: Vec<String>,
    /// The `tool_result` blocks of the calls that the service has run.
    pub stash: Vec<Block>,
    /// What the turn's messages said about the generation: it holds for the rest of the turn.
    pub generation: Generation,
}

impl Pause {
    /// The calls that wait for the owner.
    pub fn open_calls(&self) -> impl Iterator<Item = &str> {
        self.expected.iter().map(String::as_str).filter(|id| self.stashed(id).is_none())
    }

    /// The pause as JSON: `{"owner":…,"expected":[…],"stash":[…],"generation":{…}}`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let ids: Vec<Json> = self.expected.iter().map(|id| Json::string(id)).collect();
        Json::object([
            ("owner", &Json::string(self.owner.as_str())),
            ("expected", &Json::array(&ids)),
            ("stash", &Json::array(self.stash.iter().map(Block::json))),
            ("generation", &self.generation.to_json()),
        ])
    }

    /// Reads what [`Pause::to_json`] wrote.
    ///
    /// # Errors
    /// When a member is missing or of another type.
    pub fn read(json: &Json) -> Result<Self, JsonError> {
        let member = |name: &str| {
            json.member(name).ok_or_else(|| JsonError {
                at: 0,
                reason: format!("a stored pause has no member \"{name}\""),
            })
        };
        Ok(Self {
            owner: KeyId::from(member("owner")?.decode::<String>()?),
            expected: member("expected")?.decode()?,
            stash: member("stash")?.decode()?,
            generation: Generation::read(&member("generation")?)
                .map_err(|error| JsonError { at: 0, reason: error.to_string() })?,
        })
    }

    fn stashed(&self, id: &str) -> Option<&Block> {
        self.stash.iter().find(|block| block.tool_result().is_some_and(|r| r.tool_use_id == id))
    }
}

/// A message ready to be logged and sent to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The message.
    pub message: Message,
    /// The results in it that no `tool.result` event shows yet: the client's and synthetic ones, in order.
    pub client_results: Vec<ToolResult>,
}

/// Why a message cannot continue a turn.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MergeError {
    /// Results came while nothing is paused. The session goes on; nothing is logged.
    #[error("no paused turn is awaiting tool results (it may have timed out and been retired)")]
    Orphan,
    /// The message is not the user's.
    #[error("paused tool continuation must have role \"user\", got \"{0}\"")]
    Role(String),
    /// A call has no result.
    #[error("no tool_result for tool_use id \"{0}\"")]
    Missing(String),
    /// A result belongs to no call.
    #[error("tool_result id \"{0}\" is not in the paused assistant turn")]
    Unexpected(String),
    /// A call has two results.
    #[error("client returned a duplicate tool_result for id \"{0}\"")]
    Duplicate(String),
    /// A result without the id of its call.
    #[error("a tool_result block has no string \"tool_use_id\"")]
    NoId,
    /// Results in a message that takes over an abandoned turn.
    #[error("a message that takes over an abandoned turn must not contain tool_result blocks")]
    ResultsAfterExpiry,
    /// Content that cannot stand beside the results of an abandoned turn.
    #[error("the content beside the results of an abandoned turn must be a string or an array")]
    Content,
}

impl MergeError {
    /// Whether the session ends in state `error`, after `session.error tool_result_merge_invalid`.
    #[must_use]
    pub const fn ends_session(&self) -> bool {
        !matches!(self, Self::Orphan)
    }

    /// The answer to the caller.
    #[must_use]
    pub fn to_failure(&self) -> RpcFailure {
        RpcFailure::new(code::APPLICATION, format!("tool result merge invalid: {self}"))
    }
}

/// What `message` becomes, given the paused turn that the call took up or over, if any.
///
/// # Errors
/// [`MergeError`]; its text is the `detail` of the event and the reason in the answer.
pub fn merge(
    message: Message,
    paused: Option<&Pause>,
    entry: &Entry,
) -> Result<Merged, MergeError> {
    let Some(pause) = paused else {
        let orphans = elements(&message.content).is_some_and(|b| b.iter().any(is_result));
        return if orphans {
            Err(MergeError::Orphan)
        } else {
            Ok(Merged { message, client_results: Vec::new() })
        };
    };
    if message.role != Role::User {
        return Err(MergeError::Role(message.role.as_str().to_owned()));
    }
    if matches!(entry, Entry::Reclaimed { .. }) {
        let extras = match &message.content {
            Content::Text(text) => text_block(text),
            content => elements(content).ok_or(MergeError::Content)?,
        };
        if extras.iter().any(is_result) {
            return Err(MergeError::ResultsAfterExpiry);
        }
        return Ok(answer_all(pause, ABANDONED, Vec::new(), extras));
    }
    let blocks = match &message.content {
        Content::Text(text) => {
            let extras = text_block(text);
            if !extras.is_empty() {
                return Ok(answer_all(pause, ABANDONED, Vec::new(), extras));
            }
            extras
        }
        content => elements(content).unwrap_or_default(),
    };
    if !blocks.is_empty() && !blocks.iter().any(is_result) {
        return Ok(answer_all(pause, ABANDONED, Vec::new(), blocks));
    }
    let (results, extras): (Vec<Block>, Vec<Block>) = blocks.into_iter().partition(is_result);
    let given = check_results(pause, results)?;
    if let Some(id) = pause.open_calls().find(|id| find(&given, id).is_none()) {
        return Err(MergeError::Missing(id.to_owned()));
    }
    Ok(answer_all(pause, ABANDONED, given, extras))
}

/// Ends a paused turn with the results given and synthetic ones for the other calls
/// (`session.cancel`); no model round follows.
///
/// # Errors
/// When a result belongs to no open call, or comes twice.
pub fn settle(pause: &Pause, results: Vec<Block>) -> Result<Merged, MergeError> {
    let given = check_results(pause, results)?;
    Ok(answer_all(pause, CANCELLED, given, Vec::new()))
}

/// The results of the client for calls that the service has not answered itself, each at most once.
fn check_results(pause: &Pause, results: Vec<Block>) -> Result<Vec<Block>, MergeError> {
    let mut given: Vec<Block> = Vec::new();
    for block in results {
        let Some(result) = block.tool_result() else { return Err(MergeError::NoId) };
        let id = &result.tool_use_id;
        if !pause.expected.contains(id) {
            return Err(MergeError::Unexpected(id.clone()));
        }
        if pause.stashed(id).is_some() {
            continue;
        }
        if find(&given, id).is_some() {
            return Err(MergeError::Duplicate(id.clone()));
        }
        given.push(block);
    }
    Ok(given)
}

/// One result for each call in the order of the calls: the service's, else the given one, else a
/// synthetic one with `reason`; then the extras.
fn answer_all(pause: &Pause, reason: &str, given: Vec<Block>, extras: Vec<Block>) -> Merged {
    let mut blocks = Vec::with_capacity(pause.expected.len() + extras.len());
    let mut client_results = Vec::new();
    for id in &pause.expected {
        if let Some(stashed) = pause.stashed(id) {
            blocks.push(stashed.clone());
            continue;
        }
        let block = find(&given, id).cloned().unwrap_or_else(|| {
            Block::of_tool_result(ToolResult {
                tool_use_id: id.clone(),
                content: Json::string(reason),
                is_error: Some(true),
            })
        });
        client_results.extend(block.tool_result().cloned());
        blocks.push(block);
    }
    blocks.extend(extras);
    Merged { message: Message::user_blocks(blocks), client_results }
}

fn find<'a>(results: &'a [Block], id: &str) -> Option<&'a Block> {
    results.iter().find(|block| block.tool_result().is_some_and(|r| r.tool_use_id == id))
}

/// The elements of array content, whatever they are; nothing when the content is no array.
fn elements(content: &Content) -> Option<Vec<Block>> {
    match content {
        Content::Blocks(blocks) => Some(blocks.clone()),
        Content::Other(json) => Some(json.elements()?.into_iter().map(Block::read).collect()),
        Content::Text(_) => None,
    }
}

/// Text as blocks; providers refuse an empty text block, so empty text is none.
fn text_block(text: &str) -> Vec<Block> {
    if text.is_empty() { Vec::new() } else { vec![Block::of_text(text)] }
}

fn is_result(block: &Block) -> bool {
    match block.kind() {
        BlockKind::ToolResult(_) => true,
        BlockKind::Unknown { block_type } => block_type == "tool_result",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    /// Calls `a` (client), `s` (answered by the service), `b` (client).
    fn pause() -> Pause {
        let stashed = r#"{"type":"tool_result","tool_use_id":"s","content":[],"is_error":false}"#;
        Pause {
            owner: KeyId::from("key_a"),
            expected: ["a", "s", "b"].map(str::to_owned).to_vec(),
            stash: vec![Block::read(json(stashed))],
            generation: Generation::read(&json(r#"{"system":null}"#)).unwrap(),
        }
    }

    fn message(content: &str) -> Message {
        Message { role: Role::User, content: Content::read(&json(content)) }
    }

    fn reclaimed() -> Entry {
        Entry::Reclaimed { from: KeyId::from("key_a") }
    }

    fn result(id: &str, text: &str) -> String {
        format!(r#"{{"type":"tool_result","tool_use_id":"{id}","content":"{text}"}}"#)
    }

    fn synthetic(id: &str) -> String {
        format!(
            r#"{{"type":"tool_result","tool_use_id":"{id}","content":"{ABANDONED}","is_error":true}}"#
        )
    }

    const STASHED: &str =
        r#"{"type":"tool_result","tool_use_id":"s","content":[],"is_error":false}"#;

    fn merged(content: &str, entry: &Entry) -> (String, Vec<String>) {
        let merged = merge(message(content), Some(&pause()), entry).unwrap();
        let ids = merged.client_results.into_iter().map(|r| r.tool_use_id).collect();
        (merged.message.content.to_json().as_str().to_owned(), ids)
    }

    #[test]
    fn results_are_put_in_the_order_of_the_calls_and_extras_follow() {
        let (a, b) = (result("a", "1"), result("b", "2"));
        let text = r#"{"type":"text","text":"x"}"#;
        let (content, logged) = merged(&format!("[{text},{b},{a}]"), &Entry::Resumed);
        assert_eq!(content, format!("[{a},{STASHED},{b},{text}]"));
        assert_eq!(logged, ["a", "b"]);
    }

    #[test]
    fn the_services_own_result_wins_over_a_copy_of_the_client() {
        let (a, b, copy) = (result("a", "1"), result("b", "2"), result("s", "forged"));
        let (content, logged) = merged(&format!("[{a},{copy},{b},{copy}]"), &Entry::Resumed);
        assert_eq!(content, format!("[{a},{STASHED},{b}]"));
        assert_eq!(logged, ["a", "b"]);
    }

    #[test]
    fn a_plain_message_of_the_owner_abandons_its_open_calls() {
        for (content, extra) in [
            ("\"never mind\"", r#"{"type":"text","text":"never mind"}"#),
            (r#"[{"type":"image","x":1.0}]"#, r#"{"type":"image","x":1.0}"#),
        ] {
            let (merged, logged) = merged(content, &Entry::Resumed);
            assert_eq!(
                merged,
                format!("[{},{STASHED},{},{extra}]", synthetic("a"), synthetic("b"))
            );
            assert_eq!(logged, ["a", "b"]);
        }
    }

    #[test]
    fn a_message_that_takes_over_follows_the_synthetic_results() {
        let (content, logged) = merged("\"B\"", &reclaimed());
        let text = r#"{"type":"text","text":"B"}"#;
        assert_eq!(content, format!("[{},{STASHED},{},{text}]", synthetic("a"), synthetic("b")));
        assert_eq!(logged, ["a", "b"]);
        // Nothing to say is no reason to refuse the take-over: the turn is abandoned anyway.
        for empty in ["\"\"", "[]"] {
            let (content, _) = merged(empty, &reclaimed());
            assert_eq!(content, format!("[{},{STASHED},{}]", synthetic("a"), synthetic("b")));
        }
    }

    #[test]
    fn every_malformed_continuation_is_refused_with_its_text() {
        let (a, b, z) = (result("a", "1"), result("b", "2"), result("z", "3"));
        let missing = "no tool_result for tool_use id \"a\"";
        let resumed = Entry::Resumed;
        let cases = [
            ("\"\"".to_owned(), &resumed, missing),
            ("[]".to_owned(), &resumed, missing),
            ("null".to_owned(), &resumed, missing),
            ("5".to_owned(), &resumed, missing),
            ("{}".to_owned(), &resumed, missing),
            (format!("[{b}]"), &resumed, missing),
            (format!("[{a}]"), &resumed, "no tool_result for tool_use id \"b\""),
            (
                format!("[{a},{b},{z}]"),
                &resumed,
                "tool_result id \"z\" is not in the paused assistant turn",
            ),
            (
                format!("[{a},{b},{a}]"),
                &resumed,
                "client returned a duplicate tool_result for id \"a\"",
            ),
            (
                r#"[{"type":"tool_result","content":""}]"#.to_owned(),
                &resumed,
                "a tool_result block has no string \"tool_use_id\"",
            ),
            (
                format!("[{a},{b},7]"),
                &reclaimed(),
                "a message that takes over an abandoned turn must not contain tool_result blocks",
            ),
            (
                "null".to_owned(),
                &reclaimed(),
                "the content beside the results of an abandoned turn must be a string or an array",
            ),
        ];
        for (content, entry, reason) in cases {
            let error = merge(message(&content), Some(&pause()), entry).unwrap_err();
            assert_eq!(error.to_string(), reason, "{content}");
            assert!(error.ends_session(), "{content}");
            let failure = error.to_failure();
            assert_eq!(failure.code, -32000);
            assert_eq!(failure.message, format!("tool result merge invalid: {reason}"));
        }
    }

    #[test]
    fn a_continuation_must_be_the_users() {
        for entry in [Entry::Resumed, reclaimed()] {
            let message = Message { role: Role::Assistant, ..message("\"x\"") };
            let error = merge(message, Some(&pause()), &entry).unwrap_err();
            let text = "paused tool continuation must have role \"user\", got \"assistant\"";
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn results_without_a_paused_turn_are_refused_and_the_session_goes_on() {
        for content in [format!("[{}]", result("a", "1")), format!("[1,{}]", result("a", "1"))] {
            let error = merge(message(&content), None, &Entry::Fresh).unwrap_err();
            assert!(!error.ends_session());
            assert_eq!(
                error.to_failure().message,
                "tool result merge invalid: no paused turn is awaiting tool results \
                 (it may have timed out and been retired)"
            );
        }
    }

    #[test]
    fn without_a_paused_turn_any_content_goes_through_unchanged() {
        for content in ["\"hi\"", "\"\"", "[]", "null", "5.0", "{\"a\":1}", "[1, 2]"] {
            let merged = merge(message(content), None, &Entry::Fresh).unwrap();
            assert_eq!(merged.message.content.to_json().as_str(), content);
            assert!(merged.client_results.is_empty());
        }
    }

    #[test]
    fn a_turn_is_settled_with_the_results_there_are() {
        let given = vec![Block::read(json(&result("b", "2")))];
        let merged = settle(&pause(), given).unwrap();
        let cancelled = synthetic("a").replace(ABANDONED, CANCELLED);
        assert_eq!(
            merged.message.content.to_json().as_str(),
            format!("[{cancelled},{STASHED},{}]", result("b", "2"))
        );
        let stranger = vec![Block::read(json(&result("z", "2")))];
        assert_eq!(settle(&pause(), stranger), Err(MergeError::Unexpected("z".to_owned())));
    }

    #[test]
    fn a_pause_is_read_back_as_it_was_stored() {
        let stored = pause().to_json();
        assert_eq!(Pause::read(&stored).unwrap(), pause());
        assert_eq!(pause().open_calls().collect::<Vec<_>>(), ["a", "b"]);
        let generation = r#"{"owner":"k","expected":[],"stash":[],"generation":{"system":1}}"#;
        for broken in ["{}", r#"{"owner":1,"expected":[],"stash":[]}"#, "[]", generation] {
            assert!(Pause::read(&json(broken)).is_err(), "{broken}");
        }
    }
}
