use super::*;
use crate::models::NoDeltas;
use broca_proto::provider::ToolSpec;
use broca_proto::session::content::ToolResult;
use broca_proto::session::generation::Generation;
use std::sync::Mutex;

#[derive(Default)]
struct Recorder(Mutex<Vec<Delta>>);

impl DeltaSink for Recorder {
    fn delta(&self, delta: Delta) {
        self.0.lock().unwrap().push(delta);
    }
}

fn tool(name: &str, description: &str, schema: &str) -> ToolSpec {
    let input_schema = Json::parse(schema.to_owned()).unwrap();
    ToolSpec { name: name.into(), description: Some(description.into()), input_schema }
}

fn read_file() -> ToolSpec {
    tool(
        "read_file",
        "Return the text of a file.",
        r#"{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}"#,
    )
}

fn clock() -> ToolSpec {
    tool("clock", "Tells the current date and time.", r#"{"type":"object","properties":{}}"#)
}

fn mixed() -> ToolSpec {
    tool(
        "move",
        "Moves.",
        r#"{"properties":{"n":{"type":"integer"},"x":{"type":"number"},"to":{"type":"string"},"mode":{"enum":["slow","fast"]},"deep":{"type":"boolean"}},"required":["to","n","x","mode","deep"]}"#,
    )
}

fn asked(text: &str, tools: Vec<ToolSpec>) -> ModelRequest {
    ModelRequest { messages: vec![Message::user(text)], tools, ..ModelRequest::default() }
}

async fn answer(model: &Scripted, request: &ModelRequest) -> ModelReply {
    model.call(request, &NoDeltas).await.unwrap()
}

fn calls(reply: &ModelReply) -> Vec<(String, String)> {
    let calls = reply.content.iter().filter_map(Block::tool_use);
    calls.map(|call| (call.name.clone(), call.input.as_str().to_owned())).collect()
}

fn text(reply: &ModelReply) -> String {
    reply.content.iter().filter_map(Block::text).collect()
}

async fn called(message: &str, tools: Vec<ToolSpec>) -> Vec<(String, String)> {
    calls(&answer(&Scripted::default(), &asked(message, tools)).await)
}

fn generation(text: &str) -> Generation {
    Generation::read(&Json::parse(text.to_owned()).unwrap()).unwrap()
}

fn call(name: &str, input: &str) -> (String, String) {
    (name.to_owned(), input.to_owned())
}

/// The same request after the model's calls were answered.
fn answered(request: &ModelRequest, reply: &ModelReply, results: &[(&str, bool)]) -> ModelRequest {
    let mut next = request.clone();
    next.messages.push(Message::assistant(reply.content.clone()));
    let calls = reply.content.iter().filter_map(Block::tool_use);
    let blocks = calls.zip(results).map(|(call, (text, is_error))| {
        Block::of_tool_result(ToolResult {
            tool_use_id: call.id.clone(),
            content: Json::string(text),
            is_error: Some(*is_error),
        })
    });
    next.messages.push(Message::user_blocks(blocks.collect()));
    next
}

#[tokio::test]
async fn a_choice_of_tools_goes_before_what_the_message_means() {
    for (message, choice, expected) in [
        ("clock", r#""none""#, vec![]),
        ("clock", r#"{"name":"clock"}"#, vec![call("clock", "{}")]),
        ("a.txt", r#"{"name":"read_file"}"#, vec![call("read_file", r#"{"path":"a.txt"}"#)]),
        ("clock", r#"{"name":"read_file"}"#, vec![call("read_file", r#"{"path":"clock"}"#)]),
        ("b.txt", r#""any""#, vec![call("read_file", r#"{"path":"b.txt"}"#)]),
        ("clock", r#""any""#, vec![call("clock", "{}")]),
        ("nothing", r#""auto""#, vec![]),
    ] {
        let generation = generation(&format!(r#"{{"options":{{"tool_choice":{choice}}}}}"#));
        let request = ModelRequest { generation, ..asked(message, vec![read_file(), clock()]) };
        let reply = answer(&Scripted::default(), &request).await;
        assert_eq!(calls(&reply), expected, "{message} {choice}");
    }
}

#[tokio::test]
async fn a_named_tool_is_called_with_the_path_in_the_message_wherever_it_stands() {
    let expected = [call("read_file", r#"{"path":"main.py"}"#)];
    for message in [
        "What does read_file say about main.py?",
        "Use main.py with read_file, please.",
        "`read_file` \"main.py\"!",
        "READ_FILE(main.py)",
        "read_file(\"main.py\")",
    ] {
        assert_eq!(called(message, vec![clock(), read_file()]).await, expected, "{message}");
    }
}

#[tokio::test]
async fn a_file_that_does_not_look_like_a_path_is_the_last_word_after_the_name() {
    let expected = [call("read_file", r#"{"path":"Makefile"}"#)];
    assert_eq!(
        called("What does read_file say about Makefile?", vec![read_file()]).await,
        expected
    );
}

#[tokio::test]
async fn a_tool_is_found_by_the_words_of_its_description() {
    let tools = || vec![clock(), read_file()];
    assert_eq!(called("Which date is it?", tools()).await, [call("clock", "{}")]);
    let expected = [call("read_file", r#"{"path":"src/lib.rs"}"#)];
    assert_eq!(called("Show me the text of src/lib.rs", tools()).await, expected);
    assert!(called("Hello there", tools()).await.is_empty());
}

#[tokio::test]
async fn parameters_are_filled_in_order_by_type_and_numbers_keep_their_spelling() {
    let message = "move 1.50 9007199254740993 \"the north\" fast and do not stop, no";
    let expected = r#"{"to":"the north","n":9007199254740993,"x":1.50,"mode":"fast","deep":false}"#;
    assert_eq!(called(message, vec![mixed()]).await, [call("move", expected)]);
    let expected = r#"{"to":"up","n":0,"x":0,"mode":"slow","deep":true}"#;
    assert_eq!(called("move up", vec![mixed()]).await, [call("move", expected)], "plainest values");
}

#[tokio::test]
async fn a_json_object_after_the_name_is_the_input_as_it_stands() {
    let message = r#"move {"n": 18446744073709551616, "to" :"{x}"} now"#;
    let expected = r#"{"n": 18446744073709551616, "to" :"{x}"}"#;
    assert_eq!(called(message, vec![mixed()]).await, [call("move", expected)]);
}

#[tokio::test]
async fn several_named_tools_are_called_at_once() {
    let tools = || vec![read_file(), clock()];
    assert_eq!(
        called("Use read_file on a.txt and read_file on b.txt, then clock.", tools()).await,
        [
            call("read_file", r#"{"path":"a.txt"}"#),
            call("read_file", r#"{"path":"b.txt"}"#),
            call("clock", "{}"),
        ]
    );
    let once = called("clock and read_file: I mean read_file, on notes.txt", tools()).await;
    assert_eq!(once, [call("clock", "{}"), call("read_file", r#"{"path":"notes.txt"}"#)]);
}

#[tokio::test]
async fn results_are_quoted_and_end_the_turn() {
    let model = Scripted::default();
    let request = asked("read_file a.txt and clock", vec![read_file(), clock()]);
    let first = answer(&model, &request).await;
    let next = answered(&request, &first, &[("alpha beta", false), ("stopped", true)]);
    let second = answer(&model, &next).await;
    assert_eq!(text(&second), "read_file says:\nalpha beta\n\nclock failed:\nstopped");
    assert_eq!((second.finish_reason.as_str(), calls(&second).len()), ("stop", 0));
    assert_eq!(answer(&model, &next).await, second, "the same question, the same answer");
}

#[tokio::test]
async fn a_long_result_is_cut_and_says_so() {
    let model = Scripted::default();
    let request = asked("clock", vec![clock()]);
    let first = answer(&model, &request).await;
    let long = "é".repeat(3_000);
    let second = answer(&model, &answered(&request, &first, &[(&long, false)])).await;
    let text = text(&second);
    assert!(text.ends_with("(The first 2000 of 3000 characters are shown.)"));
    assert_eq!(text.matches('é').count(), 2_000);
}

#[tokio::test]
async fn new_words_beside_results_are_a_new_question() {
    let model = Scripted::default();
    let request = asked("read_file a.txt", vec![read_file(), clock()]);
    let first = answer(&model, &request).await;
    let mut next = answered(&request, &first, &[("abandoned", true)]);
    let last = next.messages.pop().unwrap();
    let mut blocks = last.content.blocks().to_vec();
    blocks.push(Block::of_text("clock please"));
    next.messages.push(Message::user_blocks(blocks));
    assert_eq!(calls(&answer(&model, &next).await), [call("clock", "{}")]);
}

#[tokio::test]
async fn call_ids_are_unique_over_the_conversation_and_stable() {
    let model = Scripted::default();
    let request = asked("clock", vec![clock()]);
    let id =
        |reply: &ModelReply| reply.content.iter().find_map(Block::tool_use).unwrap().id.clone();
    let first = answer(&model, &request).await;
    assert_eq!(id(&first), id(&answer(&model, &request).await));
    let mut again = request.clone();
    again.messages.push(Message::assistant(vec![Block::of_text("12:00")]));
    again.messages.push(Message::user("clock"));
    assert_ne!(id(&first), id(&answer(&model, &again).await));
}

#[tokio::test]
async fn without_a_matching_tool_it_says_what_it_is_and_how_to_call_one() {
    let reply = answer(&Scripted::default(), &asked("Hello", vec![read_file()])).await;
    let said = text(&reply);
    for part in ["scripted model", "You said: Hello", "read_file", "--model openai:NAME"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let without = answer(&Scripted::default(), &asked("Hello", Vec::new())).await;
    assert!(text(&without).contains("no tools"));
}

#[tokio::test]
async fn words_stream_as_several_deltas_that_add_up_to_the_text() {
    let sink = Recorder::default();
    let reply = Scripted::default().call(&asked("Hello", vec![read_file()]), &sink).await.unwrap();
    let shown: Vec<String> = sink
        .0
        .into_inner()
        .unwrap()
        .into_iter()
        .map(|delta| match delta {
            Delta::Text(text) => text,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(shown.len() > 10);
    assert_eq!(shown.concat(), text(&reply));
    assert!(words(&"word ".repeat(100_000), Duration::ZERO).len() <= MAX_PIECES);
}

#[tokio::test]
async fn any_content_is_answered() {
    for content in ["null", "7", "\"\"", "[]", "{\"a\":1}", "[{\"type\":\"image\"}]"] {
        let message = Json::parse(format!("{{\"content\":{content}}}")).unwrap();
        let messages = vec![Message::read(&message, Role::User).unwrap()];
        let request =
            ModelRequest { messages, tools: vec![read_file()], ..ModelRequest::default() };
        assert!(!text(&answer(&Scripted::default(), &request).await).is_empty(), "{content}");
    }
}

mod scripts {
    use super::*;
    use crate::models::scripted::script::{Script, ScriptError};
    use broca_proto::provider::unit::ErrorClass;

    fn model(script: &str) -> Scripted {
        Scripted::new(Script::parse("s.json", script).unwrap())
    }

    #[tokio::test]
    async fn the_first_rule_that_holds_answers_and_its_times_run_out() {
        let model = model(
            r#"{"rules":[
                {"when":{"contains":"x"},"times":1,"then":{"text":"first"}},
                {"when":{"contains":"x","round":1},"then":{"text":"second"}},
                {"when":{"equals":"y"},"then":{"text":"third"}}]}"#,
        );
        let mut seen = Vec::new();
        for message in ["x", "x", "y", "yy"] {
            seen.push(text(&answer(&model, &asked(message, Vec::new())).await));
        }
        assert_eq!(seen[..3], ["first", "second", "third"]);
        assert!(seen[3].contains("scripted model"), "the built-in rules answer otherwise");
    }

    #[tokio::test]
    async fn calls_go_out_exactly_as_written_even_unknown_ones_with_the_same_id() {
        let model = model(
            r#"{"rules":[{"then":{"text":"go","tool_calls":[
                {"name":"nope","input":{"n": 1.0, "big":9007199254740993},"id":"a"},{"name":"nope","id":"a"}]}}]}"#,
        );
        let reply = answer(&model, &asked("x", Vec::new())).await;
        let written: Vec<_> = reply.content.iter().skip(1).map(|b| b.json().as_str()).collect();
        assert_eq!(
            written,
            [
                r#"{"type":"tool_use","id":"a","name":"nope","input":{"n": 1.0, "big":9007199254740993}}"#,
                r#"{"type":"tool_use","id":"a","name":"nope","input":{}}"#,
            ]
        );
        assert_eq!(reply.finish_reason, "tool_calls");
    }

    #[tokio::test]
    async fn rounds_and_results_can_be_told_apart() {
        let model = model(
            r#"{"rules":[
                {"when":{"result_contains":"boom"},"then":{"text":"it broke"}},
                {"when":{"after_tools":true,"round":2},"then":{"tool_calls":[{"name":"clock"}]}},
                {"when":{"tool_offered":"clock","after_tools":false},"then":{"tool_calls":[{"name":"clock"}]}},
                {"when":{"round":3},"then":{"text":"done"}}]}"#,
        );
        let request = asked("go", vec![clock()]);
        let first = answer(&model, &request).await;
        assert_eq!(calls(&first).len(), 1);
        let second = answered(&request, &first, &[("12", false)]);
        let again = answer(&model, &second).await;
        assert_eq!(calls(&again).len(), 1, "a loop of tools");
        let third = answered(&second, &again, &[("13", false)]);
        assert_eq!(text(&answer(&model, &third).await), "done");
        let broken = answered(&request, &first, &[("boom!", false)]);
        assert_eq!(text(&answer(&model, &broken).await), "it broke");
    }

    #[tokio::test]
    async fn reasoning_and_other_blocks_are_content_and_change_nothing_else() {
        let redacted = r#"{"type":"redacted_thinking","data":"eA=="}"#;
        let script = |more: &str| {
            let call = r#""tool_calls":[{"name":"clock"}]"#;
            model(&format!(r#"{{"rules":[{{"then":{{"text":"a"{more},{call}}}}}]}}"#))
        };
        let thinks = script(&format!(r#","reasoning":"hm","blocks":[{redacted}]"#));
        let plain = script("");
        let request = asked("x", vec![clock()]);
        let (with, without) = (answer(&thinks, &request).await, answer(&plain, &request).await);
        let json = |block: &Block| block.json().as_str().to_owned();
        let thought = r#"{"type":"thinking","thinking":"hm"}"#;
        let blocks: Vec<String> = with.content.iter().map(json).collect();
        assert_eq!(blocks[..2], [thought, redacted]);
        assert_eq!(with.content[2..], without.content);
        assert_eq!((&with.body, with.usage), (&without.body, without.usage));
        // What was thought before has no part in what comes next, the ids of calls included.
        let (with, without) = (
            answered(&request, &with, &[("noon", false)]),
            answered(&request, &without, &[("noon", false)]),
        );
        assert_eq!(answer(&plain, &with).await, answer(&plain, &without).await);
        let bad = Script::parse("s", r#"{"rules":[{"then":{"blocks":[{"type":"text"}]}}]}"#);
        assert!(bad.unwrap_err().to_string().contains("other than text"));
    }

    #[tokio::test]
    async fn a_script_looks_at_the_system_prompt_and_shows_what_was_asked() {
        let model = model(
            r#"{"rules":[{"when":{"system_contains":"brief"},"then":{"show":"asked"}}],"otherwise":"fail"}"#,
        );
        let request =
            |said: &str| ModelRequest { generation: generation(said), ..asked("x", Vec::new()) };
        let said = r#"{"options":{"top_p":0.50},"system":"be brief"}"#;
        let reply = model.call(&request(said), &NoDeltas).await.unwrap();
        assert_eq!(text(&reply), said);
        assert!(model.call(&request("{}"), &NoDeltas).await.is_err());
        let both = Script::parse("s", r#"{"rules":[{"then":{"show":"asked","text":"x"}}]}"#);
        assert!(both.unwrap_err().to_string().contains("keep one"));
    }

    #[tokio::test]
    async fn failures_carry_their_status_and_may_come_after_words() {
        let model = model(
            r#"{"rules":[
                {"times":1,"then":{"fail":{"status":500,"body":"down","retry_after_ms":40}}},
                {"times":1,"then":{"text":"half a","fail":{"error":"cut"}}}],"otherwise":"fail"}"#,
        );
        let sink = Recorder::default();
        let failed = model.call(&asked("x", Vec::new()), &sink).await.unwrap_err();
        assert_eq!((failed.status, failed.body.as_deref()), (Some(500), Some("down")));
        assert_eq!(failed.retry_after, Some(Duration::from_millis(40)));
        assert_eq!(
            (failed.error.as_str(), failed.class),
            ("provider returned HTTP 500", ErrorClass::Transient)
        );
        let failed = model.call(&asked("x", Vec::new()), &sink).await.unwrap_err();
        assert_eq!((failed.status, failed.error.as_str()), (None, "cut"));
        assert_eq!(sink.0.lock().unwrap().len(), 2, "the words were shown");
        let failed = model.call(&asked("x", Vec::new()), &sink).await.unwrap_err();
        assert!(failed.error.contains("no rule"), "{failed}");
    }

    #[tokio::test]
    async fn pieces_come_as_chosen_after_their_delays_and_texts_can_be_huge() {
        let model = model(
            r#"{"rules":[
                {"when":{"equals":"p"},"then":{"delay_ms":1,"pieces":["Hel",{"text":"lo","delay_ms":1}],"repeat":2,"reasoning":"hm","finish":"length"}},
                {"then":{"text":"0123456789","repeat":100000}}]}"#,
        );
        let sink = Recorder::default();
        let reply = model.call(&asked("p", Vec::new()), &sink).await.unwrap();
        let piece = |text: &str| Delta::Text(text.into());
        let shown =
            [Delta::Reasoning("hm".into()), piece("Hel"), piece("lo"), piece("Hel"), piece("lo")];
        assert_eq!(*sink.0.lock().unwrap(), shown);
        assert!(reply.truncated);
        assert_eq!(text(&answer(&model, &asked("q", Vec::new())).await).len(), 1_000_000);
    }

    #[test]
    fn a_bad_script_is_told_with_its_place_and_cure() {
        let (mut seen, mut expected) = (Vec::new(), Vec::new());
        for (script, at, part) in [
            (
                "{\"rules\":[\n {\"then\":{\"txt\":\"x\"}}]}",
                (2, 15),
                "unknown field `txt`, expected one of `text`",
            ),
            ("{\"rules\":[{}]}", (1, 12), "missing field `then`"),
            ("{\"rules\":[\n\n  {\"then\":{}}]}", (3, 3), "give it text"),
            ("{\"rules\":[\n {\"then\":\n {\"text\":1}}]}", (3, 10), "expected a string"),
            ("{\"rules\":[{\"then\":{\"text\":\"a\",\"pieces\":[]}}]}", (1, 11), "keep one"),
            ("{\"rules\":[{\"then\":{\"pieces\":[1]}}]}", (1, 31), "a piece must be"),
            (
                "{\"rules\":[{\"then\":{\"text\":\"abc\",\"repeat\":99999999999}}]}",
                (1, 11),
                "lower repeat",
            ),
            ("{\"rulez\":[]}", (1, 8), "unknown field `rulez`"),
            ("{\"rules\":[", (1, 10), "EOF"),
            ("", (1, 1), "EOF"),
        ] {
            let error = Script::parse("dir/s.json", script).expect_err(script);
            let words = error.to_string();
            assert!(
                words.starts_with("script dir/s.json, line ") && words.contains(part),
                "{words}"
            );
            let ScriptError::Malformed { line, column, .. } = error else { panic!("{words}") };
            seen.push((line, column));
            expected.push(at);
        }
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_script_file_that_is_not_there_is_named() {
        let error =
            Script::load(std::path::Path::new("/no/such/file.json")).unwrap_err().to_string();
        assert!(
            error.contains("/no/such/file.json") && error.contains("check the path"),
            "{error}"
        );
    }
}
