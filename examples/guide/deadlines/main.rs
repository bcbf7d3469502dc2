//! A tool takes longer than the service waits: its pause is held, or the call is over in time.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::tools::NoArguments;
use broca::{Client, Step, Tool};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

// guide: begin
async fn ask(how: &str, client: Client) -> Outcome {
    let ponder = Tool::function("ponder", "Takes four seconds.", |_: NoArguments| async {
        tokio::time::sleep(Duration::from_secs(4)).await; // and the service waits for three
        Ok::<_, String>("42")
    });
    let session = client.open().tool(ponder).await?;
    let mut turn = session.send("Ponder it.");
    while let Some(step) = turn.next().await {
        match step? {
            Step::ToolSettled { outcome, .. } => print!("{how}: {}", outcome.as_str()),
            Step::Done(reply) => println!(", and the model says: {}", reply.text()),
            _ => {}
        }
    }
    session.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let (url, key) = (std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?);
    let not_held = Client::builder(&url, key.as_str()).configure(|config| config.hold_ms = None);
    ask("not held", not_held.build()?).await?;
    ask("held", Client::new(&url, key.as_str())?).await
}
// guide: end
