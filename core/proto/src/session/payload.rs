//! The payloads of the 28 event types (session service §9), decoded on demand.
//!
//! Only the members a reader cannot do without are required; everything else has a default, and
//! members this version does not know stay in the event's raw JSON.
//!
//! [`Payload`] is for applications. What the client itself looks at it reads member by member, so that a program
//! which asks for no typed payload does not carry the code for 28 of them.

use super::content::{Content, Dispatch, Message, Role, open_enum};
use super::event::EventType;
use crate::Json;
use crate::json::JsonError;
use serde::{Deserialize, Serialize};

macro_rules! payloads {
    ($( $(#[$doc:meta])* $variant:ident($payload:ty), )*) => {
        /// A payload, typed by the type of its event.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum Payload {
            /// A driver's message.
            ClientMessageSend(Message),
            /// The model's message.
            ServerMessageSend(ServerMessage),
            $( $(#[$doc])* $variant($payload), )*
            /// The payload of a type this version does not know.
            Unknown(Json),
        }

        impl Payload {
            /// Decodes the payload of an event of type `event_type`.
            ///
            /// # Errors
            /// When a required member is missing or a member has another type.
            pub fn decode(event_type: &EventType, payload: &Json) -> Result<Self, JsonError> {
                Ok(match event_type {
                    EventType::ClientMessageSend => {
                        Self::ClientMessageSend(Message::read(payload, Role::User)?)
                    }
                    EventType::ServerMessageSend => {
                        Self::ServerMessageSend(ServerMessage::read(payload)?)
                    }
                    $( EventType::$variant => Self::$variant(payload.decode()?), )*
                    EventType::Unknown(_) => Self::Unknown(payload.clone()),
                })
            }
        }
    };
}

payloads! {
    /// A request to a provider.
    ProviderRequest(ProviderRequest),
    /// A provider's answer or failure.
    ProviderResponse(ProviderResponse),
    /// A tool call.
    ToolCall(ToolCall),
    /// A tool result.
    ToolResult(ToolResultEvent),
    /// A call of an MCP server.
    McpRequest(McpRequest),
    /// The answer of an MCP server.
    McpResponse(McpResponse),
    /// A command for the sandbox.
    SandboxRequest(SandboxRequest),
    /// The outcome of a sandbox command.
    SandboxResponse(SandboxResponse),
    /// The session was opened.
    SessionOpen(Declared),
    /// A client joined.
    SessionJoin(Declared),
    /// A driver registered.
    SessionDriverRegister(Empty),
    /// The session was closed.
    SessionClose(Close),
    /// Something went wrong.
    SessionError(SessionError),
    /// A compaction began.
    SessionCompactionStarted(CompactionStarted),
    /// A compaction is done.
    SessionCompactionCompleted(CompactionCompleted),
    /// Sandbox images on offer.
    SessionSandboxAvailable(SandboxAvailable),
    /// A sandbox is being started.
    SessionSandboxStart(SandboxState),
    /// A sandbox runs.
    SessionSandboxRunning(SandboxState),
    /// A sandbox is being stopped.
    SessionSandboxStop(SandboxState),
    /// A sandbox has stopped.
    SessionSandboxStopped(SandboxState),
    /// A sandbox failed.
    SessionSandboxError(SandboxState),
    /// A subagent is being started.
    SessionSubagentStart(SubagentState),
    /// A subagent runs.
    SessionSubagentRunning(SubagentState),
    /// A subagent finished.
    SessionSubagentCompleted(SubagentState),
    /// A subagent failed.
    SessionSubagentFailed(SubagentState),
    /// A subagent was cancelled.
    SessionSubagentCancelled(SubagentState),
}

/// `server.message.send`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerMessage {
    /// The message.
    pub message: Message,
    /// Why the service wrote it itself: `compaction_preamble`, `abandoned_tool_results`.
    pub synthetic: Option<String>,
}

/// A payload without members.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Empty {}

/// Tokens as a provider counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Tokens read, cached ones included.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
}

/// `provider.request`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProviderRequest {
    /// Which attempt of the round, from 0.
    #[serde(default)]
    pub attempt: u32,
    /// `primary` or `fallback`.
    #[serde(default)]
    pub kind: String,
    /// The wire format: `anthropic`, `openai`, …
    #[serde(default)]
    pub provider: String,
    /// Where it went.
    #[serde(default)]
    pub base_url: String,
    /// The model.
    #[serde(default)]
    pub model: String,
    /// The most tokens it may write.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// The messages sent.
    #[serde(default)]
    pub messages: Json,
    /// The tools advertised.
    #[serde(default)]
    pub tools: Json,
}

/// `provider.response`, good or bad.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProviderResponse {
    /// Which attempt of the round, from 0.
    #[serde(default)]
    pub attempt: u32,
    /// `primary` or `fallback`.
    #[serde(default)]
    pub kind: String,
    /// The wire format.
    #[serde(default)]
    pub provider: String,
    /// Whether the attempt succeeded.
    pub ok: bool,
    /// The HTTP status, when there was one.
    #[serde(default)]
    pub status: Option<u16>,
    /// The answer; of a failure the body as text, or `null`.
    #[serde(default)]
    pub body: Json,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<String>,
    /// Tokens used, when the provider said.
    #[serde(default)]
    pub usage: Option<TokenUsage>,
}

/// `tool.call`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Identifies the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments, exactly.
    #[serde(default)]
    pub input: Json,
    /// Who runs it.
    #[serde(default)]
    pub dispatch: Option<Dispatch>,
    /// The MCP server, for that bucket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

/// `tool.result`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResultEvent {
    /// The id of the call.
    pub tool_use_id: String,
    /// Who ran it.
    #[serde(default)]
    pub dispatch: Option<Dispatch>,
    /// A string or blocks.
    #[serde(default)]
    pub content: Json,
    /// Whether it failed; the plain contract omits it for client tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
    /// The MCP server, for that bucket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

/// `mcp.request`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpRequest {
    /// `tools/call`.
    #[serde(default)]
    pub method: String,
    /// The server, when the tool could be routed.
    #[serde(default)]
    pub server_name: Option<String>,
    /// The tool.
    #[serde(default)]
    pub tool: String,
    /// The arguments.
    #[serde(default)]
    pub input: Json,
}

/// `mcp.response`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpResponse {
    /// The server, when the tool could be routed.
    #[serde(default)]
    pub server_name: Option<String>,
    /// Whether the call succeeded.
    pub ok: bool,
    /// The server's result.
    #[serde(default)]
    pub result: Option<Json>,
    /// Why there is none.
    #[serde(default)]
    pub error: Option<String>,
}

/// `sandbox.request`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRequest {
    /// The tool.
    #[serde(default)]
    pub tool: String,
    /// The arguments.
    #[serde(default)]
    pub input: Json,
    /// The command in them.
    #[serde(default)]
    pub command: Option<String>,
}

/// `sandbox.response`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxResponse {
    /// The sandbox, when one ran.
    #[serde(default)]
    pub sandbox_id: Option<String>,
    /// Whether the command could be run.
    pub ok: bool,
    /// `{stdout, stderr, exit_code}`.
    #[serde(default)]
    pub result: Option<Json>,
    /// Why there is none.
    #[serde(default)]
    pub error: Option<String>,
}

/// `session.open` and `session.join`: what the client declared.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Declared {
    /// The client's own version text.
    #[serde(default)]
    pub client_version: Option<String>,
    /// Names of its tools.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Names of its sandbox tools.
    #[serde(default)]
    pub sandbox_tools: Vec<String>,
    /// Names of its subagent tools.
    #[serde(default)]
    pub subagent_tools: Vec<String>,
}

/// `session.close`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Close {
    /// `client_close` or `client_key_revoked`.
    #[serde(default)]
    pub reason: String,
}

open_enum! {
    /// Why a `session.error` was logged.
    ErrorReason {
        /// The primary provider is not configured.
        ProviderConfig = "provider_config",
        /// One attempt failed; the session goes on.
        ProviderCallFailed = "provider_call_failed",
        /// Every provider failed.
        AllProvidersFailed = "all_providers_failed",
        /// Too many model rounds in one turn.
        LoopLimit = "loop_limit",
        /// The profile is gone.
        ProfileUnavailable = "profile_unavailable",
        /// The profile's primary provider is not configured.
        PrimaryProviderUnavailable = "primary_provider_unavailable",
        /// A pause passed its deadline and was retired; the session goes on.
        DriverTurnAbandoned = "driver_turn_abandoned",
        /// A continuation did not fit the paused turn.
        ToolResultMergeInvalid = "tool_result_merge_invalid",
        /// A compaction could not be stored; the session goes on.
        CompactionStoreFailed = "compaction_store_failed",
    }
}

/// `session.error`: a reason, and members that belong to it (in the raw payload).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionError {
    /// What happened.
    pub reason: ErrorReason,
    /// In words.
    #[serde(default)]
    pub detail: Option<String>,
    /// The provider, for `provider_call_failed`.
    #[serde(default)]
    pub provider: Option<String>,
    /// How many attempts, for `all_providers_failed`.
    #[serde(default)]
    pub attempts: Option<u32>,
    /// The limit, for `loop_limit`.
    #[serde(default)]
    pub max_iterations: Option<u32>,
    /// Whose turn, for `driver_turn_abandoned`.
    #[serde(default)]
    pub owner_client_key_id: Option<String>,
}

/// `session.compaction.started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionStarted {
    /// `auto` or `client`.
    #[serde(default)]
    pub trigger: String,
    /// `token_threshold`, `manual` or `retry_after_failure`.
    #[serde(default)]
    pub reason: String,
    /// Tokens counted.
    #[serde(default)]
    pub token_count: Option<u64>,
    /// The threshold.
    #[serde(default)]
    pub threshold_tokens: Option<u64>,
}

/// `session.compaction.completed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionCompleted {
    /// Where later history starts.
    #[serde(default)]
    pub preamble_event_id: Option<String>,
    /// The summary.
    #[serde(default)]
    pub summary_event_id: Option<String>,
    /// How many messages it stands for.
    #[serde(default)]
    pub compacted_message_count: Option<u64>,
    /// Tokens read for it.
    #[serde(default)]
    pub input_tokens: Option<u64>,
    /// Tokens of the summary.
    #[serde(default)]
    pub summary_tokens: Option<u64>,
}

/// `session.sandbox.available`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxAvailable {
    /// The images: `{name, status, detail?}`.
    #[serde(default)]
    pub images: Vec<Json>,
}

/// The other `session.sandbox.*` events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxState {
    /// The image; absent when nothing isolates the tools.
    #[serde(default)]
    pub image: Option<String>,
    /// `remote` or `local`.
    #[serde(default)]
    pub dispatch: Option<String>,
    /// The sandbox.
    #[serde(default)]
    pub sandbox_id: Option<String>,
    /// A local container.
    #[serde(default)]
    pub container_id: Option<String>,
    /// Why, or in which phase it failed: `explicit`, `session_close`, `start`, `stop`, `exec`.
    #[serde(default, alias = "phase")]
    pub reason: Option<String>,
    /// In words.
    #[serde(default)]
    pub detail: Option<String>,
    /// Whether nothing isolates the tools.
    #[serde(default)]
    pub unsandboxed: bool,
}

/// The `session.subagent.*` events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubagentState {
    /// `local` or `remote`.
    #[serde(default)]
    pub dispatch: Option<String>,
    /// The subagent.
    #[serde(default)]
    pub subagent_id: String,
    /// What runs it.
    #[serde(default)]
    pub harness: String,
    /// Its model.
    #[serde(default)]
    pub model: String,
    /// In words.
    #[serde(default)]
    pub detail: Option<String>,
    /// Why it failed or was cancelled.
    #[serde(default)]
    pub reason: Option<String>,
    /// Its exit code, when it had one.
    #[serde(default)]
    pub exit_code: Option<i64>,
}

impl ServerMessage {
    /// Reads the payload of a `server.message.send`.
    ///
    /// # Errors
    /// When it is no message.
    pub fn read(payload: &Json) -> Result<Self, JsonError> {
        Ok(Self {
            message: Message::read(payload, Role::Assistant)?,
            synthetic: payload.member("synthetic").and_then(|v| v.to_text()),
        })
    }

    /// What is said.
    #[must_use]
    pub fn content(&self) -> &Content {
        &self.message.content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(kind: &str, text: &str) -> Result<Payload, JsonError> {
        Payload::decode(&EventType::parse(kind), &Json::parse(text.to_owned()).unwrap())
    }

    #[test]
    fn every_type_of_the_catalogue_has_a_payload() {
        let least = r#"{"id":"a","name":"n","tool_use_id":"t","reason":"r","ok":true,"role":"user","content":""}"#;
        for kind in EventType::KNOWN {
            let payload = decode(kind.as_str(), least).unwrap();
            assert!(!matches!(payload, Payload::Unknown(_)), "{kind}");
        }
        assert!(matches!(decode("x.y", "{}"), Ok(Payload::Unknown(_))));
    }

    #[test]
    fn recorded_payloads_are_read() {
        let Payload::ProviderResponse(failed) = decode("provider.response",
            r#"{"attempt":1,"body":null,"error":"error sending request","kind":"fallback","ok":false,"provider":"anthropic","status":null}"#,
        ).unwrap() else { panic!() };
        assert_eq!((failed.ok, failed.status, failed.attempt), (false, None, 1));
        let Payload::SessionError(error) =
            decode("session.error", r#"{"attempts":2,"reason":"all_providers_failed"}"#).unwrap()
        else {
            panic!()
        };
        assert_eq!(error.reason, ErrorReason::AllProvidersFailed);
        let Payload::SessionError(error) =
            decode("session.error", r#"{"reason":"moon_phase"}"#).unwrap()
        else {
            panic!()
        };
        assert_eq!(error.reason.as_str(), "moon_phase");
    }
}
