//! System calls between descriptors or processes and memory that others change meanwhile.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::memory::{Buffer, BufferError};

/// A part of a buffer. That it lies within the buffer was checked when it was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    buffer: &'a Buffer,
    at: usize,
    len: usize,
}

impl<'a> Part<'a> {
    pub(super) fn new(buffer: &'a Buffer, at: usize, len: usize) -> Result<Part<'a>, BufferError> {
        buffer.range(at, len)?;
        Ok(Part { buffer, at, len })
    }

    pub(super) fn len(self) -> usize {
        self.len
    }

    /// What is behind the first `len` bytes.
    pub(super) fn behind(self, len: usize) -> Part<'a> {
        let len = len.min(self.len);
        Part { at: self.at + len, len: self.len - len, ..self }
    }

    /// The first `len` bytes.
    pub(super) fn first(self, len: usize) -> Part<'a> {
        Part { len: len.min(self.len), ..self }
    }

    fn iovec(self) -> libc::iovec {
        let start = self.buffer.range(self.at, self.len).expect("checked when it was made");
        libc::iovec { iov_base: start.cast(), iov_len: self.len }
    }
}

/// Reads at an offset of a file, or, without one, what comes next; returns how much it read.
pub(super) fn read(file: BorrowedFd<'_>, at: Option<u64>, to: Part<'_>) -> io::Result<usize> {
    let (fd, iov) = (file.as_raw_fd(), to.iovec());
    // SAFETY: the vector names bytes of a live buffer, of which no references exist.
    length(unsafe {
        match at {
            Some(at) => libc::preadv(fd, &raw const iov, 1, at as libc::off_t),
            None => libc::readv(fd, &raw const iov, 1),
        }
    })
}

/// Writes at an offset of a file, or, without one, behind all before; returns how much it wrote.
pub(super) fn write(file: BorrowedFd<'_>, at: Option<u64>, from: Part<'_>) -> io::Result<usize> {
    let (fd, iov) = (file.as_raw_fd(), from.iovec());
    // SAFETY: as in `read`; the bytes are only read.
    length(unsafe {
        match at {
            Some(at) => libc::pwritev(fd, &raw const iov, 1, at as libc::off_t),
            None => libc::writev(fd, &raw const iov, 1),
        }
    })
}

/// Lends the pages of `from` to a pipe; returns how many bytes went in.
pub(super) fn splice(pipe: BorrowedFd<'_>, from: Part<'_>) -> io::Result<usize> {
    let iov = from.iovec();
    // SAFETY: as in `read`. A reader of the pipe sees what the bytes are when it reads.
    length(unsafe { libc::vmsplice(pipe.as_raw_fd(), &raw const iov, 1, libc::SPLICE_F_NONBLOCK) })
}

/// Copies from another process; returns how much.
pub(super) fn read_process(pid: i32, addr: u64, to: Part<'_>) -> io::Result<usize> {
    let (near, far) = (to.iovec(), far(addr, to.len));
    // SAFETY: as in `read`; the system judges the other process's addresses.
    length(unsafe { libc::process_vm_readv(pid, &raw const near, 1, &raw const far, 1, 0) })
}

/// Copies to another process; returns how much.
pub(super) fn write_process(pid: i32, addr: u64, from: Part<'_>) -> io::Result<usize> {
    let (near, far) = (from.iovec(), far(addr, from.len));
    // SAFETY: as in `read_process`. If the process is this one, the address is of memory that its
    // owner has described as an application's, which nobody holds references to.
    length(unsafe { libc::process_vm_writev(pid, &raw const near, 1, &raw const far, 1, 0) })
}

fn far(addr: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::without_provenance_mut(addr as usize), iov_len: len }
}

fn length(returned: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}
