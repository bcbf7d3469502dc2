//! A handle on one engine.

use crate::batch::Batch;
use crate::errors::of_panic;
use crate::layout::event;
use crate::ring::LogRing;
use crate::step::{SessionWords, push_events};
use crate::{command, options};
use broca::engine::{
    Accepted, Answer, CallId, CloseReason, Command, Config, ConnId, Effect, Engine, Environment,
    OpId, ResolveId, Spent, Step, Trace,
};
use broca_proto::{Error, ErrorKind, Json, Secret, Time};
use bytes::{Bytes, BytesMut};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// One engine, safe from any thread.
///
/// Inputs may come from any thread. Effects must be taken and carried out by one thread at a time, in their order: the
/// one that owns the sockets; whoever else gave an input wakes it. Steps of one operation are taken by one thread at a time.
///
/// No call waits for anything but another call on the same handle, and none calls back: what comes out is plain data, so
/// the host may run whatever it likes between two calls, this handle's calls included.
///
/// A panic inside is caught. The call that met it and every later one fail with `panic`, and only this handle is lost.
pub struct Handle {
    state: Mutex<State>,
}

struct State {
    engine: Engine,
    next_op: u64,
    logs: LogRing,
    taken: Vec<Step>,
    room: BytesMut,
    broken: Option<Error>,
}

/// Bytes of steps that one call gives at most, so that offsets fit their 32 bits.
const MAX_BATCH_BYTES: usize = 64 * 1024 * 1024;
/// Memory for large reads, used again once nobody holds a part of it.
const ROOM_BYTES: usize = 64 * 1024;
/// Reads below this get memory of their own, and a session that has only such keeps no room.
const SMALL_READ_BYTES: usize = 4 * 1024;
/// Steps for which an idle session keeps memory.
const KEPT_STEPS: usize = 64;

impl Handle {
    /// An engine with these options (see [`options`]). `seed` feeds jitter and identifiers; `wall_ms` is the wall clock in
    /// milliseconds since 1970.
    ///
    /// # Errors
    /// `invalid_argument` for options that cannot be used.
    pub fn new(options: &[u8], seed: u64, wall_ms: u64) -> Result<Self, Error> {
        let (config, environment) = options::read(options)?;
        Self::with_config(config, environment, seed, wall_ms)
    }

    /// An engine with a configuration that exists already.
    ///
    /// # Errors
    /// `invalid_argument` when the address, the key or a proxy cannot be used.
    pub fn with_config(
        config: Config,
        environment: Environment,
        seed: u64,
        wall_ms: u64,
    ) -> Result<Self, Error> {
        let made =
            catch_unwind(AssertUnwindSafe(|| Engine::new(config, seed, wall_ms, environment)));
        let engine = made.unwrap_or_else(|payload| Err(of_panic(&*payload)))?;
        let state = State {
            engine,
            next_op: 1,
            logs: LogRing::default(),
            taken: Vec::new(),
            room: BytesMut::new(),
            broken: None,
        };
        Ok(Self { state: Mutex::new(state) })
    }

    /// Begins the operation that `json` describes (see [`command`]) and gives its number.
    ///
    /// # Errors
    /// `usage`, `closed` or `invalid_argument`; nothing has begun then.
    pub fn command(&self, json: &[u8], trace: Trace, now: Time) -> Result<u64, Error> {
        self.begin(command::read(json)?, trace, now)
    }

    /// Begins an operation and gives its number.
    ///
    /// # Errors
    /// `usage`, `closed` or `invalid_argument`; nothing has begun then.
    pub fn begin(&self, command: Command, trace: Trace, now: Time) -> Result<u64, Error> {
        self.guard(|state| {
            let op = state.next_op;
            state.engine.command(OpId(op), command, trace, now)?;
            state.next_op += 1;
            Ok(op)
        })
    }

    /// The session as JSON text that outlives this program; the same as the command `save`, without an operation. It holds the
    /// session's key.
    ///
    /// # Errors
    /// `usage` when no session is open, or it is only observed.
    pub fn save(&self) -> Result<Secret, Error> {
        self.guard(|state| Ok(state.engine.save()?.to_json()))
    }

    /// Whether a turn that another program has left waits for the command `resume`.
    ///
    /// # Errors
    /// `usage` when no session is open.
    pub fn is_pending(&self) -> Result<bool, Error> {
        self.guard(|state| match state.engine.session() {
            Some(_) => Ok(state.engine.is_pending()),
            None => Err(Error::new(ErrorKind::Usage, "no session is open yet")),
        })
    }

    /// Ends an operation early; it still finishes. Unknown and finished operations are left alone.
    ///
    /// # Errors
    /// `panic` only.
    pub fn cancel(&self, op: u64, now: Time) -> Result<(), Error> {
        self.guard(|state| {
            state.engine.cancel(OpId(op), now);
            Ok(())
        })
    }

    /// Answers a tool call, an approval or a hook.
    ///
    /// # Errors
    /// `usage` for an answer that does not fit the question, or a question never asked.
    pub fn answer(&self, call: u64, answer: Answer, now: Time) -> Result<Accepted, Error> {
        self.guard(|state| state.engine.answer(CallId(call), answer, now))
    }

    /// What the turns of the session have spent so far, those of programs that had it before included.
    ///
    /// # Errors
    /// `panic` only.
    pub fn spent(&self) -> Result<Spent, Error> {
        self.guard(|state| Ok(state.engine.spent()))
    }

    /// A name was resolved to these addresses, in the order of preference, or was not, and why.
    ///
    /// # Errors
    /// `panic` only.
    pub fn resolved(
        &self,
        req: u64,
        answer: Result<Vec<IpAddr>, String>,
        now: Time,
    ) -> Result<(), Error> {
        self.input(|engine| engine.resolved(ResolveId(req), answer, now))
    }

    /// A connection is open, TLS included when it was asked for.
    ///
    /// # Errors
    /// `panic` only.
    pub fn connected(&self, conn: u64, now: Time) -> Result<(), Error> {
        self.input(|engine| engine.connected(ConnId(conn), now))
    }

    /// TLS was started inside a tunnel.
    ///
    /// # Errors
    /// `panic` only.
    pub fn tls_started(&self, conn: u64, now: Time) -> Result<(), Error> {
        self.input(|engine| engine.tls_started(ConnId(conn), now))
    }

    /// Bytes came; they are copied.
    ///
    /// # Errors
    /// `panic` only.
    pub fn data(&self, conn: u64, bytes: &[u8], now: Time) -> Result<(), Error> {
        self.guard(|state| {
            let bytes = if bytes.len() < SMALL_READ_BYTES {
                state.room = BytesMut::new();
                Bytes::copy_from_slice(bytes)
            } else {
                // Takes the memory of earlier reads again when nobody holds a part of it.
                if state.room.capacity() < bytes.len() {
                    state.room.reserve(bytes.len().max(ROOM_BYTES));
                }
                state.room.extend_from_slice(bytes);
                state.room.split().freeze()
            };
            state.engine.data(ConnId(conn), bytes, now);
            Ok(())
        })
    }

    /// Bytes came; they are kept as they are.
    ///
    /// # Errors
    /// `panic` only.
    pub fn data_owned(&self, conn: u64, bytes: Bytes, now: Time) -> Result<(), Error> {
        self.input(|engine| engine.data(ConnId(conn), bytes, now))
    }

    /// The socket took this many of the bytes that were to be written.
    ///
    /// # Errors
    /// `panic` only.
    pub fn written(&self, conn: u64, bytes: usize, now: Time) -> Result<(), Error> {
        self.input(|engine| engine.written(ConnId(conn), bytes, now))
    }

    /// A connection is gone, or could not be made.
    ///
    /// # Errors
    /// `panic` only.
    pub fn closed(&self, conn: u64, why: CloseReason, now: Time) -> Result<(), Error> {
        self.input(|engine| engine.closed(ConnId(conn), why, now))
    }

    /// The timer has gone off; too early or too often does no harm.
    ///
    /// # Errors
    /// `panic` only.
    pub fn timeout(&self, now: Time) -> Result<(), Error> {
        self.input(|engine| engine.timeout(now))
    }

    /// The wall clock, in milliseconds since 1970.
    ///
    /// # Errors
    /// `panic` only.
    pub fn wall(&self, ms: u64) -> Result<(), Error> {
        self.input(|engine| engine.wall(ms))
    }

    /// Adds every effect that waits to the batch.
    ///
    /// # Errors
    /// `panic` only.
    pub fn effects(&self, into: &mut Batch) -> Result<(), Error> {
        self.guard(|state| {
            while let Some(effect) = state.next_effect() {
                into.push_effect(&effect);
            }
            Ok(())
        })
    }

    /// The next effect, for a shell written in Rust. Log records go to the ring.
    ///
    /// # Errors
    /// `panic` only.
    pub fn next_effect(&self) -> Result<Option<Effect>, Error> {
        self.guard(|state| Ok(state.next_effect()))
    }

    /// Adds steps of `op` to the batch, about `max_bytes` of them (64 MiB at most) but at least one if any waits. If
    /// some are left, a `ready` effect follows again. True when the operation is over: nothing follows.
    ///
    /// # Errors
    /// `panic` only.
    pub fn steps(&self, op: u64, max_bytes: usize, into: &mut Batch) -> Result<bool, Error> {
        self.guard(|state| {
            let State { engine, taken, .. } = state;
            engine.steps(OpId(op), max_bytes.min(MAX_BATCH_BYTES), taken);
            let over = matches!(taken.last(), Some(Step::Finished(_)));
            let session = SessionWords(engine.session());
            let (mut words, mut text) = (0, 0);
            for step in &*taken {
                if let Step::Event(event) = step {
                    words += event::KIND.words;
                    text += event.bytes();
                }
            }
            into.reserve(words, text);
            taken.drain(..).for_each(|step| into.push_step(&step, &session));
            Ok(over)
        })
    }

    /// Moves all log records that wait into the batch.
    ///
    /// # Errors
    /// None today; a broken handle still gives its records.
    pub fn logs(&self, into: &mut Batch) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.logs.drain(into);
        Ok(())
    }

    /// Whether log records wait.
    #[must_use]
    pub fn has_logs(&self) -> bool {
        !self.state.lock().unwrap_or_else(PoisonError::into_inner).logs.is_empty()
    }

    /// The events of a JSON array, such as `done.events`, as records; elements that are no events are left out.
    ///
    /// # Errors
    /// `invalid_argument` when the text is no JSON.
    pub fn events_of(array: &[u8], into: &mut Batch) -> Result<(), Error> {
        let array = Json::parse(array.to_vec()).map_err(|e| {
            Error::new(ErrorKind::InvalidArgument, format!("the events are not JSON: {e}"))
        })?;
        push_events(into, &array);
        Ok(())
    }

    fn input(&self, give: impl FnOnce(&mut Engine)) -> Result<(), Error> {
        self.guard(|state| {
            give(&mut state.engine);
            Ok(())
        })
    }

    /// Does something with the engine; a panic in it breaks this handle, and nothing else.
    fn guard<R>(&self, work: impl FnOnce(&mut State) -> Result<R, Error>) -> Result<R, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        match catch_unwind(AssertUnwindSafe(|| work(&mut state))) {
            Ok(output) => output,
            Err(payload) => {
                let error = of_panic(&*payload);
                state.broken = Some(error.clone());
                Err(error)
            }
        }
    }
}

impl State {
    fn next_effect(&mut self) -> Option<Effect> {
        loop {
            match self.engine.io()? {
                Effect::Log(record) => self.logs.push(record),
                Effect::Busy(false) => {
                    // An idle session holds no memory for reads, and little for steps.
                    self.room = BytesMut::new();
                    self.taken.shrink_to(KEPT_STEPS);
                    return Some(Effect::Busy(false));
                }
                effect => return Some(effect),
            }
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// Faults on demand, for the tests of bindings.
#[cfg(feature = "testing")]
impl Handle {
    /// Panics while the engine works.
    ///
    /// # Errors
    /// `panic`, always.
    pub fn test_panic(&self) -> Result<(), Error> {
        #[allow(clippy::panic, reason = "this is what the function is for")]
        self.guard(|_| panic!("a test asked for it"))
    }

    /// Fails with the kind of this number.
    ///
    /// # Errors
    /// Always: that kind, or `invalid_argument` when there is none.
    pub fn test_throw(&self, code: i32) -> Result<(), Error> {
        let kind = ErrorKind::ALL.iter().copied().find(|kind| kind.code() == code);
        let details = Json::object([("test", &Json::string("details"))]);
        self.guard(|_| match kind {
            Some(kind) => Err(Error::new(kind, "a test asked for it").with_details(details)),
            None => Err(Error::new(ErrorKind::InvalidArgument, "no kind has this number")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_send_and_sync<T: Send + Sync>() {}

    #[test]
    fn a_handle_may_be_used_from_any_thread() {
        is_send_and_sync::<Handle>();
    }
}
