//! System prompts and generation options (feature `options`).

use crate::harness::*;
use serde_json::{Value, json};

const OPTIONS: &str = "options";

/// A message with what else its parameters say; all lines.
async fn say(driver: &Driver, content: impl Into<Value>, more: Value) -> Vec<Value> {
    let mut params = json!({"message": {"role": "user", "content": content.into()}});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    driver.open_stream(OPTIONS, 7, "session.sendMessage", params).await.rest().await
}

fn request(lines: &[Value]) -> Value {
    let is_request = |line: &&Value| line["params"]["event_type"] == "provider.request";
    lines.iter().find(is_request).unwrap()["params"]["payload"].clone()
}

#[tokio::test]
async fn what_is_said_for_the_session_holds_until_a_turn_says_otherwise() {
    let world = World::new().await;
    let body = json!({"system": "be brief", "options": {"temperature": 0.5, "max_tokens": 9}});
    let driver = world.open_with(OPTIONS, &body).await.unwrap();
    let lines = say(&driver, "1", json!({})).await;
    assert_eq!(world.main.generation(0), body);
    let shown = request(&lines);
    assert_eq!((&shown["system"], &shown["options"]), (&body["system"], &body["options"]));
    assert_eq!(shown["max_tokens"], 9);
    say(&driver, "2", json!({"system": null, "options": {"temperature": null, "top_p": 1}})).await;
    assert_eq!(world.main.generation(1), json!({"options": {"top_p": 1, "max_tokens": 9}}));
    // The session's word holds for whoever drives it, and for the next turn again.
    driver.ask("3").await;
    assert_eq!(world.main.generation(2), body);
}

#[tokio::test]
async fn those_who_have_not_asked_see_nothing_of_it_anywhere() {
    let world = World::new().await;
    let body = json!({"system": "hunter2", "options": {"stop": ["hunter2"]}});
    let driver = world.open_with(OPTIONS, &body).await.unwrap();
    let mut watching = driver.subscribe(None).await;
    let mut asking = driver.subscribe_with(OPTIONS, None).await;
    watching.stays_silent().await;
    let plain = driver.send("x").await.rest().await;
    driver.close().await;
    let replayed = driver.subscribe(Some("")).await.rest().await;
    let page = driver.get("/events").await.text();
    for seen in [&plain, &watching.rest().await, &replayed] {
        assert!(!json!(seen).to_string().contains("hunter2"));
        assert_eq!(request(seen)["messages"], json!([{"role": "user", "content": "x"}]));
    }
    assert!(page.contains("provider.request") && !page.contains("hunter2"));
    let asked = request(&asking.rest().await);
    assert_eq!((&asked["system"], &asked["options"]), (&body["system"], &body["options"]));
    let again = driver.subscribe_with(OPTIONS, Some("")).await.rest().await;
    assert_eq!(request(&again), asked);
}

#[tokio::test]
async fn what_a_message_says_holds_to_the_end_of_its_turn_and_a_forced_call_is_made_once() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("c1", "read")]);
    let choice = json!({"tool_choice": {"name": "read"}, "top_p": 0.5});
    say(&driver, "x", json!({"options": choice, "system": "s"})).await;
    world.main.call(&[("s1", "clock")]);
    say(&driver, tool_results(&["c1"]), json!({"options": {"max_tokens": 5}})).await;
    assert_eq!(world.main.generation(0), json!({"options": choice, "system": "s"}));
    let after = json!({"top_p": 0.5, "max_tokens": 5, "tool_choice": "auto"});
    for n in [1, 2] {
        assert_eq!(world.main.generation(n), json!({"options": after, "system": "s"}), "{n}");
    }
    say(&driver, "y", json!({})).await;
    assert_eq!(world.main.generation(3), json!({}));
}

#[tokio::test]
async fn a_message_that_gives_a_paused_turn_up_is_a_turn_of_its_own() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("c1", "read")]);
    say(&driver, "x", json!({"system": "s"})).await;
    say(&driver, "never mind", json!({"options": {"top_p": 1}})).await;
    assert_eq!(world.main.generation(1), json!({"options": {"top_p": 1}}));
}

#[tokio::test]
async fn what_a_turn_said_survives_a_restart_in_its_pause() {
    let world = World::new().await;
    let body = json!({"system": "of the session", "options": {"top_p": 1}});
    let driver = world.open_with(OPTIONS, &body).await.unwrap();
    let tools = json!({"tools": [{"name": "read"}]});
    driver.call("session.updateClientTools", tools).await;
    world.main.call(&[("c1", "read")]);
    say(&driver, "x", json!({"system": null})).await;
    let world = world.restart().await;
    let driver = driver.at(&world);
    driver.results(&["c1"]).await.rest().await;
    assert_eq!(world.main.generation(1), json!({"options": {"top_p": 1}}));
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_by_name_and_nothing_is_logged() {
    let world = World::new().await;
    for (options, name) in [
        (json!({"temprature": 1}), "temprature"),
        (json!({"temperature": 3}), "options.temperature"),
        (json!({"tool_choice": "all"}), "options.tool_choice"),
    ] {
        let body = json!({"options": options});
        let refused = world.open_with(OPTIONS, &body).await.err().unwrap();
        assert_eq!((refused.status, &refused.json()["type"]), (400, &json!("bad_request")));
        assert!(refused.json()["detail"].as_str().unwrap().contains(name));
        let driver = world.driver(&[]).await;
        let before = driver.log().await.len();
        let error = say(&driver, "x", body).await.pop().unwrap()["error"].clone();
        assert_eq!(error["code"], -32602);
        assert!(error["message"].as_str().unwrap().contains(name), "{error}");
        assert_eq!(driver.log().await.len(), before);
    }
    assert_eq!(world.main.calls(), 0);
}

#[tokio::test]
async fn a_choice_of_a_tool_that_is_not_there_is_refused_and_a_paused_turn_waits_on() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    world.main.call(&[("c1", "read")]);
    driver.ask("x").await;
    let before = driver.log().await.len();
    let choice = json!({"options": {"tool_choice": {"name": "write"}}});
    let error = say(&driver, "y", choice).await.pop().unwrap()["error"].clone();
    let words =
        "Invalid params: \"options.tool_choice\" names \"write\", which is no tool of this turn";
    assert_eq!(error, json!({"code": -32602, "message": words}));
    assert_eq!(driver.log().await.len(), before);
    let done = driver.results(&["c1"]).await.rest().await.pop().unwrap();
    assert!(done["result"].is_object());
}

#[tokio::test]
async fn the_same_message_with_other_options_is_another_message() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let send = async |more: Value| {
        let mut params = json!({"message": {"content": "x"}, "message_id": "m1"});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let both = "options, message-id";
        let lines = driver.open_stream(both, 7, "session.sendMessage", params).await.rest().await;
        lines.last().unwrap().clone()
    };
    assert!(send(json!({"system": "s"})).await["result"].is_object());
    let again = send(json!({"system": "s"})).await["result"].clone();
    assert_eq!(again["replayed"], true);
    let request = &again["events"][1]["payload"];
    assert_eq!((&request["system"], world.main.calls()), (&json!("s"), 1));
    assert_eq!(send(json!({"system": "t"})).await["error"]["code"], -32023);
}

#[tokio::test]
async fn without_the_feature_the_members_mean_nothing() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let params = json!({"message": {"content": "x"}, "system": 5, "options": {"nonsense": 1}});
    let answer = driver.call("session.sendMessage", params).await;
    assert!(answer["result"].is_object());
    assert_eq!(world.main.generation(0), json!({}));
}
