//! One leg of a relay, as in the other languages (`scripts/relay`): `relay leave|take FILE` leaves a session in the middle of
//! a turn, or takes one up that another program has left.

use broca::blocking::Client;
use broca::steps::Step;
use broca::tools::Tool;
use broca::{Json, SavedSession};
use std::error::Error;
use std::fs;
use std::io::{Write, stdout};
use std::process::{ExitCode, exit};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may be there to read it.
            let _ = writeln!(std::io::stderr(), "relay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(leg), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("usage: relay leave|take FILE".into());
    };
    let leaves = leg == "leave";
    let client =
        Client::new(std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?.as_str())?;
    let schema = Json::parse(r#"{"type":"object"}"#)?;
    let tools = ["quick", "slow"].map(|name| Tool::manual(name, "A leg.", schema.clone()));
    let (session, mut turn) = if leaves {
        let session = client.open().tools(tools).start()?;
        let turn = session.send("use quick and slow");
        (session, turn)
    } else {
        let saved = SavedSession::parse(&fs::read(&file)?)?;
        let session = client.attach(saved).tools(tools).start()?;
        let turn = session.resume().ok_or("nothing was left")?;
        (session, turn)
    };
    let mut out = stdout().lock();
    for step in &mut turn {
        match step? {
            Step::Event(event) => writeln!(out, "event {}", event.id())?,
            Step::ToolCall(call) => {
                let again = u8::from(call.may_have_run);
                writeln!(out, "call {} {} {again}", call.name, call.idempotency_key)?;
                if !leaves || call.name == "quick" {
                    call.complete(&format!("{} by rust", call.name))?;
                }
            }
            Step::ToolSettled { .. } if leaves => {
                fs::write(&file, session.save()?.to_json().expose())?;
                out.flush()?;
                // As a crash would: nobody is told.
                exit(0);
            }
            Step::Done(reply) => writeln!(out, "reply {}", reply.text())?,
            _ => {}
        }
    }
    session.close()?;
    Ok(())
}
