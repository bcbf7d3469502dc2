//! The methods of `/rpc`: their parameters and results (session service §5).

use super::content::{Block, Message, Role, open_enum};
use super::payload::TokenUsage;
use super::rpc::{RpcFailure, code};
use super::tool::ToolDeclaration;
use crate::Json;
use serde::{Deserialize, Serialize};

open_enum! {
    /// A method of `/rpc`: the twelve of the plain contract, and those of features.
    Method {
        /// Makes the caller a driver.
        RegisterDriver = "session.registerDriver",
        /// Starts or continues a turn.
        SendMessage = "session.sendMessage",
        /// Replaces the history by a summary.
        Compact = "session.compact",
        /// Watches the session.
        Subscribe = "session.subscribe",
        /// Ends every subscription of the session.
        Unsubscribe = "session.unsubscribe",
        /// Starts the remote sandbox.
        StartRemoteSandbox = "session.startRemoteSandbox",
        /// Stops the remote sandbox.
        StopRemoteSandbox = "session.stopRemoteSandbox",
        /// Runs a command in the remote sandbox.
        ExecRemoteSandbox = "session.execRemoteSandbox",
        /// Reports the state of a local sandbox.
        ReportLocalSandbox = "session.reportLocalSandbox",
        /// Reports the state of a local subagent.
        ReportLocalSubagent = "session.reportLocalSubagent",
        /// Cancels a remote subagent.
        CancelSubagent = "session.cancelSubagent",
        /// Replaces the caller's tools.
        UpdateClientTools = "session.updateClientTools",
        /// Ends the caller's turn (feature `cancel`).
        Cancel = "session.cancel",
        /// Renews the caller's paused turn (feature `hold`).
        Hold = "session.hold",
        /// Answers whether a tool of the service may run (feature `approve`).
        Approve = "session.approve",
    }
}

/// Parameters that can be read from JSON.
pub trait Params: Sized {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `-32602 Invalid params: …`.
    fn read(params: &Json) -> Result<Self, RpcFailure>;
}

fn invalid(reason: &str) -> RpcFailure {
    RpcFailure::new(code::INVALID_PARAMS, format!("Invalid params: {reason}"))
}

fn decode<'a, T: Deserialize<'a>>(params: &'a Json) -> Result<T, RpcFailure> {
    params.decode().map_err(|e| invalid(&e.reason))
}

/// `session.sendMessage`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendMessage {
    /// The message; its role defaults to `user`, its content may be any JSON.
    pub message: Message,
    /// Names the message, so that it may be sent again (feature `message-id`); a value that is no string counts as absent.
    pub message_id: Option<String>,
}

impl Params for SendMessage {
    fn read(params: &Json) -> Result<Self, RpcFailure> {
        let Some(message) = params.member("message") else {
            return Err(invalid("missing \"message\""));
        };
        let message = Message::read(&message, Role::User).map_err(|e| invalid(&e.reason))?;
        let message_id = params.member("message_id").and_then(|id| id.to_text());
        Ok(Self { message, message_id })
    }
}

impl SendMessage {
    /// The parameters as JSON.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let id = self.message_id.as_deref().map(Json::string);
        let id = id.as_ref().map(|id| ("message_id", id));
        Json::object([("message", &self.message.to_json())].into_iter().chain(id))
    }
}

/// The result of `session.sendMessage`: `{"message","events"}`.
#[derive(Debug, Clone)]
pub struct SendMessageResult {
    /// The assistant's message; at a pause its tool calls carry `dispatch`.
    pub message: Message,
    /// Every event of the call, raw.
    pub events: Json,
    /// At a pause, how long the service waits for the results, in milliseconds (feature `hold`).
    pub pause_ms: Option<u64>,
    /// The events lack those that the answer's own stream has carried (feature `lean-result`).
    pub lean: bool,
    /// What the model answers of the call have cost together, as the service says it with [`SendMessageResult::lean`]; nothing
    /// when one of them came without.
    pub usage: Option<TokenUsage>,
}

impl SendMessageResult {
    /// Reads the result.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub fn read(result: &Json) -> Result<Self, crate::json::JsonError> {
        let Some(message) = result.member("message") else {
            let reason = "the result has no \"message\"".to_owned();
            return Err(crate::json::JsonError { at: 0, reason });
        };
        Ok(Self {
            message: Message::read(&message, Role::Assistant)?,
            events: result.member("events").unwrap_or_else(|| Json::array([])),
            pause_ms: result
                .member("pause")
                .and_then(|pause| pause.member("expires_in_ms"))
                .and_then(|ms| ms.decode().ok()),
            lean: result.member("lean").is_some_and(|lean| lean.as_str() == "true"),
            usage: result.member("usage").and_then(|usage| usage.decode().ok()),
        })
    }
}

/// `session.compact`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Compact {
    /// What the summary shall keep in mind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// `session.subscribe`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subscribe {
    /// Replay what was logged after this event first; a value that is no string counts as absent.
    pub since_event_id: Option<String>,
}

impl Params for Subscribe {
    fn read(params: &Json) -> Result<Self, RpcFailure> {
        Ok(Self { since_event_id: params.member("since_event_id").and_then(|v| v.to_text()) })
    }
}

impl Subscribe {
    /// The parameters as JSON.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match &self.since_event_id {
            Some(id) => Json::object([("since_event_id", &Json::string(id))]),
            None => Json::empty_object(),
        }
    }
}

/// `session.startRemoteSandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRemoteSandbox {
    /// The image.
    pub image: String,
}

/// The result of `session.startRemoteSandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteSandbox {
    /// The sandbox.
    pub sandbox_id: String,
    /// The image.
    pub image: String,
    /// When it started.
    #[serde(default)]
    pub started_at: Option<String>,
}

/// The result of `session.stopRemoteSandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppedSandbox {
    /// Always true.
    pub stopped: bool,
    /// The image.
    pub image: String,
    /// The sandbox.
    pub sandbox_id: String,
}

/// `session.execRemoteSandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRemoteSandbox {
    /// The command, for a shell.
    pub command: String,
}

/// The result of `session.execRemoteSandbox`; a non-zero exit is a result too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// What it wrote.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
    /// How it ended.
    pub exit_code: i64,
}

/// `session.reportLocalSandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportLocalSandbox {
    /// `running`, `stopped` or `error`.
    pub state: String,
    /// The image; must be absent when `unsandboxed`.
    #[serde(default)]
    pub image: Option<String>,
    /// Whether nothing isolates the tools.
    #[serde(default)]
    pub unsandboxed: bool,
    /// The container.
    #[serde(default)]
    pub container_id: Option<String>,
    /// In words.
    #[serde(default)]
    pub detail: Option<String>,
}

/// `session.reportLocalSubagent`. An explicit `null` as `exit_code` is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportLocalSubagent {
    /// `start`, `running`, `completed`, `failed` or `cancelled`.
    pub state: String,
    /// The subagent.
    pub subagent_id: String,
    /// What runs it.
    pub harness: String,
    /// Its model.
    pub model: String,
    /// In words.
    #[serde(default)]
    pub detail: Option<String>,
    /// Why it failed or was cancelled.
    #[serde(default)]
    pub reason: Option<String>,
    /// Its exit code.
    #[serde(default)]
    pub exit_code: Option<i64>,
}

/// `session.cancelSubagent`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelSubagent {
    /// The subagent.
    pub subagent_id: String,
}

/// `session.updateClientTools`: full replacement of the caller's own list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateClientTools {
    /// The tools.
    pub tools: Vec<ToolDeclaration>,
}

macro_rules! decoded_params {
    ($($name:ty),*) => { $(
        impl Params for $name {
            fn read(params: &Json) -> Result<Self, RpcFailure> {
                decode(params)
            }
        }
    )* };
}

decoded_params!(
    Compact,
    StartRemoteSandbox,
    ExecRemoteSandbox,
    ReportLocalSandbox,
    ReportLocalSubagent,
    CancelSubagent,
    UpdateClientTools
);

/// `session.cancel` (feature `cancel`): ends the caller's turn in this session, running, paused or queued.
///
/// A running turn stops where it stands; a paused one is closed with the results given here and synthetic
/// ones for the calls that have none, without another model round. In both cases the gate is free and
/// the history valid when the answer comes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cancel {
    /// The JSON-RPC id of the `session.sendMessage` to cancel; absent: whatever turn of the caller runs or is paused.
    pub request_id: Option<Json>,
    /// Results of the paused turn's client calls.
    pub results: Vec<Block>,
}

impl Params for Cancel {
    fn read(params: &Json) -> Result<Self, RpcFailure> {
        let results = match params.member("results") {
            None => Vec::new(),
            Some(results) => match results.elements() {
                Some(elements) => elements.into_iter().map(Block::read).collect(),
                None => return Err(invalid("\"results\" must be an array of tool_result blocks")),
            },
        };
        if results.iter().any(|block| block.tool_result().is_none()) {
            return Err(invalid("\"results\" must be an array of tool_result blocks"));
        }
        Ok(Self { request_id: params.member("request_id"), results })
    }
}

impl Cancel {
    /// The parameters as JSON.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let results = Json::array(self.results.iter().map(Block::json));
        let request = self.request_id.as_ref().map(|id| ("request_id", id));
        let results = (!self.results.is_empty()).then_some(("results", &results));
        Json::object(request.into_iter().chain(results))
    }
}

open_enum! {
    /// What `session.cancel` found.
    CancelledState {
        /// A model or server-side tool was at work.
        Running = "running",
        /// The turn waited for client tools.
        Paused = "paused",
        /// The call waited at the gate.
        Queued = "queued",
        /// Nothing of the caller was going on.
        Idle = "idle",
    }
}

/// The result of `session.cancel`: `{"cancelled":bool,"was":…}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelResult {
    /// Whether there was something to cancel.
    pub cancelled: bool,
    /// What was found.
    pub was: CancelledState,
}

/// The result of `session.hold` (feature `hold`): `{"held":true,"expires_in_ms":…}`, or `{"held":false}` when no turn of
/// the caller is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldResult {
    /// Whether a turn of the caller is paused.
    pub held: bool,
    /// How long nobody takes it over, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn send_message_says_what_is_wrong_with_its_parameters() {
        let fails = |text: &str| SendMessage::read(&json(text)).unwrap_err().message;
        assert_eq!(fails("{}"), "Invalid params: missing \"message\"");
        assert_eq!(fails("[]"), "Invalid params: missing \"message\"");
        assert_eq!(fails(r#"{"message":{}}"#), "Invalid params: missing field `content`");
        assert_eq!(fails(r#"{"message":"x"}"#), "Invalid params: a message must be an object");
        assert_eq!(
            fails(r#"{"message":{"role":1,"content":""}}"#),
            "Invalid params: \"role\" must be a string"
        );
        for content in ["null", "5", "{\"a\":1}", "true"] {
            let text = format!(r#"{{"message":{{"content":{content}}}}}"#);
            let read = SendMessage::read(&json(&text)).unwrap();
            assert_eq!(read.message.content.to_json().as_str(), content);
        }
    }

    #[test]
    fn a_null_exit_code_is_accepted() {
        let text =
            r#"{"state":"running","subagent_id":"s","harness":"h","model":"m","exit_code":null}"#;
        assert_eq!(ReportLocalSubagent::read(&json(text)).unwrap().exit_code, None);
    }

    #[test]
    fn a_since_id_that_is_no_string_counts_as_absent() {
        assert_eq!(Subscribe::read(&json(r#"{"since_event_id":5}"#)).unwrap().since_event_id, None);
        assert_eq!(
            Subscribe::read(&json(r#"{"since_event_id":""}"#)).unwrap().since_event_id.as_deref(),
            Some("")
        );
    }

    #[test]
    fn there_are_twelve_plain_methods() {
        let of_features = [Method::Cancel, Method::Hold, Method::Approve];
        let plain = Method::KNOWN.iter().filter(|m| !of_features.contains(m));
        assert_eq!(plain.count(), 12);
    }
}
