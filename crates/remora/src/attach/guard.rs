//! Pages that nobody can write for a while: writers wait in the kernel (`userfaultfd(2)`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The numbers of the kernel's interface: `linux/userfaultfd.h`.
const VERSION: u64 = 0xAA;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const API: libc::Ioctl = request(0x3F, size_of::<[u64; 3]>());
const REGISTER: libc::Ioctl = request(0x00, size_of::<[u64; 4]>());
const WRITEPROTECT: libc::Ioctl = request(0x06, size_of::<[u64; 3]>());

/// The number of a request that reads and writes `size` bytes.
const fn request(number: u32, size: usize) -> libc::Ioctl {
    (3 << 30 | (size as u32) << 16 | 0xAA << 8 | number) as libc::Ioctl
}

/// Pages that nobody can write as long as this lives.
#[derive(Debug)]
pub(super) struct Guard {
    _fd: OwnedFd,
}

impl Guard {
    /// Protects `len` bytes from `start` on, both multiples of a page. Threads that write them wait
    /// from now on, this one, too.
    ///
    /// # Errors
    /// The system does not let this program do so: it is not privileged, and
    /// `vm.unprivileged_userfaultfd` is not set.
    pub(super) fn new(start: u64, len: u64) -> io::Result<Guard> {
        // Not for user mode only: system calls that write these pages have to wait, too.
        // SAFETY: the call takes a number.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        control(&fd, API, &mut [VERSION, FEATURE_PAGEFAULT_FLAG_WP, 0])?;
        let at = std::ptr::with_exposed_provenance_mut(start as usize);
        // A page that was never touched has nothing that could be protected.
        // SAFETY: reading in pages changes no byte of them.
        let populated = unsafe { libc::madvise(at, len as usize, libc::MADV_POPULATE_READ) };
        if populated != 0 {
            return Err(io::Error::last_os_error());
        }
        control(&fd, REGISTER, &mut [start, len, REGISTER_MODE_WP, 0])?;
        control(&fd, WRITEPROTECT, &mut [start, len, WRITEPROTECT_MODE_WP])?;
        Ok(Guard { _fd: fd })
    }
}

/// Asks the kernel; `words` are what the request takes.
fn control(fd: &OwnedFd, request: libc::Ioctl, words: &mut [u64]) -> io::Result<()> {
    // SAFETY: the callers pass as many words as the request's number says.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use crate::memory::Buffer;

    use super::*;

    #[test]
    fn a_writer_waits_until_the_guard_ends() {
        let buffer = Buffer::new(8192).unwrap();
        // Where the system does not permit it, there is nothing to test.
        let Ok(guard) = Guard::new(buffer.addr(), 8192) else { return };
        let (begun, written) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.store(true, Ordering::Release);
                buffer.store_u64(4096, 7).unwrap();
                written.store(1, Ordering::Release);
            });
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            for _ in 0..1000 {
                assert_eq!(buffer.load_u64(4096).unwrap(), 0);
                assert_eq!(written.load(Ordering::Acquire), 0);
                std::thread::yield_now();
            }
            drop(guard);
        });
        assert_eq!(buffer.load_u64(4096).unwrap(), 7);
    }
}
