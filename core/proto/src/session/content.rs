//! Messages and content blocks (session service §6.5).
//!
//! A block keeps its raw JSON: types and members this version does not know are delivered and sent
//! on unchanged.

use crate::Json;
use crate::json::JsonError;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Declares an open enum of wire words: known ones by name, any other kept with its spelling.
macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $word:literal, )* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $( $(#[$vdoc])* $variant, )*
            /// A word this version does not know, kept as it was spelt. It is read, never written on our own account.
            Unknown(Box<str>),
        }

        impl $name {
            /// Every known value, in the order of the specification.
            pub const KNOWN: &'static [Self] = &[ $( Self::$variant, )* ];

            /// The value that `word` stands for.
            #[must_use]
            pub fn parse(word: &str) -> Self {
                match word { $( $word => Self::$variant, )* other => Self::Unknown(other.into()) }
            }

            /// The word on the wire.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self { $( Self::$variant => $word, )* Self::Unknown(word) => word }
            }

            /// Whether this version knows the word.
            #[must_use]
            pub const fn is_known(&self) -> bool {
                !matches!(self, Self::Unknown(_))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Ok(Self::parse(&word))
            }
        }
    };
}
pub(crate) use open_enum;

open_enum! {
    /// Who speaks in a message.
    Role {
        /// The application, and tool results on its behalf.
        User = "user",
        /// The model.
        Assistant = "assistant",
        /// Instructions.
        System = "system",
    }
}

open_enum! {
    /// Who runs a tool call (session service §6.3).
    Dispatch {
        /// The driver that owns the turn.
        Client = "client",
        /// The session's remote sandbox.
        Sandbox = "sandbox",
        /// A server-side tool, such as one of an MCP server.
        Mcp = "mcp",
        /// A subagent that the service started.
        Subagent = "subagent",
    }
}

/// A message: who speaks, and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Content,
}

impl Message {
    /// A user's message in plain text.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, content: Content::Text(text.into()) }
    }

    /// A user's message of blocks.
    #[must_use]
    pub fn user_blocks(blocks: Vec<Block>) -> Self {
        Self { role: Role::User, content: Content::Blocks(blocks) }
    }

    /// An assistant's message of blocks.
    #[must_use]
    pub fn assistant(blocks: Vec<Block>) -> Self {
        Self { role: Role::Assistant, content: Content::Blocks(blocks) }
    }

    /// Reads a message from its JSON object. The role may be absent (`default`), the content may be anything.
    ///
    /// # Errors
    /// When the value is no object, the role no string, or `content` is missing.
    pub fn read(json: &Json, default: Role) -> Result<Self, JsonError> {
        let fault = |reason: &str| JsonError { at: 0, reason: reason.to_owned() };
        if !json.is_object() {
            return Err(fault("a message must be an object"));
        }
        let role = match json.member("role") {
            None => default,
            Some(role) => match role.to_text() {
                Some(word) => Role::parse(&word),
                None => return Err(fault("\"role\" must be a string")),
            },
        };
        let Some(content) = json.member("content") else {
            return Err(fault("missing field `content`"));
        };
        Ok(Self { role, content: Content::read(&content) })
    }

    /// The message as JSON: `{"role":…,"content":…}`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        Json::object([
            ("role", &Json::string(self.role.as_str())),
            ("content", &self.content.to_json()),
        ])
    }

    /// The tool calls in it, in order.
    pub fn tool_uses(&self) -> impl Iterator<Item = (&Block, &ToolUse)> {
        self.content.blocks().iter().filter_map(|block| match &block.kind {
            BlockKind::ToolUse(call) => Some((block, call)),
            _ => None,
        })
    }

    /// All its text, blocks joined by newlines.
    #[must_use]
    pub fn text(&self) -> String {
        self.content.text()
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Json::deserialize(deserializer)?;
        Self::read(&json, Role::User).map_err(serde::de::Error::custom)
    }
}

/// What a message says.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Blocks in order.
    Blocks(Vec<Block>),
    /// Anything else; the service passes it on (session service §5.3).
    Other(Json),
}

impl Content {
    /// Whether this is what a tool's result may say: a string, or an array of objects.
    #[must_use]
    pub fn is_result(json: &Json) -> bool {
        json.as_bytes().first() == Some(&b'"')
            || json.elements().is_some_and(|elements| elements.iter().all(Json::is_object))
    }

    /// Reads content: a string, an array of objects, or anything else kept raw.
    #[must_use]
    pub fn read(json: &Json) -> Self {
        if let Some(text) = json.to_text() {
            return Self::Text(text);
        }
        match json.elements() {
            Some(elements) if elements.iter().all(Json::is_object) => {
                Self::Blocks(elements.into_iter().map(Block::read).collect())
            }
            _ => Self::Other(json.clone()),
        }
    }

    /// The content as JSON.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match self {
            Self::Text(text) => Json::string(text),
            Self::Blocks(blocks) => Json::array(blocks.iter().map(Block::json)),
            Self::Other(json) => json.clone(),
        }
    }

    /// The blocks; none when the content is no array.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        match self {
            Self::Blocks(blocks) => blocks,
            Self::Text(_) | Self::Other(_) => &[],
        }
    }

    /// All its text, text blocks joined by newlines.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Blocks(blocks) => {
                let texts: Vec<&str> = blocks.iter().filter_map(Block::text).collect();
                texts.join("\n")
            }
            Self::Other(_) => String::new(),
        }
    }

    /// Whether it holds a tool result.
    #[must_use]
    pub fn has_tool_results(&self) -> bool {
        self.blocks().iter().any(|b| matches!(b.kind, BlockKind::ToolResult(_)))
    }
}

/// Content is the user's: only its shape is printed.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Blocks(blocks) => f.debug_list().entries(blocks).finish(),
            Self::Other(json) => write!(f, "Other({json:?})"),
        }
    }
}

/// One content block: what this version understands of it, and its raw JSON.
#[derive(Clone, PartialEq, Eq)]
pub struct Block {
    raw: Json,
    kind: BlockKind,
}

/// What a block is.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockKind {
    /// Text.
    Text(String),
    /// A tool call.
    ToolUse(ToolUse),
    /// The result of a tool call.
    ToolResult(ToolResult),
    /// A block of a type this version does not know, or one whose members are not as expected.
    Unknown {
        /// The value of its `type`; empty when it has none.
        block_type: String,
    },
}

/// A tool call: `{"type":"tool_use","id","name","input","dispatch"?}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolUse {
    /// Identifies the call; echoed verbatim in its result.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments, exactly as the model wrote them.
    pub input: Json,
    /// Who runs it; absent before the service has decided.
    pub dispatch: Option<Dispatch>,
}

/// The result of a tool call: `{"type":"tool_result","tool_use_id","content","is_error"?}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// The id of the call.
    pub tool_use_id: String,
    /// A string or an array of blocks.
    pub content: Json,
    /// Whether the tool failed; absent means no.
    pub is_error: Option<bool>,
}

impl Block {
    /// A text block.
    #[must_use]
    pub fn of_text(text: impl Into<String>) -> Self {
        let text = text.into();
        let raw = Json::object([("type", &Json::string("text")), ("text", &Json::string(&text))]);
        Self { raw, kind: BlockKind::Text(text) }
    }

    /// A model's reasoning (feature `blocks`): `{"type":"thinking","thinking":…}`.
    #[must_use]
    pub fn of_thinking(thinking: &str) -> Self {
        let block_type = "thinking".to_owned();
        let members = [("type", &Json::string(&block_type)), ("thinking", &Json::string(thinking))];
        Self { raw: Json::object(members), kind: BlockKind::Unknown { block_type } }
    }

    /// A tool call.
    #[must_use]
    pub fn of_tool_use(call: ToolUse) -> Self {
        let kind = Json::string("tool_use");
        let (id, name) = (Json::string(&call.id), Json::string(&call.name));
        let dispatch = call.dispatch.as_ref().map(|d| Json::string(d.as_str()));
        let members = [("type", &kind), ("id", &id), ("name", &name), ("input", &call.input)];
        let raw = Json::object(members.into_iter().chain(dispatch.iter().map(|d| ("dispatch", d))));
        Self { raw, kind: BlockKind::ToolUse(call) }
    }

    /// A tool result.
    #[must_use]
    pub fn of_tool_result(result: ToolResult) -> Self {
        let kind = Json::string("tool_result");
        let id = Json::string(&result.tool_use_id);
        let is_error =
            result.is_error.map(|e| Json::of_written(if e { "true" } else { "false" }.to_owned()));
        let members = [("type", &kind), ("tool_use_id", &id), ("content", &result.content)];
        let raw = Json::object(members.into_iter().chain(is_error.iter().map(|e| ("is_error", e))));
        Self { raw, kind: BlockKind::ToolResult(result) }
    }

    /// Reads a block from its JSON. Nothing is refused: what cannot be understood is [`BlockKind::Unknown`].
    #[must_use]
    pub fn read(raw: Json) -> Self {
        let text = |name: &str| raw.member(name).and_then(|v| v.to_text());
        let block_type = text("type").unwrap_or_default();
        let known = match block_type.as_str() {
            "text" => text("text").map(BlockKind::Text),
            "tool_use" => match (text("id"), text("name")) {
                (Some(id), Some(name)) => Some(BlockKind::ToolUse(ToolUse {
                    id,
                    name,
                    input: raw.member("input").unwrap_or_else(Json::empty_object),
                    dispatch: text("dispatch").map(|word| Dispatch::parse(&word)),
                })),
                _ => None,
            },
            "tool_result" => text("tool_use_id").map(|tool_use_id| {
                BlockKind::ToolResult(ToolResult {
                    tool_use_id,
                    content: raw.member("content").unwrap_or_else(|| Json::string("")),
                    is_error: raw.member("is_error").and_then(|v| v.decode().ok()),
                })
            }),
            _ => None,
        };
        let kind = known.unwrap_or(BlockKind::Unknown { block_type });
        Self { raw, kind }
    }

    /// What the block is.
    #[must_use]
    pub fn kind(&self) -> &BlockKind {
        &self.kind
    }

    /// The block's JSON, with everything this version does not know.
    #[must_use]
    pub fn json(&self) -> &Json {
        &self.raw
    }

    /// The text of a text block.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            BlockKind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The call of a tool_use block.
    #[must_use]
    pub fn tool_use(&self) -> Option<&ToolUse> {
        match &self.kind {
            BlockKind::ToolUse(call) => Some(call),
            _ => None,
        }
    }

    /// The result of a tool_result block.
    #[must_use]
    pub fn tool_result(&self) -> Option<&ToolResult> {
        match &self.kind {
            BlockKind::ToolResult(result) => Some(result),
            _ => None,
        }
    }

    /// The same tool call with its dispatch set; other blocks are returned as they are. Members
    /// this version does not know stay.
    #[must_use]
    pub fn with_dispatch(&self, dispatch: Option<Dispatch>) -> Self {
        let BlockKind::ToolUse(call) = &self.kind else { return self.clone() };
        let raw = match &dispatch {
            Some(word) => self.raw.with_member("dispatch", &Json::string(word.as_str())),
            None => self.raw.without_member("dispatch"),
        };
        Self { raw, kind: BlockKind::ToolUse(ToolUse { dispatch, ..call.clone() }) }
    }
}

/// As [`Content`]: the shape only.
impl fmt::Debug for BlockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text(_) => "text",
            Self::ToolUse(_) => "tool_use",
            Self::ToolResult(_) => "tool_result",
            Self::Unknown { block_type } => block_type,
        })
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({:?}, {} bytes)", self.kind, self.raw.as_bytes().len())
    }
}

impl Serialize for Block {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Json::deserialize(deserializer).map(Self::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> Block {
        Block::read(Json::parse(text.to_owned()).unwrap())
    }

    #[test]
    fn a_block_of_the_future_is_kept_whole() {
        let text = r#"{"type":"hologram","depth":3,"x":[1.50]}"#;
        let block = block(text);
        assert_eq!(block.json().as_str(), text);
        assert!(
            matches!(block.kind(), BlockKind::Unknown { block_type } if block_type == "hologram")
        );
    }

    #[test]
    fn tool_input_keeps_every_digit() {
        let b = block(
            r#"{"type":"tool_use","id":"t","name":"n","input":{"row":9007199254740993,"sci":1e3}}"#,
        );
        assert_eq!(b.tool_use().unwrap().input.as_str(), r#"{"row":9007199254740993,"sci":1e3}"#);
    }

    #[test]
    fn dispatch_is_set_and_taken_away_without_losing_other_members() {
        let b = block(r#"{"type":"tool_use","id":"t","name":"n","input":{},"caller":"x"}"#);
        let tagged = b.with_dispatch(Some(Dispatch::Client));
        assert_eq!(
            tagged.json().as_str(),
            r#"{"type":"tool_use","id":"t","name":"n","input":{},"caller":"x","dispatch":"client"}"#
        );
        assert_eq!(tagged.with_dispatch(None).json().as_str(), b.json().as_str());
    }

    #[test]
    fn what_the_service_accepts_as_content_is_read_without_loss() {
        for text in [
            "null",
            "5",
            "{\"a\":1}",
            "[1,2]",
            "\"hi\"",
            "[]",
            "[{\"type\":\"text\",\"text\":\"a\"}]",
        ] {
            let json = Json::parse(text.to_owned()).unwrap();
            assert_eq!(Content::read(&json).to_json().as_str(), text);
        }
    }

    #[test]
    fn debug_output_shows_no_content() {
        for message in
            [Message::user("hunter2"), Message::user_blocks(vec![Block::of_text("hunter2")])]
        {
            let shown = format!("{message:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
