//! The checks of what opens and joins a session, in their order (session service §3.2, §3.3).
//!
//! Who the caller is has been established before (step 1), and the shell has looked up the profile
//! and, for a join, the session; everything else is decided here.

use super::methods::SessionState;
use crate::Json;
use crate::json::JsonError;
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
    /// How the history is compacted, as it was sent; only when a session is opened.
    pub compaction: Option<Json>,
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
pub fn check_open(body: &Json, profile: &Profile) -> Result<Declared, Refused> {
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
        compaction: None,
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
mod tests {
    use super::*;

    fn profile() -> Profile {
        Profile {
            id: ProfileId::from("pro_1"),
            available: true,
            primary_provider: "main".to_owned(),
            primary_known: true,
            allowed_tools: vec!["clock".to_owned()],
        }
    }

    fn body(text: &str) -> Json {
        read_body(text.to_owned()).unwrap()
    }

    fn refused(text: &str, profile: &Profile) -> (u16, String, String) {
        let problem = check_open(&body(text), profile).unwrap_err().problem;
        (problem.status, problem.kind, problem.detail)
    }

    fn check(text: &str, status: u16, kind: &str, detail: &str) {
        let expected = (status, kind.to_owned(), detail.to_owned());
        assert_eq!(refused(text, &profile()), expected, "{text}");
    }

    #[test]
    fn a_body_that_is_no_object_is_a_bad_request() {
        for text in ["", "{", "{a}", "[]", "\"x\"", "{} {}"] {
            let problem = read_body(text.to_owned()).unwrap_err();
            assert_eq!((problem.status, problem.kind.as_str()), (400, "bad_request"), "{text}");
            assert!(problem.detail.starts_with("invalid request body: "), "{}", problem.detail);
        }
    }

    #[test]
    fn every_field_is_optional_and_unknown_ones_are_ignored() {
        for text in ["{}", r#"{"x":1}"#, r#"{"client_version":null,"compaction":null}"#] {
            let declared = check_open(&body(text), &profile()).unwrap();
            assert_eq!(declared.compaction, None);
            assert_eq!(
                declared.event_payload().as_str(),
                r#"{"client_version":null,"sandbox_tools":[],"subagent_tools":[],"tools":[]}"#
            );
        }
    }

    #[test]
    fn declared_tools_are_kept_as_sent_and_named_in_the_event() {
        let text = r#"{"client_version":"v/1","tools":[{"name":"clock","x":1.0}],"sandbox_tools":[{"name":"anything"}]}"#;
        let declared = check_open(&body(text), &profile()).unwrap();
        assert_eq!(declared.tools.raw.as_str(), r#"[{"name":"clock","x":1.0}]"#);
        assert_eq!(declared.tools.tools[0].input_schema, Json::empty_object());
        assert_eq!(
            declared.event_payload().as_str(),
            r#"{"client_version":"v/1","sandbox_tools":["anything"],"subagent_tools":[],"tools":["clock"]}"#
        );
    }

    #[test]
    fn fields_of_the_wrong_type_are_bad_requests() {
        for text in [
            r#"{"tools":"x"}"#,
            r#"{"tools":null}"#,
            r#"{"tools":[{}]}"#,
            r#"{"tools":[["clock"]]}"#,
            r#"{"sandbox_tools":[{"name":1}]}"#,
            r#"{"subagent_tools":{}}"#,
            r#"{"client_version":1}"#,
        ] {
            let (status, kind, detail) = refused(text, &profile());
            assert_eq!((status, kind.as_str()), (400, "bad_request"), "{text}");
            assert!(detail.starts_with("invalid request body: "), "{detail}");
        }
    }

    #[test]
    fn compaction_is_checked_before_everything_else() {
        for text in [
            r#"{"compaction":5,"tools":"x"}"#,
            r#"{"compaction":{}}"#,
            r#"{"compaction":{"mode":"weird"}}"#,
            r#"{"compaction":{"mode":"auto"}}"#,
            r#"{"compaction":{"mode":"auto","size":-1}}"#,
            r#"{"compaction":{"mode":"auto","size":1.5}}"#,
            r#"{"compaction":{"mode":"client","prompt":1}}"#,
        ] {
            let (status, kind, detail) = refused(text, &profile());
            assert_eq!((status, kind.as_str()), (400, "bad_request"), "{text}");
            assert!(detail.starts_with("invalid compaction config: "), "{detail}");
        }
        let size = "compaction size 999 is below the minimum of 1000 tokens";
        check(r#"{"compaction":{"mode":"auto","size":999}}"#, 400, "bad_request", size);
        let (status, kind, _) =
            refused(r#"{"compaction":{"mode":"auto","size":1000}}"#, &profile());
        assert_eq!((status, kind.as_str()), (501, "not_implemented"));
    }

    #[test]
    fn client_compaction_is_accepted_and_kept() {
        for config in [
            r#"{"mode":"client"}"#,
            r#"{"mode":"client","prompt":"p"}"#,
            r#"{"mode":"client","prompt":null}"#,
        ] {
            let text = format!(r#"{{"compaction":{config}}}"#);
            let declared = check_open(&body(&text), &profile()).unwrap();
            assert_eq!(declared.compaction.unwrap().as_str(), config);
        }
    }

    #[test]
    fn a_profile_that_cannot_work_is_refused_with_an_audit_event() {
        let gone = Profile { available: false, primary_known: false, ..profile() };
        let evil = body(r#"{"tools":[{"name":"evil"}]}"#);
        let refused = check_open(&evil, &gone).unwrap_err();
        assert_eq!(
            (refused.problem.status, refused.problem.kind.as_str()),
            (422, "profile_unavailable")
        );
        assert_eq!(
            refused.audit.unwrap().as_str(),
            r#"{"profile_id":"pro_1","reason":"profile_unavailable"}"#
        );
        let unknown = Profile { primary_known: false, ..profile() };
        let refused = check_open(&evil, &unknown).unwrap_err();
        assert_eq!(refused.problem.kind, "primary_provider_unavailable");
        assert_eq!(
            refused.problem.detail,
            "the profile's primary provider \"main\" is not configured"
        );
        assert_eq!(
            refused.audit.unwrap().as_str(),
            r#"{"profile_id":"pro_1","reason":"primary_provider_unavailable","primary_provider":"main"}"#
        );
    }

    #[test]
    fn names_are_checked_reserved_first_then_the_allowlist() {
        let reserved = "remote_subagent_status is reserved";
        for list in ["tools", "sandbox_tools", "subagent_tools"] {
            let text = format!(
                r#"{{"tools":[{{"name":"evil"}}],"{list}":[{{"name":"remote_subagent_status"}}]}}"#
            );
            check(&text, 422, "reserved_tool_name", reserved);
        }
        let detail = "tool \"evil\" is not in the profile's allowlist";
        check(
            r#"{"tools":[{"name":"clock"},{"name":"evil"}],"subagent_tools":[{"name":""}]}"#,
            403,
            "tool_not_allowed",
            detail,
        );
        let none = Profile { allowed_tools: Vec::new(), ..profile() };
        assert_eq!(refused(r#"{"tools":[{"name":"clock"}]}"#, &none).0, 403);
        let any = Profile { allowed_tools: vec!["*".to_owned()], ..profile() };
        assert!(check_open(&body(r#"{"tools":[{"name":"evil"}]}"#), &any).is_ok());
    }

    #[test]
    fn subagent_tools_are_checked_last() {
        let tool = |subagents: &str| {
            format!(r#"{{"subagent_tools":[{{"name":"l","image":"i","subagents":{subagents}}}]}}"#)
        };
        let required = "image and non-empty subagents are required".to_owned();
        let cases = [
            (r#"{"subagent_tools":[{"name":" "}]}"#.to_owned(), "name must not be blank".to_owned()),
            (r#"{"subagent_tools":[{"name":"l"}]}"#.to_owned(), required.clone()),
            (
                r#"{"subagent_tools":[{"name":"l","image":" ","subagents":[{"harness":"h"}]}]}"#.to_owned(),
                required.clone(),
            ),
            (tool("[]"), required),
            (tool(r#"[{"harness":" "}]"#), "harness must not be blank".to_owned()),
            (
                tool(r#"[{"harness":"h","command_template":"c"},{"harness":"h","command_template":"c"}]"#),
                r#"duplicate harness "h""#.to_owned(),
            ),
            (
                tool(r#"[{"harness":"h","command_template":" "}]"#),
                r#"command_template of "h" must not be blank"#.to_owned(),
            ),
            (
                tool(r#"[{"harness":"h","command_template":"c {home}"}]"#),
                r#"command_template of "h" has an unknown placeholder {home}"#.to_owned(),
            ),
            (
                tool(r#"[{"harness":"h","command_template":"c {prompt}"}]"#),
                r#"command_template of "h" must not contain {prompt} when prompt_via is "stdin""#.to_owned(),
            ),
            (
                tool(r#"[{"harness":"h","command_template":"c {prompt} {prompt}","prompt_via":"arg"}]"#),
                r#"command_template of "h" must contain {prompt} exactly once when prompt_via is "arg""#.to_owned(),
            ),
            (
                tool(r#"[{"harness":"h","command_template":"c","prompt_via":"mail"}]"#),
                r#"prompt_via of "h" must be "stdin" or "arg""#.to_owned(),
            ),
            (
                tool(r#"[{"harness":"h","command_template":"c","timeout_secs":0}]"#),
                r#"timeout_secs of "h" must be a positive integer"#.to_owned(),
            ),
        ];
        for (text, detail) in cases {
            check(&text, 422, "invalid_subagent_tools", &detail);
        }
        for good in [
            r#"[{"harness":"a","command_template":"c {model}"},{"harness":"b","command_template":"c {prompt}","prompt_via":"arg","timeout_secs":600}]"#,
        ] {
            let declared = check_open(&body(&tool(good)), &profile()).unwrap();
            assert!(declared.subagent_tools.raw.as_str().contains("timeout_secs"));
        }
    }

    #[test]
    fn a_join_is_checked_in_its_own_order() {
        let id = SessionId::from("ses_no");
        let open = Joinable { state: SessionState::Open, profile: ProfileId::from("pro_1") };
        let closed = Joinable { state: SessionState::Closed, ..open.clone() };
        let failed = Joinable { state: SessionState::Error, ..open.clone() };
        let foreign = Joinable { profile: ProfileId::from("pro_2"), ..open.clone() };
        let gone = Profile { available: false, ..profile() };
        let unknown = Profile { primary_known: false, ..profile() };
        let evil = r#"{"tools":[{"name":"evil"}]}"#;
        let fixed =
            "compaction is a session-level setting fixed at creation and cannot be set on join";
        let mismatch = "the client key's profile does not match this session's profile";
        let cases: [(&str, Option<&Joinable>, Profile, u16, &str, &str); 9] = [
            (r#"{"compaction":null,"tools":"x"}"#, None, gone.clone(), 400, "bad_request", fixed),
            (evil, None, gone.clone(), 404, "not_found", "no session ses_no"),
            (evil, Some(&closed), gone.clone(), 409, "session_closed", "session is already closed"),
            (evil, Some(&failed), gone.clone(), 409, "session_closed", "session is already error"),
            (evil, Some(&foreign), gone.clone(), 403, "profile_mismatch", mismatch),
            (
                evil,
                Some(&open),
                gone,
                422,
                "profile_unavailable",
                "the profile bound to this session is no longer available",
            ),
            (
                evil,
                Some(&open),
                unknown,
                422,
                "primary_provider_unavailable",
                "the profile's primary provider \"main\" is not configured",
            ),
            (
                r#"{"tools":[{"name":"remote_subagent_status"}]}"#,
                Some(&open),
                profile(),
                422,
                "reserved_tool_name",
                "remote_subagent_status is reserved",
            ),
            (
                evil,
                Some(&open),
                profile(),
                403,
                "tool_not_allowed",
                "tool \"evil\" is not in the profile's allowlist",
            ),
        ];
        for (text, session, profile, status, kind, detail) in cases {
            let problem = check_join(&body(text), &id, session, &profile).unwrap_err();
            assert_eq!(
                (problem.status, problem.kind.as_str(), problem.detail.as_str()),
                (status, kind, detail)
            );
        }
        let malformed = check_join(&body(r#"{"tools":5}"#), &id, None, &profile()).unwrap_err();
        assert_eq!(malformed.status, 400);
        let joined = check_join(&body("{}"), &id, Some(&open), &profile()).unwrap();
        assert!(joined.tools.tools.is_empty());
    }
}
