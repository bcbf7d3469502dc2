//! Which library this is, for programs that were compiled with another header.

use std::ffi::{CStr, c_char};

/// Raised whenever a program that was compiled with an older header could no longer run with the library.
pub const BROCA_ABI_VERSION: i32 = 1;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version of the library as text, such as `"0.1.0"`. `BROCA_VERSION` is that of the header.
///
/// Ownership: returns borrowed from the library, for ever.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_version() -> *const c_char {
    CStr::from_bytes_with_nul(VERSION.as_bytes()).unwrap_or_default().as_ptr()
}

/// The version of the binary interface of the library. `BROCA_CHECK_ABI()` compares it with that of the header.
///
/// Ownership: nothing changes hands.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_abi_version() -> i32 {
    BROCA_ABI_VERSION
}
