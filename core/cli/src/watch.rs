//! `broca watch`: what happens in a session, one line for each event.

use crate::arguments::WatchArguments;
use crate::fault::{Fault, one_line, written};
use crate::interrupt::Interrupts;
use crate::place::{Purpose, Reach};
use crate::summary::{clock_time, summary};
use crate::view::write_object;
use broca::Json;
use broca::engine::{Lost, Status};
use broca::steps::Step;
use broca::tokio::{Client, Subscription};
use broca_proto::session::event::Event;
use broca_proto::session::ids::{Cursor, EventId};
use std::io::{self, Write};
use std::time::Duration;

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
        session = client.observe(arguments.session.as_str()) => session?,
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

struct Watch {
    json: bool,
    /// The connection is lost, and the person knows it.
    lost: bool,
}

impl Watch {
    fn show(&mut self, step: Step) -> Result<(), Fault> {
        match step {
            Step::Event(event) => self.event(&event),
            Step::Status(Status::Reconnecting { delay_ms, why, .. }) => {
                self.lost = true;
                let seconds = Duration::from_millis(delay_ms).as_secs_f32();
                note(&format!("connection lost ({why}); next try in {seconds:.1} s"));
                Ok(())
            }
            Step::Status(Status::Connected) if std::mem::take(&mut self.lost) => {
                note("connected again");
                Ok(())
            }
            Step::Gap(gap) => self.gap(&gap.lost),
            Step::Warning(warning) => {
                note(&warning.message);
                Ok(())
            }
            _ => Ok(()),
        }
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
            _ => ("other", "something was left out".to_owned()),
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
