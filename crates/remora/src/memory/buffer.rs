//! Memory to register that the program owns.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use thiserror::Error;

use super::memfd::{self, MapError};
use super::{across, copy};

/// The smallest page: where pages are larger, the system refuses what is not whole ones.
const PAGE: usize = 4096;

/// Bytes that are moved to a file together, or left out where all are zeros.
const MOVED_AT_ONCE: usize = 64 << 10;

/// Page-aligned memory, zero at first, that a card and its peers may change at any time.
///
/// Therefore it is never lent as a slice: its bytes are copied in and out, through `&self` and from
/// any thread. Dropping it unmaps it, so the owner of a registration keeps it as long as the
/// registration.
///
/// ```
/// use remora::memory::Buffer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let buffer = Buffer::new(4096)?;
/// buffer.write_at(100, b"hello")?;
/// let mut bytes = [0; 5];
/// buffer.read_at(100, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// buffer.store_u64(8, 42)?;
/// assert_eq!(buffer.load_u64(8)?, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Buffer {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// Who unmaps the bytes of a buffer.
#[derive(Debug)]
enum Owner {
    /// The buffer itself: they are a mapping.
    This,
    /// The buffer itself: they are a mapping of a file from so many bytes on.
    File(OwnedFd, u64),
    /// The buffer that this one is a part of.
    Whole(Arc<Buffer>),
    /// Neither.
    Elsewhere,
}

// SAFETY: the memory is reached only by volatile and atomic accesses, which any thread may make,
// and its one owner unmaps it.
unsafe impl Send for Buffer {}
// SAFETY: as above; no method gives out a reference to the bytes.
unsafe impl Sync for Buffer {}

/// There is no memory for a [`Buffer`].
#[derive(Debug, Error)]
#[error("cannot map {len} bytes of memory: {source}; ask for less, but more than zero")]
pub struct AllocError {
    /// Bytes asked for.
    pub len: usize,
    /// The system's reason.
    pub source: io::Error,
}

/// An access that a [`Buffer`] refuses. Nothing was read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BufferError {
    /// Some of the bytes are not within the buffer.
    #[error("{len} bytes at offset {offset} are not within a buffer of {buffer} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Length of the buffer.
        buffer: usize,
    },
    /// A word at an offset that is not a multiple of its length.
    #[error("offset {offset} is not a multiple of the length of the word there")]
    Misaligned {
        /// First byte asked for.
        offset: usize,
    },
}

impl Buffer {
    /// Maps `len` bytes of zeroes.
    ///
    /// # Errors
    /// `len` is zero, or the system has no more memory.
    pub fn new(len: usize) -> Result<Buffer, AllocError> {
        Buffer::mmap(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Maps `len` bytes of shared memory from `offset` on, a multiple of the page size. Whatever
    /// the buffer's owner or others write there, all see. The mapping keeps the memory alive when
    /// the descriptor is closed, and a descriptor of its own, by which a card of another process
    /// maps the file, too, when the buffer is registered.
    ///
    /// # Errors
    /// The file is not memory of [sealed](memfd::sealed) length, or is shorter, or the system
    /// refuses.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Buffer, MapError> {
        let mut buffer = Buffer::map_only(file, offset, len)?;
        buffer.owner = Owner::File(file.try_clone_to_owned()?, offset);
        Ok(buffer)
    }

    /// As [`Buffer::map`], without a descriptor: the buffer is not going to be registered.
    pub(crate) fn map_only(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<Buffer, MapError> {
        memfd::check(file, offset, len as u64)?;
        let at = offset as libc::off_t;
        Buffer::mmap(len, libc::MAP_SHARED | libc::MAP_NORESERVE, file.as_raw_fd(), at)
            .map_err(|AllocError { len, source }| MapError::Refused { len, source })
    }

    /// Maps `len` bytes of a device's memory from `offset` on, a multiple of the page size.
    ///
    /// # Errors
    /// The system refuses.
    ///
    /// # Safety
    /// The file has these bytes as long as the buffer lives: an access behind its end would end the
    /// process.
    pub(crate) unsafe fn map_device(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<Buffer, AllocError> {
        Buffer::mmap(len, libc::MAP_SHARED, file.as_raw_fd(), offset as libc::off_t)
    }

    fn mmap(
        len: usize,
        flags: libc::c_int,
        file: libc::c_int,
        at: libc::off_t,
    ) -> Result<Buffer, AllocError> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at a place of the kernel's choice, changes no memory that this
        // process has.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file, at) };
        if base == libc::MAP_FAILED {
            return Err(AllocError { len, source: io::Error::last_os_error() });
        }
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at 0 unasked");
        Ok(Buffer { base, len, owner: Owner::This })
    }

    /// The `len` bytes at `offset` as a buffer of their own. The whole stays mapped as long as any
    /// part of it is kept.
    ///
    /// # Errors
    /// Some of the bytes are not within the buffer.
    pub fn part(this: &Arc<Buffer>, offset: usize, len: usize) -> Result<Buffer, BufferError> {
        let base = NonNull::new(this.range(offset, len)?).expect("behind a mapping's base");
        Ok(Buffer { base, len, owner: Owner::Whole(this.clone()) })
    }

    /// The file that the buffer is a mapping of, or a part of one, and where in it its bytes begin.
    pub(crate) fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.owner {
            Owner::File(file, offset) => Some((file.as_fd(), *offset)),
            Owner::Whole(whole) => {
                let (file, offset) = whole.file()?;
                Some((file, offset + (self.addr() - whole.addr())))
            }
            Owner::This | Owner::Elsewhere => None,
        }
    }

    /// Is the buffer a whole mapping of its own, of no file?
    pub(crate) fn is_mapping(&self) -> bool {
        matches!(self.owner, Owner::This)
    }

    /// Moves the bytes to a new file of memory of the same length, which takes the place of the
    /// buffer's own mapping: the addresses stay. Nobody writes the bytes meanwhile.
    ///
    /// # Errors
    /// The file is too short, or the system cannot map it. The buffer is as before then.
    pub(crate) fn move_to(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        // What the buffer has not used is to take no memory in the file either. (Of memory that is
        // not its own, the system may say that it cannot be read; a look of ours would be a crash.)
        let piece = if self.is_mapping() { MOVED_AT_ONCE } else { self.len };
        for at in (0..self.len).step_by(piece.max(1)) {
            let len = piece.min(self.len - at);
            if !self.is_mapping() || !self.is_zero(at, len) {
                self.put(file, at, len)?;
            }
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let (at, fd) = (self.base.as_ptr().cast(), file.as_raw_fd());
        // SAFETY: the new mapping takes the place of our own one, of which no slice exists, and has
        // the same bytes.
        let mapped = unsafe { libc::mmap(at, self.len, protection, flags, fd, 0) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Are these bytes of the buffer's own mapping all zero? (Nobody writes them meanwhile.)
    fn is_zero(&self, at: usize, len: usize) -> bool {
        static ZEROS: [u8; MOVED_AT_ONCE] = [0; MOVED_AT_ONCE];
        // SAFETY: the bytes are within our mapping, and do not change while the slice is there.
        let bytes = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), len) };
        bytes == &ZEROS[..len]
    }

    /// Writes the bytes to a file, at the place that they have in the buffer.
    fn put(&self, file: BorrowedFd<'_>, at: usize, len: usize) -> io::Result<()> {
        let (mut at, end) = (at, at + len);
        while at < end {
            let bytes = self.base.as_ptr().wrapping_add(at).cast();
            // SAFETY: the bytes up to `end` are within our mapping; the call only reads them.
            let put = unsafe { libc::pwrite(file.as_raw_fd(), bytes, end - at, at as libc::off_t) };
            match put {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                put if put > 0 => at += put as usize,
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    /// Another mapping of the shared memory that this buffer is a mapping of.
    ///
    /// # Errors
    /// The buffer is no one mapping of shared memory, or the system has no room for another.
    pub(crate) fn twin(&self) -> io::Result<Buffer> {
        let (at, flags) = (self.base.as_ptr().cast(), libc::MREMAP_MAYMOVE);
        // SAFETY: with an old size of zero, the call changes no mapping: it makes another one of
        // the same pages, at a place of the kernel's choice.
        let twin = unsafe { libc::mremap(at, 0, self.len, flags) };
        if twin == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(twin.cast()).expect("the kernel maps nothing at 0 unasked");
        Ok(Buffer { base, len: self.len, owner: Owner::This })
    }

    /// Moves this mapping to the place of `other`, of the same length, in one step for threads that
    /// use that meanwhile.
    ///
    /// # Errors
    /// The system has no room for it; `other` is as before then.
    ///
    /// # Safety
    /// The buffer is a mapping of its own. The users of `other` expect it to have these bytes.
    pub(crate) unsafe fn move_over(self, other: &Buffer) -> io::Result<()> {
        debug_assert!(self.len == other.len && matches!(self.owner, Owner::This));
        let (from, to) = (self.base.as_ptr().cast(), other.base.as_ptr());
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: by the caller's promise for `other`; this mapping is the buffer's own, which
        // nobody uses any more.
        let moved = unsafe { libc::mremap(from, self.len, self.len, flags, to) };
        if moved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // It is at another place now, and somebody else's.
        std::mem::forget(self);
        Ok(())
    }

    /// As [`Buffer::new`], and advises the kernel to use huge pages, since large buffers are walked
    /// faster then. If the kernel has none, this is an ordinary buffer.
    ///
    /// # Errors
    /// Those of [`Buffer::new`].
    pub fn with_huge_pages(len: usize) -> Result<Buffer, AllocError> {
        let buffer = Buffer::new(len)?;
        // SAFETY: the range is our own mapping; advice does not change its bytes.
        unsafe { libc::madvise(buffer.base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        Ok(buffer)
    }

    /// The `len` bytes from `addr` on as a buffer that does not own them; `None` if there are none.
    ///
    /// # Safety
    /// The bytes stay mapped as long as the buffer is used, and are reached by raw pointers and
    /// atomics only.
    pub(crate) unsafe fn view(addr: u64, len: usize) -> Option<Buffer> {
        let base = NonNull::new(ptr::with_exposed_provenance_mut(addr as usize))?;
        (len > 0).then_some(Buffer { base, len, owner: Owner::Elsewhere })
    }

    /// Asks for huge pages in this part of the buffer, and for all its pages at once. Returns
    /// whether the system has made the pages; without that they come with the first touch.
    ///
    /// # Errors
    /// Some of the bytes are not within the buffer.
    pub fn populate(&self, offset: usize, len: usize) -> Result<bool, BufferError> {
        let start = self.range(offset, len)?.cast();
        // SAFETY: the range is our own mapping; advice does not change its bytes.
        let made = unsafe {
            libc::madvise(start, len, libc::MADV_HUGEPAGE);
            libc::madvise(start, len, libc::MADV_POPULATE_WRITE)
        };
        Ok(made == 0)
    }

    /// Lets the system have back the whole pages of this part of the buffer, whose bytes are of no
    /// more use to anybody: they are anything afterwards, and zeroes as a rule. Pages come again
    /// with the next touch. Returns whether the system has taken them.
    ///
    /// # Errors
    /// Some of the bytes are not within the buffer.
    pub fn give_back(&self, offset: usize, len: usize) -> Result<bool, BufferError> {
        let start = self.range(offset, len)?;
        let first = start.addr().next_multiple_of(PAGE) - start.addr();
        let Some(len) = len.checked_sub(first).map(|len| len / PAGE * PAGE) else {
            return Ok(false);
        };
        // SAFETY: the range is within our own mapping, of which no slice exists; that its bytes
        // change is as if somebody else had written them. Shared memory is cut out of its file, so
        // that other mappings of it let it go, too; other memory knows no such advice.
        let taken = unsafe {
            let start = start.add(first).cast();
            libc::madvise(start, len, libc::MADV_REMOVE) == 0
                || libc::madvise(start, len, libc::MADV_DONTNEED) == 0
        };
        Ok(taken)
    }

    /// Length in bytes, never zero.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where the buffer begins: a virtual address of this process, and so a bus address of
    /// [`super::HostMemory`].
    #[inline]
    pub fn addr(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// Fills `dst` with the bytes from `offset` on.
    ///
    /// # Errors
    /// Some of the bytes are not within the buffer.
    #[inline]
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<(), BufferError> {
        let src = self.range(offset, dst.len())?;
        // SAFETY: the range is within our mapping, of which no slice exists.
        unsafe { copy::copy_in(src, dst) };
        Ok(())
    }

    /// Copies `src` to the bytes from `offset` on. Other threads and cards see the last bytes last.
    ///
    /// # Errors
    /// Some of the bytes are not within the buffer.
    #[inline]
    pub fn write_at(&self, offset: usize, src: &[u8]) -> Result<(), BufferError> {
        let dst = self.range(offset, src.len())?;
        // SAFETY: the range is within our mapping, of which no slice exists.
        unsafe { copy::copy_out(src, dst) };
        Ok(())
    }

    /// Asks the processor to fetch the line of the byte at `offset`, which will be read.
    ///
    /// # Errors
    /// The byte is not within the buffer.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) -> Result<(), BufferError> {
        copy::prefetch_read(self.range(offset, 1)?);
        Ok(())
    }

    /// Copies `len` bytes of `src` from `from` on to the bytes from `offset` on. Where both are the
    /// same memory and the ranges overlap, the destination has bytes of either.
    ///
    /// # Errors
    /// Some of the bytes are not within the one buffer or the other.
    #[inline]
    pub fn copy_at(
        &self,
        offset: usize,
        src: &Buffer,
        from: usize,
        len: usize,
    ) -> Result<(), BufferError> {
        let (src, dst) = (src.range(from, len)?, self.range(offset, len)?);
        // SAFETY: the ranges are within mappings of buffers, of which no slices exist.
        unsafe { across::copy(src, dst, len) };
        Ok(())
    }

    /// Sets every byte to `byte`.
    pub fn fill(&self, byte: u8) {
        let block = [byte; 4096];
        for offset in (0..self.len).step_by(block.len()) {
            let len = block.len().min(self.len - offset);
            self.write_at(offset, &block[..len]).expect("the loop ends with the buffer");
        }
    }

    /// The 64-bit word at `offset`, in host byte order. Later reads see all that was written before
    /// the word (acquire).
    ///
    /// # Errors
    /// The word is not within the buffer, or `offset` is not a multiple of 8.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, BufferError> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Sets the 64-bit word at `offset`, in host byte order. A reader of the word then sees all
    /// that was written before it (release).
    ///
    /// # Errors
    /// The word is not within the buffer, or `offset` is not a multiple of 8.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), BufferError> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// The 64-bit word at `offset`, which others may change at any time.
    ///
    /// # Errors
    /// The word is not within the buffer, or `offset` is not a multiple of 8.
    #[inline]
    pub fn word(&self, offset: usize) -> Result<&AtomicU64, BufferError> {
        let ptr = self.range(offset, 8)?.cast::<u64>();
        if !ptr.is_aligned() {
            return Err(BufferError::Misaligned { offset });
        }
        // SAFETY: aligned, within our mapping, which lives as long as `self`; an atomic may be
        // changed by others.
        Ok(unsafe { AtomicU64::from_ptr(ptr) })
    }

    /// The 32-bit word at `offset`, which others may change at any time.
    ///
    /// # Errors
    /// The word is not within the buffer, or `offset` is not a multiple of 4.
    #[inline]
    pub fn word32(&self, offset: usize) -> Result<&AtomicU32, BufferError> {
        let ptr = self.range(offset, 4)?.cast::<u32>();
        if !ptr.is_aligned() {
            return Err(BufferError::Misaligned { offset });
        }
        // SAFETY: aligned, within our mapping, which lives as long as `self`; an atomic may be
        // changed by others.
        Ok(unsafe { AtomicU32::from_ptr(ptr) })
    }

    /// Where `len` bytes at `offset` lie, for system calls: no reference to them may be made.
    #[inline]
    pub(crate) fn range(&self, offset: usize, len: usize) -> Result<*mut u8, BufferError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.base.as_ptr().wrapping_add(offset)),
            _ => Err(BufferError::OutOfRange { offset, len, buffer: self.len }),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Owner::This | Owner::File(..) = self.owner {
            // SAFETY: our own mapping, unmapped once, and nothing borrows from it now.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn bytes_and_words() {
        let buffer = Buffer::with_huge_pages(10_000).unwrap();
        assert_eq!(buffer.addr() % 4096, 0);
        buffer.fill(7);
        buffer.write_at(9_997, b"end").unwrap();
        let mut tail = [0; 5];
        buffer.read_at(9_995, &mut tail).unwrap();
        assert_eq!(&tail, b"\x07\x07end");
        buffer.store_u64(16, 42).unwrap();
        assert_eq!(buffer.load_u64(16), Ok(42));
    }

    /// A store's memory is address space, most of which is used later or never.
    #[test]
    fn what_was_not_used_takes_no_memory_in_the_file() {
        let len = 64 << 20;
        let mut buffer = Buffer::new(len).unwrap();
        buffer.write_at(len - 5, b"bytes").unwrap();
        let file = memfd::sealed("remora-test", len as u64).unwrap();
        buffer.move_to(file.as_fd()).unwrap();
        let taken = rustix::fs::fstat(&file).unwrap().st_blocks * 512;
        assert!((1..=2 << 20).contains(&taken), "{taken} bytes");
        let mut bytes = [7; 10];
        buffer.read_at(len - 10, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0\0\0\0bytes");
    }

    #[test]
    fn a_buffer_moves_to_a_file_and_stays_where_it_is() {
        let mut buffer = Buffer::new(10_000).unwrap();
        buffer.write_at(9_990, b"the bytes").unwrap();
        let addr = buffer.addr();
        let file = memfd::sealed("remora-test", 10_000).unwrap();
        buffer.move_to(file.as_fd()).unwrap();
        let other = Buffer::map(file.as_fd(), 0, 10_000).unwrap();
        buffer.write_at(0, b"and more").unwrap();
        let mut bytes = [0; 9];
        other.read_at(9_990, &mut bytes).unwrap();
        assert_eq!((&bytes, buffer.addr()), (b"the bytes", addr));
        other.read_at(0, &mut bytes[..8]).unwrap();
        assert_eq!(&bytes[..8], b"and more");
    }

    #[test]
    fn a_part_is_a_buffer_and_keeps_the_whole() {
        let whole = Arc::new(Buffer::new(8192).unwrap());
        let part = Buffer::part(&whole, 4096, 64).unwrap();
        part.write_at(0, b"part").unwrap();
        assert_eq!(part.addr(), whole.addr() + 4096);
        assert!(part.write_at(62, b"end").is_err(), "a part ends where it ends");
        assert!(Buffer::part(&whole, 8192, 1).is_err());
        whole.word32(4100).unwrap().store(7, Ordering::Relaxed);
        drop(whole);
        assert_eq!(part.word32(4).unwrap().load(Ordering::Relaxed), 7);
        assert!(part.word32(2).is_err());
        let mut bytes = [0; 4];
        part.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"part");
    }

    #[test]
    fn pages_that_are_given_back_are_zeroes_and_others_stay() {
        let buffer = Buffer::new(5 * PAGE).unwrap();
        buffer.fill(7);
        assert!(buffer.give_back(PAGE + 1, 3 * PAGE).unwrap());
        let bytes = [0, PAGE, 2 * PAGE - 8, 2 * PAGE, 4 * PAGE - 8, 4 * PAGE];
        let full = u64::from_le_bytes([7; 8]);
        assert_eq!(bytes.map(|at| buffer.load_u64(at).unwrap()), [full, full, full, 0, 0, full]);
        assert!(!buffer.give_back(PAGE + 1, PAGE - 2).unwrap(), "no whole page is in it");
        assert!(buffer.give_back(4 * PAGE, PAGE + 1).is_err());
    }

    #[test]
    fn the_callers_mistakes_are_named() {
        let buffer = Buffer::new(64).unwrap();
        let beyond = BufferError::OutOfRange { offset: 60, len: 5, buffer: 64 };
        assert_eq!(buffer.write_at(60, &[0; 5]), Err(beyond));
        assert!(buffer.read_at(usize::MAX, &mut [0; 2]).is_err());
        assert_eq!(buffer.load_u64(4), Err(BufferError::Misaligned { offset: 4 }));
        assert!(Buffer::new(0).is_err());
        assert!(Buffer::new(usize::MAX / 2).unwrap_err().to_string().contains("cannot map"));
    }

    /// A reader that sees the last byte sees the rest; programs that poll memory rely on it.
    #[test]
    fn the_last_byte_is_seen_last() {
        const LEN: usize = 4099;
        let buffer = Buffer::new(8192).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=200u8 {
                    buffer.write_at(1, &[round; LEN]).unwrap();
                    // The reader reports by the word behind that it is done.
                    while buffer.load_u64(8184).unwrap() != u64::from(round) {
                        std::thread::yield_now();
                    }
                }
            });
            for round in 1..=200u8 {
                let mut last = [0];
                while last[0] != round {
                    buffer.read_at(LEN, &mut last).unwrap();
                }
                let mut all = [0; LEN];
                buffer.read_at(1, &mut all).unwrap();
                assert!(all.iter().all(|b| *b == round), "round {round}");
                buffer.store_u64(8184, u64::from(round)).unwrap();
            }
        });
    }
}
