//! Whole turns: order, shapes, fallback, limits, scoping (session service §5.3, §6, §9.1, §20).

use crate::harness::*;
use serde_json::{Value, json};

const TEXT_TURN: [&str; 4] =
    ["client.message.send", "provider.request", "provider.response", "server.message.send"];

#[tokio::test]
async fn a_text_turn_streams_everything_but_its_own_message_and_answers_with_all_of_it() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    world.main.say("hello");
    let mut stream = driver.send("hi").await;
    assert!(stream.stream.is_chunked());
    let mut lines = stream.rest().await;
    let terminal = lines.pop().unwrap();
    assert_eq!(types(&lines), TEXT_TURN[1..]);
    let result = &terminal["result"];
    assert_eq!(terminal["id"], 7);
    assert_eq!(
        result["message"],
        json!({"role":"assistant","content":[{"type":"text","text":"hello"}]})
    );
    let events = result["events"].as_array().unwrap();
    assert_eq!(types(events), TEXT_TURN);
    let streamed: Vec<&Value> = lines.iter().map(|line| &line["params"]).collect();
    assert_eq!(events[1..].iter().collect::<Vec<_>>(), streamed);
    assert_eq!(events[0]["payload"], json!({"role":"user","content":"hi"}));
    let request = &events[1]["payload"];
    assert_eq!(
        *request,
        json!({"attempt":0,"kind":"primary","provider":"main","base_url":"stub://main",
               "model":"stub-1","max_tokens":64,
               "messages":[{"role":"user","content":"hi"}],
               "tools":[{"name":"read","description":"d","input_schema":{"type":"object"}},
                        request["tools"][1]]})
    );
    assert_eq!(
        events[2]["payload"],
        json!({"attempt":0,"kind":"primary","provider":"main","ok":true,"status":200,
               "body":{"stub":true},"usage":{"input_tokens":3,"output_tokens":2}})
    );
    assert!(events.iter().all(|event| event["client_key_id"] == json!(driver.key_id)));
}

#[tokio::test]
async fn the_log_read_back_is_what_was_shown_live() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    let mut watcher = driver.subscribe(None).await;
    watcher.stays_silent().await;
    world.main.call(&[("t1", "clock"), ("t2", "nope")]);
    world.main.say("round two");
    driver.ask("first").await;
    world.main.call(&[("t3", "read")]);
    driver.ask("second").await;
    driver.results(&["t3"]).await.rest().await;
    driver.close().await;
    let live: Vec<Value> =
        watcher.rest().await.into_iter().map(|line| line["params"].clone()).collect();
    let log = driver.log().await;
    assert_eq!(live, log[2..]);
    assert_eq!(live.last().unwrap()["event_type"], "session.close");
    // Byte for byte, so that replay and history cannot be told from the live feed.
    let page = driver.get("/events?limit=200").await.text();
    let mut replay = driver.subscribe(Some("")).await;
    let replayed = replay.rest().await;
    assert_eq!(replayed.len(), log.len());
    for event in &log {
        let request = event["payload"]["messages"].as_array();
        assert!(request.is_none_or(|messages| !messages.is_empty()));
        assert!(page.contains(event["id"].as_str().unwrap()));
    }
}

#[tokio::test]
async fn the_history_of_later_turns_holds_messages_and_no_inner_exchanges() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    world.main.call(&[("t1", "clock")]);
    world.main.say("it is late");
    driver.ask("time?").await;
    world.main.say("bye");
    driver.ask(json!([{"type":"text","text":"thanks"}])).await;
    let inner = world.main.messages(1);
    assert_eq!(inner.as_array().unwrap().len(), 3);
    assert_eq!(
        inner[2]["content"][0]["content"],
        json!([{"type":"text","text":"2026-07-06T18:26:10.500Z"}])
    );
    assert_eq!(
        world.main.messages(2),
        json!([{"role":"user","content":"time?"},
               {"role":"assistant","content":[{"type":"text","text":"it is late"}]},
               {"role":"user","content":[{"type":"text","text":"thanks"}]}])
    );
}

#[tokio::test]
async fn a_server_tool_runs_within_the_call() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    world.main.call(&[("t1", "clock")]);
    world.main.say("done");
    let terminal = driver.ask("time?").await;
    let events = terminal["result"]["events"].as_array().unwrap().clone();
    assert_eq!(
        types(&events),
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
            "server.message.send"
        ]
    );
    assert_eq!(
        events[3]["payload"],
        json!({"id":"t1","name":"clock","input":{"q":1},"dispatch":"mcp","server_name":"builtin"})
    );
    assert_eq!(events[6]["payload"]["is_error"], false);
    assert_eq!(events[6]["payload"]["tool_use_id"], "t1");
}

#[tokio::test]
async fn a_failed_primary_falls_back_and_a_missing_fallback_is_skipped() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    world.main.fail(500);
    world.spare.say("from the spare");
    let terminal = driver.ask("x").await;
    let events = terminal["result"]["events"].as_array().unwrap().clone();
    assert_eq!(
        types(&events),
        [
            "client.message.send",
            "provider.request",
            "provider.response",
            "session.error",
            "provider.request",
            "provider.response",
            "server.message.send"
        ]
    );
    assert_eq!(
        events[2]["payload"],
        json!({"attempt":0,"kind":"primary","provider":"main","ok":false,"status":500,
               "error":"provider returned HTTP 500","body":"sorry"})
    );
    assert_eq!(
        events[3]["payload"],
        json!({"reason":"provider_call_failed","provider":"main","detail":"provider returned HTTP 500"})
    );
    assert_eq!(events[4]["payload"]["kind"], "fallback");
    assert_eq!(events[4]["payload"]["attempt"], 1);
    assert!(driver.ask("again").await["result"].is_object());
}

#[tokio::test]
async fn exhaustion_is_a_result_and_ends_the_session() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let mut watcher = driver.subscribe(None).await;
    world.main.fail(500);
    world.spare.fail(503);
    let terminal = driver.ask("x").await;
    let text = "The provider is currently unavailable.";
    assert_eq!(
        terminal["result"]["message"],
        json!({"role":"assistant","content":[{"type":"text","text":text}]})
    );
    let events = terminal["result"]["events"].as_array().unwrap();
    let last = &events.last().unwrap()["payload"];
    assert_eq!(*last, json!({"reason":"all_providers_failed","attempts":2}));
    let error = driver.ask("again").await["error"].clone();
    assert_eq!(error, json!({"code": -32000, "message": "session is error, not open"}));
    assert_eq!(types(&watcher.rest().await).last().unwrap(), "session.error");
    let close = driver.close().await;
    assert_eq!((close.status, &close.json()["detail"]), (409, &json!("session is already error")));
}

#[tokio::test]
async fn eight_rounds_are_the_limit() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    for i in 0..9 {
        world.main.call(&[(&format!("t{i}"), "clock")]);
    }
    let terminal = driver.ask("x").await;
    assert_eq!(world.main.calls(), 8);
    let events = terminal["result"]["events"].as_array().unwrap();
    let last = &events.last().unwrap()["payload"];
    assert_eq!(*last, json!({"reason":"loop_limit","max_iterations":8}));
    assert_eq!(driver.ask("x").await["error"]["message"], "session is error, not open");
}

#[tokio::test]
async fn each_driver_brings_its_own_tools_and_every_event_names_who_acted() {
    let world = World::new().await;
    let a = world.driver(&["only_a"]).await;
    let b = world.join(&a, &["only_b"]).await;
    b.register().await;
    a.ask("from a").await;
    b.ask("from b").await;
    assert_eq!(world.main.tools(0), ["only_a", "clock"]);
    assert_eq!(world.main.tools(1), ["only_b", "clock"]);
    let log = a.log().await;
    for event in &log[log.len() - 4..] {
        assert_eq!(event["client_key_id"], json!(b.key_id));
    }
    b.call("session.updateClientTools", json!({"tools":[{"name":"new_b"}]})).await;
    b.ask("again").await;
    assert_eq!(world.main.tools(2), ["new_b", "clock"]);
    let drivers = a.get("/participants").await.json();
    let mut expected = [a.key_id.clone(), b.key_id.clone()];
    expected.sort();
    assert_eq!(drivers, json!({"drivers": expected}));
}

#[tokio::test]
async fn registering_again_logs_nothing_and_subscribing_is_not_logged_at_all() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let before = driver.log().await.len();
    driver.register().await;
    let _watching = driver.subscribe(None).await;
    driver.call("session.unsubscribe", json!({})).await;
    assert_eq!(driver.log().await.len(), before);
}

#[tokio::test]
async fn the_caller_sees_what_others_do_while_its_turn_runs() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let release = world.main.hold("done");
    let mut stream = driver.send("x").await;
    world.main.was_asked(1).await;
    let guest = world.join(&driver, &[]).await;
    guest.register().await;
    release.send(()).unwrap();
    let mut lines = stream.rest().await;
    let terminal = lines.pop().unwrap();
    assert_eq!(
        types(&lines),
        [
            "provider.request",
            "session.join",
            "session.driver.register",
            "provider.response",
            "server.message.send"
        ]
    );
    assert_eq!(types(terminal["result"]["events"].as_array().unwrap()), TEXT_TURN);
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_end_its_turn() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let mut watcher = driver.subscribe(None).await;
    let release = world.main.hold("still here");
    let stream = driver.send("x").await;
    world.main.was_asked(1).await;
    drop(stream);
    tokio::time::sleep(SILENCE).await;
    release.send(()).unwrap();
    let message = watcher.until("server.message.send").await;
    assert_eq!(message["params"]["payload"]["content"][0]["text"], "still here");
    assert!(driver.ask("next").await["result"].is_object());
}

#[tokio::test]
async fn the_profile_that_is_gone_ends_the_session_with_the_next_message() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let store = world.service.store();
    let mut profile = store.profile(&world.profile).await.unwrap().unwrap();
    profile.deleted = true;
    store.put_profile(profile, broca_server::store::WallTime(0)).await.unwrap();
    let error = driver.ask("x").await["error"].clone();
    let message = "profile_unavailable: the profile bound to this session is no longer available";
    assert_eq!(error, json!({"code": -32000, "message": message}));
    let log = driver.log().await;
    let payload = &log.last().unwrap()["payload"];
    assert_eq!(*payload, json!({"reason":"profile_unavailable","profile_id":world.profile}));
    assert_eq!(driver.ask("x").await["error"]["message"], "session is error, not open");
}

#[tokio::test]
async fn content_is_passed_on_whatever_it_is() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    for content in [json!(null), json!(5), json!({"a": [1.5]}), json!([1, "x"]), json!("")] {
        let terminal = driver.ask(content.clone()).await;
        let sent = &terminal["result"]["events"][0]["payload"]["content"];
        assert_eq!(*sent, content);
    }
}

#[tokio::test]
async fn the_same_call_id_twice_is_a_failed_attempt_and_no_call_is_logged() {
    let world = World::new().await;
    let driver = world.driver(&["a"]).await;
    world.main.call(&[("t", "a"), ("t", "a")]);
    world.spare.say("fine");
    let terminal = driver.ask("x").await;
    let kinds = types(terminal["result"]["events"].as_array().unwrap());
    assert!(!kinds.contains(&"tool.call".to_owned()), "{kinds:?}");
    assert_eq!(terminal["result"]["message"]["content"][0]["text"], "fine");
}

#[tokio::test]
async fn blocks_beyond_the_plain_contract_are_hidden_from_the_message() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    world.main.blocks(json!([{"type":"thinking","thinking":"hm"},{"type":"text","text":"a"}]));
    let terminal = driver.ask("x").await;
    let content = &terminal["result"]["message"]["content"];
    assert_eq!(*content, json!([{"type":"text","text":"a"}]));
}
