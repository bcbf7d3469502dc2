//! The file: whether it is ours, its lock, its schema and the connections to it.

use super::SqliteSettings;
use crate::store::StoreError;
use rusqlite::{Connection, OpenFlags};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Marks a database as one of this service: `BROC`.
const APPLICATION_ID: u32 = 0x4252_4f43;

/// Schema changes in order. The schema version is how many of them a database has seen.
const MIGRATIONS: &[&str] = &[
    include_str!("0001_spine.sql"),
    include_str!("0002_hold.sql"),
    include_str!("0003_messages.sql"),
    include_str!("0004_admin.sql"),
    include_str!("0005_limits.sql"),
    include_str!("0006_metadata.sql"),
    include_str!("0007_approvals.sql"),
];

fn newest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Looks at the head of the file, without touching it: is it missing, empty, ours, and not too new?
pub(super) fn inspect(path: &Path) -> Result<(), StoreError> {
    let cannot = |why: String| StoreError::CannotOpen { path: path.to_owned(), why };
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            return Err(cannot(
                "its folder does not exist; create it or name another file".to_owned(),
            ));
        }
        _ => {}
    }
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot(format!("{error}; check its permissions"))),
        Ok(file) => file,
    };
    if path.is_dir() {
        return Err(cannot("it is a folder; name a file".to_owned()));
    }
    let mut head = Vec::new();
    file.by_ref().take(100).read_to_end(&mut head).map_err(|error| cannot(error.to_string()))?;
    if head.is_empty() {
        return Ok(());
    }
    let foreign = |found| Err(StoreError::Foreign { path: path.to_owned(), found });
    if !head.starts_with(b"SQLite format 3\0") {
        return foreign("not a SQLite file");
    }
    if word(&head, 68) != Some(APPLICATION_ID) {
        return foreign("a SQLite file of another program");
    }
    refuse_newer(path, i64::from(word(&head, 60).unwrap_or(0)))
}

fn word(head: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?))
}

fn refuse_newer(path: &Path, found: i64) -> Result<(), StoreError> {
    if found > newest() {
        return Err(StoreError::Newer { path: path.to_owned(), found, ours: newest() });
    }
    Ok(())
}

/// Takes the file beside the database that says who uses it. The operating system gives it back when
/// the process ends, however it ends.
pub(super) fn lock(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    let file = create(&PathBuf::from(name)).map_err(|error| cannot_create(path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(StoreError::CannotOpen {
            path: path.to_owned(),
            why: format!("its lock file cannot be locked: {error}"),
        }),
    }
}

/// Opens a file for writing, making it readable by its owner alone when it is missing.
fn create(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn cannot_create(path: &Path, error: &std::io::Error) -> StoreError {
    match error.kind() {
        ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly,
        ErrorKind::StorageFull => StoreError::Full,
        _ => StoreError::CannotOpen {
            path: path.to_owned(),
            why: format!("{error}; check the permissions of the file and its folder"),
        },
    }
}

/// The connection that writes, its schema up to date. Only under the lock.
pub(super) fn open(settings: &SqliteSettings) -> Result<Connection, StoreError> {
    let path = &settings.path;
    drop(create(path).map_err(|error| cannot_create(path, &error))?);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(settings.busy_timeout)?;
    db.set_prepared_statement_cache_capacity(64);
    let version: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    refuse_newer(path, version)?;
    let marked: u32 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if marked != APPLICATION_ID {
        // Before WAL, so that the mark is in the file's head from the first commit on.
        db.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    db.pragma_update(None, "journal_mode", "wal")?;
    db.pragma_update(None, "synchronous", "full")?;
    db.pragma_update(None, "fullfsync", true)?;
    db.pragma_update(None, "temp_store", "memory")?;
    // After a burst, the log file shrinks again when it starts over.
    db.pragma_update(None, "journal_size_limit", 64 << 20)?;
    if let Some(bytes) = settings.max_bytes {
        let page: u32 = db.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = u32::try_from(bytes / u64::from(page.max(1))).unwrap_or(u32::MAX).max(1);
        // SQLite answers this pragma with a row.
        db.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    migrate(&mut db, version)?;
    Ok(db)
}

/// Runs the migrations that the database has not seen, in one transaction with the new version: a database is as the older
/// program knows it, or up to date.
fn migrate(db: &mut Connection, version: i64) -> Result<(), StoreError> {
    if version == newest() {
        return Ok(());
    }
    let whole = db.transaction()?;
    for (number, sql) in (1_i64..).zip(MIGRATIONS) {
        if number > version {
            whole.execute_batch(sql)?;
        }
    }
    whole.pragma_update(None, "user_version", newest())?;
    Ok(whole.commit()?)
}

/// A connection that can only read.
pub(super) fn open_reader(settings: &SqliteSettings) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(&settings.path, flags)?;
    db.busy_timeout(settings.busy_timeout)?;
    db.set_prepared_statement_cache_capacity(64);
    Ok(db)
}

/// Whether a connection answers.
pub(super) fn alive(db: &Connection) -> Result<(), StoreError> {
    Ok(db.prepare_cached("SELECT count(*) FROM sqlite_schema")?.query_row([], |_| Ok(()))?)
}
