//! What nests deep: taken as long as the service can show it again, refused where it could not.

use crate::harness::*;
use serde_json::json;

/// The levels that content may have: what the service writes around it makes 128.
const MOST: usize = 121;

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

fn send(content: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"session.sendMessage","params":{{"message":{{"content":{content}}}}}}}"#
    )
}

#[tokio::test]
async fn the_deepest_content_that_is_taken_can_be_read_in_every_place_where_it_is_shown() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let answer = driver.raw(&send(&nested(MOST))).await;
    for line in answer.text().lines() {
        broca_proto::Json::parse(line.to_owned()).unwrap();
    }
    assert!(answer.text().contains("\"result\":"), "{}", answer.text());
    let page = driver.get("/events").await;
    broca_proto::Json::parse(page.text()).unwrap();
}

#[tokio::test]
async fn content_a_level_deeper_is_refused_and_nothing_is_logged() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let before = driver.log_types().await;
    let refused = driver.raw(&send(&nested(MOST + 1))).await.lines().pop().unwrap();
    assert_eq!(refused["error"]["code"], -32602);
    assert_eq!(driver.log_types().await, before);
    assert!(driver.ask("next").await["result"].is_object());
}

#[tokio::test]
async fn tools_that_nest_too_deep_are_refused_at_the_door() {
    let world = World::new().await;
    let driver = world.driver(&[]).await;
    let list = |levels| format!(r#"[{{"name":"a","input_schema":{}}}]"#, nested(levels - 2));
    let update = |levels| {
        let tools = list(levels);
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"session.updateClientTools","params":{{"tools":{tools}}}}}"#
        )
    };
    let refused = driver.raw(&update(MOST + 1)).await.lines().pop().unwrap();
    assert_eq!(refused["error"]["code"], -32602);
    let taken = driver.raw(&update(MOST)).await;
    assert!(taken.text().contains("updated"), "{}", taken.text());
    let answer = driver.raw(&send("1")).await;
    for line in answer.text().lines() {
        broca_proto::Json::parse(line.to_owned()).unwrap();
    }
}

#[tokio::test]
async fn a_model_whose_answer_nests_too_deep_has_failed_and_the_next_one_is_asked() {
    let world = World::new().await;
    let driver = world.driver(&["frob"]).await;
    let mut deep = json!(1);
    for _ in 0..MOST {
        deep = json!([deep]);
    }
    world.main.blocks(json!([{"type":"tool_use","id":"t1","name":"frob","input":deep}]));
    world.spare.say("instead");
    let answer = driver.ask("x").await;
    assert_eq!(answer["result"]["message"]["content"][0]["text"], "instead");
}
