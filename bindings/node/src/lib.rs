//! The private native part of the package `@broca/sdk`: one class, [`Engine`], that converts.
//!
//! Everything runs on the thread that calls: there is no runtime, no thread and no callback here. Numbers cross as
//! doubles (operations, connections and times stay far below 2⁵³), batches of steps as one string and one table
//! (`outgoing`), effects through a table that the host lends ([`Engine`]).
//!
//! Errors are thrown with the code `Broca` and a JSON object as their message (`code`, `kind`, `message`, `retry`, `details`); the
//! TypeScript layer makes its classes of them.

mod chat;
mod content;
mod engine;
mod fault;
mod outgoing;

pub use chat::ChatStream;
pub use content::{image_at, mcp_answer, media_block};
pub use engine::Engine;

use broca_bridge::{Batch, errors};
use fault::guard;
use napi::bindgen_prelude::{Array, Env};
use napi_derive::napi;

/// The version of this library.
#[napi(catch_unwind)]
#[must_use]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The version of the layout of batches.
#[napi(catch_unwind)]
#[must_use]
pub fn layout_version() -> u32 {
    Batch::VERSION
}

/// The rows of the table of errors: number, kind, class, number of the parent or null, retry.
///
/// # Errors
/// Only when the host is out of memory.
#[napi(catch_unwind)]
pub fn error_table(env: &Env) -> napi::Result<Array<'_>> {
    guard(env, || {
        let rows: Vec<errors::Row> = errors::table().collect();
        let mut table = env.create_array(u32::try_from(rows.len()).unwrap_or_default())?;
        for (i, row) in (0..).zip(&rows) {
            let mut cells = env.create_array(5)?;
            cells.set(0, row.code)?;
            cells.set(1, row.kind)?;
            cells.set(2, row.class)?;
            cells.set(3, row.parent)?;
            cells.set(4, row.retry)?;
            table.set(i, cells)?;
        }
        Ok(table)
    })
}

#[cfg(test)]
mod tests {
    /// A panic that leaves an export without it ends the host's process.
    #[test]
    fn every_export_catches_panics() {
        for source in [
            include_str!("lib.rs"),
            include_str!("engine.rs"),
            include_str!("chat.rs"),
            include_str!("content.rs"),
        ] {
            let lines: Vec<&str> = source.lines().map(str::trim).collect();
            let exports = lines.windows(2).filter(|pair| pair[0].starts_with("#[napi"));
            for pair in exports {
                let is_function =
                    !pair[1].starts_with("pub struct") && !pair[1].starts_with("impl");
                assert_eq!(is_function, pair[0].contains("catch_unwind"), "{pair:?}");
            }
        }
    }
}
