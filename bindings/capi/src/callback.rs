//! Functions of the program that the library calls, with what belongs to them.

use std::ffi::c_void;

/// What a function of the program is given, and who lets go of it.
pub(crate) struct UserData {
    data: *mut c_void,
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the header says that the functions are called, and the data destroyed, on any thread.
unsafe impl Send for UserData {}
// SAFETY: the library only hands the pointer on; the header says that the functions may run on several threads at once.
unsafe impl Sync for UserData {}

impl UserData {
    pub(crate) fn new(
        data: *mut c_void,
        destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> Self {
        Self { data, destroy }
    }

    pub(crate) fn data(&self) -> *mut c_void {
        self.data
    }
}

impl Drop for UserData {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the header says what it is called with, and that it is called once, after the last call of the
            // function; whoever calls the function holds this value.
            unsafe { destroy(self.data) };
        }
    }
}
