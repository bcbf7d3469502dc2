//! Content beyond text, tool calls and tool results (feature `blocks`).

use crate::harness::*;
use serde_json::{Value, json};

const BLOCKS: &str = "blocks";

fn thinking() -> Value {
    json!({"type": "thinking", "thinking": "hunter2", "signature": "c2ln"})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn payloads(lines: &[Value], event_type: &str) -> Vec<Value> {
    let of_type = lines.iter().filter(|l| l["params"]["event_type"] == event_type);
    of_type.map(|l| l["params"]["payload"].clone()).collect()
}

#[tokio::test]
async fn reasoning_is_kept_for_the_model_and_shown_to_those_who_asked() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    let mut asking = driver.subscribe_with(BLOCKS, None).await;
    asking.stays_silent().await;
    let call = tool_uses(&[("c1", "read")]).remove(0);
    world.main.blocks(json!([thinking(), text("let me"), call]));
    let lines = driver.send_with(BLOCKS, 7, "x").await.rest().await;
    let result = &lines.last().unwrap()["result"];
    assert_eq!(result["message"]["content"][0], thinking());
    assert_eq!(payloads(&lines, "server.message.send")[0]["content"][0], thinking());
    assert_eq!(result["events"][4]["payload"]["content"][0], thinking());
    driver.results(&["c1"]).await.rest().await;
    // The provider gets it back unchanged, in its place, with the results.
    let asked = world.main.messages(1);
    let call = tool_uses(&[("c1", "read")]).remove(0);
    assert_eq!(asked[1]["content"], json!([thinking(), text("let me"), call]));
    driver.close().await;
    let watched = asking.rest().await;
    assert_eq!(payloads(&watched, "server.message.send")[0]["content"][0], thinking());
    assert_eq!(payloads(&watched, "provider.request")[1]["messages"], asked);
}

#[tokio::test]
async fn those_who_have_not_asked_see_the_plain_contract_everywhere() {
    let world = World::new().await;
    let driver = world.driver(&["read"]).await;
    let mut watching = driver.subscribe(None).await;
    watching.stays_silent().await;
    let call = tool_uses(&[("c1", "read")]).remove(0);
    world.main.blocks(json!([thinking(), call]));
    let mut plain = driver.send("x").await.rest().await;
    world.main.blocks(json!([thinking()]));
    plain.extend(driver.results(&["c1"]).await.rest().await);
    driver.ask("y").await;
    driver.close().await;
    let replayed = driver.subscribe(Some("")).await.rest().await;
    let page = driver.get("/events").await.json();
    let watched = watching.rest().await;
    for seen in [json!(plain), json!(watched), json!(replayed), page] {
        assert!(!seen.to_string().contains("hunter2"));
    }
    let contents: Vec<Value> =
        payloads(&watched, "server.message.send").iter().map(|p| p["content"].clone()).collect();
    assert_eq!(contents[1..], [json!([]), json!([text("ok")])]);
    let last = payloads(&watched, "provider.request").pop().unwrap();
    assert_eq!(last["messages"][3], json!({"role": "assistant", "content": []}));
    assert_eq!(last, payloads(&replayed, "provider.request").pop().unwrap());
}

#[tokio::test]
async fn what_a_client_sends_is_passed_on_to_everybody_as_it_is() {
    let world = World::new().await;
    let driver = world.driver(&["look"]).await;
    let image = json!({"type": "image", "source": {"type": "url", "url": "https://h/x.png"}});
    world.main.call(&[("c1", "look")]);
    let first = driver.ask(json!([image, text("what is this?")])).await;
    assert_eq!(first["result"]["events"][0]["payload"]["content"][0], image);
    assert!(!world.main.takes_media(0));
    let result = json!([{"type": "tool_result", "tool_use_id": "c1", "content": [image]}]);
    let lines = driver.send_with(BLOCKS, 7, result).await.rest().await;
    let events = &lines.last().unwrap()["result"]["events"];
    assert_eq!(events[1]["payload"]["content"], json!([image]));
    assert_eq!(world.main.messages(1)[2]["content"][0]["content"], json!([image]));
    assert!(world.main.takes_media(1), "images are for the model of a driver that knows them");
}
