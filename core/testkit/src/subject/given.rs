//! What goes into a subject, in the words of the bridge: options and commands as JSON, answers as a word and a value.

use broca::Json;
use broca::engine::{Answer, CloseReason, Command, Config};
use broca::proto::session::tool::Tool;
use serde_json::{Map, Value, json};

/// Every reason for which a connection can be gone, with its word.
pub const CLOSE_WORDS: [(CloseReason, &str); 10] = [
    (CloseReason::Eof, "eof"),
    (CloseReason::UncleanEof, "unclean_eof"),
    (CloseReason::Reset, "reset"),
    (CloseReason::TimedOut, "timed_out"),
    (CloseReason::Refused, "refused"),
    (CloseReason::Unreachable, "unreachable"),
    (CloseReason::TlsCert, "tls_cert"),
    (CloseReason::TlsHost, "tls_host"),
    (CloseReason::TlsOther, "tls_other"),
    (CloseReason::Local, "local"),
];

/// A configuration as options.
#[must_use]
pub fn options_json(config: &Config) -> String {
    json!({
        "base_url": config.base_url,
        "client_key": config.client_key.expose(),
        "client_version": config.client_version,
        "user_agent": config.user_agent,
        "features": config.features.words(),
        "max_line_bytes": config.max_line_bytes,
        "max_answer_bytes": config.max_answer_bytes,
        "connect_timeout_ms": config.connect_timeout_ms,
        "head_timeout_ms": config.head_timeout_ms,
        "rest_timeout_ms": config.rest_timeout_ms,
        "silence_timeout_ms": config.silence_timeout_ms,
        "silence_intervals": config.silence_intervals,
        "reply_bytes": config.reply_bytes,
        "recovery_timeout_ms": config.recovery_timeout_ms,
        "reach_timeout_ms": config.reach_timeout_ms,
        "replay_timeout_ms": config.replay_timeout_ms,
        "cancel_timeout_ms": config.cancel_timeout_ms,
        "resume_wait_ms": config.resume_wait_ms,
        "eyeballs_delay_ms": config.eyeballs_delay_ms,
        "idle_reuse_ms": config.idle_reuse_ms,
        "idle_close_ms": config.idle_close_ms,
        "max_connections": config.max_connections,
        "delta_buffer_bytes": config.delta_buffer_bytes,
        "step_buffer_bytes": config.step_buffer_bytes,
        "turn_rounds": config.turn_budget.rounds,
        "turn_tokens": config.turn_budget.tokens,
        "turn_tool_calls": config.turn_budget.tool_calls,
        "session_rounds": config.session_budget.rounds,
        "session_tokens": config.session_budget.tokens,
        "session_tool_calls": config.session_budget.tool_calls,
        "hold_ms": config.hold_ms.unwrap_or(0),
        "concurrent_tools": config.calls.concurrent,
        "pause_ms": config.calls.pause_ms,
        "cancel_grace_ms": config.calls.cancel_grace_ms,
        "results_bytes": config.calls.results_bytes,
        "reconnect_first_delay_ms": config.reconnect.first_delay_ms,
        "reconnect_max_delay_ms": config.reconnect.max_delay_ms,
        "reconnect_max_failures": config.reconnect.max_failures,
        "hooks": config.hooks,
        "hook_timeout_ms": config.hook_timeout_ms,
    })
    .to_string()
}

/// A command as an object of one member.
///
/// # Errors
/// For a command that this version of the tests does not know.
pub fn command_json(command: &Command) -> Result<String, String> {
    let text = |text: &str| Json::string(text);
    let (name, value) = match command {
        Command::Open { tools, metadata } => {
            let metadata = metadata.clone().unwrap_or_default();
            ("open", Json::object([("tools", &tools_json(tools)), ("metadata", &metadata)]))
        }
        Command::Join { session_id, tools } => {
            let members =
                [("session_id", &text(session_id.as_str())), ("tools", &tools_json(tools))];
            ("join", Json::object(members))
        }
        Command::Observe { session_id } => {
            ("observe", Json::object([("session_id", &text(session_id.as_str()))]))
        }
        Command::Attach { saved, tools } => {
            let saved = Json::parse(saved.to_json().expose().to_owned());
            let saved = saved.map_err(|e| format!("a saved session is no JSON: {e}"))?;
            ("attach", Json::object([("saved", &saved), ("tools", &tools_json(tools))]))
        }
        Command::Resume => ("resume", Json::empty_object()),
        Command::Save => ("save", Json::empty_object()),
        Command::Send { message } => ("send", Json::object([("message", &message.to_json())])),
        Command::Subscribe { from } => {
            let from = from.as_ref().map_or_else(Json::null, |from| text(&from.to_string()));
            ("subscribe", Json::object([("from", &from)]))
        }
        Command::History { cursor, limit } => {
            let cursor = cursor.as_deref().map_or_else(Json::null, Json::string);
            let limit = limit.map_or_else(Json::null, |limit| Json::integer(limit.into()));
            ("history", Json::object([("cursor", &cursor), ("limit", &limit)]))
        }
        Command::Participants => ("participants", Json::empty_object()),
        Command::Info => ("info", Json::empty_object()),
        Command::Update { metadata, version } => {
            let version = Json::encode(version).map_err(|e| e.to_string())?;
            ("update", Json::object([("metadata", metadata), ("version", &version)]))
        }
        Command::Sessions { cursor, limit } => {
            let cursor = cursor.as_deref().map_or_else(Json::null, Json::string);
            let limit = limit.map_or_else(Json::null, |limit| Json::integer(limit.into()));
            ("sessions", Json::object([("cursor", &cursor), ("limit", &limit)]))
        }
        Command::Meta => ("meta", Json::empty_object()),
        Command::UpdateTools { tools } => {
            ("update_tools", Json::object([("tools", &tools_json(tools))]))
        }
        Command::Close => ("close", Json::empty_object()),
        other => return Err(format!("a command unknown to the tests: {other:?}")),
    };
    Ok(Json::object([(name, &value)]).as_str().to_owned())
}

/// An answer: its word and what it says.
///
/// # Errors
/// For an answer that this version of the tests does not know.
pub fn answer_words(answer: &Answer) -> Result<(&'static str, Option<String>), String> {
    Ok(match answer {
        Answer::Complete(output) => ("complete", Some(output.as_str().to_owned())),
        Answer::Fail(message) => ("fail", Some(message.clone())),
        Answer::Allow => ("allow", None),
        Answer::AllowNarrowed(input) => ("allow_narrowed", Some(input.as_str().to_owned())),
        Answer::Deny(reason) => ("deny", Some(reason.clone())),
        Answer::Send { message, .. } => {
            ("send", message.as_ref().map(|message| message.to_json().as_str().to_owned()))
        }
        Answer::Refuse(reason) => ("refuse", Some(reason.clone())),
        other => return Err(format!("an answer unknown to the tests: {other:?}")),
    })
}

/// The word for a reason; nothing for one that this version of the tests does not know.
#[must_use]
pub fn close_word(why: CloseReason) -> Option<&'static str> {
    CLOSE_WORDS.iter().find(|(reason, _)| *reason == why).map(|(_, word)| *word)
}

fn tools_json(tools: &[Tool]) -> Json {
    let tools: Vec<Json> = tools.iter().map(tool_json).collect();
    Json::array(&tools)
}

fn tool_json(tool: &Tool) -> Json {
    let narrow: Map<String, Value> =
        tool.narrow.iter().map(|(at, rule)| (at.to_owned(), rule.as_str().into())).collect();
    let options = json!({
        "description": tool.declaration.description,
        "sequential": tool.sequential,
        "timeout_ms": tool.timeout_ms,
        "approval": tool.approval,
        "narrow": narrow,
    });
    // The schema keeps its spelling.
    Json::encode(&options)
        .unwrap_or_default()
        .with_member("name", &Json::string(&tool.declaration.name))
        .with_member("input_schema", &tool.declaration.input_schema)
}
