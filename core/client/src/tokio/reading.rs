//! Reading a session: subscriptions, and its log page by page.

use super::operation::{Attached, Operation};
use crate::engine::{self, Command, Outcome};
use crate::steps::{self, Answers, Presented, Step};
use broca_proto::session::event::Event;
use broca_proto::session::ids::Cursor;
use broca_proto::{Error, ErrorKind};
use futures_core::Stream;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A session's events as they happen: a stream that outlives its connections and ends with the session.
///
/// Every event comes once and in order; what cannot be had is a visible [`Step::Gap`]. Dropped, it ends.
#[must_use = "a subscription that is dropped ends; poll it"]
pub struct Subscription {
    begun: Result<Operation, Option<Error>>,
    cursor: Option<Cursor>,
}

impl Subscription {
    pub(super) fn new(begun: Result<Operation, Error>, from: Option<Cursor>) -> Self {
        Self { begun: begun.map_err(Some), cursor: from }
    }

    /// The next step; nothing after the session's end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Step, Error>> {
        std::future::poll_fn(|cx| self.poll_step(cx)).await
    }

    /// Just after the last event handed out: store it to go on from there, in this process or another. None
    /// before the first event of a subscription that began with what happens from now on.
    #[must_use]
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Step, Error>>> {
        let operation = match &mut self.begun {
            Ok(operation) => operation,
            Err(error) => return Poll::Ready(error.take().map(Err)),
        };
        let Some(step) = ready!(operation.poll(cx, |_, _, _| {})) else { return Poll::Ready(None) };
        let answers = || Arc::clone(operation.shared()) as Arc<dyn Answers>;
        Poll::Ready(match steps::present(step, |_| false, answers) {
            Presented::Step(step) => {
                steps::follow(&mut self.cursor, &step);
                Some(Ok(step))
            }
            Presented::Over(outcome) => outcome.err().map(Err),
        })
    }
}

impl Stream for Subscription {
    type Item = Result<Step, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_step(cx)
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

/// A session's log from its first event, page by page.
pub struct History {
    attached: Arc<Attached>,
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
    pub(super) fn new(attached: Arc<Attached>) -> Self {
        Self { attached, limit: None, next: Position::Start, events: VecDeque::new() }
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
    pub async fn next_page(&mut self) -> Result<Option<Vec<Event>>, Error> {
        let cursor = match &self.next {
            Position::Start => None,
            Position::After(cursor) => Some(cursor.clone()),
            Position::End => return Ok(None),
        };
        let command = Command::History { cursor, limit: self.limit };
        let Outcome::Page(engine::HistoryPage { events, next }) =
            Operation::run(&self.attached, command).await?
        else {
            return Err(Error::new(ErrorKind::Internal, "no page came of reading the history"));
        };
        self.next = next.map_or(Position::End, Position::After);
        Ok(Some(events))
    }

    /// The next event; nothing after the last.
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        while self.events.is_empty() {
            match self.next_page().await {
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
