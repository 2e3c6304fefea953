//! The calls by which programs read `/sys` through the library.

use core::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use super::device::copy_name;
use super::{EINVAL, Errno, Result, or_minus_one};
use crate::{process, sysfs};

#[derive(Debug, Default)]
struct RootPath(OnceLock<Vec<c_char>>);

/// `ibv_get_sysfs_path`: the directory that stands for `/sys`.
pub(super) extern "C" fn get_sysfs_path() -> *const c_char {
    let shared = process::current().shared::<RootPath>();
    let path = shared.0.get_or_init(|| {
        // Opening the cards makes the directory.
        process::current().cards();
        let path = sysfs::directory().unwrap_or_else(|| "/sys".into());
        let mut chars = vec![0; 256];
        copy_name(&mut chars, &path.to_string_lossy());
        chars
    });
    // The text lives as long as the process's state, which is never freed.
    path.as_ptr()
}

/// `ibv_read_sysfs_file`: the length of the file without the final newline; -1 on failure.
///
/// # Safety
/// The names are strings, and `to` has room for `size` bytes.
pub(super) unsafe extern "C" fn read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    to: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: by promise of the caller.
    or_minus_one(
        unsafe { string(directory) }
            .and_then(|directory| unsafe { read(directory, string(file)?, to, size) }),
    )
}

/// `ibv_read_ibdev_sysfs_file`, of a private version node. It ignores the arguments of its format:
/// no file here needs any.
///
/// # Safety
/// `file` is a string, and `to` has room for `size` bytes.
pub(super) unsafe extern "C" fn read_ibdev_sysfs_file(
    to: *mut c_char,
    size: usize,
    sysfs_device: *mut core::ffi::c_void,
    _format: *const c_char,
) -> c_int {
    // Only drivers have such a struct, and no driver is registered: every call fails.
    let _ = (to, size, sysfs_device);
    or_minus_one(Err(Errno(libc::ENOENT)))
}

/// # Safety
/// `text` is null, or a string that lives as long as the call.
unsafe fn string<'a>(text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: by promise of the caller.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| EINVAL)
}

/// # Safety
/// `to` has room for `size` bytes.
unsafe fn read(directory: &str, file: &str, to: *mut c_char, size: usize) -> Result<c_int> {
    if to.is_null() {
        return Err(EINVAL);
    }
    let text = sysfs::read(directory, file)?;
    let len = text.len().min(size);
    // SAFETY: by promise of the caller, and the text is at most that long.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), len);
        if len < size {
            to.add(len).write(0);
        }
    }
    c_int::try_from(len).map_err(|_| EINVAL)
}
