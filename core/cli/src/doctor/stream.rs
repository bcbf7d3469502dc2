//! Whether the key may open a session, and whether the lines of a stream arrive as they are produced.

use super::Limits;
use super::report::{Finding, Report};
use crate::fault::Fault;
use broca::steps::Step;
use broca::tokio::{Client, Session, Subscription};
use broca::{Cursor, Error};
use std::time::Instant;
use tokio::time::timeout;

const UNBUFFERED: &str = "turn off buffering (and compression) of application/x-ndjson in the proxy before the service; with nginx: proxy_buffering off";

/// Opens a session; what was found, and the session if there is one.
pub(super) async fn open(client: &Client) -> (Finding, Option<Session>) {
    match client.open().await {
        Ok(session) => {
            let found = format!("the key is accepted and has opened {}", session.id());
            (Finding::ok(found), Some(session))
        }
        Err(error) => (Finding::from(Fault::from(error)), None),
    }
}

/// Reads the log of a session that was just opened, which is one event or more, on a stream that stays open. What does
/// not come before the stream ends is held back on its way. The session is closed to see that.
pub(super) async fn check(
    session: &Session,
    limits: Limits,
    report: &mut Report,
) -> Result<(), Fault> {
    let begun = Instant::now();
    let mut events = session.subscribe_from(Cursor::start());
    let finding = match timeout(limits.step, first(&mut events)).await {
        Ok(Ok(true)) => Finding::ok(format!(
            "a line arrives as it is produced: after {} ms, on a stream that stays open",
            begun.elapsed().as_millis()
        )),
        Ok(Ok(false)) => Finding::failed(
            "the stream ended without a line while the session was open",
            "look at the log of the service, and of proxies before it",
        ),
        Ok(Err(error)) => Finding::from(Fault::from(error)),
        Err(_) => held_back(session, &mut events, begun, limits).await,
    };
    report.add("stream", &finding).map(drop)
}

/// Nothing has come in time: ends the stream and looks whether it comes then.
async fn held_back(
    session: &Session,
    events: &mut Subscription,
    begun: Instant,
    limits: Limits,
) -> Finding {
    let patience = limits.step.as_secs();
    if let Err(error) = session.close().await {
        return Finding::from(Fault::from(error));
    }
    match timeout(limits.step, first(events)).await {
        Ok(Ok(true)) => Finding::failed(
            format!(
                "lines are held back: nothing within {patience} s, and all of it after {} ms, when the stream had ended",
                begun.elapsed().as_millis()
            ),
            UNBUFFERED,
        ),
        Ok(Err(error)) => Finding::from(Fault::from(error)),
        Ok(Ok(false)) | Err(_) => Finding::failed(
            format!("no line of a stream arrives: nothing within {patience} s, nor at its end"),
            UNBUFFERED,
        ),
    }
}

/// Whether an event comes before the stream ends.
async fn first(events: &mut Subscription) -> Result<bool, Error> {
    while let Some(step) = events.next().await {
        if matches!(step?, Step::Event(_)) {
            return Ok(true);
        }
    }
    Ok(false)
}
