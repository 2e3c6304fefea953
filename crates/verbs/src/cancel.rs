//! Threads that a program cancels (`pthread_cancel`) while they are in a call.
//!
//! Cancelling a thread unwinds its stack from the kernel's call in which it waits. Frames let that
//! pass which own nothing and catch no panics, up to the exported function, whose ABI is
//! "C-unwind". So calls run with cancellation off; those that may wait for long come back to such
//! frames, to sleep there, or now and then.

use core::ffi::{c_int, c_void};
use std::os::fd::RawFd;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn read(fd: c_int, into: *mut c_void, len: usize) -> isize;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Cancellation is off in the calling thread until this is dropped.
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    pub(crate) fn new() -> Uncancelled {
        let mut before = 0;
        // SAFETY: the state is valid, and there is a place for the one before.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state is the one from before.
        unsafe { pthread_setcancelstate(self.0, &raw mut self.0) };
    }
}

/// Ends the calling thread here if it is cancelled.
///
/// # Safety
/// No frame up to the program owns anything.
pub(crate) unsafe fn end_if_cancelled() {
    // SAFETY: by promise of the caller.
    unsafe { pthread_testcancel() };
}

/// Reads a counter of the kernel, which sleeps while it is zero; the thread may be cancelled
/// meanwhile. Returns whether that went well; if not, `errno` says why.
///
/// # Safety
/// As for [`end_if_cancelled`].
pub(crate) unsafe fn read_counter(fd: RawFd) -> bool {
    let mut counter = 0u64;
    // SAFETY: the counter lives through the call, and has the size given; the rest by promise of
    // the caller.
    unsafe { read(fd, (&raw mut counter).cast(), size_of::<u64>()) >= 0 }
}
