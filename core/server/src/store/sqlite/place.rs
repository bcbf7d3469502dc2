//! Whether the files are still where they were opened.
//!
//! A file that was removed or replaced can still be written through an open handle, but nobody will ever find
//! what is written: it must not be acknowledged.

use crate::store::StoreError;
use std::fs::Metadata;
use std::path::{Path, PathBuf};

/// The database file and its write-ahead log, as they were opened.
#[derive(Debug)]
pub(super) struct Place {
    files: Vec<(PathBuf, Identity)>,
}

/// Tells a file from another one at the same path.
type Identity = (u64, u64);

impl Place {
    /// What lies there now.
    pub(super) fn of(database: &Path) -> Self {
        let mut log = database.as_os_str().to_owned();
        log.push("-wal");
        let files = [database.to_owned(), log.into()].into_iter().filter_map(|path| {
            let identity = std::fs::metadata(&path).ok().and_then(|found| identity(&found))?;
            Some((path, identity))
        });
        Self { files: files.collect() }
    }

    /// # Errors
    /// [`StoreError::Gone`] when a file is no longer there, or another one is.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let same = |(path, opened): &(PathBuf, Identity)| {
            std::fs::metadata(path).is_ok_and(|found| identity(&found) == Some(*opened))
        };
        if self.files.iter().all(same) { Ok(()) } else { Err(StoreError::Gone) }
    }
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other systems cannot tell")]
fn identity(found: &Metadata) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    Some((found.dev(), found.ino()))
}

/// Other systems do not let an open file be removed.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<Identity> {
    None
}
