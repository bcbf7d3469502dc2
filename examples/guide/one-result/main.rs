//! One tool fails, another never answers: each call has its one result, and the turn goes on.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::proto::session::payload::Payload;
use broca::tools::NoArguments;
use broca::{Client, Step, Tool};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?)?;

    // guide: begin
    let broken = Tool::function("broken", "Fails.", |_: NoArguments| async {
        Err::<String, _>("the disk is gone")
    });
    let stuck = Tool::function("stuck", "Never answers.", |_: NoArguments| {
        std::future::pending::<Result<String, String>>()
    })
    .timeout(Duration::from_millis(500));

    let session = client.open().tools([broken, stuck]).await?;
    let mut turn = session.send("Use both tools.");
    while let Some(step) = turn.next().await {
        match step? {
            Step::ToolSettled { name, outcome, .. } => println!("{name}: {}", outcome.as_str()),
            Step::Done(reply) => println!("the model: {}", reply.text()),
            _ => {}
        }
    }
    // guide: end

    let mut results = Vec::new();
    let mut log = session.history();
    while let Some(event) = log.next().await {
        if let Payload::ToolResult(result) = event?.decode()? {
            results.push(result.tool_use_id);
        }
    }
    println!("in the log: {}", results.join(", "));
    session.close().await?;
    Ok(())
}
