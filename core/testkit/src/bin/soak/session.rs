//! One session of a run: two drivers, three observers, and the comparison of what they saw with the log.

use crate::audit::{self, Evidence};
use crate::drivers::Driver;
use crate::ledger::Ledger;
use crate::observers::{crawl, follow};
use crate::random::Random;
use crate::world::{Doing, World, again};
use broca::{ErrorKind, Event, SessionId};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Drivers of one session, each with a key of its own.
pub(crate) const DRIVERS: usize = 2;

/// How long an observer may need to get everything after the session's end.
const CATCH_UP: Duration = Duration::from_secs(120);

/// Where drivers and observers meet.
pub(crate) struct Place {
    pub(crate) number: u64,
    pub(crate) ledger: Arc<Ledger>,
    id: Mutex<Option<SessionId>>,
    changed: Condvar,
    closed: OnceLock<Instant>,
}

impl Place {
    fn new(number: u64) -> Self {
        Self {
            number,
            ledger: Arc::default(),
            id: Mutex::default(),
            changed: Condvar::new(),
            closed: OnceLock::new(),
        }
    }

    pub(crate) fn opened(&self, id: SessionId) {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
        self.changed.notify_all();
    }

    /// The session, as soon as it is there.
    pub(crate) fn id(&self) -> SessionId {
        let mut id = self.id.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(id) = &*id {
                return id.clone();
            }
            id = self.changed.wait(id).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// A fault when the session was closed so long ago that its end must have come.
    pub(crate) fn is_late(&self, world: &World, seen: usize) -> Result<(), String> {
        if world.fault.get().is_some() {
            return Err("the run has failed".to_owned());
        }
        match self.closed.get() {
            Some(at) if at.elapsed() > CATCH_UP => Err(format!(
                "an observer of session {} hangs after {seen} events, {CATCH_UP:?} after the session's end",
                self.number
            )),
            _ => Ok(()),
        }
    }
}

/// Runs the session `number`.
pub(crate) fn run(world: &World, number: u64) -> Result<(), String> {
    let place = Place::new(number);
    let mut random = Random::new(world.options.seed, 100 + number);
    let turns = 6 + random.below(10);
    let evidence = thread::scope(|scope| {
        let drivers: Vec<_> = (0..DRIVERS)
            .map(|driver| {
                let place = &place;
                scope.spawn(move || {
                    let driven = Driver::new(world, place, driver, turns).run();
                    // Nobody waits for a session that could not be opened.
                    if let Err(fault) = &driven {
                        world.fail(format!("session {number}: {fault}"));
                        place.opened(SessionId::new("none"));
                    }
                    driven
                })
            })
            .collect();
        let steady = scope.spawn(|| follow(world, &place, false));
        let hopping = scope.spawn(|| follow(world, &place, true));
        let slow = scope.spawn(|| crawl(world, &place));
        let mut driven = Vec::new();
        for driver in drivers {
            driven.push(driver.join().map_err(|_| "a driver panicked")?);
        }
        let driven = driven.into_iter().collect::<Result<Vec<_>, String>>()?;
        let log = close(world, &place);
        let log = log.inspect_err(|fault| world.fail(format!("session {number}: {fault}")))?;
        let mut observed = Vec::new();
        for (name, observer) in [("steady", steady), ("hopping", hopping), ("slow", slow)] {
            let seen = observer.join().map_err(|_| "an observer panicked")?;
            let seen = seen.map_err(|e| format!("the {name} observer: {e}"))?;
            observed.push((name, seen));
        }
        Ok::<_, String>(Evidence { log, driven, observed, calls: place.ledger.all() })
    });
    let evidence = evidence.map_err(|e| format!("session {number}: {e}"))?;
    let found = audit::check(&evidence);
    let effects = found.map_err(|e| format!("session {number} ({}): {e}", place.id()))?;
    let logged = evidence.log.len() as u64;
    let counts = &world.counts;
    counts.open.take(logged);
    counts.logged.add(logged);
    counts.sessions.add(1);
    counts.effects.add(effects.all);
    counts.effects_without_result.add(effects.without_result);
    Ok(())
}

/// Closes the session and reads its log.
fn close(world: &World, place: &Place) -> Result<Vec<Event>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| format!("no runtime: {e}"))?;
    runtime.block_on(async {
        let client = world.client(world.server.watch_key(), |_| {})?;
        let id = place.id();
        let session = again("observe", || client.observe(id.clone()).into_future()).await?;
        let closing = || {
            let session = session.clone();
            let closing = async move {
                match session.close().await {
                    // An attempt before this one has done it.
                    Err(error) if error.is(ErrorKind::SessionClosed) => Ok(()),
                    outcome => outcome,
                }
            };
            Box::pin(closing) as Doing<()>
        };
        again("close", closing).await?;
        place.closed.get_or_init(Instant::now);
        let reading = || {
            let session = session.clone();
            let reading = async move {
                let mut log = Vec::new();
                let mut history = session.history().page_size(200);
                while let Some(event) = history.next().await {
                    log.push(event?);
                }
                Ok(log)
            };
            Box::pin(reading) as Doing<Vec<Event>>
        };
        again("history", reading).await
    })
}
