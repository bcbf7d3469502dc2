//! Who takes part: two drivers with tools of their own, and an observer.

use crate::Trouble;
use crate::document::Document;
use crate::screen::{Screen, Speaker};
use broca::engine::DeltaKind;
use broca::steps::Step;
use broca::tokio::{Client, Session};
use broca::tools::Tool;
use broca_proto::session::ids::SessionId;
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

/// The first driver: opens the session, asks about beginning and words.
pub(crate) mod driver_a {
    use super::*;

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
        screen.say(Speaker::DriverA, &told);
        Ok(session)
    }

    /// Asks; tells `busy` when the turn is in its middle.
    pub(crate) async fn ask(
        session: &Session,
        document: &Document,
        screen: &Screen,
        busy: oneshot::Sender<()>,
    ) -> Result<String, Trouble> {
        let question = format!("How does {} begin, and how many words has it?", document.name());
        take_turn(session, &question, Speaker::DriverA, screen, Some(busy)).await
    }
}

/// The second driver: joins while the first one's turn is under way, and waits for its own.
pub(crate) mod driver_b {
    use super::*;

    pub(crate) async fn ask(
        client: &Client,
        id: &SessionId,
        document: &Arc<Document>,
        screen: &Screen,
    ) -> Result<String, Trouble> {
        let size = tool("file_size", "Tell the bytes of a file.", document, |document| {
            document.bytes().to_string()
        });
        let session = client.join(id.clone()).tool(size).await?;
        screen.say(
            Speaker::DriverB,
            "joins while the turn of A is under way, bringing the tool file_size",
        );
        let question = format!("How large is {}?", document.name());
        take_turn(&session, &question, Speaker::DriverB, screen, None).await
    }
}

/// One turn, shown as it happens. The tools run by themselves.
async fn take_turn(
    session: &Session,
    question: &str,
    who: Speaker,
    screen: &Screen,
    mut busy: Option<oneshot::Sender<()>>,
) -> Result<String, Trouble> {
    screen.say(who, &format!("asks: {question}"));
    let mut turn = session.send(question);
    let mut answer = None;
    while let Some(step) = turn.next().await {
        match step? {
            Step::Delta(delta) if delta.kind == DeltaKind::Text => screen.words(&delta.text),
            Step::ToolCall(call) => {
                screen.say(who, &format!("runs {} {}", call.name, call.input.as_str()));
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
    /// The same events in the same order, and no turn inside another.
    pub(crate) fn compare(&self) -> Result<(), Trouble> {
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
        match owners.len() {
            2 => Ok(()),
            n => Err(Trouble(format!(
                "two turns one after the other were expected; owners changed {n} times"
            ))),
        }
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
