//! The client of one session, in whoever's hands it is: what a [`Host`](crate::host::Host) drives.
//!
//! The engine itself is one ([`Direct`]), the bridge of all bindings another ([`Bridged`]), and the package of a
//! language, in a process of its own, a third
//! ([`Spoken`](crate::spoken::Spoken)). A test that is written for a
//! [`Subject`] holds for all of them.

mod bridged;
mod given;
mod taken;

pub use bridged::Bridged;
pub use given::{CLOSE_WORDS, answer_words, close_word, command_json, options_json};
pub use taken::{Taken, Value, effect_of, failed, steps_of};

use broca::engine::{
    Answer, CallId, CloseReason, Command, Config, ConnId, Effect, Engine, Environment, OpId,
    ResolveId, Resolved, Step, Trace,
};
use broca::proto::session::turn::Accepted;
use broca::{Error, Time};
use bytes::Bytes;

/// What the wall clock of every subject shows at first, in milliseconds since 1970.
pub const WALL_MS: u64 = 1_900_000_000_000;

/// The seed of every subject.
pub const SEED: u64 = 1;

/// The inputs and outputs of one engine. What they mean is said where [`Engine`] has them.
pub trait Subject {
    /// Begins an operation and gives its number.
    ///
    /// # Errors
    /// Those of [`Engine::command`]; nothing has begun then.
    fn command(&mut self, command: Command, trace: Trace, now: Time) -> Result<OpId, Error>;

    /// Ends an operation early.
    fn cancel(&mut self, op: OpId, now: Time);

    /// Answers a question.
    ///
    /// # Errors
    /// Those of [`Engine::answer`].
    fn answer(&mut self, call: CallId, answer: Answer, now: Time) -> Result<Accepted, Error>;

    /// A name was resolved, or was not.
    fn resolved(&mut self, req: ResolveId, answer: Resolved, now: Time);

    /// A connection is open.
    fn connected(&mut self, conn: ConnId, now: Time);

    /// TLS was started inside a tunnel.
    fn tls_started(&mut self, conn: ConnId, now: Time);

    /// Bytes came.
    fn data(&mut self, conn: ConnId, bytes: Bytes, now: Time);

    /// The socket took this many bytes.
    fn written(&mut self, conn: ConnId, bytes: usize, now: Time);

    /// A connection is gone.
    fn closed(&mut self, conn: ConnId, why: CloseReason, now: Time);

    /// The timer has gone off.
    fn timeout(&mut self, now: Time);

    /// The next effect.
    fn next_effect(&mut self) -> Option<Effect>;

    /// Takes steps of an operation.
    fn steps(&mut self, op: OpId, max_bytes: usize, out: &mut Vec<Step>);

    /// What has gone wrong between the engine and this side: a field that was lost, a process that ended. Nothing
    /// that came after it is to be believed.
    fn fault(&self) -> Option<String> {
        None
    }
}

/// The engine itself; only counts the operations.
#[derive(Debug)]
pub struct Direct {
    engine: Engine,
    next_op: u64,
}

impl Direct {
    /// An engine of this configuration.
    ///
    /// # Errors
    /// Those of [`Engine::new`].
    pub fn new(config: Config) -> Result<Self, Error> {
        let engine = Engine::new(config, SEED, WALL_MS, Environment::none())?;
        Ok(Self { engine, next_op: 1 })
    }
}

impl Subject for Direct {
    fn command(&mut self, command: Command, trace: Trace, now: Time) -> Result<OpId, Error> {
        let op = OpId(self.next_op);
        self.engine.command(op, command, trace, now)?;
        self.next_op += 1;
        Ok(op)
    }

    fn cancel(&mut self, op: OpId, now: Time) {
        self.engine.cancel(op, now);
    }

    fn answer(&mut self, call: CallId, answer: Answer, now: Time) -> Result<Accepted, Error> {
        self.engine.answer(call, answer, now)
    }

    fn resolved(&mut self, req: ResolveId, answer: Resolved, now: Time) {
        self.engine.resolved(req, answer, now);
    }

    fn connected(&mut self, conn: ConnId, now: Time) {
        self.engine.connected(conn, now);
    }

    fn tls_started(&mut self, conn: ConnId, now: Time) {
        self.engine.tls_started(conn, now);
    }

    fn data(&mut self, conn: ConnId, bytes: Bytes, now: Time) {
        self.engine.data(conn, bytes, now);
    }

    fn written(&mut self, conn: ConnId, bytes: usize, now: Time) {
        self.engine.written(conn, bytes, now);
    }

    fn closed(&mut self, conn: ConnId, why: CloseReason, now: Time) {
        self.engine.closed(conn, why, now);
    }

    fn timeout(&mut self, now: Time) {
        self.engine.timeout(now);
    }

    fn next_effect(&mut self) -> Option<Effect> {
        self.engine.io()
    }

    fn steps(&mut self, op: OpId, max_bytes: usize, out: &mut Vec<Step>) {
        self.engine.steps(op, max_bytes, out);
    }
}
