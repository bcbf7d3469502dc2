//! A long run under faults: `soak [PATH-OF-BROCA]`.
//!
//! Drivers open sessions with tools on a service of their own (`broca serve --dev`, from the path given, `BROCA_BIN`,
//! the folder of this program, or `PATH`), while observers follow each session through a proxy that cuts, delays and
//! silences their connections.
//! Every observer must see every event once and in order; every handler must run once for each call; memory and
//! descriptors of both processes must stay flat. `SOAK_SECONDS` (60) is how long it runs, `SOAK_DRIVERS` (3) how many
//! sessions at once.

mod measure;
mod server;
mod sessions;

use broca_testkit::proxy::{ChaosProxy, Fault};
use measure::{Meter, Seen};
use server::Server;
use sessions::Counts;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the processes are measured.
const SAMPLE: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let (text, status) = match run() {
        Ok(report) => (report, ExitCode::SUCCESS),
        Err(fault) => (format!("soak: failed: {fault}"), ExitCode::FAILURE),
    };
    // A reader that has gone away changes nothing about the status.
    let _ = writeln!(std::io::stdout(), "{text}");
    status
}

fn run() -> Result<String, String> {
    let seconds = setting("SOAK_SECONDS", 60)?.max(3);
    let drivers = setting("SOAK_DRIVERS", 3)?.clamp(1, 64);
    let server = Server::start(std::env::args().nth(1))?;
    let proxy = ChaosProxy::start(server.address()?).map_err(|e| format!("no proxy: {e}"))?;
    let proxy = Arc::new(proxy);
    let runtime = tokio::runtime::Runtime::new().map_err(|e| format!("no runtime: {e}"))?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let counts = Arc::new(Counts::default());
    let quiet = Arc::new(AtomicBool::new(false));
    let chaos = {
        let (proxy, quiet) = (Arc::clone(&proxy), Arc::clone(&quiet));
        std::thread::spawn(move || disturb(&proxy, &quiet))
    };
    let meters = Arc::new([Meter::of(server.pid()), Meter::of(std::process::id())]);
    let measuring = {
        let (meters, quiet) = (Arc::clone(&meters), Arc::clone(&quiet));
        std::thread::spawn(move || {
            let begun = Instant::now();
            let mut seen = Seen::default();
            while !quiet.load(Ordering::SeqCst) {
                let part =
                    begun.elapsed().as_secs_f64() / Duration::from_secs(seconds).as_secs_f64();
                meters.iter().enumerate().for_each(|(i, meter)| seen.add(i, part, meter.read()));
                std::thread::sleep(SAMPLE);
            }
            seen
        })
    };
    let all = sessions::All {
        url: server.url().to_owned(),
        proxied: proxy.url(),
        driver_key: server.driver_key()?,
        watch_key: server.watch_key()?,
        end,
        counts: Arc::clone(&counts),
    };
    let outcome = runtime.block_on(sessions::run(all, drivers));
    quiet.store(true, Ordering::SeqCst);
    let cuts = chaos.join().map_err(|_| "the thread of the faults panicked")?;
    let seen = measuring.join().map_err(|_| "the measuring thread panicked")?;
    outcome?;
    let flat = seen.judge(["the service", "the client"])?;
    if cuts == 0 {
        return Err("nothing was ever cut; let it run for longer".to_owned());
    }
    Ok(format!("soak: ok: {counts}, {cuts} connections cut, {flat}"))
}

/// Cuts, delays and silences until it is told to be quiet; says how many connections it cut.
fn disturb(proxy: &ChaosProxy, quiet: &AtomicBool) -> usize {
    let mut cuts = 0;
    // Any spread will do; a fixed one makes two runs alike.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    while !quiet.load(Ordering::SeqCst) {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = random >> 33;
        proxy.always(match draw % 4 {
            0 => Fault { cut_after: Some(draw % 5_000), ..Fault::default() },
            1 => Fault { piece: 1 + usize::from(draw.is_multiple_of(7)) * 40, ..Fault::default() },
            2 => Fault { delay: Duration::from_millis(draw % 5), ..Fault::default() },
            _ => Fault::default(),
        });
        match draw % 11 {
            0 => proxy.restart(Duration::from_millis(30)),
            1 => proxy.plan(Fault { refuse: true, ..Fault::default() }),
            // A silence is noticed by nobody until it is cut.
            2 => {
                proxy.stall_all();
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(50 + draw % 350));
        cuts += proxy.cut_all();
    }
    proxy.always(Fault::default());
    cuts
}

fn setting(name: &str, default: u64) -> Result<u64, String> {
    match std::env::var(name) {
        Err(_) => Ok(default),
        Ok(text) => text.parse().map_err(|_| format!("{name} must be a whole number")),
    }
}
