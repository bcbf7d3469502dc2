//! Two calls run at once, the answer to their results is cut, and neither runs again.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::engine::Status;
use broca::{Client, Step, Tool};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use tokio::sync::Barrier;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Book {
    seat: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?)?;

    // guide: begin
    let keys = Arc::new(Mutex::new(Vec::new()));
    let (both, noted) = (Arc::new(Barrier::new(2)), Arc::clone(&keys));
    let book =
        Tool::function_with_context("book", "Book a seat.", move |Book { seat }: Book, context| {
            let (both, noted) = (Arc::clone(&both), Arc::clone(&noted));
            async move {
                // For whatever must not happen twice.
                noted.lock().map_err(|_| "poisoned")?.push(context.idempotency_key().to_owned());
                if both.wait().await.is_leader() {
                    println!("both calls run at once"); // neither goes on without the other
                }
                Ok::<_, &str>(format!("{seat} is booked"))
            }
        });

    let session = client.open().tool(book).await?;
    let mut turn = session.send("Two seats, please.");
    while let Some(step) = turn.next().await {
        match step? {
            Step::Status(Status::Reconnecting { .. }) => {
                println!("the connection broke: reconnecting");
            }
            Step::Done(reply) => {
                println!("the model: {}", reply.text());
                let keys = keys.lock().map_err(|_| "poisoned")?;
                assert_eq!(keys.len(), 2, "a call ran twice");
                let different = keys.iter().collect::<HashSet<_>>().len();
                println!("{} calls, {different} keys, each ran once", reply.tool_calls);
            }
            _ => {}
        }
    }
    // guide: end
    session.close().await?;
    Ok(())
}
