//! Readers of a session: one from its start, one that stores its cursor and comes back, one that is slow.

use crate::random::Random;
use crate::session::Place;
use crate::world::{World, again};
use broca::engine::{Gap, Lost, Status};
use broca::steps::Step;
use broca::{Cursor, blocking};
use std::time::Duration;
use tokio::time::timeout;

/// How long a reader waits for a step before it looks whether the session is over.
const LOOK: Duration = Duration::from_secs(1);

/// What waits for a slow reader at most, in bytes.
const SMALL: usize = 32 * 1024;

/// Reads from the start, or with `hops` from a stored cursor again and again; gives the ids of the events as they came.
pub(crate) fn follow(world: &World, place: &Place, hops: bool) -> Result<Vec<String>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| format!("no runtime: {e}"))?;
    runtime.block_on(async {
        let mut random = Random::new(world.options.seed, 2_000 + place.number);
        let mut seen = Vec::new();
        let mut cursor = Cursor::start();
        let mut since_hop = 0;
        let mut joined = None;
        if hops {
            tokio::time::sleep(Duration::from_millis(random.below(1_500))).await;
        }
        loop {
            let client = world.client(world.server.watch_key(), |_| {})?;
            let id = place.id();
            let observed = again("observe", || client.observe(id.clone()).into_future()).await;
            // Nobody joins a session that is over, but who had joined it reads it to its end.
            let session = match (observed, joined.take()) {
                (Err(fault), Some(earlier)) if fault.contains("session_closed") => earlier,
                (observed, _) => observed?,
            };
            let mut subscription = session.subscribe_from(cursor.clone());
            joined = Some(session.clone());
            let enough = if hops { 1 + random.below(150) } else { u64::MAX };
            while since_hop < enough {
                let Ok(step) = timeout(LOOK, subscription.next()).await else {
                    place.is_late(world, seen.len())?;
                    continue;
                };
                match step {
                    None => return Ok(seen),
                    Some(Err(error)) => return Err(format!("a subscription failed: {error}")),
                    Some(Ok(step)) => since_hop += note(world, step, &mut seen)?,
                }
                if !hops && since_hop > 0 {
                    world.counts.open.add(std::mem::take(&mut since_hop));
                }
            }
            since_hop = 0;
            world.counts.hops.add(1);
            cursor = subscription.cursor().cloned().unwrap_or_default();
        }
    })
}

/// Reads from the start on its own thread, without a runtime, with pauses, and with little room for what waits.
pub(crate) fn crawl(world: &World, place: &Place) -> Result<Vec<String>, String> {
    let mut random = Random::new(world.options.seed, 3_000 + place.number);
    let client = blocking::Client::builder(&world.url, world.server.watch_key())
        .proxy_from_environment(false)
        .configure(World::config)
        .configure(|config| {
            config.step_buffer_bytes = SMALL;
            config.delta_buffer_bytes = SMALL;
        })
        .build()
        .map_err(|e| e.to_string())?;
    let mut last = String::new();
    let observing = (0..2_000).find_map(|_| match client.observe(place.id()).start() {
        Ok(session) => Some(session),
        Err(error) => {
            last = error.to_string();
            std::thread::sleep(Duration::from_millis(20));
            None
        }
    });
    let session = observing.ok_or_else(|| format!("observe: {last}"))?;
    let mut subscription = session.subscribe_from(Cursor::start());
    let mut seen = Vec::new();
    loop {
        match subscription.next(Some(LOOK)).map_err(|e| format!("a subscription failed: {e}"))? {
            blocking::Next::Finished => return Ok(seen),
            blocking::Next::TimedOut => place.is_late(world, seen.len())?,
            blocking::Next::Step(step) => {
                note(world, step, &mut seen)?;
            }
        }
        if random.chance(2) && !place.is_closed() {
            std::thread::sleep(Duration::from_millis(random.below(250)));
        }
    }
}

/// Notes a step; how many events it was.
fn note(world: &World, step: Step, seen: &mut Vec<String>) -> Result<u64, String> {
    match step {
        Step::Event(event) => {
            world.counts.seen.add(1);
            seen.push(event.id().to_owned());
            return Ok(1);
        }
        Step::Gap(Gap { lost: Lost::Deltas(_), .. }) => {}
        Step::Gap(gap) => return Err(format!("an observer has a gap: {:?}", gap.lost)),
        Step::Status(Status::Reconnecting { .. }) => world.counts.reconnects.add(1),
        _ => {}
    }
    Ok(0)
}
