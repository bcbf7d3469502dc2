//! A stream is cut, and its turn goes on; the service is killed, and the error says what is not known.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::engine::Status;
use broca::{Client, Error, Session, Step};

// guide: begin
async fn count(session: &Session, message: &str) -> Result<(), Error> {
    let (mut broke, mut words) = (false, false);
    let mut turn = session.send(message);
    while let Some(step) = turn.next().await {
        match step? {
            Step::Event(event) => println!("event: {}", event.type_name()),
            Step::Delta(_) if message == "Count slowly." && !words => {
                words = true;
                println!("now the service is killed");
            }
            Step::Status(Status::Reconnecting { .. }) if !broke => {
                broke = true;
                println!("the connection broke");
            }
            Step::Done(reply) => println!("the answer: {}", reply.text()),
            _ => {}
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?)?;
    let session = client.open().await?;
    count(&session, "Count.").await?;
    if let Err(error) = count(&session, "Count slowly.").await {
        println!("{}, again? {}", error.kind().as_str(), error.retry().as_str());
    }
    let reply = session.ask("Are you there?").await?;
    println!("the next answer: {}", reply.text());
    // guide: end
    session.close().await?;
    Ok(())
}
