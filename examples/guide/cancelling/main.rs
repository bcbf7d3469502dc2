//! A turn is cancelled while a tool ignores it: it gets quiet all the same, and the next message can start.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::proto::session::payload::Payload;
use broca::tools::NoArguments;
use broca::{Client, Step, Tool};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (url, key) = (std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?);

    // guide: begin
    let obedient = Tool::function_with_context(
        "obedient",
        "Works until it is told to stop.",
        |_: NoArguments, context| async move {
            context.cancelled().await;
            Err::<(), _>("stopped")
        },
    );
    let deaf = Tool::function("deaf", "Works on, whatever it is told.", |_: NoArguments| {
        std::future::pending::<Result<(), String>>()
    });

    let client =
        Client::builder(url, key).configure(|config| config.calls.cancel_grace_ms = 500).build()?;
    let session = client.open().tools([obedient, deaf]).await?;
    let mut turn = session.send("Go to work.");
    let mut calls = 0;
    while calls < 2 {
        let step = turn.next().await.ok_or("the turn ended early")??;
        calls += i32::from(matches!(step, Step::ToolCall(_)));
    }
    println!("both tools work: cancelling");
    turn.cancel().await?;
    println!("the turn is quiet");
    let reply = session.ask("Are you there?").await?;
    println!("the next message: {}", reply.text());
    // guide: end

    let (mut results, mut log) = (0, session.history());
    while let Some(event) = log.next().await {
        results += i32::from(matches!(event?.decode()?, Payload::ToolResult(_)));
    }
    println!("in the log: {results} results");
    session.close().await?;
    Ok(())
}
