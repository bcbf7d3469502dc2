//! The checks of what opens and joins a session, in their order (session service §3.2, §3.3).
//!
//! Who the caller is has been established before (step 1), and the shell has looked up the profile
//! and, for a join, the session; everything else is decided here.

use super::depth;
use super::methods::SessionState;
use crate::Json;
use crate::json::JsonError;
use crate::session::approval::{Approvals, ApprovalsError};
use crate::session::feature::Features;
use crate::session::generation::{Generation, GenerationError};
use crate::session::ids::{ProfileId, SessionId};
use crate::session::problem::Problem;
use crate::session::tool::ToolDeclaration;
use bytes::Bytes;
use serde::Deserialize;

/// A tool name that the service keeps for itself.
pub const RESERVED_NAME: &str = "remote_subagent_status";

/// The least that `compaction.size` may be, in tokens.
pub const MIN_COMPACTION_SIZE: u64 = 1000;

/// The profile of the caller, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The profile.
    pub id: ProfileId,
    /// Whether it still exists.
    pub available: bool,
    /// The name of its primary provider.
    pub primary_provider: String,
    /// Whether a provider of that name is configured.
    pub primary_known: bool,
    /// The names its clients may declare; `*` allows every name.
    pub allowed_tools: Vec<String>,
}

impl Profile {
    /// Whether a client of this profile may declare a tool of this name.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        self.allowed_tools.iter().any(|allowed| allowed == "*" || allowed == name)
    }
}

/// The session that somebody wants to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joinable {
    /// Its state.
    pub state: SessionState,
    /// Its profile.
    pub profile: ProfileId,
}

/// What a client declared, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The client's own version text.
    pub client_version: Option<String>,
    /// Tools that the client runs.
    pub tools: DeclaredTools,
    /// Tools that run in the session's sandbox.
    pub sandbox_tools: DeclaredTools,
    /// Tools that start subagents, with all their members.
    pub subagent_tools: DeclaredTools,
    /// Whether the body names any list of tools. A join that names none (an observer's) leaves what its key
    /// declared before; the plain contract's clients always name them, and replace.
    pub names_tools: bool,
    /// How the history is compacted, as it was sent; only when a session is opened.
    pub compaction: Option<Json>,
    /// What the session's models are asked beside the conversation; only when it is opened (feature `options`).
    pub generation: Generation,
    /// Which calls of the service's own tools need consent; only when it is opened, see [`super::consent::settle`].
    pub approvals: Approvals,
}

/// One list of declared tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredTools {
    /// The array exactly as it was sent; `[]` when it was not.
    pub raw: Json,
    /// The same, read.
    pub tools: Vec<ToolDeclaration>,
}

impl DeclaredTools {
    /// Reads a list from its JSON array, such as a stored [`DeclaredTools::raw`].
    ///
    /// # Errors
    /// When it is no array of objects with a string `name`.
    pub fn read(raw: Json) -> Result<Self, JsonError> {
        let tools = raw.decode()?;
        if raw.elements().is_some_and(|elements| !elements.iter().all(Json::is_object)) {
            return Err(JsonError { at: 0, reason: "a tool must be an object".to_owned() });
        }
        Ok(Self { raw, tools })
    }

    /// No tools.
    #[must_use]
    pub fn none() -> Self {
        Self { raw: Json::array([]), tools: Vec::new() }
    }

    fn names(&self) -> Json {
        let names: Vec<Json> = self.tools.iter().map(|tool| Json::string(&tool.name)).collect();
        Json::array(&names)
    }
}

impl Declared {
    /// The settings that are fixed when a session is opened: `{"approvals","compaction","generation"}`, nothing when
    /// there are none.
    #[must_use]
    pub fn settings(&self) -> Option<Json> {
        let generation = (!self.generation.is_empty()).then(|| self.generation.to_json());
        let approvals = (!self.approvals.is_empty()).then(|| self.approvals.to_json());
        let all = [
            ("approvals", approvals.as_ref()),
            ("compaction", self.compaction.as_ref()),
            ("generation", generation.as_ref()),
        ];
        let all = all.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let all: Vec<(&str, &Json)> = all.collect();
        (!all.is_empty()).then(|| Json::object(all))
    }

    /// The approvals in what [`Declared::settings`] wrote.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn approvals_of(settings: &Json) -> Result<Approvals, ApprovalsError> {
        Approvals::read(settings)
    }

    /// The mode of compaction in what [`Declared::settings`] wrote; nothing when it is the usual one.
    #[must_use]
    pub fn compaction_mode_of(settings: &Json) -> Option<String> {
        settings.member("compaction")?.member("mode")?.to_text()
    }

    /// The generation in what [`Declared::settings`] wrote.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn generation_of(settings: &Json) -> Result<Generation, GenerationError> {
        settings
            .member("generation")
            .map_or_else(|| Ok(Generation::default()), |said| Generation::read(&said))
    }

    /// The payload of `session.open` and `session.join`.
    #[must_use]
    pub fn event_payload(&self) -> Json {
        let version = self.client_version.as_deref().map_or_else(Json::null, Json::string);
        Json::object([
            ("client_version", &version),
            ("sandbox_tools", &self.sandbox_tools.names()),
            ("subagent_tools", &self.subagent_tools.names()),
            ("tools", &self.tools.names()),
        ])
    }
}

/// Why a session is not opened or joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The answer.
    pub problem: Problem,
    /// The payload of the `session.error` for the audit: when a session is opened, a row in state `error` is written with it.
    pub audit: Option<Json>,
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self { problem, audit: None }
    }
}

/// Reads the body of an open or join.
///
/// # Errors
/// `400 bad_request` when it is no JSON object.
pub fn read_body(body: impl Into<Bytes>) -> Result<Json, Problem> {
    let json = Json::parse(body).map_err(|e| bad_body(&e.to_string()))?;
    if json.is_object() { Ok(json) } else { Err(bad_body("the body must be a JSON object")) }
}

/// The checks of `POST /api/v1/sessions` (session service §3.2, steps 2 to 7).
///
/// # Errors
/// The first one that fails.
pub fn check_open(body: &Json, profile: &Profile, features: Features) -> Result<Declared, Refused> {
    let compaction = match body.member("compaction").filter(|c| !c.is_null()) {
        Some(config) => Some((Compaction::read(&config)?, config)),
        None => None,
    };
    let mut declared = read_declared(body)?;
    if let Some((mode, config)) = compaction {
        mode.check_size()?;
        if matches!(mode, Compaction::Auto { .. }) {
            let detail = "compaction mode \"auto\" is not built into this service yet; \
                          use {\"mode\":\"client\"} or leave it out";
            return Err(Problem::new(501, "not_implemented", detail).into());
        }
        declared.compaction = Some(config);
    }
    if features.options {
        declared.generation = Generation::read(body).map_err(|e| bad_body(&e.to_string()))?;
    }
    check_profile(profile, "the profile bound to this client key is no longer available")?;
    check_tools(&declared, profile)?;
    Ok(declared)
}

/// The checks of `POST /api/v1/sessions/{id}/join` (session service §3.3). `session` is `None` when there is no session `id`.
///
/// # Errors
/// The first one that fails; nothing is to be logged then.
pub fn check_join(
    body: &Json,
    id: &SessionId,
    session: Option<&Joinable>,
    profile: &Profile,
) -> Result<Declared, Problem> {
    if body.member("compaction").is_some() {
        let detail =
            "compaction is a session-level setting fixed at creation and cannot be set on join";
        return Err(Problem::new(400, "bad_request", detail));
    }
    let declared = read_declared(body)?;
    let Some(session) = session else {
        return Err(Problem::new(404, "not_found", format!("no session {id}")));
    };
    session_is_open(&session.state)?;
    if session.profile != profile.id {
        let detail = "the client key's profile does not match this session's profile";
        return Err(Problem::new(403, "profile_mismatch", detail));
    }
    check_profile(profile, "the profile bound to this session is no longer available")
        .and_then(|()| check_tools(&declared, profile))
        .map_err(|refused| refused.problem)?;
    Ok(declared)
}

/// Whether a session can be joined or closed.
///
/// # Errors
/// `409 session_closed`.
pub fn session_is_open(state: &SessionState) -> Result<(), Problem> {
    if *state == SessionState::Open {
        return Ok(());
    }
    let detail = format!("session is already {state}");
    Err(Problem::new(409, "session_closed", detail))
}

/// `compaction`, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compaction {
    Auto { size: u64 },
    Client,
}

impl Compaction {
    fn read(config: &Json) -> Result<Self, Problem> {
        let bad = |reason: &str| {
            Problem::new(400, "bad_request", format!("invalid compaction config: {reason}"))
        };
        if !config.is_object() {
            return Err(bad("it must be an object"));
        }
        let mode = config.member("mode").and_then(|mode| mode.to_text());
        match mode.as_deref() {
            Some("auto") => {
                let size = config.member("size").ok_or_else(|| bad("missing field `size`"))?;
                let size =
                    size.decode().map_err(|_| bad("\"size\" must be a whole number of tokens"))?;
                Ok(Self::Auto { size })
            }
            Some("client") => match config.member("prompt") {
                Some(prompt) if !prompt.is_null() && prompt.to_text().is_none() => {
                    Err(bad("\"prompt\" must be a string"))
                }
                _ => Ok(Self::Client),
            },
            _ => Err(bad("\"mode\" must be \"auto\" or \"client\"")),
        }
    }

    fn check_size(self) -> Result<(), Problem> {
        match self {
            Self::Auto { size } if size < MIN_COMPACTION_SIZE => {
                let detail = format!(
                    "compaction size {size} is below the minimum of {MIN_COMPACTION_SIZE} tokens"
                );
                Err(Problem::new(400, "bad_request", detail))
            }
            _ => Ok(()),
        }
    }
}

fn bad_body(reason: &str) -> Problem {
    Problem::new(400, "bad_request", format!("invalid request body: {reason}"))
}

fn read_declared(body: &Json) -> Result<Declared, Problem> {
    let list = |name: &str| match body.member(name) {
        None => Ok(DeclaredTools::none()),
        Some(raw) if !depth::fits(&raw, depth::MAX_LEVELS) => Err(bad_body(&depth::too_deep(name))),
        Some(raw) => DeclaredTools::read(raw).map_err(|e| bad_body(&format!("{name}: {e}"))),
    };
    let client_version = match body.member("client_version") {
        None => None,
        Some(version) => {
            version.decode().map_err(|_| bad_body("client_version: it must be a string or null"))?
        }
    };
    Ok(Declared {
        client_version,
        tools: list("tools")?,
        sandbox_tools: list("sandbox_tools")?,
        subagent_tools: list("subagent_tools")?,
        names_tools: ["tools", "sandbox_tools", "subagent_tools"]
            .iter()
            .any(|name| body.member(name).is_some()),
        compaction: None,
        generation: Generation::default(),
        approvals: Approvals::default(),
    })
}

fn check_profile(profile: &Profile, gone: &str) -> Result<(), Refused> {
    let audit = |reason: &str, rest: Option<&str>| {
        let (reason, id) = (Json::string(reason), Json::string(profile.id.as_str()));
        let rest = rest.map(Json::string);
        let rest = rest.as_ref().map(|name| ("primary_provider", name));
        let members = [("profile_id", &id), ("reason", &reason)];
        Some(Json::object(members.into_iter().chain(rest)))
    };
    if !profile.available {
        let kind = "profile_unavailable";
        let audit = audit(kind, None);
        return Err(Refused { problem: Problem::new(422, kind, gone), audit });
    }
    if !profile.primary_known {
        let kind = "primary_provider_unavailable";
        let name = &profile.primary_provider;
        let detail = format!("the profile's primary provider \"{name}\" is not configured");
        let audit = audit(kind, Some(name));
        return Err(Refused { problem: Problem::new(422, kind, detail), audit });
    }
    Ok(())
}

fn check_tools(declared: &Declared, profile: &Profile) -> Result<(), Refused> {
    let lists = [&declared.tools, &declared.sandbox_tools, &declared.subagent_tools];
    if lists.iter().any(|list| list.tools.iter().any(|tool| tool.name == RESERVED_NAME)) {
        let detail = format!("{RESERVED_NAME} is reserved");
        return Err(Problem::new(422, "reserved_tool_name", detail).into());
    }
    if let Some(tool) = declared.tools.tools.iter().find(|tool| !profile.allows(&tool.name)) {
        return Err(Problem::new(403, "tool_not_allowed", not_in_allowlist(&tool.name)).into());
    }
    for raw in declared.subagent_tools.raw.elements().unwrap_or_default() {
        check_subagent_tool(&raw)
            .map_err(|detail| Problem::new(422, "invalid_subagent_tools", detail))?;
    }
    Ok(())
}

/// What is said about a name outside the allowlist, here and by `session.updateClientTools`.
pub(super) fn not_in_allowlist(name: &str) -> String {
    format!("tool \"{name}\" is not in the profile's allowlist")
}

#[derive(Deserialize)]
struct SubagentTool {
    name: String,
    #[serde(default)]
    image: String,
    #[serde(default)]
    subagents: Vec<Subagent>,
}

#[derive(Deserialize)]
struct Subagent {
    #[serde(default)]
    harness: String,
    #[serde(default)]
    command_template: String,
    #[serde(default)]
    prompt_via: Option<String>,
    #[serde(default)]
    timeout_secs: Option<i64>,
}

fn check_subagent_tool(raw: &Json) -> Result<(), String> {
    let tool: SubagentTool = raw.decode().map_err(|e| e.reason)?;
    let blank = |text: &str| text.trim().is_empty();
    if blank(&tool.name) {
        return Err("name must not be blank".to_owned());
    }
    if blank(&tool.image) || tool.subagents.is_empty() {
        return Err("image and non-empty subagents are required".to_owned());
    }
    let mut seen = std::collections::HashSet::new();
    for subagent in &tool.subagents {
        let harness = subagent.harness.as_str();
        if blank(harness) {
            return Err("harness must not be blank".to_owned());
        }
        if !seen.insert(harness) {
            return Err(format!("duplicate harness \"{harness}\""));
        }
        if subagent.timeout_secs.is_some_and(|secs| secs <= 0) {
            return Err(format!("timeout_secs of \"{harness}\" must be a positive integer"));
        }
        check_template(subagent)?;
    }
    Ok(())
}

fn check_template(subagent: &Subagent) -> Result<(), String> {
    let (harness, template) = (&subagent.harness, subagent.command_template.as_str());
    if template.trim().is_empty() {
        return Err(format!("command_template of \"{harness}\" must not be blank"));
    }
    let mut prompts = 0;
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let after = &rest[open + 1..];
        let Some(close) = after.find('}') else { break };
        match &after[..close] {
            "model" => {}
            "prompt" => prompts += 1,
            other => {
                return Err(format!(
                    "command_template of \"{harness}\" has an unknown placeholder {{{other}}}"
                ));
            }
        }
        rest = &after[close + 1..];
    }
    match (subagent.prompt_via.as_deref().unwrap_or("stdin"), prompts) {
        ("stdin", 0) | ("arg", 1) => Ok(()),
        ("stdin", _) => Err(format!(
            "command_template of \"{harness}\" must not contain {{prompt}} when prompt_via is \"stdin\""
        )),
        ("arg", _) => Err(format!(
            "command_template of \"{harness}\" must contain {{prompt}} exactly once when prompt_via is \"arg\""
        )),
        _ => Err(format!("prompt_via of \"{harness}\" must be \"stdin\" or \"arg\"")),
    }
}

#[cfg(test)]
mod tests;
