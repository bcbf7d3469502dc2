//! The service is newer than this program: what the library does not know comes as data, and the turn goes on.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::proto::session::event::EventType;
use broca::{Client, Step};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?)?;
    let session = client.open().await?;

    // guide: begin
    let mut turn = session.send("How is the weather?");
    while let Some(step) = turn.next().await {
        match step? {
            Step::Notification { method, .. } => println!("a notification: {method}"),
            Step::Event(event) => {
                if let EventType::Unknown(_) = event.event_type() {
                    println!("an event: {}", event.payload().as_str());
                }
            }
            Step::Done(reply) => {
                println!("the answer: {}", reply.text());
                println!("the message: {}", serde_json::to_string(&reply.message)?);
            }
            _ => {} // also steps of a kind that is new to this program
        }
    }
    // guide: end
    session.close().await?;
    Ok(())
}
