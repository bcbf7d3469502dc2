//! A program dies between two results; the next one takes its turn up, and nothing is done twice.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::proto::Json;
use broca::tools::NoArguments;
use broca::{Client, SavedSession, Step, Tool};
use std::fs;

type Outcome = Result<(), Box<dyn std::error::Error>>;

// guide: begin
fn tools() -> Result<[Tool; 2], Box<dyn std::error::Error>> {
    let price = Tool::function("price", "Look the price up.", |_: NoArguments| async {
        Ok::<_, String>("12 crowns")
    });
    let nothing = Json::parse(r#"{"type":"object"}"#)?;
    Ok([price, Tool::manual("pay", "Pay.", nothing)])
}

async fn first(client: &Client) -> Outcome {
    let session = client.open().tools(tools()?).await?;
    let mut turn = session.send("Pay what it costs.");
    while let Some(step) = turn.next().await {
        match step? {
            Step::ToolCall(call) if call.name == "pay" => {
                fs::write("bank", &call.idempotency_key)?;
                println!("pay: the bank has it"); // and this program dies before it answers the call
            }
            Step::ToolSettled { name, outcome, .. } => {
                println!("{name}: {}", outcome.as_str());
                // It holds the key of the session: a place that only its owner reads.
                fs::write("session.json", session.save()?.to_json().expose())?;
                println!("saved; now this program and the service are killed");
                std::process::exit(0);
            }
            _ => {}
        }
    }
    Ok(())
}

async fn next(client: &Client) -> Outcome {
    let saved = SavedSession::parse(&fs::read("session.json")?)?;
    let session = client.attach(saved).tools(tools()?).await?;
    let Some(mut turn) = session.resume() else {
        return Ok(()); // no turn was left: send a message, as ever
    };
    let bank = fs::read_to_string("bank")?;
    while let Some(step) = turn.next().await {
        match step? {
            Step::ToolCall(call) if call.may_have_run => {
                println!("{} may have run", call.name); // not `price`: its result was saved
                if call.idempotency_key == bank {
                    call.complete("paid before")?;
                } else {
                    call.fail("nothing was paid")?;
                }
            }
            Step::Done(reply) => println!("the model: {}", reply.text()),
            _ => {}
        }
    }
    Ok(())
}
// guide: end

#[tokio::main]
async fn main() -> Outcome {
    let client = Client::new(std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?)?;
    if std::env::args().nth(1).as_deref() == Some("first") {
        first(&client).await
    } else {
        next(&client).await
    }
}
