//! Two loops are left early, one on purpose and one by an error: their turns end, and the next message can start.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::{Client, Session, Step};

type Fault = Box<dyn std::error::Error>;

// guide: begin
async fn first_word(session: &Session) -> Result<String, Fault> {
    let mut turn = session.send("Tell me a story.");
    while let Some(step) = turn.next().await {
        if let Step::Delta(delta) = step? {
            turn.cancel().await?; // returns when the turn is quiet
            return Ok(delta.text.trim().to_owned());
        }
    }
    Ok(String::new())
}

async fn stumble(session: &Session) -> Result<(), Fault> {
    let mut turn = session.send("Tell me a story.");
    while let Some(step) = turn.next().await {
        if let Step::Delta(_) = step? {
            return Err("the display is broken".into()); // drops the turn, which cancels it
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let client = Client::new(std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?)?;
    let session = client.open().await?;
    println!("the first word: {}", first_word(&session).await?);
    println!("the turn is quiet");
    if let Err(error) = stumble(&session).await {
        println!("left by an error: {error}");
    }
    let reply = session.ask("Are you there?").await?;
    println!("the next answer: {}", reply.text());
    // guide: end

    let (mut cancelled, mut log) = (0, session.history());
    while let Some(event) = log.next().await {
        cancelled += i32::from(event?.type_name() == "session.turn.cancelled");
    }
    println!("in the log: {cancelled} turns that were cancelled");
    session.close().await?;
    Ok(())
}
