//! `broca watch`: what happens in a session, one line for each event.

use crate::arguments::WatchArguments;
use crate::fault::{Fault, one_line, written};
use crate::interrupt::Interrupts;
use crate::place::{Purpose, Reach};
use crate::summary::{clock_time, summary};
use crate::view::{connection_lost, write_object, write_status};
use broca::engine::{Lost, Status};
use broca::steps::Step;
use broca::tokio::{Client, Subscription};
use broca::{Error, ErrorKind, Json};
use broca_proto::session::event::Event;
use broca_proto::session::ids::{Cursor, EventId};
use std::io::{self, Write};

/// The width of an event's summary, in characters.
const SUMMARY_CHARS: usize = 100;

/// Runs the command.
pub(crate) async fn run(arguments: WatchArguments) -> Result<(), Fault> {
    let reach = Reach::find(&arguments.reach, Purpose::Watch, |name| std::env::var(name).ok())?;
    let mut interrupts = Interrupts::listen()?;
    let client = Client::builder(reach.url, reach.key)
        .configure(|config| {
            config.client_version = Some(concat!("broca-cli/", env!("CARGO_PKG_VERSION")).into());
            config.features.display = false; // words that are being said are no events
        })
        .build()?;
    let session = tokio::select! {
        session = client.observe(arguments.session.as_str()) => session.map_err(not_joined)?,
        _ = interrupts.next() => return Err(Fault::interrupted("interrupted before the watch began")),
    };
    let mut events = match (&arguments.after, arguments.from_start) {
        (Some(event), _) => session.subscribe_from(Cursor::after(EventId::new(event.as_str()))),
        (None, true) => session.subscribe_from(Cursor::start()),
        (None, false) => session.subscribe(),
    };
    let mut watch = Watch { json: arguments.json, lost: false };
    loop {
        tokio::select! {
            step = events.next() => match step {
                Some(step) => watch.show(step?)?,
                None => return Ok(()),
            },
            _ = interrupts.next() => return Err(stopped(&events)),
        }
    }
}

fn stopped(events: &Subscription) -> Fault {
    Fault::interrupted(match events.cursor().and_then(Cursor::event_id) {
        Some(event) => format!("stopped; go on with --after {event}"),
        None => "stopped".to_owned(),
    })
}

/// A session that is over can be read by those who took part, and by nobody else.
fn not_joined(error: Error) -> Fault {
    if !error.is(ErrorKind::SessionClosed) {
        return error.into();
    }
    Fault::of(
        &error,
        "the session is over, so it cannot be joined",
        "its log can be read by whoever joined before",
    )
}

struct Watch {
    json: bool,
    /// The connection is lost, and the person knows it.
    lost: bool,
}

impl Watch {
    fn show(&mut self, step: Step) -> Result<(), Fault> {
        match step {
            Step::Event(event) => self.event(&event),
            Step::Status(status) => self.status(&status),
            Step::Gap(gap) => self.gap(&gap.lost),
            Step::Warning(warning) => {
                note(&warning.message);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn status(&mut self, status: &Status) -> Result<(), Fault> {
        match status {
            Status::Reconnecting { delay_ms, kind, why } => {
                self.lost = true;
                note(&connection_lost(*kind, why, *delay_ms));
            }
            Status::Connected if std::mem::take(&mut self.lost) => note("connected again"),
            _ => {}
        }
        if self.json {
            return written(write_status(&mut io::stdout().lock(), status));
        }
        Ok(())
    }

    fn event(&self, event: &Event) -> Result<(), Fault> {
        let mut out = io::stdout().lock();
        if self.json {
            return written(write_object(&mut out, "event", &[("event", &event.json())]));
        }
        let (time, name) = (clock_time(event), one_line(event.type_name(), 60));
        let line = format!("{time}  {name:<24}  {}", summary(event, SUMMARY_CHARS));
        written(writeln!(out, "{}", line.trim_end()).and_then(|()| out.flush()))
    }

    fn gap(&self, lost: &Lost) -> Result<(), Fault> {
        let (word, told) = match lost {
            Lost::Deltas(_) => return Ok(()),
            Lost::Line { bytes, limit } => (
                "line",
                format!("an event of {bytes} bytes was left out (the limit is {limit} bytes)"),
            ),
            Lost::Cursor(_) => (
                "cursor",
                "the service does not know where to go on; it begins at the start".to_owned(),
            ),
            Lost::Unseen => (
                "unseen",
                "the connection was lost before any event came, so what happens until it is back will be missing; watch with --from-start to see everything".to_owned(),
            ),
            _ => ("other", "some events were left out; watch with --from-start to see everything".to_owned()),
        };
        note(&told);
        if self.json {
            let members = [("lost", &Json::string(word)), ("message", &Json::string(&told))];
            return written(write_object(&mut io::stdout().lock(), "gap", &members));
        }
        Ok(())
    }
}

/// A remark on the error stream.
fn note(text: &str) {
    let _reader_gone = writeln!(io::stderr().lock(), "broca: {}", one_line(text, 300));
}
