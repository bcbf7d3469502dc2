//! Parts of lists: rows after a place, in the order of their numbers.

use crate::store::StoreError;
use crate::store::directory::{ListPlace, Listed};
use rusqlite::{Row, Rows};

/// A place as SQL has it; what lies beyond its numbers lies beyond every list.
pub(super) fn place(after: ListPlace) -> i64 {
    i64::try_from(after.0).unwrap_or(i64::MAX)
}

/// How many rows to ask for: one more than is shown says whether the list goes on.
pub(super) fn one_more(limit: u32) -> i64 {
    i64::from(limit.max(1)) + 1
}

/// Reads at most `limit` rows, each with its place in the column `number`.
pub(super) fn read<T>(
    mut rows: Rows<'_>,
    limit: u32,
    item: impl Fn(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Listed<T>, StoreError> {
    let mut listed = Listed { items: Vec::new(), next: None };
    let mut last = 0_i64;
    while let Some(row) = rows.next()? {
        if listed.items.len() >= limit.max(1) as usize {
            listed.next = Some(ListPlace(last.cast_unsigned()));
            break;
        }
        last = row.get("number")?;
        listed.items.push(item(row)?);
    }
    Ok(listed)
}
