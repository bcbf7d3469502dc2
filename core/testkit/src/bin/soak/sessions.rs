//! Sessions with a driver and two observers each, one after the other, until the time is over.

use broca::Error;
use broca::proto::session::ids::Cursor;
use broca::steps::Step;
use broca::tokio::{Client, Session};
use broca::tools::Tool;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Turns of one session.
const TURNS: u64 = 6;

/// Observers of one session.
const OBSERVERS: usize = 2;

/// How long a turn may take.
const TURN: Duration = Duration::from_secs(60);

/// How long an observer may need to get everything after the session's end.
const CATCH_UP: Duration = Duration::from_secs(60);

/// What all sessions share.
#[derive(Clone)]
pub(crate) struct All {
    pub(crate) url: String,
    pub(crate) proxied: String,
    pub(crate) driver_key: String,
    pub(crate) watch_key: String,
    pub(crate) end: Instant,
    pub(crate) counts: Arc<Counts>,
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    sessions: AtomicU64,
    turns: AtomicU64,
    calls: AtomicU64,
    events: AtomicU64,
    reconnects: AtomicU64,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct CountWords {
    /// The text whose words are counted.
    text: String,
}

/// Runs sessions, `drivers` at a time, until the time is over. The first fault ends it.
pub(crate) async fn run(all: All, drivers: u64) -> Result<(), String> {
    let mut tasks: JoinSet<Result<(), String>> = JoinSet::new();
    for _ in 0..drivers {
        let all = all.clone();
        tasks.spawn(async move {
            while Instant::now() < all.end {
                session(&all).await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|e| format!("a driver ended badly: {e}"))??;
    }
    Ok(())
}

async fn session(all: &All) -> Result<(), String> {
    let ran = Arc::new(AtomicU64::new(0));
    let tool = {
        let (ran, counts) = (Arc::clone(&ran), Arc::clone(&all.counts));
        let count = move |arguments: CountWords| {
            ran.fetch_add(1, Ordering::SeqCst);
            counts.calls.fetch_add(1, Ordering::SeqCst);
            let words = arguments.text.split_whitespace().count();
            std::future::ready(Ok::<_, Error>(format!("{words} words counted")))
        };
        Tool::function("count_words", "Count the words of a text.", count)
    };
    let driver = client(&all.url, &all.driver_key)?;
    let session = driver.open().tool(tool).await.map_err(|e| format!("open: {e}"))?;
    let mut observers = JoinSet::new();
    for _ in 0..OBSERVERS {
        // Joining goes the straight way; what is tried is the subscription.
        let observer = observe(all, &session).await?;
        observers.spawn(watch(observer, Arc::clone(&all.counts)));
    }
    for turn in 1..=TURNS {
        let words = "word ".repeat(usize::try_from(turn).unwrap_or(1));
        let asked = format!("count_words \"{}\"", words.trim_end());
        let reply = timeout(TURN, session.ask(asked.as_str())).await;
        let reply = reply.map_err(|_| format!("turn {turn} did not end within {TURN:?}"))?;
        let reply = reply.map_err(|e| format!("turn {turn}: {e}"))?;
        if !reply.text().contains(&format!("{turn} words counted")) {
            return Err(format!("turn {turn}: the answer does not quote the tool's result"));
        }
        if ran.load(Ordering::SeqCst) != turn {
            let times = ran.load(Ordering::SeqCst);
            return Err(format!("after {turn} turns of one call the handler ran {times} times"));
        }
        all.counts.turns.fetch_add(1, Ordering::SeqCst);
    }
    let reader = driver.observe(session.id().clone());
    let reader = reader.await.map_err(|e| format!("a reader of the log: {e}"))?;
    session.close().await.map_err(|e| format!("close: {e}"))?;
    let logged = history(&reader).await?;
    let late = |_| format!("an observer did not get to the end of the log within {CATCH_UP:?}");
    while let Some(ended) = timeout(CATCH_UP, observers.join_next()).await.map_err(late)? {
        let seen = ended.map_err(|e| format!("an observer ended badly: {e}"))??;
        compare(&logged, &seen)?;
    }
    all.counts.sessions.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

async fn observe(all: &All, session: &Session) -> Result<Session, String> {
    let observer = client(&all.proxied, &all.watch_key)?;
    // The proxy disturbs opening too, and opening is not repeated by the client.
    let mut last = String::new();
    for _ in 0..200 {
        match observer.observe(session.id().clone()).await {
            Ok(session) => return Ok(session),
            Err(error) => last = error.to_string(),
        }
    }
    Err(format!("no observer could join: {last}"))
}

/// Follows a session to its end; gives the ids of the events as they came.
async fn watch(observer: Session, counts: Arc<Counts>) -> Result<Vec<String>, String> {
    let mut seen = Vec::new();
    let mut subscription = observer.subscribe_from(Cursor::start());
    loop {
        match subscription.next().await {
            None => return Ok(seen),
            Some(Ok(Step::Event(event))) => {
                counts.events.fetch_add(1, Ordering::SeqCst);
                seen.push(event.id().to_owned());
            }
            Some(Ok(Step::Gap(gap))) if !matches!(gap.lost, broca::engine::Lost::Deltas(_)) => {
                return Err(format!("an observer has a gap: {:?}", gap.lost));
            }
            Some(Ok(Step::Status(broca::engine::Status::Reconnecting { .. }))) => {
                counts.reconnects.fetch_add(1, Ordering::SeqCst);
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(format!("a subscription failed: {error}")),
        }
    }
}

/// The ids of the whole log.
async fn history(reader: &Session) -> Result<Vec<String>, String> {
    let mut ids = Vec::new();
    let mut history = reader.history();
    while let Some(event) = history.next().await {
        ids.push(event.map_err(|e| format!("history: {e}"))?.id().to_owned());
    }
    Ok(ids)
}

/// Every event once, in order.
fn compare(logged: &[String], seen: &[String]) -> Result<(), String> {
    let distinct: HashSet<&String> = seen.iter().collect();
    if distinct.len() != seen.len() {
        return Err(format!("{} events came twice", seen.len() - distinct.len()));
    }
    match logged.iter().zip(seen).position(|(logged, seen)| logged != seen) {
        Some(at) => Err(format!("event {at} of {} is not the one that was logged", logged.len())),
        None if logged.len() != seen.len() => {
            Err(format!("{} events were logged, {} came", logged.len(), seen.len()))
        }
        None => Ok(()),
    }
}

fn client(url: &str, key: &str) -> Result<Client, String> {
    // With faults several times a second, the usual delays would be most of the run.
    let often = |config: &mut broca::engine::Config| config.reconnect.max_delay_ms = 400;
    Client::builder(url, key).configure(often).build().map_err(|e| e.to_string())
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = |count: &AtomicU64| count.load(Ordering::SeqCst);
        write!(
            f,
            "{} sessions, {} turns, {} calls, {} events seen once and in order, {} reconnects",
            n(&self.sessions),
            n(&self.turns),
            n(&self.calls),
            n(&self.events),
            n(&self.reconnects)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_doubled_and_swapped_events_are_found() {
        let ids = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let logged = ids("a b c");
        assert_eq!(compare(&logged, &logged), Ok(()));
        for bad in ["a b", "a c b", "a b b c", "a b c d"] {
            assert!(compare(&logged, &ids(bad)).is_err(), "{bad}");
        }
    }
}
