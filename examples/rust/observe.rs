//! Watches a session and goes on where it ended: the cursor lies in a file.
//!
//!     observe SESSION CURSOR_FILE [EVENTS]      ends with the session, or after so many events
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::{Client, Cursor, Step};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("BROCA_URL").unwrap_or_else(|_| "http://127.0.0.1:8080".to_owned());
    let key = std::env::var("BROCA_CLIENT_KEY").map_err(|_| "set BROCA_CLIENT_KEY")?;
    let mut arguments = std::env::args().skip(1);
    let session_id = arguments.next().ok_or("which session?")?;
    let file = arguments.next().ok_or("in which file lies the cursor?")?;
    let mut wanted: u64 = arguments.next().map_or(Ok(u64::MAX), |events| events.parse())?;

    let client = Client::new(url, key)?;
    let session = client.observe(session_id).await?;
    let stored =
        if std::fs::exists(&file)? { std::fs::read_to_string(&file)? } else { String::new() };
    let mut events = session.subscribe_from(Cursor::from(stored.as_str()));
    while let Some(step) = events.next().await {
        match step? {
            Step::Event(event) => {
                println!("{} {}", event.id(), event.type_name());
                std::fs::write(&file, event.id())?; // done with it: never shown again
                wanted -= 1;
                if wanted == 0 {
                    break;
                }
            }
            Step::Gap(gap) => eprintln!("something is missing: {gap:?}"),
            _ => {}
        }
    }
    Ok(())
}
