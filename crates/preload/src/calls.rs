//! The C library's calls that take a path, each the same as there but for where it looks.
//!
//! `open` and its like take a mode only where one is due. Here they always have it: on the
//! machines this is built for, it is in the same register either way, and it is passed on
//! untouched.
//!
//! `__xstat` and its like are what `stat` was before version 2.33 of glibc; the names with `_2` and
//! `_chk` are what `_FORTIFY_SOURCE` makes of a call.

// In the tests they are no symbols, or they would stand before the test program's own calls.
#![cfg_attr(test, allow(dead_code))]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr;

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use crate::next::Next;
use crate::place::{self, Room};

/// A result that says "it failed".
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

/// For each function: the arguments before its path, the path, those after it; and for some, where
/// they say what kind of file there is.
macro_rules! calls {
    ($($name:ident($($before:ident: $b:ty,)* [$path:ident] $(, $after:ident: $a:ty)*) -> $r:ty
        $(, status $status:ident)?;)*)
    => { $(
        /// As in C.
        ///
        /// # Safety
        /// As in C.
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
                // SAFETY: it is this thread's, and always there.
                unsafe { *libc::__errno_location() = libc::ENOSYS };
                return <$r as Failure>::FAILURE;
            }
            type Call = unsafe extern "C" fn($($b,)* *const c_char $(, $a)*) -> $r;
            // SAFETY: it is the C library's function of this name, whose type this is.
            let next: Call = unsafe { mem::transmute(next) };
            let mut room = Room::new();
            // SAFETY: the caller keeps C's rules; `room` lives until the call is over.
            let result = unsafe { next($($before,)* place::of($path, &mut room) $(, $after)*) };
            $(
                if result == 0 {
                    // SAFETY: as above; the call succeeded, and has filled the status.
                    unsafe { show_device($path, $status.cast()) };
                }
            )?
            result
        }
    )* };
}

/// What stands for a device is a socket, as nobody but root can make a device. Programs that look
/// are told that it is one, which all may use.
///
/// # Safety
/// `path` is a string of C's, `status` can be written.
unsafe fn show_device(path: *const c_char, status: *mut libc::stat) {
    // SAFETY: by the caller's promise.
    if unsafe { !place::is_device(path) } {
        return;
    }
    // SAFETY: by the caller's promise. (On 64-bit machines `stat64` fills the same struct.)
    let status = unsafe { &mut *status };
    status.st_mode = libc::S_IFCHR | 0o666;
    status.st_rdev = libc::makedev(VERBS_MAJOR, 192);
}

/// The kernel's number for character devices of verbs.
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
