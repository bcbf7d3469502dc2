//! An approval that narrows: the model may delete what a person has marked as old, and nothing else.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::proto::session::narrow::NarrowRule;
use broca::{Client, Json, Step, Tool};

#[derive(serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
struct DeleteFiles {
    paths: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("BROCA_URL").unwrap_or_else(|_| "http://127.0.0.1:8080".to_owned());
    let key = std::env::var("BROCA_CLIENT_KEY").map_err(|_| "set BROCA_CLIENT_KEY")?;
    let delete_files = Tool::function(
        "delete_files",
        "Delete files.",
        |DeleteFiles { paths }: DeleteFiles| async move {
            // A real one would delete them.
            Ok::<_, std::io::Error>(format!("deleted {}", paths.join(" and ")))
        },
    )
    .approval()
    .narrow("/paths", NarrowRule::RemoveElements);

    let client = Client::new(url, key)?;
    let session = client.open().tool(delete_files).await?;

    let mut turn = session.send(r#"Please delete_files {"paths": ["old.txt", "thesis.txt"]}"#);
    while let Some(step) = turn.next().await {
        match step? {
            Step::Approval(approval) => {
                println!("asked: {} {}", approval.name, approval.input.as_str());
                let mut wanted: DeleteFiles = serde_json::from_slice(approval.input.as_bytes())?;
                wanted.paths.retain(|path| path.starts_with("old"));
                println!("allowed: {}", wanted.paths.join(" and "));
                approval.allow_narrowed(Json::parse(serde_json::to_string(&wanted)?)?)?;
            }
            Step::Done(reply) => println!("{}", reply.text()),
            _ => {}
        }
    }
    session.close().await?;
    Ok(())
}
