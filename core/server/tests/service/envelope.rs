//! The envelope of `/rpc`, method admission, and requests without an id (session service §4, §5).

use crate::harness::*;
use serde_json::{Value, json};

#[tokio::test]
async fn every_envelope_check_answers_in_its_order_with_its_text() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let version = "Invalid Request: missing or wrong \"jsonrpc\" version";
    let method = "Invalid Request: missing \"method\"";
    let rows: &[(&str, Value, i64, &str)] = &[
        ("{", Value::Null, -32700, "Parse error"),
        ("", Value::Null, -32700, "Parse error"),
        ("\u{7f}", Value::Null, -32700, "Parse error"),
        ("[]", Value::Null, -32600, "Invalid Request: batch requests are not supported"),
        (
            r#"[{"jsonrpc":"2.0","id":1,"method":"session.registerDriver"}]"#,
            Value::Null,
            -32600,
            "Invalid Request: batch requests are not supported",
        ),
        ("5", Value::Null, -32600, "Invalid Request"),
        ("\"x\"", Value::Null, -32600, "Invalid Request"),
        ("null", Value::Null, -32600, "Invalid Request"),
        (r#"{"id":1}"#, json!(1), -32600, version),
        (r#"{"id":1,"jsonrpc":2.0,"method":"m"}"#, json!(1), -32600, version),
        (r#"{"id":1,"jsonrpc":"1.0","method":"m"}"#, json!(1), -32600, version),
        (r#"{"id":2,"jsonrpc":"2.0"}"#, json!(2), -32600, method),
        (r#"{"id":2,"jsonrpc":"2.0","method":7}"#, json!(2), -32600, method),
        (
            r#"{"id":"s","jsonrpc":"2.0","method":"session.nope"}"#,
            json!("s"),
            -32601,
            "Method not found: session.nope",
        ),
        (
            r#"{"id":{"a":[1]},"jsonrpc":"2.0","method":"session.cancel"}"#,
            json!({"a": [1]}),
            -32601,
            "Method not found: session.cancel",
        ),
        (r#"{"id":null,"jsonrpc":"2.0","method":"x"}"#, Value::Null, -32601, "Method not found: x"),
    ];
    for (body, id, code, message) in rows {
        let answer = driver.raw(body).await;
        assert_eq!(answer.status, 200, "{body}");
        assert_eq!(answer.header("content-type"), Some("application/x-ndjson"), "{body}");
        assert_eq!(answer.header("content-length"), Some(&*answer.body.len().to_string()));
        let expected = json!({"jsonrpc":"2.0","id":id,"error":{"code":code,"message":message}});
        assert_eq!(answer.lines(), [expected], "{body}");
    }
}

#[tokio::test]
async fn errors_of_methods_carry_their_code_and_text_in_the_order_driver_state_params() {
    let world = World::new().await;
    let observer = world.open(&[]).await;
    let driver = world.join(&observer, &[]).await;
    driver.register().await;
    let not_driver =
        |method: &str| (-32001, format!("call session.registerDriver before {method}"));
    for method in [
        "session.sendMessage",
        "session.compact",
        "session.startRemoteSandbox",
        "session.stopRemoteSandbox",
        "session.execRemoteSandbox",
        "session.reportLocalSandbox",
        "session.reportLocalSubagent",
        "session.cancelSubagent",
        "session.updateClientTools",
    ] {
        let error = observer.call(method, json!({})).await["error"].clone();
        let (code, message) = not_driver(method);
        assert_eq!(error, json!({"code": code, "message": message}), "{method}");
    }
    let tools = |name: &str| json!({"tools": [{"name": name}]});
    let rows = [
        ("session.sendMessage", json!({}), -32602, "Invalid params: missing \"message\""),
        (
            "session.sendMessage",
            json!({"message": {"role": "user"}}),
            -32602,
            "Invalid params: missing field `content`",
        ),
        (
            "session.sendMessage",
            json!({"message": {"role": 5, "content": "x"}}),
            -32602,
            "Invalid params: \"role\" must be a string",
        ),
        (
            "session.compact",
            json!({}),
            -32000,
            "not implemented: session.compact is not built into this service yet",
        ),
        (
            "session.startRemoteSandbox",
            json!({"image": "x"}),
            -32011,
            "sandbox_image_not_allowed: image \"x\" is not in this session profile's available_sandboxes",
        ),
        (
            "session.stopRemoteSandbox",
            json!({}),
            -32013,
            "sandbox_not_running: no remote sandbox is running for this session",
        ),
        (
            "session.execRemoteSandbox",
            json!({"command": "ls"}),
            -32013,
            "sandbox_not_running: no remote sandbox is running for this session",
        ),
        (
            "session.cancelSubagent",
            json!({"subagent_id": "sba_1"}),
            -32014,
            "subagent_not_found: no tracked subagent \"sba_1\" for this session",
        ),
        (
            "session.updateClientTools",
            tools("remote_subagent_status"),
            -32602,
            "Invalid params: remote_subagent_status is reserved",
        ),
        (
            "session.reportLocalSandbox",
            json!({"state": "odd"}),
            -32602,
            "Invalid params: \"state\" must be \"running\", \"stopped\", or \"error\"",
        ),
        (
            "session.reportLocalSubagent",
            json!({"state":"completed","subagent_id":"s","harness":"h","model":"m","exit_code":"0"}),
            -32602,
            "Invalid params: \"exit_code\" must be an integer",
        ),
    ];
    for (method, params, code, message) in rows {
        let error = driver.call(method, params).await["error"].clone();
        assert_eq!(error, json!({"code": code, "message": message}), "{method}");
    }
}

#[tokio::test]
async fn after_a_close_the_driver_gate_speaks_and_after_an_error_the_state() {
    let world = World::new().await;
    let closed = world.driver(&[]).await;
    assert_eq!(closed.close().await.status, 200);
    assert_eq!(closed.ask("x").await["error"]["code"], -32001);
    let register = closed.call("session.registerDriver", json!({})).await;
    assert_eq!(
        register["error"],
        json!({"code": -32000, "message": "session is closed, not open"})
    );
    let failed = world.driver(&[]).await;
    world.main.fail(500);
    world.spare.fail(503);
    assert!(failed.ask("x").await["result"].is_object());
    let register = failed.call("session.registerDriver", json!({})).await;
    assert_eq!(register["error"], json!({"code": -32000, "message": "session is error, not open"}));
}

#[tokio::test]
async fn a_failure_unregisters_nobody_and_registers_nobody_either() {
    let world = World::new().await;
    let failed = world.driver(&[]).await;
    let observer = world.join(&failed, &[]).await;
    world.main.fail(500);
    world.spare.fail(503);
    failed.ask("x").await;
    assert_eq!(failed.ask("y").await["error"]["code"], -32000);
    assert_eq!(observer.ask("y").await["error"]["code"], -32001);
    let params = json!({"state": "running", "unsandboxed": true});
    let report = observer.call("session.reportLocalSandbox", params).await;
    assert_eq!(report["error"]["code"], -32001);
    let drivers = failed.get("/participants").await;
    assert_eq!(drivers.json()["drivers"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_profile_that_allows_only_some_tools_refuses_others_on_update() {
    let world = World::new().await;
    let strict = broca_server::NewProfile {
        allowed_tools: vec!["clock".to_owned()],
        ..broca_server::NewProfile::permissive("strict", "main")
    };
    let profile = world.service.create_profile(strict).await.unwrap();
    let key = world.service.create_client_key("k", &profile).await.unwrap();
    let opened = world.post("/api/v1/sessions", key.key.expose(), &json!({})).await.json();
    let session_key = opened["session_key"].as_str().unwrap();
    let path = format!("/api/v1/sessions/{}/rpc", opened["session_id"].as_str().unwrap());
    let call = |method: &str, params: Value| {
        let body = json!({"jsonrpc":"2.0","id":1,"method":method,"params":params});
        let (path, key) = (path.clone(), session_key.to_owned());
        let world = &world;
        async move { world.post(&path, &key, &body).await.lines().pop().unwrap() }
    };
    call("session.registerDriver", json!({})).await;
    let refused = call("session.updateClientTools", json!({"tools":[{"name":"evil"}]})).await;
    let message = "tool_not_allowed: tool \"evil\" is not in the profile's allowlist";
    assert_eq!(refused["error"], json!({"code": -32015, "message": message}));
    let done = call("session.updateClientTools", json!({"tools":[{"name":"clock"}]})).await;
    assert_eq!(done["result"], json!({"updated": true}));
}

#[tokio::test]
async fn a_request_without_an_id_has_its_effect_and_no_terminal_line() {
    let world = World::new().await;
    let driver = world.open(&[]).await;
    let answer = driver.raw(r#"{"jsonrpc":"2.0","method":"session.registerDriver"}"#).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
    assert_eq!(driver.log_types().await.last().unwrap(), "session.driver.register");
    let message =
        r#"{"jsonrpc":"2.0","method":"session.sendMessage","params":{"message":{"content":"x"}}}"#;
    let streamed = driver.raw(message).await.lines();
    assert_eq!(types(&streamed), ["provider.request", "provider.response", "server.message.send"]);
    assert!(streamed.iter().all(|line| line["method"] == "session.event"), "{streamed:?}");
    for refused in [
        r#"{"jsonrpc":"2.0","method":"session.nope"}"#,
        r#"{"jsonrpc":"1.0","method":"session.nope"}"#,
        r#"{"jsonrpc":"2.0","method":"session.sendMessage","params":{}}"#,
    ] {
        let answer = driver.raw(refused).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{refused}");
    }
    let batch = driver.raw("[]").await.lines();
    assert_eq!(batch[0]["error"]["code"], -32600);
}

#[tokio::test]
async fn any_json_is_echoed_as_the_id() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    for id in ["9007199254740993", "1.50", "\"a\\u00e9\"", "null", "[1,{}]", "{\"x\":null}"] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"session.unsubscribe","params":{{}}}}"#
        );
        let text = driver.raw(&body).await.text();
        let expected =
            format!("{{\"id\":{id},\"jsonrpc\":\"2.0\",\"result\":{{\"unsubscribed\":true}}}}\n");
        assert_eq!(text, expected);
    }
}

#[tokio::test]
async fn the_content_type_of_a_call_does_not_matter() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let headers = vec![
        ("authorization".to_owned(), format!("bearer {}", driver.session_key)),
        ("Content-Type".to_owned(), "text/plain".to_owned()),
    ];
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"session.unsubscribe"}"#;
    let answer = exchange(world.addr, "POST", &driver.path("/rpc"), &headers, Some(body)).await;
    assert_eq!(answer.lines()[0]["result"], json!({"unsubscribed": true}));
}

#[tokio::test]
async fn reports_are_logged_as_telemetry_even_after_the_session_failed() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    world.main.fail(500);
    world.spare.fail(500);
    driver.ask("x").await;
    let params =
        json!({"state":"running","subagent_id":"s","harness":"h","model":"m","exit_code":null});
    let answer = driver.call("session.reportLocalSubagent", params).await;
    assert_eq!(answer["result"], json!({"reported": true}));
    let params = json!({"state":"running","unsandboxed":true});
    driver.call("session.reportLocalSandbox", params).await;
    let log = driver.log().await;
    let types = types(&log);
    assert_eq!(types[types.len() - 2..], ["session.subagent.running", "session.sandbox.running"]);
    let payload = &log.last().unwrap()["payload"];
    assert_eq!(payload["dispatch"], "local");
    assert_eq!(payload["unsandboxed"], true);
}
