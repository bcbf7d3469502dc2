//! The one thread that writes, and its group commit.

use super::SqliteSettings;
use super::place::Place;
use super::uses::Uses;
use crate::store::StoreError;
use rusqlite::Connection;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};

/// The writing thread and the queue before it.
pub(super) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(
        db: Connection,
        settings: &SqliteSettings,
        uses: Arc<Uses>,
    ) -> Result<Self, StoreError> {
        let (queue, jobs) = mpsc::channel(settings.queue.max(1));
        let group = settings.group.max(1);
        let place = Place::of(&settings.path);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || write_all(&db, jobs, group, &uses, &place))
            .map_err(|error| StoreError::Io(format!("cannot start the writer: {error}")))?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Runs a verb on the writing connection. Answers when its group is on disk.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(Pending { verb: Some(verb), result: None, answer });
        let queue = self.queue.as_ref().ok_or(StoreError::Stopped)?;
        queue.send(job).await.map_err(|_| StoreError::Stopped)?;
        answered.await.unwrap_or(Err(StoreError::Stopped))
    }
}

impl Drop for Writer {
    /// Closes the queue and waits until the thread has written what is in it.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // It ends with an error only if it panicked; then there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

/// A verb that waits for its turn, then for its commit.
trait Job: Send {
    /// Runs the verb inside the open transaction; its result is kept back.
    fn run(&mut self, db: &Connection) -> Result<(), StoreError>;
    /// Answers: with the result if the commit held, else with why it did not.
    fn answer(self: Box<Self>, commit: Result<(), StoreError>);
}

struct Pending<T, F> {
    verb: Option<F>,
    result: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Job for Pending<T, F>
where
    T: Send + 'static,
    F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
{
    fn run(&mut self, db: &Connection) -> Result<(), StoreError> {
        let Some(verb) = self.verb.take() else { return Err(StoreError::Stopped) };
        let result = verb(db);
        let outcome = result.as_ref().map(|_| ()).map_err(Clone::clone);
        self.result = Some(result);
        outcome
    }

    fn answer(self: Box<Self>, commit: Result<(), StoreError>) {
        let result = match (commit, self.result) {
            // A verb that refused keeps its own reason, whatever became of its neighbours.
            (_, Some(Err(error))) | (Err(error), _) => Err(error),
            (Ok(()), Some(Ok(value))) => Ok(value),
            (Ok(()), None) => Err(StoreError::Stopped),
        };
        // Whoever asked may have gone.
        let _ = self.answer.send(result);
    }
}

fn write_all(
    db: &Connection,
    mut jobs: mpsc::Receiver<Box<dyn Job>>,
    most: usize,
    uses: &Uses,
    place: &Place,
) {
    let mut group = Vec::new();
    while let Some(first) = jobs.blocking_recv() {
        group.push(first);
        while group.len() < most
            && let Ok(next) = jobs.try_recv()
        {
            group.push(next);
        }
        let outcome = commit_group(db, &mut group, uses, place);
        for job in group.drain(..) {
            job.answer(outcome.clone());
        }
    }
    // Nobody waits any more; a time of use that cannot be written is no loss.
    let _ = Uses::write(db, &uses.take());
}

/// One transaction for all of the group. Fails as a whole when it cannot be begun or committed, or
/// when SQLite gave the transaction up in the middle; then nothing of it has happened.
fn commit_group(
    db: &Connection,
    group: &mut [Box<dyn Job>],
    uses: &Uses,
    place: &Place,
) -> Result<(), StoreError> {
    let outcome = run_group(db, group, uses, place);
    if !db.is_autocommit() {
        // A transaction that is still open here is one that failed.
        if let Err(error) = db.prepare_cached("ROLLBACK").and_then(|mut sql| sql.execute([])) {
            return Err(outcome.err().unwrap_or_else(|| error.into()));
        }
    }
    outcome
}

fn run_group(
    db: &Connection,
    group: &mut [Box<dyn Job>],
    uses: &Uses,
    place: &Place,
) -> Result<(), StoreError> {
    let run = |sql| -> Result<(), StoreError> {
        db.prepare_cached(sql)?.execute([])?;
        Ok(())
    };
    run("BEGIN IMMEDIATE")?;
    let mut changed = false;
    for job in group {
        run("SAVEPOINT job")?;
        match job.run(db) {
            Ok(()) => changed = true,
            Err(error) if db.is_autocommit() => return Err(error),
            Err(_) => run("ROLLBACK TO job")?,
        }
        run("RELEASE job")?;
    }
    if changed {
        Uses::write(db, &uses.take())?;
    }
    place.check()?;
    run("COMMIT")
}
