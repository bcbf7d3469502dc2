//! What can go wrong with the store, and what to do about it.

use super::session::SessionState;
use std::path::PathBuf;

/// Why a verb did not happen. A verb that fails has changed nothing.
///
/// Messages name the cause and the cure; they never hold payloads or keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no session, profile or key of this id.
    #[error("there is no {what} with this id")]
    Unknown {
        /// `session`, `profile` or `key`.
        what: &'static str,
    },
    /// The session is over.
    #[error("session is {state}, not open")]
    NotOpen {
        /// The state that it is in.
        state: SessionState,
    },
    /// The turn's lease is no longer the current one: somebody else holds the gate.
    #[error("the turn no longer holds the session's gate; another turn has taken it over")]
    LeaseLost,
    /// The gate holds a paused turn, which must be resumed or taken over instead.
    #[error("a paused turn holds the session's gate; resume it or take it over")]
    Parked,
    /// The gate holds no paused turn, or no longer the one that was meant.
    #[error("the paused turn is gone; it was resumed or taken over")]
    NotParked,
    /// The paused turn belongs to another client key.
    #[error("the paused turn belongs to another client key")]
    NotOwner,
    /// The client key was revoked while its request was under way.
    #[error("the client key was revoked")]
    Revoked,
    /// Client keys are bound to the profile, so it cannot be deleted.
    #[error("profile has {keys} active client key(s); revoke them before deleting")]
    ProfileInUse {
        /// How many.
        keys: u64,
    },
    /// Another profile has this name. Names of deleted profiles stay taken.
    #[error("another profile has this name; choose another name")]
    NameTaken,

    /// The disk, or the bound on the database's size, is full.
    #[error(
        "the disk or the size limit of the database is full; free space or raise the limit, the store then works again"
    )]
    Full,
    /// The database cannot be written.
    #[error(
        "the database is read-only; check the mount and the permissions of the file and its folder"
    )]
    ReadOnly,
    /// The database was locked by another program for longer than the busy timeout.
    #[error("another program keeps the database locked; end it or raise the busy timeout")]
    Busy,
    /// The file was removed, renamed or replaced while it was open.
    #[error(
        "the database file was removed or replaced while the service ran; put it back and restart the service"
    )]
    Gone,
    /// The operating system or the file failed.
    #[error("the database failed: {0}")]
    Io(String),
    /// The store is shutting down or its writer has ended.
    #[error("the store is closed")]
    Stopped,
    /// A fault of this program.
    #[error("internal fault of the store: {0}; please report it")]
    Internal(String),

    /// The file cannot be opened or created.
    #[error("cannot open the database {path}: {why}")]
    CannotOpen {
        /// The database file.
        path: PathBuf,
        /// What the operating system said, and the cure.
        why: String,
    },
    /// The file is not a database, or one that another program made. It was not touched.
    #[error(
        "{path} is not a database of this service ({found}); it was left untouched, name another file"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        found: &'static str,
    },
    /// The database was written by a newer version. It was not touched.
    #[error(
        "{path} has schema version {found}, this program knows versions up to {ours}; start the newer program, or name another file"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of its schema.
        found: i64,
        /// The newest version that this program knows.
        ours: i64,
    },
    /// Another service has the file open.
    #[error("{path} is in use by another service; end it or name another file")]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

impl StoreError {
    /// A stable word for this error, for logs and metrics.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "unknown",
            Self::NotOpen { .. } => "not_open",
            Self::LeaseLost => "lease_lost",
            Self::Parked => "parked",
            Self::NotParked => "not_parked",
            Self::NotOwner => "not_owner",
            Self::Revoked => "revoked",
            Self::ProfileInUse { .. } => "profile_in_use",
            Self::NameTaken => "name_taken",
            Self::Full => "full",
            Self::ReadOnly => "read_only",
            Self::Busy => "busy",
            Self::Gone => "gone",
            Self::Io(_) => "io",
            Self::Stopped => "stopped",
            Self::Internal(_) => "internal",
            Self::CannotOpen { .. } => "cannot_open",
            Self::Foreign { .. } => "foreign",
            Self::Newer { .. } => "newer",
            Self::InUse { .. } => "in_use",
        }
    }
}
