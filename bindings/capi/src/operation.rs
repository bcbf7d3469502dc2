//! One command under way: a turn, a subscription, or a request with one answer.

use crate::hub::Hub;
use crate::session::Attached;
use crate::state::{State, fail_calls};
use crate::step::Step;
use broca::engine::Command;
use broca_bridge::layout::{event, failed, finished, gap};
use broca_bridge::{Batch, Error, ErrorKind, Time, Trace};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// Steps taken from the engine at once, in bytes: many for each lock, few enough to stay in near memory.
const BATCH: usize = 64 * 1024;

/// What the model reads of a call that the program let go of.
pub(crate) const DROPPED_CALL: &str = "The program let go of the call without an answer.";

/// What an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Turn,
    Subscription,
    Request,
}

/// What the program's handle of an operation, and every step of it, share.
pub(crate) struct Operation {
    session: Arc<Attached>,
    kind: Kind,
    op: u64,
    /// Its number among all operations of the client.
    id: u64,
    /// What the program has attached to it.
    data: AtomicPtr<c_void>,
    steps: Mutex<Steps>,
    /// The last step was handed out.
    over: AtomicBool,
}

/// Steps on their way to the program.
#[derive(Default)]
struct Steps {
    batch: Arc<Batch>,
    /// Where the next one begins.
    at: usize,
    /// The engine has no more.
    ended: bool,
    /// After the last event.
    cursor: Option<String>,
}

impl Operation {
    /// Begins an operation.
    pub(crate) fn begin(
        session: &Arc<Attached>,
        command: Command,
        trace: Trace,
        kind: Kind,
    ) -> Result<Arc<Self>, Error> {
        let begin =
            |state: &mut State, now| Self::begin_in(state, session, command, trace, kind, now);
        session.hub().with(session.key(), begin)?
    }

    /// Begins to take up the turn that another program has left; nothing when none waits.
    pub(crate) fn resume(session: &Arc<Attached>) -> Result<Option<Arc<Self>>, Error> {
        session.hub().with(session.key(), |state, now| {
            if !session.handle().is_pending()? {
                return Ok(None);
            }
            let trace = Trace::default();
            Self::begin_in(state, session, Command::Resume, trace, Kind::Turn, now).map(Some)
        })?
    }

    fn begin_in(
        state: &mut State,
        session: &Arc<Attached>,
        command: Command,
        trace: Trace,
        kind: Kind,
        now: Time,
    ) -> Result<Arc<Self>, Error> {
        let cursor = match &command {
            Command::Subscribe { from } => from.as_ref().map(ToString::to_string),
            _ => None,
        };
        let op = session.handle().begin(command, trace, now)?;
        let operation = Arc::new(Self {
            session: Arc::clone(session),
            kind,
            op,
            id: state.next_operation(),
            data: AtomicPtr::new(ptr::null_mut()),
            steps: Mutex::new(Steps { cursor, ..Steps::default() }),
            over: AtomicBool::new(false),
        });
        state.expect(kind == Kind::Turn, session.key(), op, Arc::downgrade(&operation));
        Ok(operation)
    }

    /// The next step, the one that ends the operation included; nothing when the time is over or nothing follows.
    pub(crate) fn next(
        self: &Arc<Self>,
        until: Option<Instant>,
    ) -> Result<Option<Box<Step>>, Error> {
        self.hub().check()?;
        let mut steps = self.lock();
        self.next_of(&mut steps, until)
    }

    /// The next step that is there; nothing while somebody else takes steps, and perhaps waits for one.
    pub(crate) fn next_at_once(self: &Arc<Self>) -> Result<Option<Box<Step>>, Error> {
        self.hub().check()?;
        let Some(mut steps) = self.try_lock() else { return Ok(None) };
        self.next_of(&mut steps, Some(Instant::now()))
    }

    fn next_of(
        self: &Arc<Self>,
        steps: &mut Steps,
        until: Option<Instant>,
    ) -> Result<Option<Box<Step>>, Error> {
        let hub = self.hub();
        if let Some(step) = self.hand_out(steps) {
            return Ok(Some(step));
        }
        if steps.ended {
            return Ok(None);
        }
        if Arc::get_mut(&mut steps.batch).is_none() {
            steps.batch = Arc::default(); // somebody keeps a step of the last one
        }
        let Some(batch) = Arc::get_mut(&mut steps.batch) else { return Ok(None) };
        batch.clear();
        let (key, op) = (self.session.key(), self.op);
        let mut take = |state: &mut State, now| {
            let ended = state.take(key, op, BATCH, batch);
            if batch.is_empty() && !ended {
                return None;
            }
            state.settle(key, now);
            Some(ended)
        };
        // What is there already comes before anything more is read.
        let ended = match hub.at_once(&mut take)? {
            None => hub.pump(until, take)?,
            ended => ended,
        };
        steps.at = 0;
        steps.ended = ended.unwrap_or(false);
        Ok(self.hand_out(steps))
    }

    /// The next step of a turn or a subscription; its end is nothing, or an error.
    pub(crate) fn next_shown(
        self: &Arc<Self>,
        until: Option<Instant>,
    ) -> Result<Option<Box<Step>>, Error> {
        match self.next(until)? {
            Some(step) if step.kind() == finished::NUMBER => Ok(None),
            Some(step) if step.kind() == failed::NUMBER => Err(step.to_error()),
            step => Ok(step),
        }
    }

    /// The next step of a request, the one that finishes it included.
    pub(crate) fn next_of_request(
        self: &Arc<Self>,
        until: Option<Instant>,
    ) -> Result<Option<Box<Step>>, Error> {
        match self.next(until)? {
            Some(step) if step.kind() == failed::NUMBER => Err(step.to_error()),
            step => Ok(step),
        }
    }

    /// Waits for the outcome of a request.
    ///
    /// # Errors
    /// What it failed with.
    pub(crate) fn outcome(self: &Arc<Self>) -> Result<Box<Step>, Error> {
        loop {
            match self.next(None)? {
                Some(step) if step.kind() == finished::NUMBER => return Ok(step),
                Some(step) if step.kind() == failed::NUMBER => return Err(step.to_error()),
                None if self.is_over() => {
                    let message = "an operation ended without its outcome";
                    return Err(Error::new(ErrorKind::Internal, message));
                }
                _ => {}
            }
        }
    }

    /// A step that was taken from the engine already, unless somebody else takes steps.
    pub(crate) fn buffered(self: &Arc<Self>) -> Option<Box<Step>> {
        self.hand_out(&mut *self.try_lock()?)
    }

    pub(crate) fn has_buffered(&self) -> bool {
        self.try_lock().is_some_and(|steps| steps.batch.record(steps.at).is_some())
    }

    /// Ends the operation early; it still brings its end.
    pub(crate) fn cancel(&self) -> Result<(), Error> {
        let cancel = |now| self.session.handle().cancel(self.op, now);
        self.hub().with(self.session.key(), |_, now| cancel(now))?
    }

    /// Lets go of the operation: it is cancelled, and nobody sees what is left of it.
    pub(crate) fn leave(&self) -> Result<(), Error> {
        if self.over.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.hub().check()?;
        let (batch, at) = {
            let mut steps = self.lock();
            steps.ended = true;
            (Arc::clone(&steps.batch), std::mem::replace(&mut steps.at, usize::MAX))
        };
        let (key, op) = (self.session.key(), self.op);
        self.hub().with(key, |state, now| {
            fail_calls(self.session.handle(), &batch, at, now);
            state.leave(key, op, now);
        })
    }

    /// Lets go of the operation and waits until it is quiet, at most until `until`.
    pub(crate) fn leave_and_wait(&self, until: Option<Instant>) -> Result<(), Error> {
        self.leave()?;
        let (key, op) = (self.session.key(), self.op);
        self.hub().pump(until, |state, _| state.is_over(key, op).then_some(())).map(drop)
    }

    /// Whether nothing follows.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Just after the last event handed out.
    pub(crate) fn cursor(&self) -> Option<String> {
        self.lock().cursor.clone()
    }

    pub(crate) fn session(&self) -> &Arc<Attached> {
        &self.session
    }

    pub(crate) fn hub(&self) -> &Hub {
        self.session.hub()
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn data(&self) -> *mut c_void {
        self.data.load(Ordering::Acquire)
    }

    pub(crate) fn set_data(&self, data: *mut c_void) {
        self.data.store(data, Ordering::Release);
    }

    /// An operation that a test has begun at the engine itself.
    #[cfg(feature = "testing")]
    pub(crate) fn without_hub(session: &Arc<Attached>, kind: Kind, op: u64) -> Arc<Self> {
        Arc::new(Self {
            session: Arc::clone(session),
            kind,
            op,
            id: op,
            data: AtomicPtr::new(ptr::null_mut()),
            steps: Mutex::default(),
            over: AtomicBool::new(false),
        })
    }

    /// Steps that a test has taken from the engine itself.
    #[cfg(feature = "testing")]
    pub(crate) fn hold(&self, batch: Batch) {
        let mut steps = self.lock();
        steps.batch = Arc::new(batch);
        steps.at = 0;
    }

    fn hand_out(self: &Arc<Self>, steps: &mut Steps) -> Option<Box<Step>> {
        let at = steps.at;
        let record = steps.batch.record(at)?;
        match record.kind() {
            event::NUMBER if self.kind == Kind::Subscription => {
                let id = record.text(event::id).unwrap_or_default();
                let cursor = steps.cursor.get_or_insert_default();
                cursor.clear();
                cursor.push_str(id);
            }
            // The service forgot the cursor and begins again at the start of its log.
            gap::NUMBER if self.kind == Kind::Subscription && record.word(gap::lost) == 2 => {
                steps.cursor = Some(String::new());
            }
            finished::NUMBER => {
                self.session.opened(&record);
                self.over.store(true, Ordering::Release);
            }
            failed::NUMBER => self.over.store(true, Ordering::Release),
            _ => {}
        }
        steps.at += *steps.batch.words().get(at + 1)? as usize;
        Some(Box::new(Step::new(self, &steps.batch, at)))
    }

    /// Whoever waits for a step holds the lock meanwhile.
    fn try_lock(&self) -> Option<MutexGuard<'_, Steps>> {
        match self.steps.try_lock() {
            Ok(steps) => Some(steps),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use crate::client::Client;
    use crate::failure::Failure;
    use crate::hub::Hub;
    use crate::request::Request;
    use crate::session::Session;
    use crate::step::Step;
    use crate::subscription::Subscription;
    use crate::turn::Turn;

    fn is_send_and_sync<T: Send + Sync>() {}

    #[test]
    fn what_a_program_holds_may_be_used_from_any_thread() {
        is_send_and_sync::<(Client, Hub, Session, Turn, Subscription, Request, Step, Failure)>();
    }
}
