//! A session that outlives its program: started twice, the second run goes on where the first has left.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::tools::NoArguments;
use broca::{Client, Session, Step, Tool};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome {
    let url = std::env::var("BROCA_URL").unwrap_or_else(|_| "http://127.0.0.1:8080".to_owned());
    let key = std::env::var("BROCA_CLIENT_KEY").map_err(|_| "set BROCA_CLIENT_KEY")?;
    let client = Client::new(url, key)?;
    let count_stars = Tool::function("count_stars", "Count the stars.", |_: NoArguments| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok::<_, String>("more than 9000")
    });
    if std::fs::exists("session.json")? {
        go_on(&client, vec![count_stars]).await
    } else {
        let session = client.open().tool(count_stars).await?;
        leave(&session).await
    }
}

/// Saves the session when its tool is called, and ends as a program that is killed.
async fn leave(session: &Session) -> Outcome {
    let mut turn = session.send("Please count_stars.");
    while let Some(step) = turn.next().await {
        if let Step::ToolCall(call) = step? {
            println!("left while {} runs", call.name);
            // guide: begin
            // Whenever there is something worth keeping, such as after each result of a tool.
            std::fs::write("session.json", session.save()?.to_json().expose())?;
            // guide: end
            std::process::exit(0);
        }
    }
    Ok(())
}

async fn go_on(client: &Client, tools: Vec<Tool>) -> Outcome {
    // guide: begin
    // The next program.
    let saved = broca::SavedSession::parse(&std::fs::read("session.json")?)?;
    let session = client.attach(saved).tools(tools).await?;
    if let Some(mut turn) = session.resume() {
        while let Some(step) = turn.next().await {
            match step? {
                Step::ToolCall(call) if call.may_have_run => println!("{} may have run", call.name),
                Step::Done(reply) => println!("{}", reply.text()),
                _ => {}
            }
        }
    }
    // guide: end
    session.close().await?;
    Ok(())
}
