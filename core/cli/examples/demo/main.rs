//! The demo: a session about a file of yours, on the bundled service, which runs as a process of its
//! own. A driver with tools in each of four languages, an observer, and a model that needs no key. Run it with `make demo`.
//!
//! This program directs: it starts the service and the drivers in other languages, is the driver in Rust and the observer,
//! and checks what was said.
#![forbid(unsafe_code)]

mod document;
mod drivers;
mod people;
mod screen;
mod service;

use broca::Error;
use broca::tokio::Client;
use document::Document;
use drivers::{Drivers, Task};
use people::{Observed, observer};
use screen::{Screen, Speaker};
use service::ServiceProcess;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The demo takes a few seconds. What takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What went wrong, in a line.
pub(crate) struct Trouble(pub(crate) String);

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self(error.message().to_owned())
    }
}

fn main() -> ExitCode {
    let mut given = std::env::args_os().skip(1).map(PathBuf::from);
    let file = given.next().unwrap_or_else(|| PathBuf::from("README.md"));
    let drivers = Drivers::new(given.next().unwrap_or_else(|| PathBuf::from("target/demo")));
    let screen = Screen::new();
    match run(&file, &drivers, &screen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Trouble(why)) => {
            screen.close();
            eprintln!("demo: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(file: &Path, drivers: &Drivers, screen: &Screen) -> Result<(), Trouble> {
    let document = Arc::new(Document::read(file)?);
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Trouble(format!("the runtime did not start: {e}")))?;
    let mut ending = runtime.block_on(async { Ending::listen() })?;
    let service = ServiceProcess::start(&document.script())?;
    screen.say(Speaker::Service, &format!("listens on {}, as a process of its own", service.url));
    let played = runtime.block_on(async {
        let play = play(&service, &document, drivers, screen);
        tokio::select! {
            played = play => played,
            () = tokio::time::sleep(PATIENCE) => Err(Trouble("it took more than a minute; something hangs".into())),
            () = ending.comes() => Err(Trouble("interrupted".into())),
        }
    });
    let ended = service.stop();
    played?;
    ended?;
    screen.say(Speaker::Service, "has ended, and what it kept is gone");
    let seconds = begun.elapsed().as_secs_f32();
    screen.say(Speaker::Demo, &format!("done in {seconds:.1} s"));
    Ok(())
}

/// Signals that end the demo. Listened to from before there is anything to clean up.
struct Ending {
    #[cfg(unix)]
    signals: [tokio::signal::unix::Signal; 3],
}

impl Ending {
    #[cfg(unix)]
    fn listen() -> Result<Self, Trouble> {
        use tokio::signal::unix::{SignalKind, signal};
        let on =
            |kind| signal(kind).map_err(|e| Trouble(format!("signals cannot be waited for: {e}")));
        let signals =
            [on(SignalKind::interrupt())?, on(SignalKind::terminate())?, on(SignalKind::hangup())?];
        Ok(Self { signals })
    }

    #[cfg(unix)]
    async fn comes(&mut self) {
        let [interrupt, terminate, hang_up] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    }

    #[cfg(not(unix))]
    fn listen() -> Result<Self, Trouble> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn comes(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn play(
    service: &ServiceProcess,
    document: &Arc<Document>,
    drivers: &Drivers,
    screen: &Screen,
) -> Result<(), Trouble> {
    let client = Client::new(service.url.as_str(), service.keys.rust.as_str())?;
    let watcher = Client::builder(service.url.as_str(), service.keys.observer.as_str())
        .configure(|config| config.features.display = false)
        .build()?;

    let session = people::open(&client, document, screen).await?;
    let id = session.id().clone();
    let name = document.name();
    let task = |language, key, question| Task {
        language,
        url: &service.url,
        key,
        session: id.as_str(),
        file: document.path(),
        question,
    };
    let keys = &service.keys;
    let python =
        task(Speaker::Python, &keys.python, format!("Which is the longest word in {name}?"));
    let c = task(Speaker::C, &keys.c, format!("How large is {name}?"));
    let node =
        task(Speaker::Node, &keys.node, format!("Which is the most frequent word in {name}?"));

    // Each comes when the one before has asked, in the middle of the first turn: the session lets them wait for their own.
    let (rust_is_busy, rust_busy) = oneshot::channel();
    let (python_asks, python_asked) = oneshot::channel();
    let (c_asks, c_asked) = oneshot::channel();
    let (node_asks, _nobody_waits) = oneshot::channel();
    let question = format!("How does {name} begin, and how many words has it?");
    let asking = async {
        let replies = tokio::try_join!(
            people::ask(&session, &question, screen, rust_is_busy),
            python.run_after(rust_busy, drivers, python_asks, screen),
            c.run_after(python_asked, drivers, c_asks, screen),
            node.run_after(c_asked, drivers, node_asks, screen),
        );
        // The end of the session is what the observer waits for.
        let closed = session.close().await;
        let (rust, python, c, node) = replies?;
        closed?;
        Ok::<_, Trouble>([rust, python, c, node])
    };
    let (replies, observed) = tokio::try_join!(asking, observer::watch(&watcher, &id, screen))?;
    check(document, &replies, &observed, screen)
}

/// The answers against the file itself, and what the observer saw against the log.
fn check(
    document: &Document,
    replies: &[String; 4],
    observed: &Observed,
    screen: &Screen,
) -> Result<(), Trouble> {
    let beginning = document.beginning();
    let words = document.count_words().to_string();
    let bytes = document.bytes().to_string();
    let (longest, frequent) = (document.longest_word(), document.most_frequent_word());
    let [rust, python, c, node] = replies;
    if !rust.contains(beginning.lines().next().unwrap_or_default()) {
        return Err(Trouble("the answer is wrong: the file begins otherwise".into()));
    }
    quotes(rust, "count_words", &words)?;
    quotes(python, "longest_word", &longest)?;
    quotes(c, "file_size", &bytes)?;
    quotes(node, "most_frequent_word", &frequent)?;
    let say = |what: &str| screen.say(Speaker::Check, what);
    say(&format!("Rust: the answer is right, {words} words, and it begins as quoted"));
    say(&format!("Python: the answer is right, {longest}"));
    say(&format!("C: the answer is right, {bytes} bytes"));
    say(&format!("Node: the answer is right, {frequent}"));
    observed.compare(replies.len())?;
    let seen = observed.seen.len();
    say(&format!("the observer saw all {seen} events once, in the order of the log"));
    say("four turns of four drivers came one after the other, none in another");
    let amid = observed.joined_in_turns();
    if amid == 0 {
        return Err(Trouble(
            "a driver should have joined in the middle of a turn; none did".into(),
        ));
    }
    say(&format!("{amid} drivers joined while the turn of another was under way"));
    Ok(())
}

/// Whether the model quotes this as the whole result of a tool.
fn quotes(reply: &str, tool: &str, result: &str) -> Result<(), Trouble> {
    let quoted = reply.split_once(&format!("{tool} says:\n{result}"));
    if quoted.is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with('\n')) {
        return Ok(());
    }
    Err(Trouble(format!("the answer is wrong: {tool} of this file is {result}")))
}
