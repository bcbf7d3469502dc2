//! Text on its way out: borrowed, with a NUL behind it that is not counted.

use std::ffi::c_char;
use std::ptr;

/// Bytes that belong to the object they were asked of: UTF-8 unless something else is said. A NUL follows them and is not
/// counted in `len`. What is not there has `data` NULL and `len` 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Bytes {
    /// The first byte.
    pub data: *const c_char,
    /// How many there are.
    pub len: usize,
}

impl Bytes {
    pub(crate) const NONE: Self = Self { data: ptr::null(), len: 0 };
}

impl Default for Bytes {
    fn default() -> Self {
        Self::NONE
    }
}

/// Memory that [`Bytes`] are borrowed from.
#[derive(Debug, Default)]
pub(crate) struct Text(Vec<u8>);

impl Text {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut text = Self(Vec::with_capacity(bytes.len() + 1));
        text.set(bytes);
        text
    }

    /// Says something else from now on; what was borrowed before is void.
    pub(crate) fn set(&mut self, bytes: &[u8]) {
        self.0.clear();
        self.0.extend_from_slice(bytes);
        self.0.push(0);
    }

    pub(crate) fn bytes(&self) -> Bytes {
        match self.0.len().checked_sub(1) {
            Some(len) => Bytes { data: self.0.as_ptr().cast(), len },
            None => Bytes::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_follows_and_is_not_counted() {
        let text = Text::new(b"abc");
        assert_eq!(text.bytes().len, 3);
        assert_eq!(text.0, b"abc\0");
        assert!(Text::default().bytes().data.is_null());
        assert_eq!(Text::new(b"").bytes().len, 0);
        assert!(!Text::new(b"").bytes().data.is_null());
    }
}
