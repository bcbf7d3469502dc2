//! An answer that is longer than this program allows: the errors name limit and cure, and the session goes on.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::engine::{Gap, Lost};
use broca::{Client, Step};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (url, key) = (std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?);

    // guide: begin
    let client = Client::builder(url, key)
        .configure(|config| {
            config.max_line_bytes = 64 * 1024;
            config.max_answer_bytes = 64 * 1024;
            config.recovery_timeout_ms = 0;
        })
        .build()?;
    let session = client.open().await?;
    let mut turn = session.send("Tell me everything.");
    let mut gaps = 0;
    while let Some(step) = turn.next().await {
        match step {
            Ok(Step::Gap(Gap { lost: Lost::Line { limit, .. }, .. })) => {
                gaps += 1;
                if gaps == 1 {
                    println!("a line was passed over: the limit is {limit}");
                }
            }
            Ok(_) => {}
            Err(error) => {
                let (_how_long, limit) = error.message().split_once(", ").unwrap_or_default();
                println!("{}: {limit}", error.kind().as_str());
            }
        }
    }
    if let Some(Err(error)) = session.history().next().await {
        println!("{}: {}", error.kind().as_str(), error.message());
    }
    let reply = session.ask("Are you there?").await?;
    println!("the next answer: {}", reply.text());
    // guide: end
    session.close().await?;
    Ok(())
}
