//! The sessions of a client.

use super::operation::{Attached, Operation};
use crate::engine::Command;
use crate::info;
use broca_proto::Error;
use broca_proto::session::info::SessionInfo;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// The sessions that a client's key has opened or joined, the newest first: page by page, or one by one.
pub struct Sessions {
    attached: Arc<Attached>,
    limit: Option<u32>,
    /// Where the next page begins; at first with the newest.
    cursor: Option<String>,
    ended: bool,
    items: VecDeque<SessionInfo>,
}

impl Sessions {
    pub(super) fn new(attached: Arc<Attached>) -> Self {
        Self { attached, limit: None, cursor: None, ended: false, items: VecDeque::new() }
    }

    /// At most this many sessions in a page; the service's default otherwise.
    #[must_use]
    pub fn page_size(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The next page, newest session first; nothing after the last.
    ///
    /// # Errors
    /// `not_offered` where the service does not list sessions, and what the request failed with. The same page can be asked for
    /// again.
    pub async fn next_page(&mut self) -> Result<Option<Vec<SessionInfo>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let command = Command::Sessions { cursor: self.cursor.clone(), limit: self.limit };
        let page = info::page(&Operation::run(&self.attached, command).await?)?;
        self.ended = page.next_cursor.is_none();
        self.cursor = page.next_cursor;
        Ok(Some(page.items))
    }
}

impl Sessions {
    /// The next session; nothing after the last.
    pub async fn next(&mut self) -> Option<Result<SessionInfo, Error>> {
        while self.items.is_empty() {
            match self.next_page().await {
                Ok(page) => self.items.extend(page?),
                Err(error) => return Some(Err(error)),
            }
        }
        self.items.pop_front().map(Ok)
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("limit", &self.limit).finish_non_exhaustive()
    }
}
