//! Reading a session: subscriptions, and its log page by page.

use super::driver::Shared;
use super::operation::{Operation, Waited};
use super::turn::Next;
use crate::engine::{self, Command, Outcome};
use crate::steps::{self, Presented};
use broca_proto::session::event::Event;
use broca_proto::session::ids::Cursor;
use broca_proto::{Error, ErrorKind};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A session's events as they happen, over as many connections as it takes, until the session ends.
///
/// Every event comes once and in order; what cannot be had is a visible [`Step::Gap`](steps::Step::Gap). It moves
/// while somebody is inside a call of its session; in between it lags, and recovers at the next call. Dropped, it ends.
#[must_use = "a subscription that is dropped ends; call next()"]
pub struct Subscription {
    begun: Result<Operation, Option<Error>>,
    cursor: Option<Cursor>,
}

impl Subscription {
    pub(super) fn new(begun: Result<Operation, Error>, from: Option<Cursor>) -> Self {
        Self { begun: begun.map_err(Some), cursor: from }
    }

    /// Waits for the next step, at most for `timeout`.
    ///
    /// # Errors
    /// Why the subscription cannot go on. Nothing follows it.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Next, Error> {
        let operation = match &mut self.begun {
            Ok(operation) => operation,
            Err(error) => return error.take().map_or(Ok(Next::Finished), Err),
        };
        let until = timeout.and_then(|t| Instant::now().checked_add(t));
        let step = match operation.wait(until, |_, _| {})? {
            Waited::Step(step) => step,
            Waited::TimedOut => return Ok(Next::TimedOut),
            Waited::Over => return Ok(Next::Finished),
        };
        match steps::present(step, |_| false, || operation.answers()) {
            Presented::Step(step) => {
                steps::follow(&mut self.cursor, &step);
                Ok(Next::Step(step))
            }
            Presented::Over(outcome) => outcome.map(|_| Next::Finished),
        }
    }

    /// Just after the last event handed out: store it to go on from there, in this process or another. None
    /// before the first event of a subscription that began with what happens from now on.
    #[must_use]
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

/// A session's log from its first event: page by page, or event by event as an iterator.
pub struct History {
    shared: Arc<Shared>,
    limit: Option<u32>,
    next: Position,
    events: VecDeque<Event>,
}

enum Position {
    Start,
    After(String),
    End,
}

impl History {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, limit: None, next: Position::Start, events: VecDeque::new() }
    }

    /// At most this many events in a page; the service's default otherwise.
    #[must_use]
    pub fn page_size(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The next page, oldest event first; nothing after the last.
    ///
    /// # Errors
    /// What the request failed with. The same page can be asked for again.
    pub fn next_page(&mut self) -> Result<Option<Vec<Event>>, Error> {
        let cursor = match &self.next {
            Position::Start => None,
            Position::After(cursor) => Some(cursor.clone()),
            Position::End => return Ok(None),
        };
        let command = Command::History { cursor, limit: self.limit };
        let Outcome::Page(engine::HistoryPage { events, next }) =
            Operation::run(&self.shared, command)?
        else {
            return Err(Error::new(ErrorKind::Internal, "no page came of reading the history"));
        };
        self.next = next.map_or(Position::End, Position::After);
        Ok(Some(events))
    }
}

impl Iterator for History {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.events.is_empty() {
            match self.next_page() {
                Ok(page) => self.events.extend(page?),
                Err(error) => return Some(Err(error)),
            }
        }
        self.events.pop_front().map(Ok)
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("limit", &self.limit).finish_non_exhaustive()
    }
}
