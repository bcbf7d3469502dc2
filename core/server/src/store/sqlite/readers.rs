//! Connections that read, on the runtime's threads for blocking work.

use crate::store::StoreError;
use rusqlite::Connection;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// A pool of read-only connections; who finds none free waits in order.
pub(super) struct Readers {
    free: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(connections: Vec<Connection>) -> Self {
        let permits = Arc::new(Semaphore::new(connections.len()));
        Self { free: Arc::new(Mutex::new(connections)), permits }
    }

    /// Runs a verb on a free connection. It sees everything that was acknowledged before.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit =
            Arc::clone(&self.permits).acquire_owned().await.map_err(|_| StoreError::Stopped)?;
        let free = Arc::clone(&self.free);
        let work = tokio::task::spawn_blocking(move || {
            let taken = free.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = taken.ok_or(StoreError::Stopped)?;
            let result = verb(&connection);
            free.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            drop(permit);
            result
        });
        work.await.unwrap_or(Err(StoreError::Stopped))
    }
}
