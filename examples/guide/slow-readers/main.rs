//! A display that is slow: words come while the model speaks, some are left out, and no event is.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::{Client, Step};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (url, key) = (std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?);

    // guide: begin
    let client = Client::builder(url, key)
        .configure(|config| config.delta_buffer_bytes = 64 * 1024)
        .build()?;
    let session = client.open().await?;
    let (mut words, mut gaps) = (0, 0);
    let mut turn = session.send("Tell me everything.");
    while let Some(step) = turn.next().await {
        match step? {
            Step::Delta(_) => {
                words += 1;
                if words == 1 {
                    println!("the first words are here");
                    tokio::time::sleep(Duration::from_secs(1)).await; // a slow display
                }
            }
            Step::Gap(_) => {
                gaps += 1;
                if gaps == 1 {
                    println!("some words were not shown");
                }
            }
            Step::Event(event) => println!("event: {}", event.type_name()),
            Step::Done(reply) => println!("the whole answer has {} characters", reply.text().len()),
            _ => {}
        }
    }
    // guide: end
    session.close().await?;
    Ok(())
}
