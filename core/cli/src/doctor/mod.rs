//! `broca doctor`: checks the way to a service, the key and the stream, one line for each check.

mod clock;
pub(crate) mod connection;
mod headers;
mod report;
mod stream;
mod way;

use crate::arguments::DoctorArguments;
use crate::fault::Fault;
use crate::interrupt::Interrupts;
use crate::place::{DEV_URL, Purpose, Reach};
use broca::Secret;
use broca::engine::{Config, Engine, Environment};
use broca::tokio::Client;
use report::{Finding, Report};
use std::time::Duration;

/// What the checks may take and tolerate.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// The time of one step.
    step: Duration,
    /// How far the clocks may be apart.
    clock_skew: Duration,
}

impl Limits {
    /// The same for a client. The head of a stream has longer, so that one that is held back is not given up before that
    /// was seen.
    fn apply(self, config: &mut Config) {
        let step = u64::try_from(self.step.as_millis()).unwrap_or(u64::MAX);
        config.connect_timeout_ms = step;
        config.rest_timeout_ms = step;
        config.head_timeout_ms = step.saturating_mul(4);
        config.client_version = Some(concat!("broca-cli/", env!("CARGO_PKG_VERSION")).into());
    }
}

/// Runs the command.
pub(crate) async fn run(arguments: DoctorArguments) -> Result<(), Fault> {
    let variable = |name: &str| std::env::var(name).ok();
    let (url, key) = Reach::look(&arguments.reach, Purpose::Drive, variable)?;
    let limits = Limits {
        step: Duration::from_secs(arguments.timeout),
        clock_skew: Duration::from_secs(arguments.clock_skew),
    };
    let mut interrupts = Interrupts::listen()?;
    let mut report = Report::new(arguments.json);
    let is_there = tokio::select! {
        is_there = way::check(&url, limits, &mut report) => is_there?,
        _ = interrupts.next() => return Err(interrupted()),
    };
    match well_formed(key) {
        Err(finding) => {
            report.add("key", &finding)?;
        }
        Ok(key) => {
            report.add("key", &Finding::ok("there is one, and it looks like one"))?;
            if is_there {
                let client =
                    Client::builder(url.as_str(), key).configure(|config| limits.apply(config));
                take_part(&url, &client.build()?, limits, &mut interrupts, &mut report).await?;
            }
        }
    }
    report.finish()
}

/// The key, if a client could use it; its own rules say so, whatever the service.
fn well_formed(key: Result<Secret, Fault>) -> Result<Secret, Finding> {
    let key = key?;
    let config = Config::new(DEV_URL, key.clone());
    match Engine::new(config, 0, 0, Environment::none()) {
        Ok(_) => Ok(key),
        Err(error) => Err(Finding::failed(
            error.message(),
            "it came from --key, --key-file, BROCA_CLIENT_KEY or your state folder",
        )),
    }
}

/// Opens a session, looks at its stream and closes it, whatever comes between.
async fn take_part(
    url: &str,
    client: &Client,
    limits: Limits,
    interrupts: &mut Interrupts,
    report: &mut Report,
) -> Result<(), Fault> {
    let (finding, session) = tokio::select! {
        opened = stream::open(client) => opened,
        _ = interrupts.next() => return Err(interrupted()),
    };
    report.add("session", &finding)?;
    let Some(session) = session else { return Ok(()) };
    let checks = async {
        headers::check(url, &session, limits, report).await?;
        stream::check(&session, limits, report).await
    };
    let outcome = tokio::select! {
        outcome = checks => outcome,
        _ = interrupts.next() => Err(interrupted()),
    };
    let closed = session.close().await;
    outcome?;
    if let Err(error) = closed {
        let found = format!("{} is left open: {}", session.id(), error.message());
        report.add(
            "session",
            &Finding::warning(found, "close it with: broca chat --close --session ID"),
        )?;
    }
    Ok(())
}

fn interrupted() -> Fault {
    Fault::interrupted("interrupted before the checks were done")
}
