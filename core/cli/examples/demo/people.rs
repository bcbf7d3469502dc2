//! Who takes part in this process: the driver in Rust with its tools, and an observer.

use crate::Trouble;
use crate::document::Document;
use crate::screen::{Screen, Speaker};
use broca::engine::DeltaKind;
use broca::steps::Step;
use broca::tokio::{Client, Session};
use broca::tools::Tool;
use broca_proto::session::ids::SessionId;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The arguments of every tool here.
#[derive(serde::Deserialize, schemars::JsonSchema)]
struct OfFile {
    /// The path of the file.
    path: String,
}

/// A tool about the one file that may be read.
fn tool(
    name: &str,
    description: &str,
    document: &Arc<Document>,
    answer: impl Fn(&Document) -> String + Send + Sync + 'static,
) -> Tool {
    let document = Arc::clone(document);
    Tool::blocking(name, description, move |arguments: OfFile| {
        document.permit(&arguments.path).map(|()| answer(&document))
    })
}

/// Opens the session, with the tools of this driver.
pub(crate) async fn open(
    client: &Client,
    document: &Arc<Document>,
    screen: &Screen,
) -> Result<Session, Trouble> {
    let read = tool("read_file", "Return how a file begins.", document, Document::beginning);
    let count = tool("count_words", "Count the words of a file.", document, |document| {
        document.count_words().to_string()
    });
    let session = client.open().tool(read).tool(count).await?;
    let told =
        format!("opens session {}, bringing the tools read_file and count_words", session.id());
    screen.say(Speaker::Rust, &told);
    Ok(session)
}

/// Asks, and shows the turn as it happens. The tools run by themselves. `busy` is told when the turn is in its middle.
pub(crate) async fn ask(
    session: &Session,
    question: &str,
    screen: &Screen,
    busy: oneshot::Sender<()>,
) -> Result<String, Trouble> {
    let mut busy = Some(busy);
    screen.say(Speaker::Rust, &format!("asks: {question}"));
    let mut turn = session.send(question);
    let mut answer = None;
    while let Some(step) = turn.next().await {
        match step? {
            Step::Delta(delta) if delta.kind == DeltaKind::Text => {
                screen.words(Speaker::Rust, &delta.text);
            }
            Step::ToolCall(call) => {
                screen.say(Speaker::Rust, &format!("runs {} {}", call.name, call.input.as_str()));
                if let Some(busy) = busy.take() {
                    // Nobody waits for it when the demo is being ended.
                    let _ended = busy.send(());
                }
            }
            Step::Done(reply) => answer = Some(reply.text()),
            _ => {}
        }
    }
    screen.close();
    answer.ok_or_else(|| Trouble("a turn ended without an answer".into()))
}

/// What the observer saw, and what the log holds.
pub(crate) struct Observed {
    pub(crate) seen: Vec<Told>,
    log: Vec<Told>,
}

/// An event: its id, its type, and whose key caused it.
#[derive(PartialEq, Eq)]
pub(crate) struct Told {
    id: String,
    event_type: String,
    key: Option<String>,
}

impl Observed {
    /// The same events in the same order, and so many turns of different drivers, none inside another.
    pub(crate) fn compare(&self, turns: usize) -> Result<(), Trouble> {
        if self.seen != self.log {
            let (seen, logged) = (self.seen.len(), self.log.len());
            return Err(Trouble(format!(
                "the observer saw {seen} events, the log has {logged}, or their order differs"
            )));
        }
        let mut owners: Vec<&Option<String>> = Vec::new();
        let in_turns = |told: &&Told| !told.event_type.starts_with("session.");
        for told in self.seen.iter().filter(in_turns) {
            if owners.last() != Some(&&told.key) {
                owners.push(&told.key);
            }
        }
        let different: HashSet<_> = owners.iter().collect();
        if owners.len() == turns && different.len() == turns && !owners.contains(&&None) {
            return Ok(());
        }
        Err(Trouble(format!(
            "{turns} turns of {turns} drivers were expected, one after the other; owners changed {} times",
            owners.len()
        )))
    }

    /// How many drivers joined while the turn of another was under way.
    pub(crate) fn joined_in_turns(&self) -> usize {
        let in_turn = |told: &&Told| !told.event_type.starts_with("session.");
        let drives =
            |told: &Told| self.seen.iter().filter(in_turn).any(|other| other.key == told.key);
        let is_join = |told: &Told| told.event_type == "session.join" && drives(told);
        let joins = self.seen.iter().enumerate().filter(|(_, told)| is_join(told));
        let amid = joins.filter(|(at, told)| {
            let before = self.seen[..*at].iter().rfind(in_turn).map(|other| &other.key);
            let after = self.seen[*at..].iter().find(in_turn).map(|other| &other.key);
            before.is_some() && before == after && before != Some(&told.key)
        });
        amid.count()
    }
}

/// Somebody who only looks.
pub(crate) mod observer {
    use super::*;
    use broca_cli::summary::summary;
    use broca_proto::session::event::Event;
    use broca_proto::session::ids::Cursor;

    /// The width of what is shown of an event, in characters.
    const SHOWN_CHARS: usize = 60;

    /// Watches from the first event to the end of the session, then reads the log.
    pub(crate) async fn watch(
        client: &Client,
        id: &SessionId,
        screen: &Screen,
    ) -> Result<Observed, Trouble> {
        let session = client.observe(id.clone()).await?;
        screen.say(Speaker::Observer, "watches the session from its first event");
        let mut events = session.subscribe_from(Cursor::start());
        let mut observed = Observed { seen: Vec::new(), log: Vec::new() };
        while let Some(step) = events.next().await {
            if let Step::Event(event) = step? {
                observed.seen.push(told(&event));
                let number = observed.seen.len();
                let name = event.type_name().to_owned();
                let line = format!("{number:>2} {name:<23} {}", summary(&event, SHOWN_CHARS));
                screen.say(Speaker::Observer, line.trim_end());
            }
        }
        let mut log = session.history();
        while let Some(event) = log.next().await {
            observed.log.push(told(&event?));
        }
        Ok(observed)
    }

    fn told(event: &Event) -> Told {
        Told {
            id: event.id().to_owned(),
            event_type: event.type_name().to_owned(),
            key: event.client_key_id().map(|key| key.as_str().to_owned()),
        }
    }
}
