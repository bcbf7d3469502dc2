//! The demo: a session about a file of yours, on the bundled service, which runs as a process of its
//! own. Two drivers with tools, an observer, and a model that needs no key. Run it with `make demo`.
#![forbid(unsafe_code)]

mod document;
mod people;
mod screen;
mod service;

use broca::Error;
use broca::tokio::Client;
use document::Document;
use people::{Observed, driver_a, driver_b, observer};
use screen::{Screen, Speaker};
use service::ServiceProcess;
use std::path::PathBuf;
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
    let file = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("README.md"), PathBuf::from);
    let screen = Screen::new();
    match run(&file, &screen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Trouble(why)) => {
            screen.close();
            eprintln!("demo: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(file: &std::path::Path, screen: &Screen) -> Result<(), Trouble> {
    let document = Arc::new(Document::read(file)?);
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Trouble(format!("the runtime did not start: {e}")))?;
    let mut ending = runtime.block_on(async { Ending::listen() })?;
    let service = ServiceProcess::start(&document.script())?;
    screen.say(Speaker::Service, &format!("listens on {}, as a process of its own", service.url));
    let played = runtime.block_on(async {
        let play = play(&service, &document, screen);
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
    screen: &Screen,
) -> Result<(), Trouble> {
    let client_a = Client::new(service.url.as_str(), service.keys.driver_a.as_str())?;
    let client_b = Client::new(service.url.as_str(), service.keys.driver_b.as_str())?;
    let watcher = Client::builder(service.url.as_str(), service.keys.observer.as_str())
        .configure(|config| config.features.display = false)
        .build()?;

    let session = driver_a::open(&client_a, document, screen).await?;
    let id = session.id().clone();
    let (a_is_busy, a_busy) = oneshot::channel();
    let drivers = async {
        let asked = tokio::try_join!(driver_a::ask(&session, document, screen, a_is_busy), async {
            // In the middle of the turn of A: the session lets B wait for its own.
            let _a_is_done = a_busy.await;
            driver_b::ask(&client_b, &id, document, screen).await
        },);
        // The end of the session is what the observer waits for.
        let closed = session.close().await;
        let replies = asked?;
        closed?;
        Ok::<_, Trouble>(replies)
    };
    let ((a, b), observed) = tokio::try_join!(drivers, observer::watch(&watcher, &id, screen))?;
    check(document, &a, &b, &observed, screen)
}

/// The answers against the file itself, and what the observer saw against the log.
fn check(
    document: &Document,
    a: &str,
    b: &str,
    observed: &Observed,
    screen: &Screen,
) -> Result<(), Trouble> {
    let (words, beginning) = (document.count_words(), document.beginning());
    if !a.contains(&format!("count_words says:\n{words}")) {
        return Err(Trouble(format!("the answer is wrong: the file has {words} words")));
    }
    if !a.contains(beginning.lines().next().unwrap_or_default()) {
        return Err(Trouble("the answer is wrong: the file begins otherwise".into()));
    }
    let bytes = document.bytes();
    if !b.contains(&format!("file_size says:\n{bytes}")) {
        return Err(Trouble(format!("the answer is wrong: the file has {bytes} bytes")));
    }
    screen.say(
        Speaker::Check,
        &format!("answer is right: {words} words, {bytes} bytes, and it begins as quoted"),
    );
    observed.compare()?;
    let seen = observed.seen.len();
    screen.say(
        Speaker::Check,
        &format!("the observer saw all {seen} events once, in the order of the log"),
    );
    screen.say(Speaker::Check, "the turn of B came after the turn of A, none in the other");
    Ok(())
}
