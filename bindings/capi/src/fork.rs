//! Whether this process is still the one in which something was made.
//!
//! Two processes must not share a socket, and a lock that another thread held at the fork is held for ever in
//! the child. A counter that the C library raises in each child says so without a system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

/// Names this process among its forks.
pub(crate) fn generation() -> u32 {
    WATCH.call_once(watch);
    FORKS.load(Ordering::Relaxed)
}

/// Whether `made` is the generation of this process.
pub(crate) fn is_here(made: u32) -> bool {
    FORKS.load(Ordering::Relaxed) == made
}

#[cfg(unix)]
fn watch() {
    use std::ffi::c_int;

    type Handler = Option<unsafe extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }
    unsafe extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler only adds to an atomic number, which is allowed in the child of any fork. It is registered on
    // behalf of this library, and the C library forgets it when the library is unloaded.
    let refused = unsafe { pthread_atfork(None, None, Some(in_child)) };
    // It is refused only without memory; then forks go unnoticed, as they do everywhere else.
    debug_assert_eq!(refused, 0);
}

#[cfg(not(unix))]
fn watch() {}
