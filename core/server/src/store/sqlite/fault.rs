//! What SQLite reports, as errors with a cure.

use crate::store::StoreError;
use rusqlite::{Error, ErrorCode};

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        let Error::SqliteFailure(failure, _) = &error else {
            return Self::Internal(format!("unexpected answer of the database ({error})"));
        };
        match failure.code {
            ErrorCode::DiskFull => Self::Full,
            ErrorCode::ReadOnly => Self::ReadOnly,
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::Busy,
            ErrorCode::ConstraintViolation => Self::Internal(
                "the database refused a duplicate or a dangling reference".to_owned(),
            ),
            // Result codes only: SQLite's own text may quote values.
            _ => Self::Io(format!("{} (code {})", failure, failure.extended_code)),
        }
    }
}
