//! Every refusal with its status, slug and text, and the order in which they come.

use super::*;

fn opened(body: &Json, profile: &Profile) -> Result<Declared, Refused> {
    check_open(body, profile, Features::NONE)
}

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
    let problem = opened(&body(text), profile).unwrap_err().problem;
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
        let declared = opened(&body(text), &profile()).unwrap();
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
    let declared = opened(&body(text), &profile()).unwrap();
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
    let (status, kind, _) = refused(r#"{"compaction":{"mode":"auto","size":1000}}"#, &profile());
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
        let declared = opened(&body(&text), &profile()).unwrap();
        assert_eq!(declared.compaction.unwrap().as_str(), config);
    }
}

#[test]
fn a_profile_that_cannot_work_is_refused_with_an_audit_event() {
    let gone = Profile { available: false, primary_known: false, ..profile() };
    let evil = body(r#"{"tools":[{"name":"evil"}]}"#);
    let refused = opened(&evil, &gone).unwrap_err();
    assert_eq!(
        (refused.problem.status, refused.problem.kind.as_str()),
        (422, "profile_unavailable")
    );
    assert_eq!(
        refused.audit.unwrap().as_str(),
        r#"{"profile_id":"pro_1","reason":"profile_unavailable"}"#
    );
    let unknown = Profile { primary_known: false, ..profile() };
    let refused = opened(&evil, &unknown).unwrap_err();
    assert_eq!(refused.problem.kind, "primary_provider_unavailable");
    assert_eq!(refused.problem.detail, "the profile's primary provider \"main\" is not configured");
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
    assert!(opened(&body(r#"{"tools":[{"name":"evil"}]}"#), &any).is_ok());
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
    let good = r#"[{"harness":"a","command_template":"c {model}"},{"harness":"b","command_template":"c {prompt}","prompt_via":"arg","timeout_secs":600}]"#;
    let declared = opened(&body(&tool(good)), &profile()).unwrap();
    assert!(declared.subagent_tools.raw.as_str().contains("timeout_secs"));
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
    let fixed = "compaction is a session-level setting fixed at creation and cannot be set on join";
    let mismatch = "the client key's profile does not match this session's profile";
    let cases = [
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

#[test]
fn generation_options_are_read_from_those_who_ask_for_them_and_kept_with_the_session() {
    let asks = |text: &str| {
        let options = Features { options: true, ..Features::NONE };
        check_open(&body(text), &profile(), options)
    };
    let text = r#"{"system":"s","options":{"top_p":0.5},"compaction":{"mode":"client"}}"#;
    let settings = asks(text).unwrap().settings().unwrap();
    assert_eq!(
        settings.as_str(),
        r#"{"compaction":{"mode":"client"},"generation":{"options":{"top_p":0.5},"system":"s"}}"#
    );
    assert_eq!(Declared::generation_of(&settings).unwrap().system().as_deref(), Some("s"));
    let plain = opened(&body(text), &profile()).unwrap();
    assert!(plain.generation.is_empty());
    assert_eq!(plain.settings().unwrap().as_str(), r#"{"compaction":{"mode":"client"}}"#);
    assert_eq!(opened(&body("{}"), &profile()).unwrap().settings(), None);
    let bad = r#"{"options":{"temperature":9}}"#;
    let refused = asks(bad).unwrap_err();
    assert_eq!((refused.problem.status, refused.audit), (400, None));
    let detail = "invalid request body: \"options.temperature\" must be a number from 0 to 2";
    assert_eq!(refused.problem.detail, detail);
    assert!(opened(&body(bad), &profile()).is_ok(), "a plain body's unknown members are ignored");
}
