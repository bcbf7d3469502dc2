//! What goes wrong, and when: a plan for every connection, and what befalls all of them.

use crate::options::{Fault, Options};
use crate::random::Random;
use crate::server::Server;
use broca_testkit::proxy::{self, ChaosProxy, ResponseFault};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So many connections have their plans ahead of time.
const AHEAD: u64 = 32;

/// What happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Happened {
    pub(crate) connections: u64,
    pub(crate) cut: u64,
    pub(crate) silenced: u64,
    pub(crate) restarts: u64,
}

impl fmt::Display for Happened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, cut, silenced, restarts } = self;
        write!(
            f,
            "{connections} connections with planned faults, {cut} more cut and {silenced} silenced at once, \
             {restarts} restarts"
        )
    }
}

/// Lets things go wrong until it is told that all is over.
pub(crate) fn disturb(
    options: &Options,
    proxy: &ChaosProxy,
    server: &Server,
    over: &AtomicBool,
) -> Result<Happened, String> {
    let mut happened = Happened::default();
    let mut connections = Random::new(options.seed, 1);
    let mut responses = Random::new(options.seed, 2);
    let mut moments = Random::new(options.seed, 3);
    let mut next = Instant::now();
    while !over.load(Ordering::SeqCst) {
        while happened.connections < proxy.connections() + AHEAD {
            proxy.plan(connection(options, &mut connections));
            happened.connections += 1;
        }
        if Instant::now() >= next {
            if let Some(fault) = response(options, &mut responses) {
                proxy.plan_response(fault);
            }
            befall(options, &mut moments, proxy, server, &mut happened)?;
            next = Instant::now() + Duration::from_millis(50 + moments.below(500));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    happened.connections = proxy.connections();
    proxy.heal().map_err(|e| format!("the proxy does not heal: {e}"))?;
    Ok(happened)
}

/// The fault of one connection; most have none.
fn connection(options: &Options, random: &mut Random) -> proxy::Fault {
    let mut fault = proxy::Fault::default();
    let (kind, size, wait) = (random.below(100), random.next(), random.below(40));
    match kind {
        0..10 if options.has(Fault::Cut) => {
            // Few bytes end it within the head of an answer, many within a long replay.
            fault.cut_after = Some(size % if wait < 20 { 600 } else { 60_000 });
            fault.reset = size.is_multiple_of(3);
        }
        10..13 if options.has(Fault::Cut) => {
            fault.refuse = true;
            fault.reset = size.is_multiple_of(2);
        }
        13..15 if options.has(Fault::Stall) => fault.stall_after = Some(size % 20_000),
        15..22 if options.has(Fault::Split) => {
            fault.piece =
                if wait < 20 { 1 } else { 1 + usize::from(u8::try_from(wait).unwrap_or(1)) };
            // Byte by byte for ever would be a stall.
            fault.cut_after = Some(10_000 + size % 40_000).filter(|_| options.has(Fault::Cut));
        }
        22..30 if options.has(Fault::Delay) => {
            fault.delay = Duration::from_millis(wait);
            fault.delay_up = Duration::from_millis(size % 40);
        }
        30..40 if options.has(Fault::Repeat) => fault.repeat = true,
        40..48 if options.has(Fault::Reorder) => fault.behind = true,
        _ => {}
    }
    fault
}

/// A fault of one response, if any.
fn response(options: &Options, random: &mut Random) -> Option<ResponseFault> {
    let (kind, size, of) = (random.below(12), random.next(), random.below(3));
    let request = match of {
        0 => Some("session.sendMessage".to_owned()),
        1 => Some("session.subscribe".to_owned()),
        _ => None,
    };
    let plan = ResponseFault { request, ..ResponseFault::default() };
    Some(match kind {
        0..4 if options.has(Fault::Cut) => ResponseFault {
            cut_after_lines: Some(size % 40),
            reset: size.is_multiple_of(5),
            ..plan
        },
        4 if options.has(Fault::Cut) => {
            ResponseFault { cut_after_bytes: Some(size % 4_000), ..plan }
        }
        5..8 if options.has(Fault::Repeat) => {
            ResponseFault { duplicate_line: Some(1 + size % 30), ..plan }
        }
        8 if options.has(Fault::Stall) && size.is_multiple_of(4) => {
            ResponseFault { stall_after_lines: Some(size % 20), ..plan }
        }
        _ => return None,
    })
}

/// What happens to everybody at once.
fn befall(
    options: &Options,
    random: &mut Random,
    proxy: &ChaosProxy,
    server: &Server,
    happened: &mut Happened,
) -> Result<(), String> {
    let (kind, wait) = (random.below(100), Duration::from_millis(20 + random.below(300)));
    let count = |ended: usize| u64::try_from(ended).unwrap_or(u64::MAX);
    match kind {
        0..8 if options.has(Fault::Cut) => happened.cut += count(proxy.cut_all()),
        8..12 if options.has(Fault::Cut) => happened.cut += count(proxy.reset_all()),
        12 if options.has(Fault::Stall) => happened.silenced += count(proxy.stall_all()),
        13 | 14 if options.has(Fault::Cut) => {
            proxy.set_listening(false).map_err(|e| format!("the proxy: {e}"))?;
            std::thread::sleep(wait);
            proxy.set_listening(true).map_err(|e| format!("the proxy: {e}"))?;
        }
        15..19 if options.has(Fault::Restart) => {
            server.restart(wait)?;
            happened.restarts += 1;
        }
        _ => {}
    }
    Ok(())
}
