//! Memory that may not be mapped: regions on demand, and the memory of other processes.
//!
//! The system copies it. If a page is missing or not writable, the call fails, and the process gets
//! no signal.

use std::io;
use std::ptr;

use rustix::process::{Pid, getpid};

/// The system's call, to read or to write.
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Copies into `dst`; `None` if not all of the source can be read.
pub(super) fn read(src: *mut u8, dst: &mut [u8]) -> Option<()> {
    let len = dst.len();
    copy(libc::process_vm_readv, getpid(), dst.as_mut_ptr(), src, len)
}

/// Copies from `src`; `None` if not all of the destination can be written.
pub(super) fn write(src: &[u8], dst: *mut u8) -> Option<()> {
    copy(libc::process_vm_writev, getpid(), src.as_ptr().cast_mut(), dst, src.len())
}

/// As [`read`], from `src` in the process `of`.
pub(super) fn read_of(of: Pid, src: u64, dst: &mut [u8]) -> Option<()> {
    let len = dst.len();
    copy(
        libc::process_vm_readv,
        of,
        dst.as_mut_ptr(),
        ptr::without_provenance_mut(src as usize),
        len,
    )
}

/// As [`write`], to `dst` in the process `of`.
pub(super) fn write_of(of: Pid, src: &[u8], dst: u64) -> Option<()> {
    let far = ptr::without_provenance_mut(dst as usize);
    copy(libc::process_vm_writev, of, src.as_ptr().cast_mut(), far, src.len())
}

/// May this process reach the memory of the process `of`? It tries, where no process has memory.
///
/// # Errors
/// It may not.
pub(super) fn may_reach(of: Pid) -> io::Result<()> {
    let mut byte = [0];
    let near = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let far = libc::iovec { iov_base: ptr::null_mut(), iov_len: 1 };
    // SAFETY: the call writes to `byte` at most, which lives through it.
    unsafe { libc::process_vm_readv(of.as_raw_nonzero().get(), &near, 1, &far, 1, 0) };
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EFAULT) { Ok(()) } else { Err(error) }
}

/// Can the eight bytes at `ptr` be written?
pub(super) fn is_writable(ptr: *mut u8) -> bool {
    let page = ptr.map_addr(|addr| addr & !4095);
    // SAFETY: the advice changes no bytes; the system refuses what is not mapped or writable.
    unsafe { libc::madvise(page.cast(), 4096, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Copies `len` bytes between the buffer `ours` and `far` in the process `of`, in the call's
/// direction.
fn copy(call: Call, of: Pid, ours: *mut u8, far: *mut u8, len: usize) -> Option<()> {
    let near = libc::iovec { iov_base: ours.cast(), iov_len: len };
    let far = libc::iovec { iov_base: far.cast(), iov_len: len };
    // SAFETY: `ours` is a slice of the caller's, which only the reading call writes. `far` may be
    // any address: the system checks it, and by the promise made to `HostMemory::new` no reference
    // to it exists if it is one of this process.
    let copied = unsafe { call(of.as_raw_nonzero().get(), &near, 1, &far, 1, 0) };
    usize::try_from(copied).is_ok_and(|copied| copied == len).then_some(())
}
