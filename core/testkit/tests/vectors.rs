//! The shipped cases pass, and no case passes once what it expects is changed.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use broca_testkit::spoken::Through;
use broca_testkit::vectors::{Bridge, Core, Report, Selection, play_text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PLAYED: [&str; 3] = ["rpc_stream", "dispatch_loop", "sse"];

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/reports.jsonl")
}

fn cases() -> Vec<Value> {
    let read = |path| std::fs::read_to_string(path).unwrap();
    let text = read(shipped()) + &read(shipped().with_file_name("steps.jsonl"));
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|case| PLAYED.contains(&case["kind"].as_str().unwrap())).collect()
}

fn case(id: &str) -> Value {
    cases().into_iter().find(|case| case["id"] == id).unwrap()
}

fn play(case: &Value) -> Report {
    play_text("test", &case.to_string(), &Selection::default(), &mut Core).unwrap()
}

fn passes(case: &Value) -> bool {
    let report = play(case);
    report.failures.is_empty() && report.passed == 1
}

/// The places of all leaves of a value.
fn leaves(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, value) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                leaves(value, &format!("{at}/{name}"), out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (i, value) in items.iter().enumerate() {
                leaves(value, &format!("{at}/{i}"), out);
            }
        }
        _ => out.push(at.to_owned()),
    }
}

/// Another value of the same type.
fn flipped(at: &str, value: &Value) -> Value {
    match value {
        Value::Bool(truth) => json!(!truth),
        // A bound is broken from below, anything else by any other number.
        Value::Number(_) if at.ends_with("within_ms") => json!(1),
        Value::Number(number) => json!(number.as_i64().map_or(0, |n| n + 1)),
        Value::String(text) if at.ends_with("_hex") => json!(format!("{text}20")),
        Value::String(text) => json!(format!("{text}x")),
        Value::Array(_) => json!(["x"]),
        Value::Object(_) => json!({"x": 1}),
        Value::Null => json!("x"),
    }
}

#[test]
fn the_shipped_cases_pass() {
    let text = std::fs::read_to_string(shipped()).unwrap();
    let kinds = PLAYED.map(str::to_owned).to_vec();
    let selection = Selection { kinds };
    let report = play_text("reports.jsonl", &text, &selection, &mut Core).unwrap();
    assert_eq!(play_text("reports.jsonl", &text, &selection, &mut Bridge).unwrap(), report);
    assert!(report.failures.is_empty(), "{report}");
    // One of them is about a vendor whose reader is not built; the other kinds are not selected.
    assert_eq!((report.passed, report.skipped), (19, 6), "{report}");
    assert_eq!(report.notes.len(), 1, "{report}");

    let text = std::fs::read_to_string(shipped().with_file_name("steps.jsonl")).unwrap();
    let report = play_text("steps.jsonl", &text, &selection, &mut Core).unwrap();
    assert_eq!(play_text("steps.jsonl", &text, &selection, &mut Bridge).unwrap(), report);
    assert_eq!((report.passed, report.skipped), (5, 0), "{report}");
}

#[test]
fn no_case_passes_with_any_one_expectation_changed() {
    let mut changed = 0;
    for case in cases() {
        if !passes(&case) {
            continue;
        }
        let mut places = Vec::new();
        leaves(&case["expect"], "/expect", &mut places);
        // What the application says next goes in as well as out.
        places.retain(|at| !at.ends_with("next_send_text"));
        for at in places {
            let mut broken = case.clone();
            let value = broken.pointer_mut(&at).unwrap();
            *value = flipped(&at, value);
            assert!(!passes(&broken), "{} passes with {at} changed", case["id"]);
            changed += 1;
        }
    }
    assert!(changed > 100, "{changed} expectations were changed");
}

#[test]
fn no_case_passes_with_an_element_of_an_expected_list_too_many_or_too_few() {
    for case in cases() {
        let Some(lists) = case["expect"].as_object().filter(|_| passes(&case)) else { continue };
        for (name, list) in lists.iter().filter_map(|(n, v)| v.as_array().map(|list| (n, list))) {
            if name == "not_answered" {
                continue;
            }
            for change in [-1, 1] {
                let mut list = list.clone();
                match change {
                    1 => list.push(json!({"event": "evt_none", "tool_use_id": "tu_none"})),
                    _ if list.is_empty() => continue,
                    _ => drop(list.pop()),
                }
                let mut broken = case.clone();
                broken["expect"][name] = list.into();
                assert!(!passes(&broken), "{} passes with {name} changed by {change}", case["id"]);
            }
        }
    }
}

#[test]
fn a_member_nobody_knows_fails_the_case_wherever_it_stands() {
    for id in ["V-01", "V-09", "V-12", "V-14", "V-16", "V-17", "V-24"] {
        let case = case(id);
        let mut places = vec![String::new()];
        for part in ["feed", "expect"] {
            leaves(&case[part], &format!("/{part}"), &mut places);
        }
        let owners = places.iter().filter_map(|at| at.rsplit_once('/').map(|(owner, _)| owner));
        let mut owners: Vec<&str> = owners.collect();
        owners.push("");
        owners.sort_unstable();
        owners.dedup();
        for owner in owners {
            // Values that are data, not instructions, may hold anything.
            let data = ["/input", "/payload", "/input_schema", "/assistant/", "/params"];
            if data.iter().any(|part| owner.contains(part)) {
                continue;
            }
            let mut broken = case.clone();
            let Some(Value::Object(members)) = broken.pointer_mut(owner) else { continue };
            members.insert("unheard_of".to_owned(), json!(1));
            assert!(!passes(&broken), "{id} passes with a member unknown in {owner:?}");
        }
    }
}

#[test]
fn another_request_id_of_any_type_is_played_alike() {
    for id in [json!(1), json!(9), json!(-4), json!(70_000), json!("req-1"), json!(2)] {
        let mut case = case("V-14");
        case["kind"] = json!("rpc_stream");
        let line = json!({"jsonrpc": "2.0", "id": id, "result": {"message": {"role": "assistant", "content": "done"}, "events": []}});
        case["feed"] = json!({"request": {"method": "session.sendMessage", "id": id}, "chunks": [{"text": format!("{line}\n")}], "end": "eof"});
        case["expect"] = json!({"items": [], "outcome": {"result_text": "done"}, "warnings": 0});
        let report = play(&case);
        assert_eq!(report.passed, 1, "{id}: {report}");
        let other =
            json!({"jsonrpc": "2.0", "id": "another", "result": {"message": {"content": "done"}}});
        case["feed"]["chunks"] = json!([{"text": format!("{other}\n")}]);
        case["expect"] =
            json!({"items": [], "outcome": {"error_class": "stream_ended_early"}, "warnings": 1});
        assert_eq!(play(&case).passed, 1, "{id}: {}", play(&case));
    }
}

/// A case of one connection of `session.sendMessage` with these lines.
fn stream(lines: &[Value], feed: &Value, expect: Value) -> Value {
    let chunks: Vec<Value> = lines.iter().map(|l| json!({"text": format!("{l}\n")})).collect();
    let mut whole = json!({"request": {"method": "session.sendMessage", "id": 1}, "chunks": chunks, "end": "eof"});
    for (name, value) in feed.as_object().unwrap() {
        whole[name] = value.clone();
    }
    json!({"id": "X-1", "kind": "rpc_stream", "title": "t", "basis": "proposed", "feed": whole, "expect": expect})
}

#[track_caller]
fn must_pass(case: &Value) {
    let report = play(case);
    assert_eq!(report.passed, 1, "{report}");
}

#[test]
fn errors_of_the_service_limits_of_lines_and_broken_connections_have_their_classes() {
    let event = json!({"jsonrpc": "2.0", "method": "session.event", "params": {"id": "evt_1", "event_type": "x", "payload": {}}});
    let refused = |code: i64, message: &str| json!({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}});
    for (code, message) in [
        (-32020, "turn in progress"),
        (-32603, "no"),
        (-32001, "register first"),
        (-32000, "session is closed, not open"),
    ] {
        let expect = json!({"items": [{"event": "evt_1"}], "outcome": {"error_class": "rpc_error", "code": code}});
        // An answer before any event of the turn may be tried again after registering; the same words come back.
        let lines = if code == -32001 {
            vec![refused(code, message)]
        } else {
            vec![event.clone(), refused(code, message)]
        };
        let expect = if code == -32001 { json!({"outcome": expect["outcome"]}) } else { expect };
        must_pass(&stream(&lines, &json!({}), expect));
    }
    let long =
        json!({"jsonrpc": "2.0", "id": 1, "result": {"message": {"content": "x".repeat(600)}}});
    let expect = json!({"outcome": {"error_class": "line_too_long", "limit": 512}, "items": [{"event": "evt_1"}, {"gap": {"limit": 512}}]});
    must_pass(&stream(&[event.clone(), long], &json!({"max_line_bytes": 512}), expect));
    let expect = json!({"outcome": {"error_class": "stream_ended_early", "last_event_id": "evt_1", "request_may_have_run": true, "auto_resend": false}, "items": [{"event": "evt_1"}]});
    must_pass(&stream(std::slice::from_ref(&event), &json!({"end": "reset"}), expect));
    let done = json!({"jsonrpc": "2.0", "id": 1, "result": {"message": {"content": "ok"}}});
    let expect = json!({"outcome": {"result_text": "ok"}, "items": [{"event": "evt_1"}]});
    for end in ["hold", "reset"] {
        must_pass(&stream(&[event.clone(), done.clone()], &json!({"end": end}), expect.clone()));
    }
    let display =
        |params: Value| json!({"jsonrpc": "2.0", "method": "session.display", "params": params});
    let lines = [
        display(json!({"type": "text_delta", "message_id": "m", "delta": "o"})),
        display(json!({"type": "reasoning_delta", "message_id": "m", "delta": "k"})),
        display(json!({"type": "display_gap", "dropped": 3})),
        done,
    ];
    let items = json!([{"delta": "o"}, {"reasoning_delta": "k"}, {"display_gap": {"dropped": 3}}]);
    let whole =
        stream(&lines, &json!({}), json!({"items": items, "outcome": {"result_text": "ok"}}));
    must_pass(&whole);
    for (at, wrong) in [
        ("/expect/items/1", json!({"text_delta": "k"})),
        ("/expect/items/2/display_gap/dropped", json!(4)),
    ] {
        let mut broken = whole.clone();
        *broken.pointer_mut(at).unwrap() = wrong;
        assert!(!passes(&broken), "passes with {at} changed");
    }
    // Where a case does not speak of them, they are not compared.
    must_pass(&stream(&lines, &json!({}), json!({"items": []})));
}

fn turn(feed: Value, expect: Value) -> Value {
    json!({"id": "X-2", "kind": "dispatch_loop", "title": "t", "basis": "proposed", "feed": feed, "expect": expect})
}

fn call(id: &str, name: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": {"n": 1}, "dispatch": "client"})
}

#[test]
fn turns_that_are_late_twice_the_same_or_refused_are_told_apart() {
    let late = turn(
        json!({"tools": {"slow": {"returns": "S", "after_ms": 500_000}}, "assistant": [call("a", "slow")], "turn_timeout_ms": 30_000}),
        json!({"tool_results_in_order": [{"tool_use_id": "a", "is_error": true, "state": "timed_out_may_have_run"}], "one_continuation": true, "loop_continues": true}),
    );
    must_pass(&late);
    let twice = turn(
        json!({"tools": {"t": {"returns": "T"}}, "assistant": [call("a", "t"), call("a", "t")]}),
        json!({"handler_runs": {"a": 0}, "outcome": {"error_class": "protocol"}, "one_continuation": false, "loop_continues": false}),
    );
    must_pass(&twice);
    let refused = turn(
        json!({"tools": {"t": {"echo_input": true}}, "assistant": [call("a", "t"), call("b", "t"), call("c", "t")],
               "approvals": {"a": {"deny": {"reason": "not today"}}, "b": "allow", "c": {"no_answer": true}}}),
        json!({"handler_runs": {"a": 0, "b": 1, "c": 0}, "a": {"denied_reason": "not today", "result_is_error": true, "state": "not_started"},
               "c": {"state": "not_started"},
               "tool_results_in_order": [{"tool_use_id": "a", "is_error": true}, {"tool_use_id": "b", "content": "{\"n\":1}", "state": "done"}, {"tool_use_id": "c", "is_error": true}]}),
    );
    must_pass(&refused);
    let ordered = turn(
        json!({"tools": {"first": {"returns": "1", "after_ms": 40}, "second": {"returns": "2", "starts_after": "first"}}, "assistant": [call("b", "second"), call("a", "first")]}),
        json!({"tool_results_in_order": [{"tool_use_id": "b", "content": "2"}, {"tool_use_id": "a", "content": "1"}], "handler_runs": {"a": 1, "b": 1}}),
    );
    assert_eq!(play(&ordered).passed, 1, "{}", play(&ordered));
}

#[test]
fn the_program_counts_last_and_its_status_tells() {
    let program = env!("CARGO_BIN_EXE_vectors");
    let run = |arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let shipped = shipped();
    let shipped = shipped.to_str().unwrap();
    let (status, text) = run(&["--kind", "rpc_stream", "--kind", "dispatch_loop", shipped]);
    assert_eq!((status, text.as_str()), (Some(0), "17 passed, 0 failed, 8 skipped\n"));
    // Without a selection, kinds that are not built fail in plain sight.
    let (status, text) = run(&[shipped]);
    assert_eq!(status, Some(1));
    assert!(text.ends_with("\n19 passed, 5 failed, 1 skipped\n"), "{text}");
    assert!(text.contains("V-20: kind \"ipc\""), "{text}");
    assert_eq!(run(&[]).0, Some(2));
    assert_eq!(run(&["--king", "x", shipped]).0, Some(2));
    assert_eq!(run(&["no-such-file.jsonl"]).0, Some(2));
}

/// `--through` plays what is played here, with the same counts; what the child cannot do names the case.
#[test]
fn a_child_plays_every_case_and_is_named_when_it_dies() {
    let program = env!("CARGO_BIN_EXE_vectors");
    let child = env!("CARGO_BIN_EXE_vectors-child");
    let run = |arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text, String::from_utf8(output.stderr).unwrap())
    };
    let shipped = shipped();
    let shipped = shipped.to_str().unwrap();
    let here = run(&[shipped]);
    let there = run(&["--through", child, shipped]);
    assert_eq!(there, here);
    assert!(there.1.ends_with("\n19 passed, 5 failed, 1 skipped\n"), "{}", there.1);

    let (status, text, why) = run(&["--through", "false", "--kind", "sse", shipped]);
    assert_eq!((status, text.as_str()), (Some(2), ""));
    assert!(why.contains("V-24: the child that plays was asked"), "{why}");
    assert!(why.contains("exit status: 1") || why.contains("pipes broke"), "{why}");
    // It says back whatever it is told.
    let (status, _, why) = run(&["--through", "cat", "--kind", "rpc_stream", shipped]);
    assert_eq!(status, Some(2));
    assert!(why.contains("there is no answer \"new\""), "{why}");
    assert_eq!(run(&["--through", "no-such-program", shipped]).0, Some(2));
    assert_eq!(run(&["--through"]).0, Some(2));
}

#[test]
fn a_child_that_does_not_answer_is_ended() {
    let mut silent = Through::start_with("sleep 60", Duration::from_millis(300)).unwrap();
    let lost = play_text("t", &case("V-14").to_string(), &Selection::default(), &mut silent);
    let why = lost.unwrap_err().to_string();
    assert!(why.starts_with("V-14: ") && why.contains("did not answer in time"), "{why}");
}

#[test]
fn an_event_of_three_mebibytes_goes_through_the_pipes() {
    let event = json!({"jsonrpc": "2.0", "method": "session.event", "params": {
        "id": "evt_1", "event_type": "x", "payload": {"content": "x".repeat(3 << 20)}}});
    let done = json!({"jsonrpc": "2.0", "id": 1, "result": {"message": {"content": "ok"}}});
    let items = json!([{"event": "evt_1", "payload_content_len": 3 << 20}]);
    let mut case =
        stream(&[], &json!({}), json!({"items": items, "outcome": {"result_text": "ok"}}));
    // Its bytes come in reads of some size even where others come one by one.
    let line = event.to_string();
    let at = line.find("xxx").unwrap();
    case["feed"]["chunks"] = json!([
        {"text": line[..at]}, {"fill": "78", "times": 3 << 20}, {"text": format!("{}\n", &line[at + (3 << 20)..])},
        {"text": format!("{done}\n")}
    ]);
    let mut child = Through::start(env!("CARGO_BIN_EXE_vectors-child")).unwrap();
    let report = play_text("t", &case.to_string(), &Selection::default(), &mut child).unwrap();
    assert_eq!(report.passed, 1, "{report}");
    child.finish().unwrap();
}
