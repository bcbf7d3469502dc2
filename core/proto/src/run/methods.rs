//! Who may call which method when, and the answers that need no work (session service §5).

use super::gate::Refusal;
use super::log::{LogEvent, boolean};
use super::open::{DeclaredTools, Profile, RESERVED_NAME, not_in_allowlist};
use crate::Json;
use crate::session::content::open_enum;
use crate::session::event::EventType;
use crate::session::feature::Features;
use crate::session::ids::KeyId;
use crate::session::method::{
    CancelSubagent, Compact, ExecRemoteSandbox, Method, Params, ReportLocalSandbox,
    ReportLocalSubagent, StartRemoteSandbox,
};
use crate::session::rpc::{RpcFailure, code};

open_enum! {
    /// The state of a session (session service §11).
    SessionState {
        /// Turns are possible.
        Open = "open",
        /// Closed by a participant.
        Closed = "closed",
        /// Ended by a failure.
        Error = "error",
    }
}

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

/// `session.updateClientTools`: the caller's new list, which replaces the old one.
///
/// # Errors
/// `-32602` for a bad list, an empty or a reserved name; `-32015` for a name outside the allowlist.
pub fn update_client_tools(params: &Json, profile: &Profile) -> Result<DeclaredTools, RpcFailure> {
    let raw = params.member("tools").ok_or_else(|| invalid("missing \"tools\""))?;
    let declared = DeclaredTools::read(raw).map_err(|e| invalid(&e.reason))?;
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
