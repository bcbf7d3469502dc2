use super::*;
use crate::provider::unit::InvalidReason;
use proptest::prelude::*;

/// Cases V-24 and V-25 of the shared vectors (`reports.jsonl`).
const V24: &str = concat!(
    r#"data: {"id":"chatcmpl-demo","object":"chat.completion.chunk","created":1,"model":"model-y","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}"#,
    "\n\n",
    r#"data: {"id":"chatcmpl-demo","object":"chat.completion.chunk","created":1,"model":"model-y","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}],"usage":null}"#,
    "\n\n",
    r#"data: {"id":"chatcmpl-demo","object":"chat.completion.chunk","created":1,"model":"model-y","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}"#,
    "\n\n",
    r#"data: {"id":"chatcmpl-demo","object":"chat.completion.chunk","created":1,"model":"model-y","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":2,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":4}}}"#,
    "\n\n",
    "data: [DONE]\n\n"
);
const V25: &str = concat!(
    r#"data: {"id":"chatcmpl-demo","object":"chat.completion.chunk","created":1,"model":"model-y","choices":[{"index":0,"delta":{"role":"assistant","content":"Half"},"finish_reason":null}]}"#,
    "\n\n",
    r#"data: {"id":"chatcmpl-demo","object":"chat.completion.chunk","created":1,"model":"model-y","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#
);

fn read_chunks<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Unit>, Vec<Warning>) {
    let mut reader = ChatReader::new(ChatSettings::default());
    for chunk in chunks {
        reader.handle_input(chunk);
    }
    reader.handle_end();
    let units = std::iter::from_fn(|| reader.poll_unit()).collect();
    (units, reader.warnings().to_vec())
}

fn read(body: &str) -> (Vec<Unit>, Vec<Warning>) {
    read_chunks([body.as_bytes()])
}

/// A stream of these deltas, each with the members given, ended as a server should.
fn stream(deltas: &[&str], reason: &str) -> String {
    let mut out = String::new();
    for delta in deltas {
        out += &format!(
            "data: {{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]}}\n\n"
        );
    }
    out += &format!(
        "data: {{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{reason}\"}}]}}\n\n"
    );
    out + "data: [DONE]\n\n"
}

fn message(units: &[Unit]) -> &AssistantMessage {
    let found = units.iter().find_map(|unit| match unit {
        Unit::AssistantMessage(message) => Some(message),
        _ => None,
    });
    found.expect("the stream gives a message")
}

fn error(units: &[Unit]) -> &ProviderError {
    assert!(
        !units.iter().any(|u| matches!(u, Unit::AssistantMessage(_) | Unit::StepFinished { .. }))
    );
    match units.last() {
        Some(Unit::Error(error)) => error,
        other => panic!("no error but {other:?}"),
    }
}

fn start() -> Unit {
    Unit::StreamStart { id: Some("chatcmpl-demo".into()), model: Some("model-y".into()) }
}

#[test]
fn usage_in_a_last_chunk_without_choices_is_read() {
    let (units, warnings) = read(V24);
    let usage = Usage { input: 7, cached_input: 4, output: 2, ..Usage::default() };
    assert_eq!(usage.fill_tokens(), 11);
    let message = AssistantMessage { text: "Hi".into(), ..AssistantMessage::default() };
    let expected = [
        start(),
        Unit::TextDelta("Hi".into()),
        Unit::AssistantMessage(message),
        Unit::StepFinished { reason_raw: "stop".into(), usage: Some(usage) },
    ];
    assert_eq!(units, expected);
    assert!(warnings.is_empty());
}

#[test]
fn a_last_event_without_its_blank_line_and_without_end_mark_is_used_with_one_warning() {
    let (units, warnings) = read(V25);
    let message = AssistantMessage { text: "Half".into(), ..AssistantMessage::default() };
    let expected = [
        start(),
        Unit::TextDelta("Half".into()),
        Unit::AssistantMessage(message),
        Unit::StepFinished { reason_raw: "length".into(), usage: None },
    ];
    assert_eq!(units, expected);
    assert_eq!(warnings, [Warning { kind: WarningKind::MissingEndMark, times: 1 }]);
}

#[test]
fn a_body_that_ends_early_gives_no_message_wherever_it_is_cut() {
    let finished =
        V24.find("\"stop\"}]").expect("the finish reason") + "\"stop\"}],\"usage\":null}".len();
    for cut in 0..finished {
        let (units, _) = read_chunks([&V24.as_bytes()[..cut]]);
        let error = error(&units);
        assert_eq!(error.kind.as_deref(), Some("stream_ended_early"), "cut at {cut}");
        assert_eq!((error.class, error.retryable), (ErrorClass::Transient, true));
    }
}

#[test]
fn a_broken_connection_is_an_early_end_even_after_the_finish_reason() {
    let mut reader = ChatReader::new(ChatSettings::default());
    reader.handle_input(V25.as_bytes());
    reader.handle_input(b"\n\n");
    reader.handle_broken();
    let units: Vec<_> = std::iter::from_fn(|| reader.poll_unit()).collect();
    assert_eq!(error(&units).kind.as_deref(), Some("stream_ended_early"));
}

#[test]
fn nothing_after_the_end_mark_changes_the_answer() {
    let (units, _) = read(&format!("{V24}data: {{\"error\":\"late\"}}\n\nrubbish\n\n"));
    assert_eq!(units, read(V24).0);
}

#[test]
fn an_error_in_the_stream_is_final_and_leaves_no_half_message() {
    let call = r#"{"content":"Let me pay","tool_calls":[{"index":0,"id":"a","function":{"name":"pay","arguments":"{\"amount\": 1"}}]}"#;
    let head = stream(&[call], "stop");
    let head = head
        .split("data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},")
        .next()
        .expect("a head");
    for (tail, class) in [
        (
            r#"data: {"error":{"message":"m","type":"server_error","code":null}}"#,
            ErrorClass::Transient,
        ),
        (
            r#"data: {"error":{"message":"m","code":"context_length_exceeded"}}"#,
            ErrorClass::ContextOverflow,
        ),
        (
            "event: error\ndata: {\"message\":\"m\",\"type\":\"rate_limit_exceeded\"}",
            ErrorClass::Transient,
        ),
        ("event: error\ndata: out of memory", ErrorClass::Transient),
        (
            r#"data: {"error":{"message":"m","code":403},"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}"#,
            ErrorClass::Auth,
        ),
    ] {
        let (units, _) = read(&format!("{head}{tail}\n\ndata: [DONE]\n\n"));
        assert_eq!(error(&units).class, class, "{tail}");
        assert!(units.contains(&Unit::TextDelta("Let me pay".into())), "deltas were shown");
    }
}

#[test]
fn tool_calls_come_out_whole_with_their_exact_text() {
    let (units, warnings) = read(&stream(
        &[
            r#"{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"read","arguments":""}}]}"#,
            r#"{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"now","arguments":""}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"row\": 90071992547"}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"40993, \"x\": 1.50}"}}]}"#,
        ],
        "stop",
    ));
    let message = message(&units);
    let calls: Vec<_> = message
        .tool_calls
        .iter()
        .map(|c| (c.id.as_str(), c.name.as_str(), c.input.as_str()))
        .collect();
    assert_eq!(
        calls,
        [("a", "read", r#"{"row": 9007199254740993, "x": 1.50}"#), ("b", "now", "{}")]
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    let deltas = units.iter().filter(
        |u| matches!(u, Unit::ToolInputDelta { index: 0, name: Some(n), .. } if n == "read"),
    );
    assert_eq!(deltas.count(), 2, "the empty pieces are not shown");
}

#[test]
fn a_truncated_call_is_reported_and_never_runs() {
    let piece = r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"pay","arguments":"{\"amount\": 1"}}]}"#;
    let (units, warnings) = read(&stream(&[piece], "length"));
    let message = message(&units);
    assert!(message.tool_calls.is_empty());
    assert_eq!(message.invalid_calls[0].reason, InvalidReason::Truncated);
    assert_eq!(warnings, [Warning { kind: WarningKind::InvalidCall, times: 1 }]);
}

#[test]
fn loose_pieces_give_one_warning_and_arguments_as_an_object_are_taken_as_text() {
    let (units, warnings) = read(&stream(
        &[
            r#"{"tool_calls":[{"id":"a","function":{"name":"read","arguments":{"n": 1.0}}}]}"#,
            r#"{"tool_calls":[{"id":"b","function":{"name":"read","arguments":"{}"}}]}"#,
        ],
        "tool_calls",
    ));
    let inputs: Vec<_> = message(&units).tool_calls.iter().map(|c| c.input.as_str()).collect();
    assert_eq!(inputs, [r#"{"n": 1.0}"#, "{}"]);
    let kinds: Vec<_> = warnings.iter().map(|w| (w.kind, w.times)).collect();
    assert_eq!(kinds, [(WarningKind::ArgumentsNotText, 1), (WarningKind::LooseToolCalls, 1)]);
}

#[test]
fn reasoning_is_kept_apart_and_can_be_switched_off() {
    let body = stream(
        &[
            r#"{"reasoning_content":"hm","reasoning":"hm"}"#,
            r#"{"reasoning":" so"}"#,
            r#"{"content":"ok"}"#,
        ],
        "stop",
    );
    let (units, _) = read(&body);
    assert_eq!(
        (message(&units).reasoning.as_str(), message(&units).text.as_str()),
        ("hm so", "ok")
    );
    let settings = ChatSettings { reasoning_members: Vec::new(), ..ChatSettings::default() };
    let mut reader = ChatReader::new(settings);
    reader.handle_input(body.as_bytes());
    let units: Vec<_> = std::iter::from_fn(|| reader.poll_unit()).collect();
    assert_eq!(message(&units).reasoning, "");
}

#[test]
fn oddities_are_counted_and_do_no_harm() {
    let odd = concat!(
        "data: keep-alive\n\n",
        ": ping\n\n",
        "data: {\"type\":\"ping\"}\n\n",
        "data: 7\n\n",
        "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"other\"}}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n",
    );
    let (units, warnings) = read(&format!(
        "{odd}{}",
        stream(&[r#"{"content":[{"type":"text","text":"ok"}]}"#], "stop")
    ));
    assert_eq!(message(&units).text, "ok");
    let kinds: Vec<_> = warnings.iter().map(|w| (w.kind, w.times)).collect();
    assert_eq!(
        kinds,
        [
            (WarningKind::UnknownEvent, 3),
            (WarningKind::ExtraChoice, 1),
            (WarningKind::PartialUsage, 1)
        ]
    );
}

#[test]
fn a_damaged_event_in_the_middle_is_a_failure_because_part_of_the_answer_is_lost() {
    let (units, _) = read(&format!("data: {{\"choices\":[{{\n\n{V24}"));
    assert_eq!(error(&units).kind.as_deref(), Some("malformed_stream"));
}

#[test]
fn the_bounds_are_kept_and_named() {
    let settings = ChatSettings { max_message: 10, max_calls: 1, ..ChatSettings::default() };
    let long = stream(&[r#"{"content":"0123456789a"}"#], "stop");
    let two = stream(&[r#"{"tool_calls":[{"index":0,"id":"a"},{"index":1,"id":"b"}]}"#], "stop");
    for (body, limit) in [(long, "max_message"), (two, "max_calls")] {
        let mut reader = ChatReader::new(settings.clone());
        reader.handle_input(body.as_bytes());
        let units: Vec<_> = std::iter::from_fn(|| reader.poll_unit()).collect();
        let error = error(&units);
        assert!(error.message.contains(limit), "{error}");
        assert_eq!(error.kind.as_deref(), Some("limit"));
    }
}

#[test]
fn an_answer_that_is_not_streamed_gives_the_same_units() {
    let body = r#"{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hi","tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"p\":1}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    let (units, warnings) = read_whole(body.as_bytes(), &ChatSettings::default());
    assert_eq!(message(&units).tool_calls[0].input.as_str(), "{\"p\":1}");
    assert_eq!(message(&units).text, "Hi");
    assert!(
        matches!(units.last(), Some(Unit::StepFinished { usage: Some(u), .. }) if u.output == 2)
    );
    assert!(warnings.is_empty(), "calls without an index are as they should be here");
    let (units, _) = read_whole(b"<html>sign in</html>", &ChatSettings::default());
    error(&units);
}

fn any_stream() -> impl Strategy<Value = String> {
    let event = prop_oneof![
        "[a-zé\u{1F600} ]{0,6}".prop_map(|t| format!("{{\"choices\":[{{\"delta\":{{\"content\":\"{t}\"}}}}]}}")),
        (0_u8..3, "[ab]?", "(read)?", "[{}:1 ]{0,4}").prop_map(|(i, id, name, args)| format!(
            "{{\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"index\":{i},\"id\":\"{id}\",\"function\":{{\"name\":\"{name}\",\"arguments\":\"{args}\"}}}}]}}}}]}}"
        )),
        Just("{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}".to_owned()),
        Just("{\"error\":\"boom\"}".to_owned()),
        Just("{\"choices\"".to_owned()),
        Just("[DONE]".to_owned()),
    ];
    let events = prop::collection::vec(
        (event, "(: c|event: x|)", prop::sample::select(vec!["\n", "\r\n", "\r"])),
        0..12,
    );
    (events, 0_usize..8).prop_map(|(events, cut)| {
        let mut body: String = events
            .iter()
            .map(|(data, line, end)| format!("{line}{end}data: {data}{end}{end}"))
            .collect();
        let mut end = body.len().saturating_sub(cut);
        while !body.is_char_boundary(end) {
            end -= 1;
        }
        body.truncate(end);
        body
    })
}

proptest! {
    #[test]
    fn every_cut_of_the_bytes_gives_the_same_units(body in any_stream(), size in 1_usize..40) {
        let whole = read(&body);
        prop_assert_eq!(&read_chunks(body.as_bytes().chunks(size)), &whole);
        prop_assert_eq!(&read_chunks(body.as_bytes().chunks(1)), &whole);
    }

    #[test]
    fn exactly_one_end_comes_and_a_message_only_before_a_finish(body in any_stream()) {
        let (units, _) = read(&body);
        let ends = units.iter().filter(|u| matches!(u, Unit::Error(_) | Unit::StepFinished { .. })).count();
        prop_assert_eq!(ends, 1);
        let message = units.iter().position(|u| matches!(u, Unit::AssistantMessage(_)));
        let finish = units.iter().position(|u| matches!(u, Unit::StepFinished { .. }));
        prop_assert_eq!(message.map(|at| at + 1), finish);
    }
}
