//! Strings as Python objects. Short ones that come again and again (member names, types, ids of the session) are made
//! once.

use pyo3::prelude::*;
use pyo3::types::PyString;
use std::sync::Mutex;

/// Slots of the table; a string has one slot, whoever comes later takes it.
const SLOTS: usize = 512;
/// Longer strings are made anew each time.
const MAX_BYTES: usize = 64;

struct Slot {
    text: Box<str>,
    made: Py<PyString>,
}

static TABLE: Mutex<[Option<Slot>; SLOTS]> = Mutex::new([const { None }; SLOTS]);

/// The Python string of a text that probably comes again.
///
/// The table is locked for a look and for an exchange, never while an object is made or dropped. Whoever
/// finds it locked makes a string of its own, so nobody waits, in a forked child neither.
pub(crate) fn repeated<'py>(py: Python<'py>, text: &str) -> Bound<'py, PyString> {
    if text.len() > MAX_BYTES {
        return PyString::new(py, text);
    }
    let at = slot_of(text.as_bytes());
    if let Ok(table) = TABLE.try_lock()
        && let Some(slot) = &table[at]
        && *slot.text == *text
    {
        return slot.made.bind(py).clone();
    }
    let made = PyString::new(py, text);
    let mut next = Some(Slot { text: text.into(), made: made.clone().unbind() });
    if let Ok(mut table) = TABLE.try_lock() {
        std::mem::swap(&mut table[at], &mut next);
    }
    drop(next);
    made
}

/// FNV-1a, folded.
fn slot_of(text: &[u8]) -> usize {
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // The upper bits are the well mixed ones.
    (hash >> 40) as usize % SLOTS
}
