//! What all sessions of a run share.

use crate::ledger::{Outcome, passes};
use crate::options::Options;
use crate::server::Server;
use broca::engine::Config;
use broca::proto::session::turn::ToolOutcome;
use broca::{Client, Error};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long opening, joining and the like are tried.
const AGAIN: Duration = Duration::from_secs(120);

/// The run.
pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) server: Server,
    /// Where clients connect.
    pub(crate) url: String,
    pub(crate) end: Instant,
    /// The first thing that was not as it must be.
    pub(crate) fault: OnceLock<String>,
    pub(crate) counts: Counts,
}

impl World {
    /// Whether nothing new is to begin.
    pub(crate) fn is_over(&self) -> bool {
        self.fault.get().is_some()
            || Instant::now() >= self.end
            || self.counts.logged.value() + self.counts.open.value() >= self.options.events
    }

    /// Something is not as it must be: everybody stops. The first fault is the one that is told.
    pub(crate) fn fail(&self, fault: String) {
        self.fault.get_or_init(|| fault);
    }

    /// How clients are set: with faults several times a second, the usual delays would be most of the run.
    pub(crate) fn config(config: &mut Config) {
        // A model that refuses ends its turn and not the session, of which more is asked.
        config.features.keep_open = true;
        config.reconnect.max_delay_ms = 400;
        config.connect_timeout_ms = 3_000;
        config.head_timeout_ms = 5_000;
        config.rest_timeout_ms = 15_000;
        config.reach_timeout_ms = 30_000;
        config.recovery_timeout_ms = 30_000;
        config.resume_wait_ms = 15_000;
    }

    pub(crate) fn client(
        &self,
        key: &str,
        change: impl FnOnce(&mut Config),
    ) -> Result<Client, String> {
        let builder = Client::builder(&self.url, key).proxy_from_environment(false);
        builder.configure(Self::config).configure(change).build().map_err(|e| e.to_string())
    }
}

/// Something that is being done.
pub(crate) type Doing<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// Does what may be repeated until it succeeds. The first error that is not the network's ends it.
pub(crate) async fn again<T>(what: &str, doing: impl Fn() -> Doing<T>) -> Result<T, String> {
    let until = Instant::now() + AGAIN;
    loop {
        match doing().await {
            Ok(done) => return Ok(done),
            Err(error) if passes(error.kind()) && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => {
                return Err(format!(
                    "{what}: {} ({}): {error}",
                    error.kind().as_str(),
                    error.code()
                ));
            }
        }
    }
}

/// A number that only grows, but for what is open.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::SeqCst);
    }

    pub(crate) fn take(&self, fewer: u64) {
        self.0.fetch_sub(fewer, Ordering::SeqCst);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sessions: Count,
    /// Events of sessions that were checked.
    pub(crate) logged: Count,
    /// Events that the steady observers of the other sessions have seen.
    pub(crate) open: Count,
    /// Events that observers were shown.
    pub(crate) seen: Count,
    pub(crate) reconnects: Count,
    pub(crate) hops: Count,
    pub(crate) deaths: Count,
    pub(crate) resumed: Count,
    pub(crate) recovered: Count,
    pub(crate) held: Arc<Count>,
    pub(crate) effects: Count,
    pub(crate) effects_without_result: Count,
    turns: Mutex<BTreeMap<&'static str, u64>>,
    settled: Mutex<BTreeMap<&'static str, u64>>,
    errors: Mutex<BTreeMap<String, u64>>,
}

impl Counts {
    pub(crate) fn turn(&self, outcome: &Outcome) {
        one_more(
            &self.turns,
            match outcome {
                Outcome::Done(_) => "done",
                Outcome::Cancelled => "cancelled",
                Outcome::Refused => "refused by the model",
                Outcome::Interrupted => "interrupted",
                Outcome::NotSent => "not sent",
                Outcome::Unknown => "said to be unknown",
                Outcome::GivenUp => "given up by the service",
                Outcome::Overtaken => "overtaken by the dead",
                Outcome::Unread => "ended unread",
            },
        );
    }

    pub(crate) fn settled(&self, outcome: ToolOutcome) {
        one_more(&self.settled, outcome.as_str());
    }

    pub(crate) fn error(&self, error: &Error) {
        let said =
            format!("{} ({}): {}", error.kind().as_str(), error.retry().as_str(), error.message());
        one_more(&self.errors, said.chars().filter(|c| !c.is_ascii_digit()).take(110).collect());
    }

    /// The errors of turns by what they say, for whoever looks into a run.
    pub(crate) fn errors(&self) -> String {
        listed(&self.errors, "\n  ")
    }
}

fn one_more<K: Ord>(counts: &Mutex<BTreeMap<K, u64>>, key: K) {
    *counts.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
}

fn listed<K: Ord + fmt::Display>(counts: &Mutex<BTreeMap<K, u64>>, between: &str) -> String {
    let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    let words: Vec<String> = counts.iter().map(|(key, count)| format!("{count} {key}")).collect();
    words.join(between)
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} events in {} sessions, each seen once and in order ({} in all); turns: {}; {} recovered, {} taken up \
             after {} deaths, {} held for longer; calls: {}; {} side effects, each once ({} of them without a result); \
             {} reconnects, {} stored cursors gone on from",
            self.logged.value(),
            self.sessions.value(),
            self.seen.value(),
            listed(&self.turns, ", "),
            self.recovered.value(),
            self.resumed.value(),
            self.deaths.value(),
            self.held.value(),
            listed(&self.settled, ", "),
            self.effects.value(),
            self.effects_without_result.value(),
            self.reconnects.value(),
            self.hops.value(),
        )
    }
}
