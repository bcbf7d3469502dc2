//! Turns against a Chat Completions server that fails as it is told, over real sockets.

use crate::harness::*;
use broca_server::models::openai::{OpenAi, OpenAiSettings};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A server that gives these answers, one for each connection, and keeps what it was asked.
struct Provider {
    url: String,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Provider {
    async fn answering(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = Vec::new();
                let body = loop {
                    assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
                    let text = String::from_utf8_lossy(&bytes);
                    let Some((_, body)) = text.split_once("\r\n\r\n") else { continue };
                    if let Ok(body) = serde_json::from_str(body) {
                        break body;
                    }
                };
                heard.lock().unwrap().push(body);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Self { url, asked }
    }

    async fn world(&self) -> World {
        let model = OpenAi::new(OpenAiSettings::new(&self.url, "m")).unwrap();
        World::asking(Arc::new(model), |c| {
            c.provider_retry_base = Duration::from_millis(1);
            c.provider_retry_cap = Duration::from_millis(20);
            c.provider_retries = 4;
        })
        .await
    }

    fn asked(&self, n: usize) -> Value {
        self.asked.lock().unwrap()[n].clone()
    }
}

fn refusal(status: &str, headers: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: 0\r\n\r\n")
}

/// A stream of these events that ends with the connection.
fn stream(events: &[Value]) -> String {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let events = events.iter().map(|event| format!("data: {event}\n\n"));
    std::iter::once(head.to_owned()).chain(events).collect()
}

fn piece(delta: Value, finish: Option<&str>) -> Value {
    json!({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

#[tokio::test]
async fn whatever_may_pass_is_tried_again_until_the_answer_comes() {
    let half = piece(json!({"content": "half a"}), None);
    let overloaded = json!({"error": {"type": "overloaded_error", "message": "too many"}});
    let provider = Provider::answering(vec![
        refusal("429 Too Many Requests", "retry-after: 3600\r\n"),
        refusal("503 Unavailable", ""),
        stream(&[half.clone(), overloaded]),
        stream(&[half]),
        stream(&[
            piece(json!({"reasoning": "hm"}), None),
            piece(json!({"content": "whole"}), Some("stop")),
        ]),
    ])
    .await;
    let world = provider.world().await;
    let driver = world.driver(&[]).await;
    let lines = driver.send_with("keep-open, display, blocks", 7, "x").await.rest().await;
    let content = &lines.last().unwrap()["result"]["message"]["content"];
    let thinking = json!({"type": "thinking", "thinking": "hm"});
    assert_eq!(*content, json!([thinking, {"type": "text", "text": "whole"}]));
    let responses = lines.iter().filter(|l| l["params"]["event_type"] == "provider.response");
    let told: Vec<(&Value, &Value)> = responses
        .map(|l| (&l["params"]["payload"]["ok"], &l["params"]["payload"]["status"]))
        .collect();
    let (no, yes) = (json!(false), json!(true));
    let (busy, down, fine) = (json!(429), json!(503), json!(200));
    assert_eq!(told, [(&no, &busy), (&no, &down), (&no, &fine), (&no, &fine), (&yes, &fine)]);
    // What was shown of the attempts that broke off is taken back.
    let resets = lines.iter().filter(|l| l["params"]["type"] == "display_reset").count();
    assert_eq!(resets, 2);
    assert_eq!(world.spare.calls(), 0);
}

#[tokio::test]
async fn an_exhausted_quota_is_not_waited_for_and_the_next_message_brings_the_lost_one_along() {
    let quota = r#"{"error":{"code":"insufficient_quota","message":"no money"}}"#;
    let quota = format!(
        "HTTP/1.1 429 No\r\nretry-after: 1\r\ncontent-length: {}\r\n\r\n{quota}",
        quota.len()
    );
    let fine = stream(&[piece(json!({"content": "fine"}), Some("stop"))]);
    let provider = Provider::answering(vec![quota, fine]).await;
    let world = provider.world().await;
    let driver = world.driver(&[]).await;
    world.spare.fail_for_good(400);
    let lost = driver.send_with("keep-open", 7, "lost").await.rest().await.pop().unwrap();
    assert_eq!(lost["error"]["code"], -32024);
    let found = driver.send_with("keep-open", 7, "again").await.rest().await.pop().unwrap();
    assert_eq!(found["result"]["message"]["content"][0]["text"], "fine");
    let sent = json!([{"role": "user", "content": "lost\nagain"}]);
    assert_eq!(provider.asked(1)["messages"], sent);
}

#[tokio::test]
async fn options_and_images_reach_the_server_and_plain_requests_are_as_ever() {
    let fine = || stream(&[piece(json!({"content": "fine"}), Some("stop"))]);
    let provider = Provider::answering(vec![fine(), fine()]).await;
    let world = provider.world().await;
    let driver = world.driver(&["look"]).await;
    let image = json!({"type": "image", "source": {"type": "url", "url": "https://h/x.png"}});
    let message = json!({"role": "user", "content": [{"type": "text", "text": "see"}, image]});
    let options = json!({"temperature": 0.5, "max_tokens": 9, "tool_choice": "any"});
    let params = json!({"message": message, "system": "be brief", "options": options});
    let features = "options, blocks";
    let lines = driver.open_stream(features, 7, "session.sendMessage", params).await.rest().await;
    assert!(lines.last().unwrap()["result"].is_object());
    let asked = provider.asked(0);
    assert_eq!(asked["messages"][0], json!({"role": "system", "content": "be brief"}));
    assert_eq!(asked["messages"][1]["content"][1]["image_url"]["url"], "https://h/x.png");
    assert_eq!((&asked["temperature"], &asked["max_tokens"]), (&json!(0.5), &json!(9)));
    assert_eq!(asked["tool_choice"], "required");
    driver.ask("next").await;
    let plain = provider.asked(1);
    assert_eq!(plain["messages"][0], json!({"role": "user", "content": "see"}));
    let members: Vec<&String> = plain.as_object().unwrap().keys().collect();
    let expected = ["max_tokens", "messages", "model", "stream", "stream_options", "tools"];
    assert_eq!(members, expected);
}
