//! Pointers and lengths from C become what Rust trusts: here and nowhere else.

use crate::boundary::usage;
use broca_proto::{Error, ErrorKind};
use std::ffi::c_char;

/// The bytes that an argument names: (NULL, 0) is empty, (NULL, more) is an error.
///
/// # Safety
/// `data` is NULL or `len` bytes can be read from it, and they do not change while the call lasts.
pub(crate) unsafe fn bytes<'a>(
    name: &str,
    data: *const c_char,
    len: usize,
) -> Result<&'a [u8], Error> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(usage(format!("{name} is NULL, and its length is {len}")));
    }
    if isize::try_from(len).is_err() {
        return Err(usage(format!("{name} cannot have {len} bytes")));
    }
    // SAFETY: not NULL, and the caller vouches for `len` bytes, which are fewer than isize::MAX.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// The UTF-8 text that an argument names.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn text<'a>(
    name: &str,
    data: *const c_char,
    len: usize,
) -> Result<&'a str, Error> {
    // SAFETY: the caller's promise is the same.
    let bytes = unsafe { bytes(name, data, len) }?;
    std::str::from_utf8(bytes).map_err(|fault| {
        let message = format!("{name} is not UTF-8 from byte {} on", fault.valid_up_to());
        Error::new(ErrorKind::InvalidArgument, message)
    })
}

/// The objects that an array of pointers names; a NULL among them is an error.
///
/// # Safety
/// `array` is NULL or holds `count` pointers, each NULL or of a living object that does not change while the call lasts.
pub(crate) unsafe fn objects<'a, T>(
    name: &str,
    array: *const *const T,
    count: usize,
) -> Result<Vec<&'a T>, Error> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if array.is_null() || count > isize::MAX as usize / size_of::<*const T>() {
        return Err(usage(format!("{name} is NULL or too long, and its count is {count}")));
    }
    // SAFETY: not NULL, and the caller vouches for `count` pointers.
    let pointers = unsafe { std::slice::from_raw_parts(array, count) };
    let object = |(i, pointer): (usize, &*const T)| {
        // SAFETY: the caller vouches that it is NULL or points to a living object.
        let object = unsafe { pointer.as_ref() };
        object.ok_or_else(|| usage(format!("{name}[{i}] is NULL")))
    };
    pointers.iter().enumerate().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn null_is_empty_and_nothing_else() {
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { text("a", ptr::null(), 0) }.unwrap(), "");
        // SAFETY: the same.
        let wrong = unsafe { text("a", ptr::null(), 2) };
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Usage);
    }

    #[test]
    fn text_is_checked() {
        let bytes = b"ab\xff";
        // SAFETY: three bytes are there.
        let wrong = unsafe { text("message", bytes.as_ptr().cast(), 3) };
        assert_eq!(wrong.unwrap_err().message(), "message is not UTF-8 from byte 2 on");
    }

    #[test]
    fn a_null_object_is_named() {
        let array: [*const u32; 2] = [&7, ptr::null()];
        // SAFETY: two pointers are there, and the first points to a constant.
        let wrong = unsafe { objects("tools", array.as_ptr(), 2) };
        assert_eq!(wrong.unwrap_err().message(), "tools[1] is NULL");
    }
}
