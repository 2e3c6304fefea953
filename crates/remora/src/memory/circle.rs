//! Memory that two processes share, of which neither trusts the other.
//!
//! It is a *memfd*: a file in memory without a name, which one process makes and passes to the
//! other. It is sealed, so that neither can shorten it and so end the other (with SIGBUS). All that
//! can be read in it may have been written by the other process at any moment. Therefore it is
//! never lent as a slice: bytes are copied in and out, and words are atomics.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use super::{copy, memfd};

/// Bytes of words before the data: the largest page of any processor that Linux runs on here, so
/// that the data can be mapped by itself.
pub(crate) const CONTROL: usize = 65_536;

/// A mapping of some words, and of data in a circle: behind the last byte of the data comes the
/// first one again, as it is mapped twice in a row. So nothing that begins in the data is cut.
#[derive(Debug)]
pub struct SharedMemory {
    base: NonNull<u8>,
    data: usize,
}

// SAFETY: the memory is reached only by volatile and atomic accesses, which any thread may make,
// and its one owner unmaps it.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; the only references that are given out are to atomics.
unsafe impl Sync for SharedMemory {}

/// Makes a sealed file of zeroes that holds `count` parts to be mapped, with `data` bytes each.
///
/// # Errors
/// The system has no memory or no descriptors left.
pub(crate) fn sealed_file(count: usize, data: usize) -> io::Result<OwnedFd> {
    memfd::sealed("remora-ring", file_len(count, data))
}

/// Checks that a file which another process passed is what [`sealed_file`] makes.
///
/// # Errors
/// It is another kind of file, is not sealed, or has another length.
pub(crate) fn check_sealed(file: BorrowedFd<'_>, count: usize, data: usize) -> io::Result<()> {
    let len = file_len(count, data);
    memfd::check(file, 0, len).map_err(io::Error::other)?;
    match memfd::len_of(file)? == len {
        true => Ok(()),
        false => Err(io::Error::other("it has another length")),
    }
}

fn file_len(count: usize, data: usize) -> u64 {
    (count * (CONTROL + data)) as u64
}

impl SharedMemory {
    /// Maps part `index` of a file that [`sealed_file`] has made or [`check_sealed`] has passed.
    /// `data` is a multiple of [`CONTROL`].
    ///
    /// # Errors
    /// The system refuses.
    pub fn map(file: &OwnedFd, index: usize, data: usize) -> io::Result<SharedMemory> {
        assert!(data > 0 && data.is_multiple_of(CONTROL), "data of whole pages");
        let len = CONTROL + 2 * data;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice changes no memory that this
        // process has.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at 0 unasked");
        let memory = SharedMemory { base, data };
        let start = index * (CONTROL + data);
        memory.place(file, 0, CONTROL + data, start)?;
        memory.place(file, CONTROL + data, data, start + CONTROL)?;
        Ok(memory)
    }

    /// Maps `len` bytes of the file from `offset` on, at `at` within the range that was reserved.
    fn place(&self, file: &OwnedFd, at: usize, len: usize, offset: usize) -> io::Result<()> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let (fd, offset) = (file.as_fd().as_raw_fd(), offset as libc::off_t);
        // SAFETY: the range lies in the one that `map` has reserved for this value alone.
        let placed = unsafe {
            libc::mmap(self.base.as_ptr().add(at).cast(), len, protection, flags, fd, offset)
        };
        if placed == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Bytes of data; a multiple of [`CONTROL`].
    #[inline]
    pub fn data_len(&self) -> usize {
        self.data
    }

    /// The word at byte `at` of those before the data.
    ///
    /// # Panics
    /// There is no aligned word.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < CONTROL, "a word before the data");
        self.word_at(at)
    }

    /// The word at byte `at` of the data.
    ///
    /// # Panics
    /// There is no aligned word.
    #[inline]
    pub fn data_word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.data, "a word of the data");
        self.word_at(CONTROL + at)
    }

    #[inline]
    fn word_at(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the callers have checked that the word is aligned and within the mapping, which
        // lives as long as `self`; all accesses by this process are atomic or volatile, and what
        // the other process does to the memory is as if by atomics of a thread.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The place of `len` bytes of data from `at` on.
    #[inline]
    fn range(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at < self.data && len <= self.data, "bytes of the data");
        // SAFETY: the data is mapped twice in a row, so the range lies within the mapping.
        unsafe { self.base.as_ptr().add(CONTROL + at) }
    }

    /// Fills `dst` with the data from `at` on.
    ///
    /// # Panics
    /// `at` is not within the data, or `dst` is longer.
    #[inline]
    pub fn read(&self, at: usize, dst: &mut [u8]) {
        let src = self.range(at, dst.len());
        if !dst.is_empty() {
            // SAFETY: mapped, as `range` has checked; `dst` is this process's own memory.
            unsafe { copy::copy_in(src, dst) };
        }
    }

    /// Copies `src` to the data from `at` on.
    ///
    /// # Panics
    /// `at` is not within the data, or `src` is longer.
    #[inline]
    pub fn write(&self, at: usize, src: &[u8]) {
        let dst = self.range(at, src.len());
        if !src.is_empty() {
            // SAFETY: mapped, as `range` has checked; `src` is this process's own memory.
            unsafe { copy::copy_out(src, dst) };
        }
    }

    /// Where `len` bytes from `at` on are, for copies by [`super::HostMemory`].
    #[inline]
    pub(super) fn room(&self, at: usize, len: usize) -> *mut [u8] {
        ptr::slice_from_raw_parts_mut(self.range(at, len), len)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and no reference to it outlives the value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), CONTROL + 2 * self.data) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate};

    use super::*;

    const DATA: usize = CONTROL;

    #[test]
    fn two_mappings_of_a_file_show_the_same_bytes_in_a_circle() {
        let file = sealed_file(2, DATA).unwrap();
        check_sealed(file.as_fd(), 2, DATA).unwrap();
        let [a, b] = [(); 2].map(|()| SharedMemory::map(&file, 1, DATA).unwrap());
        let other = SharedMemory::map(&file, 0, DATA).unwrap();
        a.word(64).store(7, Ordering::Relaxed);
        a.write(DATA - 3, b"abcdef");
        assert_eq!(b.word(64).load(Ordering::Relaxed), 7);
        let mut bytes = [0; 6];
        b.read(DATA - 3, &mut bytes);
        assert_eq!(&bytes, b"abcdef");
        b.read(0, &mut bytes[..3]);
        assert_eq!(&bytes[..3], b"def");
        b.data_word(8).store(u64::MAX, Ordering::Relaxed);
        a.read(10, &mut bytes);
        assert_eq!(bytes, [0xff; 6]);
        other.read(10, &mut bytes);
        assert_eq!((bytes, other.word(64).load(Ordering::Relaxed)), ([0; 6], 0), "another part");
    }

    #[test]
    fn a_file_that_could_shrink_or_is_none_of_ours_is_refused() {
        let refused = |file: &OwnedFd| check_sealed(file.as_fd(), 1, DATA).is_err();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"open", flags).unwrap();
        ftruncate(&file, file_len(1, DATA)).unwrap();
        assert!(refused(&file), "not sealed");
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(!refused(&file));
        assert!(refused(&sealed_file(2, DATA).unwrap()), "another length");
        assert!(refused(&sealed_file(1, 2 * DATA).unwrap()), "another length");
        for path in ["/dev/null", "/", "/proc/self/mem"] {
            let file = std::fs::File::open(path).unwrap();
            assert!(refused(&file.into()), "{path}");
        }
        let (pipe, _end) = io::pipe().unwrap();
        assert!(refused(&pipe.into()), "a pipe");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_not_mapped() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let closed = rustix::fs::memfd_create(c"closed", flags).unwrap();
        ftruncate(&closed, file_len(1, DATA)).unwrap();
        fcntl_add_seals(&closed, SealFlags::SHRINK | SealFlags::WRITE).unwrap();
        check_sealed(closed.as_fd(), 1, DATA).unwrap();
        assert!(SharedMemory::map(&closed, 0, DATA).is_err());
    }
}
