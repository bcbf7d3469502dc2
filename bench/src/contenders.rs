//! The contenders in Rust: Broca, and what a competent user would write by hand.

use crate::Failure;
use crate::meter::{Measured, Meter};
use crate::scale::Scale;
use broca::steps::Step;
use broca::tokio::Client;
use broca::tools::Tool;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use std::convert::Infallible;
use std::time::Instant;

/// Runs a contender against the server at `address` and prints what it measured.
pub(crate) fn run(name: &str, address: &str) -> Result<(), Failure> {
    let Scale { events, turns, .. } = Scale::from_environment()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        match name {
            "reqwest-owned-events" => reqwest_events(address, events).await,
            "reqwest-turns" => reqwest_turns(address, turns).await,
            "broca-events" => broca_events(address, events).await,
            "broca-turns" => broca_turns(address, turns).await,
            other => Err(format!("there is no contender \"{other}\"").into()),
        }
    })?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

const MESSAGE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"session.sendMessage","params":{"message":{"role":"user","content":"add 2 and 40"}}}"#;

// ---- by hand, on reqwest ------------------------------------------------------------------------

#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    params: Option<Owned>,
    id: Option<u64>,
}

#[derive(Deserialize)]
#[allow(dead_code)] // Decoded because an application would; only some fields are read here.
struct Owned {
    id: String,
    session_id: String,
    client_key_id: String,
    event_type: String,
    payload: serde_json::Value,
    created_at: String,
}

/// Cuts a stream of buffers into lines; lines that lie in one buffer are not copied.
#[derive(Default)]
struct Lines {
    rest: BytesMut,
}

impl Lines {
    fn push(
        &mut self,
        buffer: &Bytes,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut from = 0;
        for end in memchr::memchr_iter(b'\n', buffer) {
            if self.rest.is_empty() {
                take(&buffer[from..end])?;
            } else {
                self.rest.extend_from_slice(&buffer[from..end]);
                take(&self.rest)?;
                self.rest.clear();
            }
            from = end + 1;
        }
        self.rest.extend_from_slice(&buffer[from..]);
        Ok(())
    }
}

async fn reqwest_events(address: &str, all: usize) -> Result<Measured, Failure> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let meter = Meter::start();
    let request = client.post(format!("{address}/api/v1/sessions/ses_1/rpc"));
    let response = request.header("content-type", "application/json").body(MESSAGE).send().await?;
    let mut stream = response.bytes_stream();
    let (mut lines, mut events, mut seen, mut done) = (Lines::default(), 0, 0, false);
    while let Some(buffer) = stream.next().await {
        lines.push(&buffer?, |line| {
            let message: Envelope = serde_json::from_slice(line)?;
            match message.params {
                Some(event) => {
                    events += 1;
                    seen += event.id.len() + event.event_type.len();
                }
                None => done = message.id.is_some(),
            }
            Ok(())
        })?;
    }
    if !done || events != all || seen == 0 {
        return Err("the stream was not complete".into());
    }
    Ok(meter.stop(events))
}

async fn reqwest_turns(address: &str, turns: usize) -> Result<Measured, Failure> {
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
    let url = format!("{address}/api/v1/sessions/ses_1/rpc");
    let mut meter = Meter::start();
    for turn in 0..turns + turns / 10 {
        if turn == turns / 10 {
            meter = Meter::start();
        }
        let start = Instant::now();
        let mut body = Some(MESSAGE.to_owned());
        let mut answer = String::new();
        while let Some(message) = body.take() {
            let request =
                client.post(&url).header("content-type", "application/json").body(message);
            let mut response = request.send().await?;
            let mut lines = Lines::default();
            while let Some(buffer) = response.chunk().await? {
                lines.push(&buffer, |line| {
                    let message: serde_json::Value = serde_json::from_slice(line)?;
                    let block = &message["result"]["message"]["content"][0];
                    match block["type"].as_str() {
                        Some("tool_use") => {
                            let input = &block["input"];
                            let sum = input["a"].as_u64().unwrap_or(0) + input["b"].as_u64().unwrap_or(0);
                            let id = block["id"].as_str().unwrap_or_default();
                            body = Some(format!(
                                r#"{{"jsonrpc":"2.0","id":1,"method":"session.sendMessage","params":{{"message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":"{sum}"}}]}}}}}}"#
                            ));
                        }
                        Some("text") => answer = block["text"].as_str().unwrap_or_default().to_owned(),
                        _ => {}
                    }
                    Ok(())
                })?;
            }
        }
        if answer != "42" {
            return Err("a turn went wrong".into());
        }
        meter.single(start);
    }
    Ok(meter.stop(turns))
}

// ---- Broca --------------------------------------------------------------------------------------

async fn broca_events(address: &str, all: usize) -> Result<Measured, Failure> {
    let session = client(address)?.open().await?;
    let meter = Meter::start();
    let mut turn = session.send("go");
    let (mut events, mut seen, mut done) = (0, 0, false);
    while let Some(step) = turn.next().await {
        match step? {
            Step::Event(event) => {
                events += 1;
                seen += event.id().len() + event.type_name().len();
            }
            Step::Done(_) => done = true,
            _ => {}
        }
    }
    if !done || events != all || seen == 0 {
        return Err("the stream was not complete".into());
    }
    Ok(meter.stop(events))
}

#[derive(Deserialize, JsonSchema)]
struct Add {
    a: u64,
    b: u64,
}

async fn broca_turns(address: &str, turns: usize) -> Result<Measured, Failure> {
    let add = Tool::function("add", "Adds two numbers.", |add: Add| async move {
        Ok::<_, Infallible>((add.a + add.b).to_string())
    });
    let session = client(address)?.open().tool(add).await?;
    let mut meter = Meter::start();
    for turn in 0..turns + turns / 10 {
        if turn == turns / 10 {
            meter = Meter::start();
        }
        let start = Instant::now();
        let reply = session.ask("add 2 and 40").await?;
        if reply.text() != "42" {
            return Err("a turn went wrong".into());
        }
        meter.single(start);
    }
    Ok(meter.stop(turns))
}

fn client(address: &str) -> Result<Client, Failure> {
    Ok(Client::builder(address, "bae_bench").proxy_from_environment(false).build()?)
}
