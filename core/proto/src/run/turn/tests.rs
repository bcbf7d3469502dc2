//! Whole turns against scripts of models and tools: the events of session service §9.1 and §20.

mod consent;
mod every_script;
mod keep_open;

use super::*;
use crate::run::gate::Entry;
use crate::run::log::{compose_request, provider_message};
use crate::run::merge::CANCELLED;
use crate::run::toolbox::ServerTool;
use crate::session::content::{Content, Role};

fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).unwrap()
}

fn declaration(name: &str) -> ToolDeclaration {
    ToolDeclaration {
        name: name.to_owned(),
        description: Some("d".to_owned()),
        input_schema: Json::empty_object(),
    }
}

fn toolbox() -> Toolbox {
    Toolbox {
        client: vec![declaration("clock")],
        sandbox: vec![declaration("shell")],
        subagent: vec![declaration("launch")],
        server: vec![ServerTool {
            declaration: declaration("search"),
            server_name: "echo".to_owned(),
        }],
    }
}

fn provider(name: &str) -> Provider {
    Provider {
        provider: name.to_owned(),
        base_url: format!("http://{name}"),
        model: "m".to_owned(),
        max_tokens: Some(1024),
    }
}

fn start(message: Message, providers: &[&str]) -> TurnStart {
    TurnStart {
        actor: KeyId::from("key_a"),
        entry: Entry::Fresh,
        paused: None,
        message,
        history: Vec::new(),
        toolbox: toolbox(),
        providers: Ok(providers.iter().map(|name| provider(name)).collect()),
        max_rounds: DEFAULT_MAX_ROUNDS,
        keep_open: None,
        session_generation: Generation::default(),
        generation: Generation::default(),
        consent: ConsentTerms::default(),
    }
}

fn turn() -> Turn {
    Turn::start(start(Message::user("hi"), &["anthropic"])).unwrap()
}

fn text(text: &str) -> Block {
    Block::of_text(text)
}

fn call(id: &str, name: &str) -> Block {
    let input = json(r#"{"q":1.0}"#);
    let (id, name) = (id.to_owned(), name.to_owned());
    Block::of_tool_use(ToolUse { id, name, input, dispatch: None })
}

fn reply(content: Vec<Block>) -> Result<ModelReply, ModelFailure> {
    let usage = TokenUsage { input_tokens: 100, output_tokens: 10 };
    Ok(ModelReply { content, body: json(r#"{"raw":1e3}"#), usage: Some(usage) })
}

fn failure(
    status: Option<u16>,
    error: &str,
    body: Option<&str>,
) -> Result<ModelReply, ModelFailure> {
    Err(ModelFailure { status, body: body.map(str::to_owned), ..ModelFailure::passing(error) })
}

/// What a turn did, and how it ended.
struct Ran {
    events: Vec<LogEvent>,
    calls: Vec<ModelCall>,
    tools: Vec<ToolRun>,
    /// Milliseconds.
    waits: Vec<u64>,
    end: Effect,
}

impl Ran {
    /// The events as `type payload`, `provider.request` without its payload.
    fn lines(&self) -> Vec<String> {
        self.events
            .iter()
            .map(|event| match event.event_type {
                EventType::ProviderRequest => "provider.request".to_owned(),
                _ => format!("{} {}", event.event_type, event.payload.as_str()),
            })
            .collect()
    }

    fn types(&self) -> Vec<&str> {
        self.events.iter().map(|event| event.event_type.as_str()).collect()
    }

    fn answer(&self) -> (String, Outcome) {
        let Effect::Finish { answer: Ok(message), outcome, .. } = &self.end else {
            panic!("{:?}", self.end)
        };
        (message.to_json().as_str().to_owned(), *outcome)
    }

    fn ends_session(&self) -> bool {
        matches!(self.end, Effect::Finish { ends_session: true, .. })
    }

    fn pause(&self) -> (Pause, Message) {
        let Effect::Pause { pause, message, .. } = &self.end else { panic!("{:?}", self.end) };
        (pause.clone(), message.clone())
    }
}

/// Runs a turn to its end: models answer from the script, tools with `echo: x`.
fn run(mut turn: Turn, script: Vec<Result<ModelReply, ModelFailure>>) -> Ran {
    let (mut events, mut calls, mut tools) = (Vec::new(), Vec::new(), Vec::new());
    let mut waits = Vec::new();
    let mut script = script.into_iter();
    loop {
        match turn.poll_effect().expect("the turn waits for nothing") {
            Effect::Log(batch) => events.extend(batch),
            Effect::CallModel(asked) => {
                calls.push(asked);
                assert_eq!(turn.poll_effect(), None);
                match script.next().expect("the script is over") {
                    Ok(reply) => turn.handle_model_reply(reply),
                    Err(failure) => turn.handle_model_failure(failure),
                }
            }
            Effect::CallTool(called) => {
                tools.push(called);
                assert_eq!(turn.poll_effect(), None);
                let content = json(r#"[{"type":"text","text":"echo: x"}]"#);
                turn.handle_tool_outcome(ToolOutcome::of_content(&content, false));
            }
            Effect::Wait { ms } => {
                waits.push(ms);
                assert_eq!(turn.poll_effect(), None);
                turn.handle_wait_over();
            }
            Effect::Ask { .. } => panic!("nobody is to be asked"),
            mut end @ (Effect::Pause { .. } | Effect::Finish { .. }) => {
                let (Effect::Pause { events: last, .. } | Effect::Finish { events: last, .. }) =
                    &mut end
                else {
                    continue;
                };
                events.extend(last.iter().cloned());
                assert!(turn.is_over());
                assert_eq!(turn.poll_effect(), None);
                assert_eq!(script.len(), 0, "the script goes on");
                return Ran { events, calls, tools, waits, end };
            }
        }
    }
}

const OK: &str = r#"provider.response {"attempt":0,"kind":"primary","provider":"anthropic","body":{"raw":1e3},"ok":true,"status":200,"usage":{"input_tokens":100,"output_tokens":10}}"#;
const GENERIC: &str = r#"{"role":"assistant","content":[{"type":"text","text":"The provider is currently unavailable."}]}"#;

#[test]
fn a_text_turn_logs_message_request_response_and_reply() {
    let ran = run(turn(), vec![reply(vec![text("hello")])]);
    let message = r#"{"role":"assistant","content":[{"type":"text","text":"hello"}]}"#;
    assert_eq!(
        ran.lines(),
        [
            r#"client.message.send {"role":"user","content":"hi"}"#,
            "provider.request",
            OK,
            &format!("server.message.send {message}"),
        ]
    );
    assert_eq!(ran.answer(), (message.to_owned(), Outcome::Completed));
    let shown: Vec<Audience> = ran.events.iter().map(|e| e.audience).collect();
    let all = Audience::Everyone;
    assert_eq!(shown, [Audience::AllButCallerStream, all, all, all]);
    assert!(ran.events.iter().all(|e| e.client_key_id.as_str() == "key_a"));
}

#[test]
fn a_reply_without_content_completes_the_turn() {
    let ran = run(turn(), vec![reply(Vec::new())]);
    assert_eq!(
        ran.answer(),
        (r#"{"role":"assistant","content":[]}"#.to_owned(), Outcome::Completed)
    );
}

#[test]
fn a_request_names_provider_and_tools_and_leaves_the_messages_to_be_written_out() {
    let ran = run(turn(), vec![reply(vec![text("hello")])]);
    let request = &ran.events[1];
    let tool = |name: &str| format!(r#"{{"description":"d","input_schema":{{}},"name":"{name}"}}"#);
    let tools = ["clock", "shell", "launch", "search"].map(tool).join(",");
    let payload = format!(
        r#"{{"attempt":0,"base_url":"http://anthropic","kind":"primary","max_tokens":1024,"model":"m","provider":"anthropic","tools":[{tools}]}}"#
    );
    assert_eq!(request.payload.as_str(), payload);
    let tail = &request.elided.as_ref().unwrap().tail;
    let sent = provider_message(&ran.events[0].payload, &ran.events[0].event_type);
    let whole = compose_request(&request.payload, [&sent], tail);
    let messages = whole.member("messages").unwrap();
    assert_eq!(messages.as_str(), r#"[{"role":"user","content":"hi"}]"#);
    assert_eq!(request.whole_payload(), whole);
}

#[test]
fn a_client_tool_pauses_the_turn_and_its_result_resumes_it() {
    let ran = run(turn(), vec![reply(vec![call("t1", "clock")])]);
    let paused = r#"{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"clock","input":{"q":1.0},"dispatch":"client"}]}"#;
    assert_eq!(
        ran.lines()[2..],
        [
            OK,
            r#"tool.call {"dispatch":"client","id":"t1","input":{"q":1.0},"name":"clock"}"#,
            &format!("server.message.send {paused}"),
        ]
    );
    let (pause, message) = ran.pause();
    assert_eq!(message.to_json().as_str(), paused);
    assert_eq!(pause.owner.as_str(), "key_a");
    assert_eq!(pause.expected, ["t1"]);

    let content = json(r#"[{"type":"tool_result","tool_use_id":"t1","content":"12:00"}]"#);
    let continuation = Message { role: Role::User, content: Content::read(&content) };
    let resumed = Turn::start(TurnStart {
        entry: Entry::Resumed,
        paused: Some(pause),
        history: vec![Message::user("hi"), message],
        ..start(continuation, &["anthropic"])
    });
    let ran = run(resumed.unwrap(), vec![reply(vec![text("noon")])]);
    assert_eq!(
        ran.lines()[..3],
        [
            &format!(r#"client.message.send {{"role":"user","content":{}}}"#, content.as_str()),
            r#"tool.result {"content":"12:00","dispatch":"client","tool_use_id":"t1"}"#,
            "provider.request",
        ]
    );
    assert_eq!(ran.events[1].audience, Audience::AllButCallerStream);
    // `dispatch` stays with the service.
    let asked = ran.calls[0].messages[1].to_json();
    assert_eq!(asked.as_str(), paused.replace(r#","dispatch":"client""#, ""));
}

#[test]
fn a_mixed_turn_logs_all_calls_first_then_the_exchanges_then_the_tagged_message() {
    let content = vec![text("x"), call("t0", "clock"), call("t1", "search"), call("t2", "nope")];
    let ran = run(turn(), vec![reply(content)]);
    let tagged = r#"{"role":"assistant","content":[{"type":"text","text":"x"},{"type":"tool_use","id":"t0","name":"clock","input":{"q":1.0},"dispatch":"client"},{"type":"tool_use","id":"t1","name":"search","input":{"q":1.0},"dispatch":"mcp"},{"type":"tool_use","id":"t2","name":"nope","input":{"q":1.0},"dispatch":"mcp"}]}"#;
    let missing = "no MCP server is configured for tool 'nope'";
    assert_eq!(
        ran.lines()[3..],
        [
            r#"tool.call {"dispatch":"client","id":"t0","input":{"q":1.0},"name":"clock"}"#.to_owned(),
            r#"tool.call {"dispatch":"mcp","id":"t1","input":{"q":1.0},"name":"search","server_name":"echo"}"#.to_owned(),
            r#"tool.call {"dispatch":"mcp","id":"t2","input":{"q":1.0},"name":"nope","server_name":null}"#.to_owned(),
            r#"mcp.request {"input":{"q":1.0},"method":"tools/call","server_name":"echo","tool":"search"}"#.to_owned(),
            r#"mcp.response {"result":{"content":[{"type":"text","text":"echo: x"}],"isError":false},"ok":true,"server_name":"echo"}"#.to_owned(),
            r#"tool.result {"content":[{"type":"text","text":"echo: x"}],"dispatch":"mcp","is_error":false,"server_name":"echo","tool_use_id":"t1"}"#.to_owned(),
            r#"mcp.request {"input":{"q":1.0},"method":"tools/call","server_name":null,"tool":"nope"}"#.to_owned(),
            format!(r#"mcp.response {{"error":"{missing}","ok":false,"server_name":null}}"#),
            format!(r#"tool.result {{"content":[{{"type":"text","text":"MCP error: {missing}"}}],"dispatch":"mcp","is_error":true,"server_name":null,"tool_use_id":"t2"}}"#),
            format!("server.message.send {tagged}"),
        ]
    );
    assert_eq!(ran.tools.len(), 1);
    let (pause, _) = ran.pause();
    assert_eq!(pause.expected, ["t0", "t1", "t2"]);
    let stash: Vec<&str> = pause.stash.iter().map(|b| b.json().as_str()).collect();
    assert_eq!(
        stash,
        [
            r#"{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"echo: x"}],"is_error":false}"#,
            &format!(
                r#"{{"type":"tool_result","tool_use_id":"t2","content":[{{"type":"text","text":"MCP error: {missing}"}}],"is_error":true}}"#
            ),
        ]
    );
}

#[test]
fn a_turn_of_server_tools_never_pauses_and_keeps_its_exchanges_in_memory() {
    let ran = run(turn(), vec![reply(vec![call("t1", "search")]), reply(vec![text("done")])]);
    assert_eq!(
        ran.types(),
        [
            "client.message.send",
            "provider.request",
            "provider.response",
            "tool.call",
            "mcp.request",
            "mcp.response",
            "tool.result",
            "provider.request",
            "provider.response",
            "server.message.send",
        ]
    );
    let tail = &ran.events[7].elided.as_ref().unwrap().tail;
    let exchange = r#"[{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"search","input":{"q":1.0}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"echo: x"}],"is_error":false}]}]"#;
    assert_eq!(tail.as_str(), exchange);
    let asked: Vec<Json> = ran.calls[1].messages.iter().map(Message::to_json).collect();
    let whole = compose_request(&ran.events[7].payload, &asked[..1], tail);
    assert_eq!(whole.member("messages").unwrap(), Json::array(&asked));
    assert_eq!(ran.calls[1].round, 1);
}

#[test]
fn a_call_counts_the_tokens_of_all_its_answers_or_does_not_say() {
    let answer =
        |content: Vec<Block>, usage| ModelReply { content, body: Json::empty_object(), usage };
    let one = Some(TokenUsage { input_tokens: 100, output_tokens: 10 });
    for (usages, total) in [
        ([one, one], Some(TokenUsage { input_tokens: 200, output_tokens: 20 })),
        ([None, one], None),
        ([one, None], None),
    ] {
        let mut turn = turn();
        until_model(&mut turn);
        turn.handle_model_reply(answer(vec![call("t1", "search")], usages[0]));
        while let Some(effect) = turn.poll_effect() {
            if matches!(effect, Effect::CallTool(_)) {
                turn.handle_tool_outcome(ToolOutcome::Failed("gone".to_owned()));
            }
        }
        turn.handle_model_reply(answer(vec![text("done")], usages[1]));
        assert_eq!(turn.usage(), total);
    }
}

#[test]
fn calls_of_tools_that_are_not_built_are_answered_with_an_error() {
    let command = json(r#"{"command":"ls"}"#);
    let shell = Block::of_tool_use(ToolUse {
        id: "t2".to_owned(),
        name: "shell".to_owned(),
        input: command,
        dispatch: None,
    });
    let script = vec![
        reply(vec![call("t1", "shell"), shell, call("t3", "launch")]),
        reply(vec![text("done")]),
    ];
    let ran = run(turn(), script);
    let lines = ran.lines();
    let missing = r#"sandbox tool 'shell' input is missing the required string \"command\""#;
    let none =
        "no remote sandbox is running for tool 'shell'; call session.startRemoteSandbox first";
    assert_eq!(
        lines[6..13],
        [
            r#"sandbox.request {"command":null,"input":{"q":1.0},"tool":"shell"}"#.to_owned(),
            format!(r#"sandbox.response {{"error":"{missing}","ok":false,"sandbox_id":null}}"#),
            format!(r#"tool.result {{"content":[{{"type":"text","text":"sandbox error: {missing}"}}],"dispatch":"sandbox","is_error":true,"tool_use_id":"t1"}}"#),
            r#"sandbox.request {"command":"ls","input":{"command":"ls"},"tool":"shell"}"#.to_owned(),
            format!(r#"sandbox.response {{"error":"{none}","ok":false,"sandbox_id":null}}"#),
            format!(r#"tool.result {{"content":[{{"type":"text","text":"sandbox error: {none}"}}],"dispatch":"sandbox","is_error":true,"tool_use_id":"t2"}}"#),
            r#"tool.result {"content":[{"type":"text","text":"{\"error\":\"subagents are not built into this service yet\"}"}],"dispatch":"subagent","is_error":true,"tool_use_id":"t3"}"#.to_owned(),
        ]
    );
    assert!(lines[3].ends_with(r#""name":"shell"}"#), "no server_name: {}", lines[3]);
}

#[test]
fn a_failed_or_erring_server_tool_becomes_an_error_shaped_result() {
    let outcomes = [
        (
            ToolOutcome::Failed("gone".to_owned()),
            r#"{"error":"gone","ok":false,"server_name":"echo"}"#,
            r#"{"content":[{"type":"text","text":"MCP error: gone"}],"dispatch":"mcp","is_error":true,"server_name":"echo","tool_use_id":"t1"}"#,
        ),
        (
            ToolOutcome::Answered(json(r#"{"content":[7],"isError":true,"_meta":1.0}"#)),
            r#"{"result":{"content":[7],"isError":true,"_meta":1.0},"ok":false,"server_name":"echo"}"#,
            r#"{"content":[7],"dispatch":"mcp","is_error":true,"server_name":"echo","tool_use_id":"t1"}"#,
        ),
        (
            ToolOutcome::Answered(json("{}")),
            r#"{"result":{},"ok":true,"server_name":"echo"}"#,
            r#"{"content":[],"dispatch":"mcp","is_error":false,"server_name":"echo","tool_use_id":"t1"}"#,
        ),
    ];
    for (outcome, response, result) in outcomes {
        let mut turn = turn();
        until_model(&mut turn);
        turn.handle_model_reply(reply(vec![call("t1", "search")]).unwrap());
        assert!(matches!(turn.poll_effect(), Some(Effect::Log(_))));
        assert!(matches!(turn.poll_effect(), Some(Effect::CallTool(_))));
        turn.handle_tool_outcome(outcome);
        let Some(Effect::Log(events)) = turn.poll_effect() else { panic!() };
        assert_eq!(events[0].payload.as_str(), response);
        assert_eq!(events[1].payload.as_str(), result);
        assert!(matches!(turn.poll_effect(), Some(Effect::CallModel(_))));
    }
}

fn until_model(turn: &mut Turn) -> Vec<LogEvent> {
    let Some(Effect::Log(events)) = turn.poll_effect() else { panic!() };
    assert!(matches!(turn.poll_effect(), Some(Effect::CallModel(_))));
    events
}

#[test]
fn a_fallback_is_asked_when_the_primary_fails() {
    let turn = Turn::start(start(Message::user("hi"), &["anthropic", "openai"])).unwrap();
    let script = vec![failure(None, "error sending request", None), reply(vec![text("x")])];
    let ran = run(turn, script);
    assert_eq!(
        ran.lines()[2..5],
        [
            r#"provider.response {"attempt":0,"kind":"primary","provider":"anthropic","body":null,"error":"error sending request","ok":false,"status":null}"#,
            r#"session.error {"detail":"error sending request","provider":"anthropic","reason":"provider_call_failed"}"#,
            "provider.request",
        ]
    );
    let request = ran.events[4].payload.as_str();
    assert!(request.starts_with(r#"{"attempt":1,"base_url":"http://openai","kind":"fallback""#));
    assert!(ran.lines()[5].starts_with(
        r#"provider.response {"attempt":1,"kind":"fallback","provider":"openai","body""#
    ));
    assert_eq!(ran.calls[1].provider, 1);
    assert_eq!(ran.answer().1, Outcome::Completed);
}

#[test]
fn when_every_provider_fails_the_answer_is_the_generic_text_and_the_session_ends() {
    let turn = Turn::start(start(Message::user("hi"), &["anthropic", "openai"])).unwrap();
    let body = r#"{"type":"error"}"#;
    let script = vec![
        failure(Some(500), "provider returned HTTP 500", Some(body)),
        failure(None, "error sending request", None),
    ];
    let ran = run(turn, script);
    assert_eq!(
        ran.types()[2..],
        [
            "provider.response",
            "session.error",
            "provider.request",
            "provider.response",
            "session.error"
        ]
    );
    assert!(ran.lines()[2].contains(
        r#""body":"{\"type\":\"error\"}","error":"provider returned HTTP 500","ok":false,"status":500"#
    ));
    assert_eq!(
        ran.lines().last().unwrap(),
        r#"session.error {"attempts":2,"reason":"all_providers_failed"}"#
    );
    assert_eq!(ran.answer(), (GENERIC.to_owned(), Outcome::ProvidersFailed));
    assert!(ran.ends_session());
}

#[test]
fn a_lone_primary_that_fails_logs_both_errors() {
    let ran = run(turn(), vec![failure(None, "e", None)]);
    assert_eq!(
        ran.lines()[3..],
        [
            r#"session.error {"detail":"e","provider":"anthropic","reason":"provider_call_failed"}"#,
            r#"session.error {"attempts":1,"reason":"all_providers_failed"}"#,
        ]
    );
}

#[test]
fn a_turn_without_a_primary_provider_ends_the_session_without_a_call() {
    for (providers, detail) in [
        (Err("no provider \"x\"".to_owned()), r#"no provider \"x\""#),
        (Ok(Vec::new()), "the profile names no provider that is configured"),
    ] {
        let start = TurnStart { providers, ..start(Message::user("hi"), &[]) };
        let ran = run(Turn::start(start).unwrap(), Vec::new());
        let error = format!(r#"session.error {{"detail":"{detail}","reason":"provider_config"}}"#);
        assert_eq!(ran.lines()[1..], [error]);
        assert_eq!(ran.answer(), (GENERIC.to_owned(), Outcome::ProviderConfig));
        assert!(ran.ends_session());
    }
}

#[test]
fn after_the_last_round_the_turn_ends_with_loop_limit() {
    let looped: Vec<_> = (0..8).map(|n| reply(vec![call(&format!("t{n}"), "search")])).collect();
    let ran = run(turn(), looped);
    assert_eq!(ran.calls.len(), 8);
    assert_eq!(ran.types().iter().filter(|t| **t == "tool.result").count(), 8);
    assert_eq!(
        ran.lines().last().unwrap(),
        r#"session.error {"max_iterations":8,"reason":"loop_limit"}"#
    );
    assert_eq!(ran.answer(), (GENERIC.to_owned(), Outcome::LoopLimit));
    assert!(ran.ends_session());
}

#[test]
fn calls_that_cannot_be_told_apart_or_answered_are_a_failed_attempt() {
    let nameless = Block::read(json(r#"{"type":"tool_use","id":"t"}"#));
    for (content, error) in [
        (
            vec![call("t", "clock"), call("t", "search")],
            r#"duplicate tool_use id \"t\" in one response"#,
        ),
        (vec![nameless], r#"a tool_use block without a string \"id\" or \"name\""#),
    ] {
        let ran = run(turn(), vec![reply(content)]);
        assert_eq!(
            ran.lines()[2],
            format!(
                r#"provider.response {{"attempt":0,"kind":"primary","provider":"anthropic","body":"{{\"raw\":1e3}}","error":"{error}","ok":false,"status":200}}"#
            )
        );
        assert!(!ran.types().contains(&"tool.call"));
        assert_eq!(ran.answer().1, Outcome::ProvidersFailed);
    }
}

#[test]
fn internal_members_of_calls_never_reach_the_provider() {
    let stored = r#"[{"type":"tool_use","id":"t","name":"n","input":{},"caller":{"x":1},"dispatch":"client","more":1.0},{"type":"text","text":"a","dispatch":"kept"}]"#;
    let history = vec![Message { role: Role::Assistant, content: Content::read(&json(stored)) }];
    let start = TurnStart { history, ..start(Message::user("hi"), &["p"]) };
    let ran = run(Turn::start(start).unwrap(), vec![reply(Vec::new())]);
    assert_eq!(
        ran.calls[0].messages[0].content.to_json().as_str(),
        r#"[{"type":"tool_use","id":"t","name":"n","input":{},"more":1.0},{"type":"text","text":"a","dispatch":"kept"}]"#
    );
}

#[test]
fn a_malformed_continuation_ends_the_session_and_asks_no_provider() {
    let pause = Pause {
        owner: KeyId::from("key_a"),
        expected: vec!["t".to_owned()],
        stash: Vec::new(),
        generation: Generation::default(),
    };
    let start = TurnStart {
        entry: Entry::Resumed,
        paused: Some(pause),
        ..start(Message::user(""), &["p"])
    };
    let rejected = Turn::start(start).unwrap_err();
    assert!(rejected.ends_session);
    assert_eq!(rejected.failure.code, -32000);
    assert_eq!(rejected.events.len(), 1);
    assert_eq!(
        rejected.events[0].payload.as_str(),
        r#"{"detail":"no tool_result for tool_use id \"t\"","reason":"tool_result_merge_invalid"}"#
    );
    assert_eq!(rejected.events[0].audience, Audience::Watchers);
}

#[test]
fn results_for_no_paused_turn_are_refused_without_a_trace() {
    let content = json(r#"[{"type":"tool_result","tool_use_id":"t","content":""}]"#);
    let message = Message { role: Role::User, content: Content::read(&content) };
    let rejected = Turn::start(start(message, &["p"])).unwrap_err();
    assert!(!rejected.ends_session && rejected.events.is_empty());
}

#[test]
fn taking_over_an_expired_pause_keeps_the_history_alternating() {
    let ran = run(turn(), vec![reply(vec![call("t1", "clock"), call("t2", "search")])]);
    let (pause, message) = ran.pause();
    let b = KeyId::from("key_b");
    let taken = Turn::start(TurnStart {
        actor: b.clone(),
        entry: Entry::Reclaimed { from: pause.owner.clone() },
        paused: Some(pause.clone()),
        history: vec![Message::user("hi"), message],
        ..start(Message::user("B"), &["anthropic"])
    });
    let taken = run(taken.unwrap(), vec![reply(vec![text("x")])]);
    let roles: Vec<&str> = taken.calls[0].messages.iter().map(|m| m.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    assert_eq!(taken.types()[..3], ["client.message.send", "tool.result", "provider.request"]);
    assert_eq!(
        taken.events[1].payload.as_str(),
        r#"{"content":"Client tool call was abandoned before returning a result.","dispatch":"client","tool_use_id":"t1"}"#
    );
    assert!(taken.events.iter().all(|event| event.client_key_id == b));
    let abandoned = LogEvent::turn_abandoned(&pause.owner);
    assert_eq!(
        abandoned.payload.as_str(),
        r#"{"owner_client_key_id":"key_a","reason":"driver_turn_abandoned"}"#
    );
    assert_eq!((abandoned.client_key_id, abandoned.audience), (pause.owner, Audience::Watchers));
}

/// The lines that [`Turn::handle_cancel`] adds, and the answer.
fn cancelled(turn: &mut Turn) -> Vec<String> {
    assert!(turn.handle_cancel());
    let Some(Effect::Finish { events, answer, outcome, ends_session: false }) = turn.poll_effect()
    else {
        panic!()
    };
    assert_eq!(answer.unwrap_err(), RpcFailure::new(-32021, "turn cancelled"));
    assert_eq!(outcome, Outcome::Cancelled);
    assert!(!turn.handle_cancel(), "cancelled twice");
    events.iter().map(|e| format!("{} {}", e.event_type, e.payload.as_str())).collect()
}

const WAS_RUNNING: &str =
    r#"session.turn.cancelled {"owner_client_key_id":"key_a","was":"running"}"#;

#[test]
fn a_turn_cancelled_while_the_model_works_logs_the_end_of_the_attempt() {
    let mut turn = turn();
    until_model(&mut turn);
    assert_eq!(
        cancelled(&mut turn),
        [
            r#"provider.response {"attempt":0,"kind":"primary","provider":"anthropic","body":null,"error":"the turn was cancelled","ok":false,"status":null}"#,
            WAS_RUNNING,
        ]
    );
    turn.handle_model_reply(reply(vec![text("late")]).unwrap());
    assert_eq!(turn.poll_effect(), None);
}

#[test]
fn a_turn_cancelled_while_a_tool_works_leaves_no_call_without_a_result() {
    let mut turn = turn();
    until_model(&mut turn);
    let calls =
        vec![call("t0", "clock"), call("t1", "nope"), call("t2", "search"), call("t3", "search")];
    turn.handle_model_reply(reply(calls).unwrap());
    assert!(matches!(turn.poll_effect(), Some(Effect::Log(_))));
    assert!(matches!(turn.poll_effect(), Some(Effect::CallTool(_))));
    let server = |id: &str| {
        format!(
            r#"tool.result {{"content":[{{"type":"text","text":"{CANCELLED}"}}],"dispatch":"mcp","is_error":true,"server_name":"echo","tool_use_id":"{id}"}}"#
        )
    };
    assert_eq!(
        cancelled(&mut turn),
        [
            r#"mcp.response {"error":"the turn was cancelled","ok":false,"server_name":"echo"}"#
                .to_owned(),
            format!(
                r#"tool.result {{"content":"{CANCELLED}","dispatch":"client","tool_use_id":"t0"}}"#
            ),
            server("t2"),
            server("t3"),
            WAS_RUNNING.to_owned(),
        ]
    );
}

#[test]
fn a_paused_turn_is_cancelled_with_the_results_there_are() {
    let content = vec![call("t0", "clock"), call("t1", "search"), call("t2", "clock")];
    let (pause, _) = run(turn(), vec![reply(content)]).pause();
    let given = r#"{"type":"tool_result","tool_use_id":"t2","content":"12:00"}"#;
    let events = cancel_paused(&pause, vec![Block::read(json(given))]).unwrap();
    let types: Vec<&str> = events.iter().map(|e| e.event_type.as_str()).collect();
    assert_eq!(
        types,
        ["client.message.send", "tool.result", "tool.result", "session.turn.cancelled"]
    );
    let content = events[0].payload.member("content").unwrap().elements().unwrap();
    let ids: Vec<String> =
        content.iter().filter_map(|b| b.member("tool_use_id")?.to_text()).collect();
    assert_eq!(ids, ["t0", "t1", "t2"]);
    assert_eq!(content[2].as_str(), given);
    assert_eq!(events[3].payload.as_str(), r#"{"owner_client_key_id":"key_a","was":"paused"}"#);
    let stranger = Block::read(json(r#"{"type":"tool_result","tool_use_id":"z","content":""}"#));
    let refused = cancel_paused(&pause, vec![stranger]).unwrap_err();
    assert_eq!(refused.code, -32602);
}
