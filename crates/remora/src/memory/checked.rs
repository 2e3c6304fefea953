//! Memory of this process that may not be mapped: regions on demand.
//!
//! The system copies it, as it copies the memory of another process. If a page is missing or not
//! writable, the call fails, and the process gets no signal.

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
    copy(libc::process_vm_readv, dst.as_mut_ptr(), src, len)
}

/// Copies from `src`; `None` if not all of the destination can be written.
pub(super) fn write(src: &[u8], dst: *mut u8) -> Option<()> {
    copy(libc::process_vm_writev, src.as_ptr().cast_mut(), dst, src.len())
}

/// Can the eight bytes at `ptr` be written?
pub(super) fn is_writable(ptr: *mut u8) -> bool {
    let page = ptr.map_addr(|addr| addr & !4095);
    // SAFETY: the advice changes no bytes; the system refuses what is not mapped or writable.
    unsafe { libc::madvise(page.cast(), 4096, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Copies `len` bytes between the buffer `ours` and `far`, in the call's direction.
fn copy(call: Call, ours: *mut u8, far: *mut u8, len: usize) -> Option<()> {
    let near = libc::iovec { iov_base: ours.cast(), iov_len: len };
    let far = libc::iovec { iov_base: far.cast(), iov_len: len };
    // SAFETY: `ours` is a slice of the caller's, which only the reading call writes. `far` may be
    // any address: the system checks it, and by the promise made to `HostMemory::new` no reference
    // to it exists.
    let copied = unsafe { call(libc::getpid(), &near, 1, &far, 1, 0) };
    usize::try_from(copied).is_ok_and(|copied| copied == len).then_some(())
}
