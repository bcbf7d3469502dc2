//! The answer to a message is cut: the message does not leave twice, and what is not known is said.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::Client;
use broca::proto::session::feature::Features;

type Outcome = Result<(), Box<dyn std::error::Error>>;

// guide: begin
async fn book(service: &str, client: Client) -> Outcome {
    let session = client.open().await?;
    // The connection breaks in the answer.
    match session.ask("Book the flight.").await {
        Ok(reply) => println!("{service}: {}", reply.text()),
        Err(error) => {
            let (kind, again) = (error.kind().as_str(), error.retry().as_str());
            println!("{service}: {kind}, again? {again}");
        }
    }
    let (mut sent, mut log) = (0, session.history());
    while let Some(event) = log.next().await {
        sent += i32::from(event?.type_name() == "client.message.send");
    }
    println!("  messages in the log: {sent}");
    session.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let (url, key) = (std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?);
    let plain = Client::builder(&url, key.as_str()).configure(|config| {
        // As at a service that knows no ids, and without looking into its log for what became of the message.
        config.features = Features::NONE;
        config.recovery_timeout_ms = 0;
    });
    book("plain service", plain.build()?).await?;
    book("message ids", Client::new(&url, key.as_str())?).await
}
// guide: end
