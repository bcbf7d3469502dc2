//! Log records that wait for the host: a bounded ring that drops the oldest and counts them.

use crate::batch::Batch;
use broca::engine::LogRecord;
use std::collections::VecDeque;

/// Records that wait at most.
const CAPACITY: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct LogRing {
    records: VecDeque<LogRecord>,
    dropped: u64,
}

impl LogRing {
    pub(crate) fn push(&mut self, record: LogRecord) {
        if self.records.len() == CAPACITY {
            self.records.pop_front();
            self.dropped += 1;
        }
        self.records.push_back(record);
    }

    /// Moves everything into a batch: first how many were dropped, if any were.
    pub(crate) fn drain(&mut self, into: &mut Batch) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            into.push_dropped(dropped);
        }
        self.records.drain(..).for_each(|record| into.push_log(&record));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{log, log_dropped};
    use broca::engine::LogLevel;

    #[test]
    fn the_oldest_are_dropped_and_counted() {
        let mut ring = LogRing::default();
        for n in 0..CAPACITY + 3 {
            ring.push(LogRecord { level: LogLevel::Warn, message: n.to_string() });
        }
        let mut batch = Batch::new();
        ring.drain(&mut batch);
        let records: Vec<_> = batch.records().collect();
        assert_eq!(records.len(), CAPACITY + 1);
        assert_eq!(records[0].number(log_dropped::count), Some(3));
        assert_eq!(records[1].text(log::message), Some("3"));
        batch.clear();
        ring.drain(&mut batch);
        assert!(batch.is_empty() && ring.is_empty());
    }
}
