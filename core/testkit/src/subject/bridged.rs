//! The bridge as a subject: everything goes in as JSON and comes out of a batch, as it does for a binding.

use super::given::{answer_words, command_json, options_json};
use super::taken::{Taken, effect_of, steps_of};
use super::{SEED, Subject, WALL_MS};
use broca::engine::{
    Answer, CallId, CloseReason, Command, Config, ConnId, Effect, OpId, ResolveId, Resolved, Step,
    Trace,
};
use broca::proto::session::turn::Accepted;
use broca::{Error, ErrorKind, Time};
use broca_bridge::{Batch, Handle, command};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// A handle, and effects that were taken from it and not given on.
#[derive(Debug)]
pub struct Bridged {
    handle: Arc<Handle>,
    batch: Batch,
    effects: VecDeque<Effect>,
    fault: Option<String>,
}

impl Bridged {
    /// A handle of this configuration.
    ///
    /// # Errors
    /// Those of [`Handle::new`].
    pub fn new(config: &Config) -> Result<Self, Error> {
        let handle = Handle::new(options_json(config).as_bytes(), SEED, WALL_MS)?;
        Ok(Self {
            handle: Arc::new(handle),
            batch: Batch::new(),
            effects: VecDeque::new(),
            fault: None,
        })
    }

    /// The handle, for calls from elsewhere.
    #[must_use]
    pub fn handle(&self) -> Arc<Handle> {
        Arc::clone(&self.handle)
    }

    /// Runs one call; what it says is the first fault if it fails.
    fn expect<R>(&mut self, done: Result<R, impl ToString>) -> Option<R> {
        match done {
            Ok(value) => Some(value),
            Err(fault) => {
                self.fault.get_or_insert_with(|| fault.to_string());
                None
            }
        }
    }
}

impl Subject for Bridged {
    fn command(&mut self, command: Command, trace: Trace, now: Time) -> Result<OpId, Error> {
        let json =
            command_json(&command).map_err(|fault| Error::new(ErrorKind::Internal, fault))?;
        self.handle.command(json.as_bytes(), trace, now).map(OpId)
    }

    fn cancel(&mut self, op: OpId, now: Time) {
        let done = self.handle.cancel(op.0, now);
        self.expect(done);
    }

    fn answer(&mut self, call: CallId, answer: Answer, now: Time) -> Result<Accepted, Error> {
        let trace = match &answer {
            Answer::Send { trace, .. } => trace.clone(),
            _ => None,
        };
        let (word, value) =
            answer_words(&answer).map_err(|fault| Error::new(ErrorKind::Internal, fault))?;
        let answer = command::answer(word, value.as_deref().map(str::as_bytes), trace)?;
        self.handle.answer(call.0, answer, now)
    }

    fn resolved(&mut self, req: ResolveId, answer: Resolved, now: Time) {
        let done = self.handle.resolved(req.0, answer, now);
        self.expect(done);
    }

    fn connected(&mut self, conn: ConnId, now: Time) {
        let done = self.handle.connected(conn.0, now);
        self.expect(done);
    }

    fn tls_started(&mut self, conn: ConnId, now: Time) {
        let done = self.handle.tls_started(conn.0, now);
        self.expect(done);
    }

    fn data(&mut self, conn: ConnId, bytes: Bytes, now: Time) {
        let done = self.handle.data(conn.0, &bytes, now);
        self.expect(done);
    }

    fn written(&mut self, conn: ConnId, bytes: usize, now: Time) {
        let done = self.handle.written(conn.0, bytes, now);
        self.expect(done);
    }

    fn closed(&mut self, conn: ConnId, why: CloseReason, now: Time) {
        let done = self.handle.closed(conn.0, why, now);
        self.expect(done);
    }

    fn timeout(&mut self, now: Time) {
        let done = self.handle.timeout(now);
        self.expect(done);
    }

    fn next_effect(&mut self) -> Option<Effect> {
        if self.effects.is_empty() {
            self.batch.clear();
            let mut done = self.handle.effects(&mut self.batch);
            if done.is_ok() {
                done = self.handle.logs(&mut self.batch);
            }
            self.expect(done)?;
            let effects = Taken::all_of(&self.batch)
                .and_then(|all| all.iter().map(effect_of).collect::<Result<Vec<_>, _>>());
            self.effects = self.expect(effects)?.into();
        }
        self.effects.pop_front()
    }

    fn steps(&mut self, op: OpId, max_bytes: usize, out: &mut Vec<Step>) {
        self.batch.clear();
        let over = self.handle.steps(op.0, max_bytes, &mut self.batch);
        let steps = Taken::all_of(&self.batch).and_then(|all| steps_of(&all));
        let (Some(over), Some(steps)) = (self.expect(over), self.expect(steps)) else { return };
        if over != matches!(steps.last(), Some(Step::Finished(_))) {
            self.expect::<()>(Err("the end of an operation was not told as such"));
        }
        out.extend(steps);
    }

    fn fault(&self) -> Option<String> {
        self.fault.clone()
    }
}
