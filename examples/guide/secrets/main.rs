//! All that a program might print of a session is searched for keys and for what was said: there is none of it.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use broca::{Client, Error, Session, Step, Tool};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::{Arc, Mutex, PoisonError};

/// What a program might print.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<String>>);

impl Shown {
    fn add(&self, text: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    }

    fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What was said, and the keys of this service.
fn secrets(text: &str) -> usize {
    text.matches("swordfish").count() + text.matches("bae_").count()
}

// guide: begin
#[derive(Deserialize, JsonSchema)]
struct Attempt {
    word: String,
}

async fn talk(session: &Session, message: &str, shown: &Shown) {
    let mut turn = session.send(message);
    while let Some(step) = turn.next().await {
        shown.add(&format!("{step:?}"));
        match step {
            Ok(Step::Done(reply)) => println!("the answer: {}", reply.text()),
            Ok(_) => {}
            Err(error) => show(&error, shown),
        }
    }
}

fn show(error: &Error, shown: &Shown) {
    shown.add(&format!("{error} {error:?} {error:#?} {:?}", error.details()));
    println!("failed: {}", error.kind().as_str());
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (url, key) = (std::env::var("BROCA_URL")?, std::env::var("BROCA_CLIENT_KEY")?);
    let (shown, log) = (Shown::default(), Shown::default());
    let sink = log.clone();
    let vault = Tool::function("vault", "Opens the vault.", |attempt: Attempt| async move {
        Err::<String, _>(format!("{} is not the word", attempt.word)) // only the model reads this
    });
    let client = Client::builder(&url, key).log(move |record| sink.add(&record.message)).build()?;
    let session = client.open().tools([vault]).await?;
    talk(&session, "Open with swordfish.", &shown).await;
    talk(&session, "Tell nobody of swordfish.", &shown).await;
    let saved = session.save()?;
    shown.add(&format!("{client:?} {session:#?} {saved:?}"));
    if let Err(error) = Client::new(&url, "bae_of_somebody_else")?.open().await {
        show(&error, &shown);
    }

    println!("in the log: {}", if log.text().is_empty() { "nothing" } else { "words" });
    println!("secrets in log, errors and debug output: {}", secrets(&(log.text() + &shown.text())));
    println!("secrets in the saved session: {}", secrets(saved.to_json().expose())); // for a safe place
    // guide: end
    session.close().await?;
    Ok(())
}
