//! The first program of README.md.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::{Client, DeltaKind, Step, Tool};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct ReadFile {
    /// Path of the file.
    path: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("BROCA_URL").unwrap_or_else(|_| "http://127.0.0.1:8080".to_owned());
    let key = std::env::var("BROCA_CLIENT_KEY").map_err(|_| "set BROCA_CLIENT_KEY")?;
    let read_file =
        Tool::function("read_file", "Return the text of a file.", |file: ReadFile| async move {
            std::fs::read_to_string(file.path)
        });

    let client = Client::new(url, key)?;
    let session = client.open().tool(read_file).await?;

    let mut turn = session.send("What does read_file say about Cargo.toml?");
    while let Some(step) = turn.next().await {
        match step? {
            Step::Delta(delta) if delta.kind == DeltaKind::Text => eprint!("{}", delta.text),
            Step::ToolCall(call) => eprintln!("\n[{} {}]", call.name, call.input.as_str()),
            Step::Done(reply) => eprintln!("\n[{} rounds]", reply.rounds), // reply.text() is the whole answer
            _ => {}
        }
    }

    let reply = session.ask("And what is 2 and 2?").await?; // the loop, driven for you
    println!("{}", reply.text());
    session.close().await?;
    Ok(())
}
