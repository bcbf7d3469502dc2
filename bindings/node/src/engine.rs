//! The engine of one session.

use crate::fault::{Fault, guard};
use crate::outgoing;
use broca_bridge::{Accepted, Batch, Error, ErrorKind, Handle, Time, Trace, command};
use napi::bindgen_prelude::{Array, BufferSlice, Env, Uint8ArraySlice, Uint32Array};
use napi_derive::napi;
use std::cell::RefCell;
use std::net::IpAddr;

/// One engine. Every input returns what the next call of [`Engine::effects`] would: how many words of the host's table now
/// hold records of effects. A negative number says that they have texts, which [`Engine::effect_text`] gives. The host
/// carries them out and calls [`Engine::effects`] until it returns 0.
#[napi]
pub struct Engine {
    handle: Handle,
    state: RefCell<State>,
}

struct State {
    /// The host's table, lent for as long as the engine lives.
    table: Uint32Array,
    /// Effects on their way to the host, and the words of them that it has had.
    effects: Batch,
    shown: usize,
    /// Memory for steps.
    steps: Batch,
}

#[napi]
impl Engine {
    /// An engine with options as JSON, a seed in two halves, the wall clock in milliseconds since 1970, and the table that
    /// effects are laid in: at least 16 words, never detached.
    ///
    /// # Errors
    /// `invalid_argument` for options that cannot be used.
    #[napi(constructor, catch_unwind)]
    pub fn new(
        env: &Env,
        options: String,
        seed_low: u32,
        seed_high: u32,
        wall_ms: f64,
        table: Uint32Array,
    ) -> napi::Result<Self> {
        guard(env, || {
            let seed = u64::from(seed_high) << 32 | u64::from(seed_low);
            let handle = Handle::new(options.as_bytes(), seed, whole(wall_ms))?;
            let state = State { table, effects: Batch::new(), shown: 0, steps: Batch::new() };
            Ok(Self { handle, state: RefCell::new(state) })
        })
    }

    /// Begins an operation and gives its number. Its effects wait.
    ///
    /// # Errors
    /// `usage`, `closed` or `invalid_argument`; nothing has begun then.
    #[napi(catch_unwind)]
    pub fn command(
        &self,
        env: &Env,
        command: String,
        now: f64,
        traceparent: Option<String>,
        tracestate: Option<String>,
    ) -> napi::Result<f64> {
        guard(env, || {
            let trace = Trace { traceparent, tracestate };
            Ok(self.handle.command(command.as_bytes(), trace, time(now)).map(number)?)
        })
    }

    /// Ends an operation early.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn cancel(&self, env: &Env, op: f64, now: f64) -> napi::Result<i32> {
        self.input(env, || self.handle.cancel(whole(op), time(now)))
    }

    /// Answers a question; false when it came too late. Its effects wait.
    ///
    /// # Errors
    /// `usage` for an answer that does not fit, `invalid_argument` for a value that cannot be used.
    #[napi(catch_unwind)]
    #[allow(clippy::too_many_arguments, reason = "flat arguments are the cheapest to cross with")]
    pub fn answer(
        &self,
        env: &Env,
        call: f64,
        word: String,
        value: Option<String>,
        now: f64,
        traceparent: Option<String>,
        tracestate: Option<String>,
    ) -> napi::Result<bool> {
        guard(env, || {
            let some = traceparent.is_some() || tracestate.is_some();
            let trace = some.then_some(Trace { traceparent, tracestate });
            let answer = command::answer(&word, value.as_deref().map(str::as_bytes), trace)?;
            let accepted = self.handle.answer(whole(call), answer, time(now))?;
            Ok(accepted == Accepted::Taken)
        })
    }

    /// A name was resolved to these addresses; without them, why not.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn resolved(
        &self,
        env: &Env,
        req: f64,
        addresses: Option<Vec<String>>,
        why: Option<String>,
        now: f64,
    ) -> napi::Result<i32> {
        self.input(env, || {
            let answer = match addresses {
                // An address with a zone ("fe80::1%eth0") cannot be named to the engine; others are tried.
                Some(all) => Ok(all.iter().filter_map(|a| a.parse::<IpAddr>().ok()).collect()),
                None => Err(why.unwrap_or_default()),
            };
            self.handle.resolved(whole(req), answer, time(now))
        })
    }

    /// A connection is open.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn connected(&self, env: &Env, conn: f64, now: f64) -> napi::Result<i32> {
        self.input(env, || self.handle.connected(whole(conn), time(now)))
    }

    /// TLS was started in a tunnel.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn tls_started(&self, env: &Env, conn: f64, now: f64) -> napi::Result<i32> {
        self.input(env, || self.handle.tls_started(whole(conn), time(now)))
    }

    /// The first `size` bytes of the buffer came; they are copied.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn data(
        &self,
        env: &Env,
        conn: f64,
        buffer: Uint8ArraySlice<'_>,
        size: u32,
        now: f64,
    ) -> napi::Result<i32> {
        self.input(env, || {
            let bytes = buffer.get(..size as usize).unwrap_or(&buffer);
            self.handle.data(whole(conn), bytes, time(now))
        })
    }

    /// The socket took so many bytes.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn written(&self, env: &Env, conn: f64, size: u32, now: f64) -> napi::Result<i32> {
        self.input(env, || self.handle.written(whole(conn), size as usize, time(now)))
    }

    /// A connection is gone: `why` is one of `eof`, `unclean_eof`, `reset`, `timed_out`, `refused`, `unreachable`, `tls_cert`,
    /// `tls_host`, `tls_other`, `local`.
    ///
    /// # Errors
    /// `invalid_argument` for another word.
    #[napi(catch_unwind)]
    pub fn closed(&self, env: &Env, conn: f64, why: String, now: f64) -> napi::Result<i32> {
        self.input(env, || self.handle.closed(whole(conn), command::close_reason(&why)?, time(now)))
    }

    /// The timer has gone off.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn timeout(&self, env: &Env, now: f64) -> napi::Result<i32> {
        self.input(env, || self.handle.timeout(time(now)))
    }

    /// The wall clock, in milliseconds since 1970.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn wall(&self, env: &Env, ms: f64) -> napi::Result<()> {
        guard(env, || Ok(self.handle.wall(whole(ms))?))
    }

    /// Lays effects that wait into the host's table; see [`Engine`].
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn effects(&self, env: &Env) -> napi::Result<i32> {
        self.input(env, || Ok(()))
    }

    /// The text that the records laid last lie in, as bytes.
    ///
    /// # Errors
    /// Only when the host is out of memory.
    #[napi(catch_unwind)]
    pub fn effect_text<'env>(&self, env: &'env Env) -> napi::Result<BufferSlice<'env>> {
        guard(env, || Ok(BufferSlice::copy_from(env, self.state.borrow().effects.text())?))
    }

    /// Steps of an operation, about `max_bytes` of them, as an array of a string and a table; null when none wait. Effects may
    /// follow from taking them.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn steps<'env>(
        &self,
        env: &'env Env,
        op: f64,
        max_bytes: u32,
    ) -> napi::Result<Option<Array<'env>>> {
        guard(env, || {
            let mut state = self.state.borrow_mut();
            let batch = &mut state.steps;
            self.handle.steps(whole(op), max_bytes as usize, batch)?;
            if batch.is_empty() {
                return Ok(None);
            }
            let pair = outgoing::to_host(env, batch)?;
            clear(batch);
            Ok(Some(pair))
        })
    }

    /// Log records that wait, as an array of a string and a table; null when there are none.
    ///
    /// # Errors
    /// Only when the host is out of memory.
    #[napi(catch_unwind)]
    pub fn logs<'env>(&self, env: &'env Env) -> napi::Result<Option<Array<'env>>> {
        guard(env, || {
            if !self.handle.has_logs() {
                return Ok(None);
            }
            let mut batch = Batch::new();
            self.handle.logs(&mut batch)?;
            Ok(Some(outgoing::to_host(env, &batch)?))
        })
    }

    /// The events of a JSON array, as an array of a string and a table.
    ///
    /// # Errors
    /// `invalid_argument` when the text is no JSON.
    #[napi(catch_unwind)]
    pub fn events_of(env: &Env, json: String) -> napi::Result<Array<'_>> {
        guard(env, || {
            let mut batch = Batch::new();
            Handle::events_of(json.as_bytes(), &mut batch)?;
            outgoing::to_host(env, &batch)
        })
    }

    /// Gives the engine an input, then lays effects into the host's table.
    fn input(&self, env: &Env, give: impl FnOnce() -> Result<(), Error>) -> napi::Result<i32> {
        guard(env, || {
            give()?;
            let mut state = self.state.borrow_mut();
            if state.shown == state.effects.words().len() {
                state.shown = 0;
                clear(&mut state.effects);
                self.handle.effects(&mut state.effects)?;
            }
            state.show()
        })
    }
}

/// Bytes of memory for steps that an idle engine keeps.
const KEPT_BYTES: usize = 64 * 1024;

/// Empties a batch; the memory of a large one is given back.
fn clear(batch: &mut Batch) {
    if batch.text().len() > KEPT_BYTES {
        *batch = Batch::new();
    }
    batch.clear();
}

impl State {
    /// Copies as many whole records as fit into the host's table.
    fn show(&mut self) -> Result<i32, Fault> {
        let from = self.shown;
        let mut to = from;
        while let Some(record) = self.effects.record(to) {
            let end = to + self.effects.words()[record.at() + 1] as usize;
            if end - from > self.table.len() {
                break;
            }
            to = end;
        }
        let words = &self.effects.words()[from..to];
        if words.is_empty() && to < self.effects.words().len() {
            let message = "the table for effects is too small for one";
            return Err(Error::new(ErrorKind::Internal, message).into());
        }
        if !words.is_empty() {
            // SAFETY: the host's thread is in this call, so nobody else reads or writes the table meanwhile, and the
            // package never detaches it.
            let table = unsafe { self.table.as_mut() };
            table[..words.len()].copy_from_slice(words);
        }
        self.shown = to;
        let count = i32::try_from(words.len()).unwrap_or_default();
        Ok(if self.effects.text().is_empty() { count } else { -count })
    }
}

/// Faults on demand, for the tests of the package.
#[cfg(feature = "testing")]
#[napi]
impl Engine {
    /// Panics while the engine works.
    ///
    /// # Errors
    /// `panic`, always.
    #[napi(catch_unwind)]
    pub fn test_panic(&self, env: &Env) -> napi::Result<()> {
        guard(env, || Ok(self.handle.test_panic()?))
    }

    /// Panics outside of the engine.
    ///
    /// # Errors
    /// `panic`, always.
    #[napi(catch_unwind)]
    pub fn test_panic_outside(&self, env: &Env) -> napi::Result<()> {
        #[allow(clippy::panic, reason = "this is what the function is for")]
        guard(env, || panic!("a test asked for it"))
    }

    /// Fails with the kind of this number.
    ///
    /// # Errors
    /// Always.
    #[napi(catch_unwind)]
    pub fn test_throw(&self, env: &Env, code: i32) -> napi::Result<()> {
        guard(env, || Ok(self.handle.test_throw(code)?))
    }
}

/// A whole number that came as a double; what is none becomes the nearest that is.
#[allow(clippy::cast_possible_truncation, reason = "casts of doubles saturate")]
#[allow(clippy::cast_sign_loss, reason = "casts of doubles saturate")]
fn whole(number: f64) -> u64 {
    number as u64
}

/// A number of ours as a double: exact below 2⁵³, where all of them stay.
#[allow(clippy::cast_precision_loss, reason = "they stay below 2^53")]
fn number(whole: u64) -> f64 {
    whole as f64
}

fn time(now: f64) -> Time {
    Time::from_millis(whole(now))
}
