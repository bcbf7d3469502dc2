//! The engine: the whole client of one session as a state machine (design §4).
//!
//! It opens no socket, starts no thread, reads no clock and calls nobody. A shell feeds it what
//! happened and carries out its [`Effect`]s; an application gives it [`Command`]s and pulls
//! [`Step`]s. Every input carries the time. Inputs about connections or questions that are no
//! longer known are ignored.
//!
//! | in | out |
//! |---|---|
//! | [`Engine::command`], [`Engine::cancel`], [`Engine::answer`] | [`Engine::steps`], per operation |
//! | [`Engine::resolved`], [`Engine::connected`], [`Engine::tls_started`], [`Engine::data`], [`Engine::written`], [`Engine::closed`] | [`Engine::io`]: effects, never held back |
//! | [`Engine::timeout`], [`Engine::wall`] | [`Effect::Timer`], [`Effect::Busy`], [`Effect::Ready`] |

mod address;
mod answer;
mod attach;
mod catch_up;
mod command;
mod config;
mod effect;
mod memory;
mod net;
mod ops;
mod queue;
mod send;
mod session;
mod step;
mod subscribe;

pub use address::{Environment, Route};
pub use command::{Answer, Command, NOBODY_TO_ASK, NOBODY_TO_RUN, Trace};
pub use config::Config;
pub use effect::{
    CallId, CloseReason, ConnId, Effect, LogLevel, LogRecord, OpId, ResolveId, Resolved, Tls,
};
pub use session::SessionInfo;
pub use step::{Delta, DeltaKind, Gap, HistoryPage, Lost, Outcome, Reply, Status, Step, ToolCall};

pub use broca_proto::session::budget::{Budget, Spent};
pub use broca_proto::session::notice::Queued;
pub use broca_proto::session::saved::{SavedResult, SavedSession, SavedTurn};
pub use broca_proto::session::turn::{Accepted, ToolOutcome};

use address::Address;
use broca_proto::{Error, ErrorKind, Time};
use bytes::Bytes;
use net::NetEvent;
use ops::{Op, Work};
use session::Core;
use std::collections::{BTreeMap, VecDeque};

/// The client of one session.
pub struct Engine {
    core: Core,
    ops: BTreeMap<OpId, Op>,
    /// Turns that have begun or wait, in order: one at a time.
    turns: VecDeque<OpId>,
    effects: VecDeque<Effect>,
    timer: Option<Time>,
    busy: bool,
}

impl Engine {
    /// An engine for the service and key in `config`. `seed` feeds jitter and identifiers; `wall_now_ms` is the wall clock,
    /// in milliseconds since 1970.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the address, the key or a proxy cannot be used.
    pub fn new(
        config: Config,
        seed: u64,
        wall_now_ms: u64,
        environment: Environment,
    ) -> Result<Self, Error> {
        let address = Address::parse(&config.base_url)?;
        let proxy = environment.proxy_for(&address)?;
        if config.client_key.is_empty()
            || !config.client_key.expose().bytes().all(|b| b.is_ascii_graphic())
        {
            let message =
                "the client key is empty or holds characters no key has; pass it as it was shown";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(Self {
            core: Core::new(config, address, proxy, seed, wall_now_ms),
            ops: BTreeMap::new(),
            turns: VecDeque::new(),
            effects: VecDeque::new(),
            timer: None,
            busy: false,
        })
    }

    /// Begins an operation. The caller chooses `op` and never uses a number twice.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a number in use, a session command before a session is open, or a
    /// second open; [`ErrorKind::Closed`] after [`Command::Close`]; [`ErrorKind::InvalidArgument`] for tools that cannot be declared. Nothing has begun then.
    pub fn command(
        &mut self,
        op: OpId,
        command: Command,
        trace: Trace,
        now: Time,
    ) -> Result<(), Error> {
        if self.ops.contains_key(&op) {
            return Err(Error::new(ErrorKind::Usage, "an operation of this number is under way"));
        }
        self.core.admit(&command)?;
        let save = matches!(command, Command::Save).then(|| self.save()).transpose()?;
        let is_close = matches!(command, Command::Close);
        let mut begun = Op::new(op, command, trace);
        if let Some(saved) = save {
            begun.finish_with(&mut self.core, Ok(Outcome::Saved(Box::new(saved))), now);
        } else if begun.is_turn {
            self.turns.push_back(op);
            if self.turns.len() > 1 {
                begun.steps.push(Step::Status(Status::Queued { place: None }));
            }
        } else {
            begun.start(&mut self.core, now);
        }
        self.ops.insert(op, begun);
        if is_close {
            // Subscriptions and history still bring what the session was, its end included.
            for turn in self.turns.clone() {
                self.close_op(turn, now);
            }
        }
        self.settle(now);
        Ok(())
    }

    /// Ends an operation early; it still finishes with exactly one [`Step::Finished`]. Unknown and
    /// finished operations are left alone.
    pub fn cancel(&mut self, op: OpId, now: Time) {
        if let Some(op) = self.ops.get_mut(&op) {
            op.cancel(&mut self.core, now);
        }
        self.settle(now);
    }

    /// Answers a tool call, an approval or a hook.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for an answer that does not fit the question, or a question never asked.
    pub fn answer(&mut self, call: CallId, answer: Answer, now: Time) -> Result<Accepted, Error> {
        let accepted = match self.core.asked(call) {
            Some(op) => match self.ops.get_mut(&op) {
                Some(op) => op.answer(&mut self.core, call, answer, now),
                None => Ok(Accepted::TooLate),
            },
            None => self.core.unknown_call(call),
        };
        self.settle(now);
        accepted
    }

    /// Takes steps of `op`, about `max_bytes` of them but at least one if any waits. If some are left,
    /// [`Effect::Ready`] follows again.
    pub fn steps(&mut self, op: OpId, max_bytes: usize, out: &mut Vec<Step>) {
        let Some(found) = self.ops.get_mut(&op) else { return };
        found.steps.take(max_bytes, out);
        found.relieve(&mut self.core);
        if found.is_turn
            && let Some(memory) = self.core.memory()
        {
            memory.taken(&found.steps);
        }
        if found.steps.is_spent() {
            self.ops.remove(&op);
        }
        self.collect_effects();
        self.set_timer();
    }

    /// The session, once it is open.
    #[must_use]
    pub fn session(&self) -> Option<&SessionInfo> {
        self.core.session_info()
    }

    /// The session as a value that outlives this program; see [`SavedSession`]. A message that waits behind the turn that
    /// is under way is not in it.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when no session is open, or it is only observed.
    pub fn save(&self) -> Result<SavedSession, Error> {
        let saved = self.core.save()?;
        let turn = self.turns.front().and_then(|op| self.ops.get(op));
        let left = self.ops.values().find(|op| op.is_turn && op.steps.holds_reply());
        let turn = match turn.map(|op| &op.work) {
            Some(Work::Turn(turn)) => Some(turn.save()),
            // The application has not heard yet that it is over.
            _ => left.map(|_| SavedTurn::default()),
        };
        Ok(SavedSession { turn: turn.or(saved.turn), ..saved })
    }

    /// What the turns of the session have spent so far, those of programs that had it before included.
    #[must_use]
    pub fn spent(&self) -> Spent {
        let over = self.core.session.as_ref().map(|s| s.memory.spent).unwrap_or_default();
        let turn = self.turns.front().and_then(|op| self.ops.get(op)).map(|op| &op.work);
        match turn {
            Some(Work::Turn(turn)) => over.and(turn.spent()),
            _ => over,
        }
    }

    /// Whether a turn that another program has left waits for [`Command::Resume`].
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.core.session.as_ref().is_some_and(|session| session.memory.pending.is_some())
    }

    /// The next effect. Call until there is none after every other call.
    pub fn io(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// A name was resolved.
    pub fn resolved(&mut self, req: ResolveId, answer: Resolved, now: Time) {
        self.core.net.resolved(req, answer, now);
        self.settle(now);
    }

    /// A connection is open, TLS included when it was asked for.
    pub fn connected(&mut self, conn: ConnId, now: Time) {
        self.core.net.connected(conn, now);
        self.settle(now);
    }

    /// TLS was started inside a tunnel.
    pub fn tls_started(&mut self, conn: ConnId, now: Time) {
        self.core.net.tls_started(conn, now);
        self.settle(now);
    }

    /// Bytes came.
    pub fn data(&mut self, conn: ConnId, bytes: Bytes, now: Time) {
        self.core.net.data(conn, bytes);
        while let Some((op, exchange, event)) = self.core.net.poll_conn(conn, now) {
            self.dispatch(op, exchange, event, now);
        }
        self.settle(now);
    }

    /// Bytes handed out by [`Effect::Write`] were taken by the socket.
    pub fn written(&mut self, conn: ConnId, bytes: usize, now: Time) {
        self.core.net.written(conn, bytes);
        self.settle(now);
    }

    /// A connection is gone, or could not be made.
    pub fn closed(&mut self, conn: ConnId, why: CloseReason, now: Time) {
        self.core.net.closed(conn, why, now);
        self.settle(now);
    }

    /// The timer has gone off; too early or too often does no harm.
    pub fn timeout(&mut self, now: Time) {
        self.core.net.timeout(now);
        for op in self.ops.values_mut() {
            op.timeout(&mut self.core, now);
        }
        self.settle(now);
    }

    /// The wall clock, in milliseconds since 1970: for times that come from other machines.
    pub fn wall(&mut self, ms: u64) {
        self.core.wall_now_ms = ms;
    }

    #[inline]
    fn dispatch(&mut self, op: OpId, exchange: net::ExchangeId, event: NetEvent, now: Time) {
        match self.ops.get_mut(&op) {
            Some(op) => op.network(&mut self.core, exchange, event, now),
            None => self.core.net.abort(exchange, now),
        }
    }

    /// Lets everything that follows from an input follow: events of the network, the next turn,
    /// effects, the timer.
    fn settle(&mut self, now: Time) {
        loop {
            while let Some((op, exchange, event)) = self.core.net.poll_event() {
                self.dispatch(op, exchange, event, now);
            }
            let over = |op: &OpId| self.ops.get(op).is_none_or(|op| op.steps.is_finished());
            let declares = self.ops.values().any(Op::declares_tools);
            if !self.turns.front().is_some_and(over) {
                let Some(next) = self.turns.front().and_then(|op| self.ops.get_mut(op)) else {
                    break;
                };
                // A turn has the tools that were given before it.
                if !matches!(next.work, Work::Begin(_)) || declares {
                    break;
                }
                next.start(&mut self.core, now);
                continue;
            }
            self.turns.pop_front();
        }
        self.collect_effects();
        self.set_timer();
        let busy = self.ops.values().any(Op::is_busy);
        if busy != self.busy {
            self.busy = busy;
            self.effects.push_back(Effect::Busy(busy));
        }
    }

    fn set_timer(&mut self) {
        let ops = self.ops.values().filter_map(Op::poll_timeout);
        let at = ops.chain(self.core.net.poll_timeout()).min();
        if at != self.timer {
            self.timer = at;
            self.effects.push_back(Effect::Timer { at });
        }
    }

    fn collect_effects(&mut self) {
        while let Some(effect) = self.core.net.poll_effect() {
            self.effects.push_back(effect);
        }
        while let Some(record) = self.core.log.pop_front() {
            self.effects.push_back(Effect::Log(record));
        }
        for (id, op) in &mut self.ops {
            if op.steps.announce() {
                self.effects.push_back(Effect::Ready { op: *id });
            }
        }
    }

    fn close_op(&mut self, op: OpId, now: Time) {
        if let Some(op) = self.ops.get_mut(&op) {
            let error = Error::new(ErrorKind::Closed, "the session was closed");
            op.finish_with(&mut self.core, Err(error), now);
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("service", &self.core.net.address())
            .field("operations", &self.ops.len())
            .finish_non_exhaustive()
    }
}
