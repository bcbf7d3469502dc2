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

/// Made of the length and both ends: what comes again and again differs there, and a wrong guess only costs a string.
fn slot_of(text: &[u8]) -> usize {
    let (head, tail) = match (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        (Some(head), Some(tail)) => (u64::from_le_bytes(*head), u64::from_le_bytes(*tail)),
        _ => (text.iter().fold(0, |word, byte| (word << 8) | u64::from(*byte)), 0),
    };
    let mixed =
        (head ^ tail.rotate_left(32) ^ text.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The upper bits are the well mixed ones.
    (mixed >> 40) as usize % SLOTS
}
