//! Who may call which method when, and the answers that need no work (session service §5).

use super::depth;
use super::gate::Refusal;
use super::log::{LogEvent, boolean};
use super::open::{DeclaredTools, Profile, RESERVED_NAME, not_in_allowlist};
use crate::Json;
use crate::session::content::Message;
use crate::session::event::EventType;
use crate::session::feature::Features;
use crate::session::generation::Generation;
use crate::session::ids::KeyId;
pub use crate::session::info::SessionState;
use crate::session::method::{
    CancelSubagent, Compact, ExecRemoteSandbox, Method, Params, ReportLocalSandbox,
    ReportLocalSubagent, SendMessage, StartRemoteSandbox,
};
use crate::session::rpc::{RpcFailure, code};

/// What is known about the caller and the session when a method is called.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// Whether the caller's client key is registered as a driver.
    pub registered: bool,
    /// The state of the session.
    pub state: &'a SessionState,
    /// What the request asked for.
    pub features: Features,
}

/// Finds the method and decides whether the caller may call it now: known, driver, open, in this order.
/// The parameters come next.
///
/// # Errors
/// `-32601`, `-32001` or `-32000`.
pub fn admit(method: &str, caller: Caller<'_>) -> Result<Method, RpcFailure> {
    let found = Method::parse(method);
    let known = match found {
        Method::Unknown(_) => false,
        Method::Cancel => caller.features.cancel,
        Method::Hold => caller.features.hold,
        Method::Approve => caller.features.approve,
        _ => true,
    };
    if !known {
        let message = format!("Method not found: {method}");
        return Err(RpcFailure::new(code::METHOD_NOT_FOUND, message));
    }
    if needs_driver(&found) && !caller.registered {
        let message = format!("call session.registerDriver before {method}");
        return Err(RpcFailure::new(code::DRIVER_NOT_REGISTERED, message));
    }
    if needs_open(&found) {
        session_is_open(caller.state)?;
    }
    Ok(found)
}

/// Whether only drivers may call the method.
#[must_use]
pub const fn needs_driver(method: &Method) -> bool {
    !matches!(method, Method::RegisterDriver | Method::Subscribe | Method::Unsubscribe)
}

/// Whether the session must be open.
#[must_use]
pub const fn needs_open(method: &Method) -> bool {
    matches!(
        method,
        Method::RegisterDriver
            | Method::SendMessage
            | Method::Compact
            | Method::StartRemoteSandbox
            | Method::UpdateClientTools
            | Method::Hold
    )
}

/// Whether the session is open; asked again after waiting at the gate.
///
/// # Errors
/// `-32000 session is <state>, not open`.
pub fn session_is_open(state: &SessionState) -> Result<(), RpcFailure> {
    if *state == SessionState::Open {
        return Ok(());
    }
    Err(application(format!("session is {state}, not open")))
}

/// The answer when the session has vanished while the call waited.
#[must_use]
pub fn session_vanished() -> RpcFailure {
    application("session no longer exists".to_owned())
}

/// The answer when the profile of the session is gone.
#[must_use]
pub fn profile_unavailable() -> RpcFailure {
    application(
        "profile_unavailable: the profile bound to this session is no longer available".to_owned(),
    )
}

/// The answer to a call that the gate turned away; `state` is the session's.
#[must_use]
pub fn gate_refusal(why: Refusal, state: &SessionState) -> RpcFailure {
    match why {
        Refusal::Closed => application(format!("session is {state}, not open")),
        Refusal::QueueFull => application(
            "too many calls wait for this session; try again when a turn is over".to_owned(),
        ),
    }
}

/// The answer when the service itself failed, such as its storage.
#[must_use]
pub fn internal_error() -> RpcFailure {
    RpcFailure::new(code::INTERNAL, "Internal error")
}

/// The answer to a method whose work is not built yet; nothing for the other methods. What the contract
/// says whatever is built comes first (wrong parameters, no sandbox, no such subagent), else the answer
/// is `-32000 not implemented: …`. To be asked after [`admit`].
#[must_use]
pub fn unbuilt(method: &Method, params: &Json, profile_images: &[String]) -> Option<RpcFailure> {
    let refused = match method {
        Method::Compact => Compact::read(params).err(),
        Method::StartRemoteSandbox => refuse_image(params, profile_images).err(),
        Method::StopRemoteSandbox => Some(sandbox_not_running()),
        Method::ExecRemoteSandbox => Some(match ExecRemoteSandbox::read(params) {
            Ok(_) => sandbox_not_running(),
            Err(_) => invalid("missing \"command\""),
        }),
        Method::CancelSubagent => Some(match CancelSubagent::read(params) {
            Ok(CancelSubagent { subagent_id: id }) => RpcFailure::new(
                code::SUBAGENT_NOT_FOUND,
                format!("subagent_not_found: no tracked subagent \"{id}\" for this session"),
            ),
            Err(_) => invalid("missing \"subagent_id\""),
        }),
        _ => return None,
    };
    let missing =
        || application(format!("not implemented: {method} is not built into this service yet"));
    Some(refused.unwrap_or_else(missing))
}

fn refuse_image(params: &Json, profile_images: &[String]) -> Result<(), RpcFailure> {
    let image = match StartRemoteSandbox::read(params) {
        Ok(StartRemoteSandbox { image }) if !image.trim().is_empty() => image,
        _ => return Err(invalid("missing \"image\"")),
    };
    if profile_images.contains(&image) {
        return Ok(());
    }
    let message = format!(
        "sandbox_image_not_allowed: image \"{image}\" is not in this session profile's available_sandboxes"
    );
    Err(RpcFailure::new(code::SANDBOX_IMAGE_NOT_ALLOWED, message))
}

/// `session.sendMessage`: the message, unless it nests so deep that nobody could read it again.
///
/// # Errors
/// `-32602`.
pub fn send_message(params: &Json) -> Result<Message, RpcFailure> {
    let message = SendMessage::read(params)?.message;
    if depth::fits(&message.to_json(), depth::MAX_LEVELS + 1) {
        Ok(message)
    } else {
        Err(invalid(&depth::too_deep("\"content\"")))
    }
}

/// What `session.sendMessage` says about the generation; nothing without the feature `options`.
///
/// # Errors
/// `-32602`, naming the member.
pub fn generation(params: &Json, features: Features) -> Result<Generation, RpcFailure> {
    if !features.options {
        return Ok(Generation::default());
    }
    Generation::read(params).map_err(|error| invalid(&error.to_string()))
}

/// `session.updateClientTools`: the caller's new list, which replaces the old one.
///
/// # Errors
/// `-32602` for a bad list, an empty or a reserved name; `-32015` for a name outside the allowlist.
pub fn update_client_tools(params: &Json, profile: &Profile) -> Result<DeclaredTools, RpcFailure> {
    let raw = params.member("tools").ok_or_else(|| invalid("missing \"tools\""))?;
    let declared = DeclaredTools::read(raw).map_err(|e| invalid(&e.reason))?;
    if !depth::fits(&declared.raw, depth::MAX_LEVELS) {
        return Err(invalid(&depth::too_deep("\"tools\"")));
    }
    if declared.tools.iter().any(|tool| tool.name.is_empty()) {
        return Err(invalid("every tool needs a non-empty \"name\""));
    }
    if declared.tools.iter().any(|tool| tool.name == RESERVED_NAME) {
        return Err(invalid(&format!("{RESERVED_NAME} is reserved")));
    }
    if let Some(tool) = declared.tools.iter().find(|tool| !profile.allows(&tool.name)) {
        let message = format!("tool_not_allowed: {}", not_in_allowlist(&tool.name));
        return Err(RpcFailure::new(code::TOOL_NOT_ALLOWED, message));
    }
    Ok(declared)
}

/// `session.reportLocalSandbox`: the event to log (session service §5.6).
///
/// # Errors
/// `-32602`.
pub fn report_local_sandbox(caller: &KeyId, params: &Json) -> Result<LogEvent, RpcFailure> {
    let state = params.member("state").and_then(|state| state.to_text());
    let event_type = match state.as_deref() {
        Some("running") => EventType::SessionSandboxRunning,
        Some("stopped") => EventType::SessionSandboxStopped,
        Some("error") => EventType::SessionSandboxError,
        _ => return Err(invalid("\"state\" must be \"running\", \"stopped\", or \"error\"")),
    };
    let report = ReportLocalSandbox::read(params)?;
    let image = report.image.as_deref().filter(|image| !image.trim().is_empty());
    match (image, report.unsandboxed) {
        (None, false) => {
            return Err(invalid("\"image\" is required unless \"unsandboxed\" is true"));
        }
        (_, true) if report.image.is_some() => {
            return Err(invalid("\"image\" must be absent when \"unsandboxed\" is true"));
        }
        _ => {}
    }
    let payload = Json::object([
        ("container_id", &text_or_null(report.container_id.as_deref())),
        ("detail", &text_or_null(report.detail.as_deref())),
        ("dispatch", &Json::string("local")),
        ("image", &text_or_null(image)),
        ("unsandboxed", &boolean(report.unsandboxed)),
    ]);
    Ok(LogEvent::new(event_type, caller.clone(), payload))
}

/// `session.reportLocalSubagent`: the event to log (session service §5.7). An `exit_code` of `null` counts as absent.
///
/// # Errors
/// `-32602`.
pub fn report_local_subagent(caller: &KeyId, params: &Json) -> Result<LogEvent, RpcFailure> {
    let state = params.member("state").and_then(|state| state.to_text());
    let event_type = match state.as_deref() {
        Some("start") => EventType::SessionSubagentStart,
        Some("running") => EventType::SessionSubagentRunning,
        Some("completed") => EventType::SessionSubagentCompleted,
        Some("failed") => EventType::SessionSubagentFailed,
        Some("cancelled") => EventType::SessionSubagentCancelled,
        _ => {
            return Err(invalid(
                "\"state\" must be \"start\", \"running\", \"completed\", \"failed\", or \"cancelled\"",
            ));
        }
    };
    for name in ["subagent_id", "harness", "model"] {
        if params.member(name).and_then(|v| v.to_text()).is_none_or(|text| text.is_empty()) {
            return Err(invalid(&format!("missing \"{name}\"")));
        }
    }
    for name in ["detail", "reason"] {
        if params.member(name).is_some_and(|v| !v.is_null() && v.to_text().is_none()) {
            return Err(invalid(&format!("\"{name}\" must be a string")));
        }
    }
    let exit_code = params.member("exit_code").unwrap_or_default();
    if !exit_code.is_null() && exit_code.decode::<i64>().is_err() {
        return Err(invalid("\"exit_code\" must be an integer"));
    }
    let report = ReportLocalSubagent::read(params)?;
    let reason = text_or_null(report.reason.as_deref());
    let mut payload = Json::object([
        ("detail", &text_or_null(report.detail.as_deref())),
        ("dispatch", &Json::string("local")),
        ("harness", &Json::string(&report.harness)),
        ("model", &Json::string(&report.model)),
        ("subagent_id", &Json::string(&report.subagent_id)),
    ]);
    if matches!(report.state.as_str(), "failed" | "cancelled") {
        payload = payload.with_member("reason", &reason);
    }
    if matches!(report.state.as_str(), "completed" | "failed") {
        payload = payload.with_member("exit_code", &exit_code);
    }
    Ok(LogEvent::new(event_type, caller.clone(), payload))
}

fn sandbox_not_running() -> RpcFailure {
    let message = "sandbox_not_running: no remote sandbox is running for this session";
    RpcFailure::new(code::SANDBOX_NOT_RUNNING, message)
}

fn application(message: String) -> RpcFailure {
    RpcFailure::new(code::APPLICATION, message)
}

fn invalid(reason: &str) -> RpcFailure {
    RpcFailure::new(code::INVALID_PARAMS, format!("Invalid params: {reason}"))
}

fn text_or_null(text: Option<&str>) -> Json {
    text.map_or_else(Json::null, Json::string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ids::ProfileId;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    fn caller(registered: bool, state: &SessionState, features: Features) -> Caller<'_> {
        Caller { registered, state, features }
    }

    fn refusal(method: &str, registered: bool, state: &SessionState) -> Option<(i64, String)> {
        let refused = admit(method, caller(registered, state, Features::ALL)).err()?;
        Some((refused.code, refused.message))
    }

    #[test]
    fn the_driver_gate_comes_first_then_the_state_of_the_session() {
        // Method, needs a driver, needs an open session: the table of session service §5.
        let table = [
            ("session.registerDriver", false, true),
            ("session.sendMessage", true, true),
            ("session.compact", true, true),
            ("session.subscribe", false, false),
            ("session.unsubscribe", false, false),
            ("session.startRemoteSandbox", true, true),
            ("session.stopRemoteSandbox", true, false),
            ("session.execRemoteSandbox", true, false),
            ("session.reportLocalSandbox", true, false),
            ("session.reportLocalSubagent", true, false),
            ("session.cancelSubagent", true, false),
            ("session.updateClientTools", true, true),
            ("session.cancel", true, false),
            ("session.hold", true, true),
            ("session.approve", true, false),
        ];
        assert_eq!(table.len(), Method::KNOWN.len());
        for (method, driver, open) in table {
            let unregistered = (-32001, format!("call session.registerDriver before {method}"));
            let not_open = (-32000, "session is closed, not open".to_owned());
            let closed = &SessionState::Closed;
            assert_eq!(refusal(method, true, &SessionState::Open), None, "{method}");
            assert_eq!(refusal(method, true, closed), open.then(|| not_open.clone()), "{method}");
            let expected = if driver { Some(unregistered) } else { open.then_some(not_open) };
            assert_eq!(refusal(method, false, closed), expected, "{method}");
        }
        assert_eq!(
            refusal("session.sendMessage", true, &SessionState::Error),
            Some((-32000, "session is error, not open".to_owned()))
        );
    }

    #[test]
    fn a_method_that_does_not_exist_or_was_not_asked_for_is_not_found() {
        let not_found = |method: &str| (-32601, format!("Method not found: {method}"));
        let nope = refusal("session.nope", false, &SessionState::Closed);
        assert_eq!(nope, Some(not_found("session.nope")));
        let plain = caller(false, &SessionState::Open, Features::NONE);
        for method in ["session.cancel", "session.hold", "session.approve"] {
            let refused = admit(method, plain).unwrap_err();
            assert_eq!((refused.code, refused.message), not_found(method));
        }
    }

    #[test]
    fn methods_that_are_not_built_answer_what_is_true_anyway() {
        let images = ["ours".to_owned()];
        let compact = "not implemented: session.compact is not built into this service yet";
        let start =
            "not implemented: session.startRemoteSandbox is not built into this service yet";
        let running = "sandbox_not_running: no remote sandbox is running for this session";
        let image = "Invalid params: missing \"image\"";
        for (method, params, code, message) in [
            (Method::Compact, "{}", -32000, compact),
            (Method::Compact, r#"{"prompt":null}"#, -32000, compact),
            (Method::StartRemoteSandbox, "{}", -32602, image),
            (Method::StartRemoteSandbox, r#"{"image":" "}"#, -32602, image),
            (Method::StartRemoteSandbox, r#"{"image":5}"#, -32602, image),
            (
                Method::StartRemoteSandbox,
                r#"{"image":"x"}"#,
                -32011,
                "sandbox_image_not_allowed: image \"x\" is not in this session profile's available_sandboxes",
            ),
            (Method::StartRemoteSandbox, r#"{"image":"ours"}"#, -32000, start),
            (Method::StopRemoteSandbox, "{}", -32013, running),
            (Method::ExecRemoteSandbox, "{}", -32602, "Invalid params: missing \"command\""),
            (Method::ExecRemoteSandbox, r#"{"command":"ls"}"#, -32013, running),
            (Method::CancelSubagent, "{}", -32602, "Invalid params: missing \"subagent_id\""),
            (
                Method::CancelSubagent,
                r#"{"subagent_id":"sba_x"}"#,
                -32014,
                "subagent_not_found: no tracked subagent \"sba_x\" for this session",
            ),
        ] {
            let failure = unbuilt(&method, &json(params), &images).unwrap();
            assert_eq!((failure.code, failure.message.as_str()), (code, message));
        }
        let bad_prompt = unbuilt(&Method::Compact, &json(r#"{"prompt":5}"#), &[]).unwrap();
        assert_eq!(bad_prompt.code, -32602);
        assert_eq!(unbuilt(&Method::SendMessage, &json("{}"), &[]), None);
    }

    #[test]
    fn a_new_list_of_tools_is_checked_like_an_open() {
        let profile = Profile {
            id: ProfileId::from("pro_1"),
            available: true,
            primary_provider: "main".to_owned(),
            primary_known: true,
            allowed_tools: vec!["clock".to_owned()],
        };
        let update = |text: &str| update_client_tools(&json(text), &profile);
        for (text, code, message) in [
            ("{}", -32602, "Invalid params: missing \"tools\""),
            (
                r#"{"tools":[{"name":""}]}"#,
                -32602,
                "Invalid params: every tool needs a non-empty \"name\"",
            ),
            (
                r#"{"tools":[{"name":"remote_subagent_status"}]}"#,
                -32602,
                "Invalid params: remote_subagent_status is reserved",
            ),
            (
                r#"{"tools":[{"name":"clock"},{"name":"evil"}]}"#,
                -32015,
                "tool_not_allowed: tool \"evil\" is not in the profile's allowlist",
            ),
        ] {
            let failure = update(text).unwrap_err();
            assert_eq!((failure.code, failure.message.as_str()), (code, message));
        }
        for bad in [r#"{"tools":5}"#, r#"{"tools":[{}]}"#, r#"{"tools":["clock"]}"#] {
            assert_eq!(update(bad).unwrap_err().code, -32602, "{bad}");
        }
        let stored = update(r#"{"tools":[{"name":"clock","x":1.0}]}"#).unwrap();
        assert_eq!(stored.raw.as_str(), r#"[{"name":"clock","x":1.0}]"#);
    }

    #[test]
    fn content_that_could_not_be_read_again_is_refused() {
        let nested = |levels: usize| {
            let content = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            send_message(&json(&format!(r#"{{"message":{{"content":{content}}}}}"#)))
        };
        assert!(nested(depth::MAX_LEVELS).is_ok());
        let failure = nested(depth::MAX_LEVELS + 1).unwrap_err();
        assert_eq!(failure.code, -32602);
        assert!(failure.message.contains("121 levels"), "{}", failure.message);
    }

    #[test]
    fn reports_of_local_sandboxes_become_events() {
        let key = KeyId::from("key_a");
        let report = |text: &str| report_local_sandbox(&key, &json(text));
        let event = report(r#"{"state":"running","image":"i","container_id":"c"}"#).unwrap();
        assert_eq!(event.event_type, EventType::SessionSandboxRunning);
        assert_eq!(
            event.payload.as_str(),
            r#"{"container_id":"c","detail":null,"dispatch":"local","image":"i","unsandboxed":false}"#
        );
        let event = report(r#"{"state":"error","unsandboxed":true,"detail":"d","image":null}"#);
        let event = event.unwrap();
        assert_eq!(event.event_type, EventType::SessionSandboxError);
        assert_eq!(
            event.payload.as_str(),
            r#"{"container_id":null,"detail":"d","dispatch":"local","image":null,"unsandboxed":true}"#
        );
        let stopped = report(r#"{"state":"stopped","image":"i"}"#).unwrap();
        assert_eq!(stopped.event_type, EventType::SessionSandboxStopped);
        for (bad, message) in [
            ("{}", "Invalid params: \"state\" must be \"running\", \"stopped\", or \"error\""),
            (
                r#"{"state":"running"}"#,
                "Invalid params: \"image\" is required unless \"unsandboxed\" is true",
            ),
            (
                r#"{"state":"running","image":"i","unsandboxed":true}"#,
                "Invalid params: \"image\" must be absent when \"unsandboxed\" is true",
            ),
        ] {
            let failure = report(bad).unwrap_err();
            assert_eq!((failure.code, failure.message.as_str()), (-32602, message));
        }
        assert_eq!(report(r#"{"state":"running","image":5}"#).unwrap_err().code, -32602);
    }

    #[test]
    fn reports_of_local_subagents_become_events() {
        let key = KeyId::from("key_a");
        let report = |rest: &str| {
            let text = format!(r#"{{"subagent_id":"s","harness":"h","model":"m",{rest}}}"#);
            report_local_subagent(&key, &json(&text))
        };
        let common =
            r#""detail":null,"dispatch":"local","harness":"h","model":"m","subagent_id":"s""#;
        for (rest, event_type, more) in [
            (r#""state":"start","exit_code":null"#, EventType::SessionSubagentStart, ""),
            (r#""state":"running""#, EventType::SessionSubagentRunning, ""),
            (
                r#""state":"completed","exit_code":0"#,
                EventType::SessionSubagentCompleted,
                r#","exit_code":0"#,
            ),
            (
                r#""state":"failed","reason":"timeout","exit_code":null"#,
                EventType::SessionSubagentFailed,
                r#","reason":"timeout","exit_code":null"#,
            ),
            (
                r#""state":"cancelled","reason":"explicit""#,
                EventType::SessionSubagentCancelled,
                r#","reason":"explicit""#,
            ),
        ] {
            let event = report(rest).unwrap();
            assert_eq!(event.event_type, event_type);
            assert_eq!(event.payload.as_str(), format!("{{{common}{more}}}"));
        }
        for (bad, message) in [
            (
                r#""state":"x""#,
                "Invalid params: \"state\" must be \"start\", \"running\", \"completed\", \"failed\", or \"cancelled\"",
            ),
            (r#""state":"start","model":"""#, "Invalid params: missing \"model\""),
            (r#""state":"start","harness":5"#, "Invalid params: missing \"harness\""),
            (r#""state":"start","detail":5"#, "Invalid params: \"detail\" must be a string"),
            (
                r#""state":"start","exit_code":"0""#,
                "Invalid params: \"exit_code\" must be an integer",
            ),
        ] {
            let failure = report(bad).unwrap_err();
            assert_eq!((failure.code, failure.message.as_str()), (-32602, message), "{bad}");
        }
    }

    #[test]
    fn a_call_turned_away_at_the_gate_is_told_why() {
        let closed = gate_refusal(Refusal::Closed, &SessionState::Closed);
        assert_eq!(closed.message, "session is closed, not open");
        let full = gate_refusal(Refusal::QueueFull, &SessionState::Open);
        assert_eq!(full.code, -32000);
        assert!(full.message.starts_with("too many calls wait"));
    }
}
