//! An observer whose stream is cut, repeats a line, and loses its service: it sees every event once and in order.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::engine::Status;
use broca::{Client, Cursor, Step};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("BROCA_URL")?;
    let client = Client::new(&url, std::env::var("BROCA_CLIENT_KEY")?)?;
    let watcher = Client::new(&url, std::env::var("BROCA_WATCH_KEY")?)?;
    let session = client.open().await?;
    session.ask("Are you there?").await?;

    // guide: begin
    let mut seen = Vec::new();
    let (mut killed, mut back) = (false, false);
    let observed = watcher.observe(session.id().clone()).await?;
    let mut events = observed.subscribe_from(Cursor::start()); // or a cursor that was stored
    while let Some(step) = events.next().await {
        match step? {
            Step::Event(event) => {
                seen.push(event.id().to_owned()); // the cursor just after it: store it
                if event.type_name() == "server.message.send" && !killed {
                    killed = true;
                    println!("now the service is killed");
                }
            }
            Step::Status(Status::Connected) if killed && !back => {
                back = true;
                println!("it is back: {}", session.ask("And now?").await?.text());
                session.close().await?;
            }
            _ => {}
        }
    } // ends with the session
    // guide: end

    let (mut logged, mut log) = (Vec::new(), session.history());
    while let Some(event) = log.next().await {
        logged.push(event?.id().to_owned());
    }
    let same = if seen == logged { "the same in the same order" } else { "not the same" };
    println!("seen: {} events, in the log: {}, {same}", seen.len(), logged.len());
    Ok(())
}
