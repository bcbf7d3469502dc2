//! An approval that narrows, one that would widen, and one that nobody gives.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::{Client, Json, NarrowRule, Step, Tool};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

// guide: begin
#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Pay {
    amount: u64,
}
// guide: end

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?)?;
    let paid = Arc::new(AtomicU64::new(0));
    let purse = Arc::clone(&paid);

    // guide: begin
    let pay = Tool::blocking("pay", "Pay an amount.", move |Pay { amount }| {
        purse.fetch_add(amount, Relaxed);
        Ok::<_, String>(format!("paid {amount}"))
    })
    .approval()
    .narrow("/amount", NarrowRule::AtMost);

    let session = client.open().tool(pay).await?;
    for allowed in [50, 5000] {
        let mut turn = session.send("Pay the bill.");
        while let Some(step) = turn.next().await {
            match step? {
                Step::Approval(asked) => {
                    println!("asked: {} {}, allowed: {allowed}", asked.name, asked.input.as_str());
                    asked.allow_narrowed(Json::parse(format!(r#"{{"amount":{allowed}}}"#))?)?;
                }
                Step::ToolSettled { outcome, .. } => println!("outcome: {}", outcome.as_str()),
                _ => {}
            }
        }
    }
    let reply = session.ask("Pay the bill.").await?; // no handler, nobody looks: denied
    println!("nobody is asked: {}", reply.text());
    println!("paid: {}", paid.load(Relaxed));
    // guide: end
    session.close().await?;
    Ok(())
}
