//! The C library's calls that take a path: each does what the C library's does, but may look
//! elsewhere.
//!
//! `open` and its like take a mode only with certain flags. Here they always have the parameter: on
//! the supported machines the argument is in the same register either way, and it is passed on
//! unchanged.
//!
//! `__xstat` and its like are the symbols of `stat` before version 2.33 of glibc; the names with
//! `_2` and `_chk` are the symbols that `_FORTIFY_SOURCE` calls instead.

// Not exported in tests, where they would replace the C library's calls of the test program itself.
#![cfg_attr(test, allow(dead_code))]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr;

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use crate::next::Next;
use crate::place::{self, Room};

/// A type of result that can express failure.
trait Failure {
    const FAILURE: Self;
}

impl Failure for c_int {
    const FAILURE: c_int = -1;
}

impl Failure for ssize_t {
    const FAILURE: ssize_t = -1;
}

impl<T> Failure for *mut T {
    const FAILURE: *mut T = ptr::null_mut();
}

/// For each function: the arguments before its path, the path, the arguments after it; and for some
/// functions, the argument into which they write the kind of the file.
macro_rules! calls {
    ($($name:ident($($before:ident: $b:ty,)* [$path:ident] $(, $after:ident: $a:ty)*) -> $r:ty
        $(, status $status:ident)?;)*)
    => { $(
        /// The C library's function of this name.
        ///
        /// # Safety
        /// As for the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name(
            $($before: $b,)* $path: *const c_char $(, $after: $a)*
        ) -> $r {
            static NEXT: Next = Next::new(match std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => c"",
            });
            let next = NEXT.get();
            if next.is_null() {
                // SAFETY: it is this thread's variable, which always exists.
                unsafe { *libc::__errno_location() = libc::ENOSYS };
                return <$r as Failure>::FAILURE;
            }
            type Call = unsafe extern "C" fn($($b,)* *const c_char $(, $a)*) -> $r;
            // SAFETY: the address is that of the C library's function of this name, which has this
            // type.
            let next: Call = unsafe { mem::transmute(next) };
            let mut room = Room::new();
            // SAFETY: the caller keeps the rules of the C function; `room` lives until the call is
            // over.
            let result = unsafe { next($($before,)* place::of($path, &mut room) $(, $after)*) };
            $(
                if result == 0 {
                    // SAFETY: as above; the call succeeded, so it has filled the status.
                    unsafe { show_device($path, $status.cast()) };
                }
            )?
            result
        }
    )* };
}

/// Makes a socket that stands for a device look like a device that all users may use. It is a
/// socket because only root can make device files.
///
/// # Safety
/// `path` is a C string; `status` can be written.
unsafe fn show_device(path: *const c_char, status: *mut libc::stat) {
    // SAFETY: by promise of the caller.
    if unsafe { !place::is_device(path) } {
        return;
    }
    // SAFETY: by promise of the caller. (On 64-bit machines `stat64` fills the same struct.)
    let status = unsafe { &mut *status };
    status.st_mode = libc::S_IFCHR | 0o666;
    status.st_rdev = libc::makedev(VERBS_MAJOR, 192);
}

/// The kernel's major number for character devices of verbs.
const VERBS_MAJOR: c_uint = 231;

calls! {
    open([path], flags: c_int, mode: mode_t) -> c_int;
    open64([path], flags: c_int, mode: mode_t) -> c_int;
    openat(folder: c_int, [path], flags: c_int, mode: mode_t) -> c_int;
    openat64(folder: c_int, [path], flags: c_int, mode: mode_t) -> c_int;
    __open_2([path], flags: c_int) -> c_int;
    __open64_2([path], flags: c_int) -> c_int;
    __openat_2(folder: c_int, [path], flags: c_int) -> c_int;
    __openat64_2(folder: c_int, [path], flags: c_int) -> c_int;
    fopen([path], mode: *const c_char) -> *mut FILE;
    fopen64([path], mode: *const c_char) -> *mut FILE;
    freopen([path], mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    freopen64([path], mode: *const c_char, stream: *mut FILE) -> *mut FILE;

    opendir([path]) -> *mut DIR;
    scandir([path], list: *mut c_void, select: *mut c_void, compare: *mut c_void) -> c_int;
    scandir64([path], list: *mut c_void, select: *mut c_void, compare: *mut c_void) -> c_int;
    scandirat(
        folder: c_int, [path], list: *mut c_void, select: *mut c_void, compare: *mut c_void
    ) -> c_int;
    glob([path], flags: c_int, failed: *mut c_void, found: *mut c_void) -> c_int;
    glob64([path], flags: c_int, failed: *mut c_void, found: *mut c_void) -> c_int;
    chdir([path]) -> c_int;

    access([path], mode: c_int) -> c_int;
    faccessat(folder: c_int, [path], mode: c_int, flags: c_int) -> c_int;
    euidaccess([path], mode: c_int) -> c_int;
    eaccess([path], mode: c_int) -> c_int;

    stat([path], to: *mut c_void) -> c_int, status to;
    stat64([path], to: *mut c_void) -> c_int, status to;
    lstat([path], to: *mut c_void) -> c_int, status to;
    lstat64([path], to: *mut c_void) -> c_int, status to;
    fstatat(folder: c_int, [path], to: *mut c_void, flags: c_int) -> c_int, status to;
    fstatat64(folder: c_int, [path], to: *mut c_void, flags: c_int) -> c_int, status to;
    statx(folder: c_int, [path], flags: c_int, mask: c_uint, to: *mut c_void) -> c_int;
    __xstat(version: c_int, [path], to: *mut c_void) -> c_int, status to;
    __xstat64(version: c_int, [path], to: *mut c_void) -> c_int, status to;
    __lxstat(version: c_int, [path], to: *mut c_void) -> c_int, status to;
    __lxstat64(version: c_int, [path], to: *mut c_void) -> c_int, status to;
    __fxstatat(
        version: c_int, folder: c_int, [path], to: *mut c_void, flags: c_int
    ) -> c_int, status to;
    __fxstatat64(
        version: c_int, folder: c_int, [path], to: *mut c_void, flags: c_int
    ) -> c_int, status to;
    statfs([path], to: *mut c_void) -> c_int;
    statfs64([path], to: *mut c_void) -> c_int;

    readlink([path], to: *mut c_char, room_len: size_t) -> ssize_t;
    readlinkat(folder: c_int, [path], to: *mut c_char, room_len: size_t) -> ssize_t;
    __readlink_chk([path], to: *mut c_char, len: size_t, room_len: size_t) -> ssize_t;
    __readlinkat_chk(
        folder: c_int, [path], to: *mut c_char, len: size_t, room_len: size_t
    ) -> ssize_t;
    realpath([path], to: *mut c_char) -> *mut c_char;
    __realpath_chk([path], to: *mut c_char, room_len: size_t) -> *mut c_char;
    canonicalize_file_name([path]) -> *mut c_char;
    getxattr([path], name: *const c_char, to: *mut c_void, room_len: size_t) -> ssize_t;
    lgetxattr([path], name: *const c_char, to: *mut c_void, room_len: size_t) -> ssize_t;
}
