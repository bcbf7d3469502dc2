//! Sessions under every fault: `soak --seed N --events N`, see [`options::HELP`].
//!
//! A service of its own (`broca serve --dev`) is killed and started again on one database. Between it and everybody
//! stands a proxy that cuts, stalls, splits, delays, repeats and reorders. Each session has two drivers that take turns
//! with tools, ask for consent, cancel, die and are taken up again, and three observers: one from the start, one that
//! goes on from a stored cursor, one that is slow. In the end everybody must have seen what the log has:
//!
//! * every observer every event, once and in order;
//! * every turn's outcome is that of the log, or was said to be unknown;
//! * every call has one result, and had its effect once, or never without a result;
//! * every session takes a new message and answers;
//! * memory and descriptors of both processes stay flat.

mod audit;
mod drivers;
mod faults;
mod ledger;
mod measure;
mod observers;
mod options;
mod random;
mod script;
mod server;
mod session;
mod world;

use broca_testkit::proxy::ChaosProxy;
use measure::{Meter, Seen};
use options::Options;
use server::Server;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use world::{Counts, World};

/// How often the processes are measured.
const SAMPLE: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => return said(options::HELP, ExitCode::SUCCESS),
        Err(wrong) => return said(&format!("soak: {wrong}"), ExitCode::from(2)),
    };
    said(&format!("soak: seed {}", options.seed), ExitCode::SUCCESS);
    let again = format!("soak: again: {}", options.again());
    match run(options) {
        Ok(report) => said(&format!("soak: ok: {report}"), ExitCode::SUCCESS),
        Err(fault) => said(&format!("soak: failed: {fault}\n{again}"), ExitCode::FAILURE),
    }
}

/// Prints; a reader that has gone away changes nothing about the status.
fn said(text: &str, status: ExitCode) -> ExitCode {
    let _ = writeln!(io::stdout(), "{text}");
    let _ = io::stdout().flush();
    status
}

fn run(options: Options) -> Result<String, String> {
    let begun = Instant::now();
    let again = format!("soak: again: {}", options.again());
    let server = Server::start(options.broca.clone(), &script::script(), session::DRIVERS)?;
    let proxy = ChaosProxy::start(server.address()).map_err(|e| format!("no proxy: {e}"))?;
    let (seed, sessions, end) = (options.seed, options.sessions, begun + options.time);
    let world = World {
        server,
        url: proxy.url(),
        end,
        fault: OnceLock::new(),
        counts: Counts::default(),
        options,
    };
    let over = AtomicBool::new(false);
    let number = AtomicU64::new(0);
    let (happened, seen) = thread::scope(|scope| {
        let disturbing = scope.spawn(|| {
            let outcome = faults::disturb(&world.options, &proxy, &world.server, &over);
            outcome.map_err(|fault| world.fail(fault)).unwrap_or_default()
        });
        let measuring = scope.spawn(|| measure(&world, begun, &over));
        let running: Vec<_> = (0..sessions)
            .map(|_| {
                scope.spawn(|| {
                    while !world.is_over() {
                        let number = number.fetch_add(1, Ordering::SeqCst);
                        if let Err(fault) = session::run(&world, number) {
                            world.fail(fault);
                        }
                    }
                })
            })
            .collect();
        for session in running {
            while !session.is_finished() {
                thread::sleep(Duration::from_millis(20));
                if let Some(fault) = world.fault.get() {
                    // Others may hang for the same reason: nobody waits for them.
                    failed(&world, fault, &again);
                }
            }
            if session.join().is_err() {
                world.fail("a session panicked".to_owned());
            }
        }
        over.store(true, Ordering::SeqCst);
        (disturbing.join().unwrap_or_default(), measuring.join().unwrap_or_default())
    });
    if let Some(fault) = world.fault.get() {
        failed(&world, fault, &again);
    }
    let flat = seen.judge(["the service", "the clients"])?;
    let took = begun.elapsed().as_secs();
    Ok(format!("seed {seed}: {}; {happened}; {flat}; {took} s", world.counts))
}

/// Tells what is not as it must be, and ends; the service ends with this process, and its database stays.
fn failed(world: &World, fault: &str, again: &str) -> ! {
    let errors = world.counts.errors();
    let text = format!(
        "soak: failed: {fault}\nsoak: so far: {}\nsoak: errors of turns:\n  {errors}\nsoak: the log is in {}\n{again}",
        world.counts,
        world.server.database().display()
    );
    said(&text, ExitCode::FAILURE);
    std::process::exit(1)
}

/// Measures both processes as long as the run lasts.
fn measure(world: &World, begun: Instant, over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let own = Meter::of(std::process::id());
    while !over.load(Ordering::SeqCst) {
        let done = world.counts.logged.value() + world.counts.open.value();
        #[expect(clippy::cast_precision_loss, reason = "a part of the run, not an amount")]
        let part = (done as f64 / world.options.events.max(1) as f64)
            .max(begun.elapsed().as_secs_f64() / world.options.time.as_secs_f64().max(1.0));
        seen.add(0, part, Meter::of(world.server.pid()).read());
        seen.add(1, part, own.read());
        thread::sleep(SAMPLE);
    }
    seen
}
