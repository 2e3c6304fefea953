//! Registered memory of a live process.
//!
//! The card reaches registered memory through [`HostMemory`], here. `buffer.rs` makes memory to be
//! registered ([`Buffer`]), and large memory that is not ([`PageAligned`]); [`memfd`] makes memory
//! that processes share. `copy.rs` copies memory that others change meanwhile, `across.rs` from one
//! such memory to another, `checked.rs` memory that may not be mapped, `process.rs` that of other
//! processes. `circle.rs` is shared memory in which the first byte follows the last.

mod across;
mod buffer;
mod checked;
pub(crate) mod circle;
mod copy;
pub mod memfd;
mod page_aligned;
pub(crate) mod process;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_nic::memory::append_by_reading;
use remora_nic::{Memory, MemoryFault};
use rustix::fs::{Mode, OFlags, fcntl_getfl};
use thiserror::Error;

pub use buffer::{AllocError, Buffer, BufferError};
pub use circle::SharedMemory;
pub use page_aligned::PageAligned;
pub use process::Process;

/// Set in bus addresses that name a place in a file; no virtual address of a process has it.
const FILE_BIT: u64 = 1 << 63;
/// Set in bus addresses that name memory of the process that may not be mapped. System calls reach
/// it; they fail where an access by the processor would end the process.
pub const CHECKED: u64 = 1 << 62;
/// The lowest bit of the file's number in an address that names a place in a file.
const FILE_SHIFT: u32 = 48;
/// The longest part of a file that an address reaches.
const FILE_LEN_MAX: u64 = 1 << FILE_SHIFT;
/// The most files that can be served at a time.
const FILES_MAX: usize = 1 << 15;
/// No memory is mapped below this address, so that null pointers are faults.
const LOWEST_ADDR: u64 = 4096;

/// The memory of this process, and files and other processes that are served as if they were.
///
/// A bus address below 2^62 is a virtual address of this process. With bit 62 set and bit 63 clear
/// ([`CHECKED`]), it is a virtual address that may not be mapped. With bit 63 set, it names a place
/// in a file: the file's number is in bits 48 to 62, the offset below. Files are read and written
/// by system calls and not mapped, so that a file that shrinks while it is served makes a
/// [`MemoryFault`], and does not end the process. Other [processes](Process) have numbers as files
/// do, and their virtual addresses are the offsets.
#[derive(Debug)]
pub struct HostMemory {
    /// Files and processes, by their numbers.
    sources: Vec<Option<Source>>,
}

/// The same file by an open file description of our own. That of the caller may append whatever the
/// offset, or have each write wait for the disk, or begin to at any time. Where the system does not
/// let us open it, as with another user's, it stays the caller's; and where we would have to wait
/// for somebody who has a lease on it.
pub(crate) fn reopened(file: File) -> File {
    let open = || {
        let mode = fcntl_getfl(&file)? & OFlags::ACCMODE;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(path, mode | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
    };
    match open() {
        Ok(own) => own.into(),
        Err(error) => {
            tracing::debug!(%error, "a file is served as it was opened");
            file
        }
    }
}

/// What system calls reach.
#[derive(Debug)]
enum Source {
    File(File),
    Process(Process),
}

/// No further file or process can be added to a [`HostMemory`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("cannot serve another file: {FILES_MAX} are served already; deregister one of them")]
pub struct FilesFull;

/// The card does not serve a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FileError {
    /// It serves as many as it can.
    #[error(transparent)]
    Full(#[from] FilesFull),
    /// The card is another process's, which refuses: quotas, or a file of a foreign kind.
    #[error("the process that has the card refuses to serve the file: the log has its reason")]
    Refused,
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

impl HostMemory {
    /// # Safety
    /// The caller promises this of each virtual address that is passed to the methods of
    /// [`Memory`]: for the time of the call, and as long as a returned value borrows the memory,
    /// the address lies in memory that is mapped, readable, writable if the call writes it, and
    /// reached by raw pointers and atomics only. A card keeps this promise if every range that is
    /// registered with it keeps it for as long as it is registered.
    pub const unsafe fn new() -> HostMemory {
        HostMemory { sources: Vec::new() }
    }

    /// Makes `file` reachable, and returns the bus address of its first byte. The file can be
    /// written if it was opened for writing, but not made longer. How it was opened besides
    /// (`O_APPEND`, `O_SYNC`, `O_DIRECT`) does not matter.
    ///
    /// # Errors
    /// Too many files are served.
    pub fn add_file(&mut self, file: File) -> Result<u64, FilesFull> {
        self.add(Source::File(reopened(file)))
    }

    /// Makes another process reachable, and returns the bus address of its address 0.
    ///
    /// # Errors
    /// Too many files and processes are served.
    pub fn add_process(&mut self, process: Process) -> Result<u64, FilesFull> {
        self.add(Source::Process(process))
    }

    fn add(&mut self, source: Source) -> Result<u64, FilesFull> {
        let free = self.sources.iter().position(Option::is_none).unwrap_or(self.sources.len());
        if free == FILES_MAX {
            return Err(FilesFull);
        }
        if free == self.sources.len() {
            self.sources.push(None);
        }
        self.sources[free] = Some(source);
        Ok(FILE_BIT | (free as u64) << FILE_SHIFT)
    }

    /// Removes and returns the file whose first byte has the bus address `base`, if there is one.
    pub fn remove_file(&mut self, base: u64) -> Option<File> {
        let source = self.source_at(base)?;
        if !matches!(source, Some(Source::File(_))) {
            return None;
        }
        match source.take() {
            Some(Source::File(file)) => Some(file),
            _ => None,
        }
    }

    /// Removes the file or process whose first byte has the bus address `base`; returns whether
    /// there was one.
    pub fn remove(&mut self, base: u64) -> bool {
        self.source_at(base).and_then(Option::take).is_some()
    }

    fn source_at(&mut self, base: u64) -> Option<&mut Option<Source>> {
        if is_file(base) { self.sources.get_mut(file_number(base)) } else { None }
    }

    /// The pointer to `len` bytes of the process, as nearly all addresses name; `None` for others.
    #[inline]
    fn own(addr: u64, len: usize) -> Option<*mut u8> {
        let end = addr.checked_add(len as u64)?;
        let is_own = addr >= LOWEST_ADDR && end <= CHECKED;
        is_own.then(|| ptr::with_exposed_provenance_mut(addr as usize))
    }

    #[inline(never)]
    fn read_elsewhere(&self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        let fault = MemoryFault { addr };
        match self.place(addr, dst.len()) {
            Some(Resolved::Checked(src)) => checked::read(src, dst).ok_or(fault),
            Some(Resolved::File(file, offset)) => {
                file.read_exact_at(dst, offset).map_err(|_| fault)
            }
            Some(Resolved::Far(process, from)) => process.read(from, dst).ok_or(fault),
            Some(Resolved::Process(_)) | None => Err(fault),
        }
    }

    #[inline(never)]
    fn write_elsewhere(&self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
        let fault = MemoryFault { addr };
        match self.place(addr, src.len()) {
            Some(Resolved::Checked(dst)) => checked::write(src, dst).ok_or(fault),
            Some(Resolved::File(file, offset)) => overwrite(file, offset, src).ok_or(fault),
            Some(Resolved::Far(process, to)) => process.write(to, src).ok_or(fault),
            Some(Resolved::Process(_)) | None => Err(fault),
        }
    }

    fn place(&self, addr: u64, len: usize) -> Option<Resolved<'_>> {
        let len = len as u64;
        if addr & (FILE_BIT | CHECKED) == CHECKED {
            return Some(Resolved::Checked(ptr::with_exposed_provenance_mut(
                (addr & !CHECKED) as usize,
            )));
        }
        if !is_file(addr) {
            return HostMemory::own(addr, len as usize).map(Resolved::Process);
        }
        let offset = addr & (FILE_LEN_MAX - 1);
        let source = self.sources.get(file_number(addr))?.as_ref()?;
        let place = match source {
            Source::File(file) => Resolved::File(file, offset),
            Source::Process(process) => Resolved::Far(process, offset),
        };
        (offset.checked_add(len)? <= FILE_LEN_MAX).then_some(place)
    }

    fn word(&self, addr: u64) -> Result<&AtomicU64, MemoryFault> {
        match self.place(addr, 8) {
            Some(Resolved::Process(ptr)) if addr.is_multiple_of(8) => {
                // SAFETY: aligned; mapped, and shared with raw pointers and atomics only, by the
                // promise made to `new`. The reference is used for one access.
                Ok(unsafe { AtomicU64::from_ptr(ptr.cast()) })
            }
            Some(Resolved::Checked(ptr)) if addr.is_multiple_of(8) && checked::is_writable(ptr) => {
                // SAFETY: aligned; mapped, as the system has just found, and shared as above. (A
                // program that unmaps it at this moment breaks the promise.)
                Ok(unsafe { AtomicU64::from_ptr(ptr.cast()) })
            }
            _ => Err(MemoryFault { addr }),
        }
    }

    /// Changes an aligned word of another process by two calls, between which this card makes no
    /// other access, and returns what it was.
    fn change_far(
        &mut self,
        addr: u64,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<u64, MemoryFault> {
        let fault = MemoryFault { addr };
        match self.place(addr, size_of::<u64>()) {
            Some(Resolved::Far(process, at)) if addr.is_multiple_of(8) => {
                let mut word = [0; 8];
                process.read(at, &mut word).ok_or(fault)?;
                let before = u64::from_ne_bytes(word);
                if let Some(after) = change(before) {
                    process.write(at, &after.to_ne_bytes()).ok_or(fault)?;
                }
                Ok(before)
            }
            _ => Err(fault),
        }
    }
}

/// Where the bytes of a bus address are.
enum Resolved<'a> {
    Process(*mut u8),
    Checked(*mut u8),
    File(&'a File, u64),
    Far(&'a Process, u64),
}

impl Memory for HostMemory {
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        match HostMemory::own(addr, dst.len()) {
            _ if dst.is_empty() => Ok(()),
            Some(src) => {
                // SAFETY: mapped, and no part of a Rust reference, by the promise made to `new`.
                unsafe { copy::copy_in(src, dst) };
                Ok(())
            }
            None => self.read_elsewhere(addr, dst),
        }
    }

    fn append(&mut self, addr: u64, len: usize, out: &mut Vec<u8>) -> Result<(), MemoryFault> {
        let Some(src) = HostMemory::own(addr, len) else {
            return append_by_reading(self, addr, len, out);
        };
        // The room is not zeroed first: for a page, that would take as long as the copy.
        out.reserve(len);
        let room = &raw mut out.spare_capacity_mut()[..len];
        // SAFETY: as for `read`; `room` is the vector's own, and written before its length says so.
        unsafe {
            copy::copy_in(src, room as *mut [u8]);
            out.set_len(out.len() + len);
        }
        Ok(())
    }

    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
        match HostMemory::own(addr, src.len()) {
            _ if src.is_empty() => Ok(()),
            Some(dst) => {
                // SAFETY: mapped, and no part of a Rust reference, by the promise made to `new`.
                unsafe { copy::copy_out(src, dst) };
                Ok(())
            }
            None => self.write_elsewhere(addr, src),
        }
    }

    #[inline]
    fn prefetch(&mut self, addr: u64, len: usize) {
        if let Some(to) = HostMemory::own(addr, len) {
            copy::prefetch(to, len);
        }
    }

    fn words(&self, addr: u64, count: u64) -> Option<&[AtomicU64]> {
        let count = usize::try_from(count).ok()?;
        let len = count.checked_mul(size_of::<u64>())?;
        let first = HostMemory::own(addr, len)?.cast::<AtomicU64>();
        // SAFETY: aligned; mapped, and shared with raw pointers and atomics only, by the promise
        // made to `new`, for as long as the memory is borrowed; `own` has found that the range ends
        // within the process's addresses.
        first.is_aligned().then(|| unsafe { slice::from_raw_parts(first, count) })
    }

    /// Refused for files. In the memory of another process it is one step among the accesses of
    /// this card only: no system call reads and writes at once.
    fn compare_swap(&mut self, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault> {
        let Ok(word) = self.word(addr) else {
            return self.change_far(addr, |now| (now == compare).then_some(swap));
        };
        let (done, failed) = (Ordering::AcqRel, Ordering::Acquire);
        Ok(word.compare_exchange(compare, swap, done, failed).unwrap_or_else(|now| now))
    }

    /// As [`HostMemory::compare_swap`].
    fn fetch_add(&mut self, addr: u64, add: u64) -> Result<u64, MemoryFault> {
        let Ok(word) = self.word(addr) else {
            return self.change_far(addr, |now| Some(now.wrapping_add(add)));
        };
        Ok(word.fetch_add(add, Ordering::AcqRel))
    }
}

/// Memory from which bytes can be copied to memory that processes share.
pub trait Gather: Memory {
    /// Copies `len` bytes from bus address `addr` on to the data of `to`, from `at` on.
    ///
    /// # Errors
    /// As for [`Memory::read`]; some bytes may have been copied.
    ///
    /// # Panics
    /// There are no such data in `to`.
    fn read_to_shared(
        &mut self,
        addr: u64,
        len: usize,
        to: &SharedMemory,
        at: usize,
    ) -> Result<(), MemoryFault> {
        let mut bytes = vec![0; len];
        self.read(addr, &mut bytes)?;
        to.write(at, &bytes);
        Ok(())
    }
}

impl Gather for HostMemory {
    #[inline]
    fn read_to_shared(
        &mut self,
        addr: u64,
        len: usize,
        to: &SharedMemory,
        at: usize,
    ) -> Result<(), MemoryFault> {
        let room = to.room(at, len);
        match HostMemory::own(addr, len) {
            _ if len == 0 => Ok(()),
            Some(src) => {
                // SAFETY: the source is mapped by the promise made to `new`, and the room by the
                // mapping that `to` has; no reference to either is made.
                unsafe { copy::copy_in(src, room) };
                Ok(())
            }
            None => {
                let mut bytes = vec![0; len];
                self.read_elsewhere(addr, &mut bytes)?;
                to.write(at, &bytes);
                Ok(())
            }
        }
    }
}

/// Does a bus address name a place in a served file?
pub(crate) fn is_file(addr: u64) -> bool {
    addr & FILE_BIT != 0
}

fn file_number(addr: u64) -> usize {
    ((addr & !FILE_BIT) >> FILE_SHIFT) as usize
}

/// Writes where the file has bytes already. (A file that is cut just after its length was read
/// grows again, to the end of the written bytes.)
fn overwrite(file: &File, offset: u64, src: &[u8]) -> Option<()> {
    if offset + src.len() as u64 > file.metadata().ok()?.len() {
        return None;
    }
    file.write_all_at(src, offset).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn memory() -> HostMemory {
        // SAFETY: the tests reach buffers that live, and addresses that are refused.
        unsafe { HostMemory::new() }
    }

    pub(crate) fn file_of(bytes: &[u8]) -> File {
        // SAFETY: the name ends with a zero byte.
        let fd = unsafe { libc::memfd_create(c"remora-test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was just made, and nothing else owns it.
        let file: File = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    /// Else a client with a lease on a file has the card, and all its programs, wait.
    #[test]
    fn a_file_on_lease_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("remora-lease-{}", std::process::id()));
        std::fs::write(&path, b"leased").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let fd = file.as_raw_fd();
        // The holder is asked by a signal that does nothing; libc lacks this command's number.
        const F_SETSIG: i32 = 10;
        let lease = [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_WRLCK)];
        for (command, argument) in lease {
            // SAFETY: the descriptor is open, and the call reads no memory.
            assert_eq!(unsafe { libc::fcntl(fd, command, argument) }, 0);
        }
        assert_eq!(reopened(file).as_raw_fd(), fd, "it was opened once more");
        let free = file_of(b"free");
        let fd = free.as_raw_fd();
        assert_ne!(reopened(free).as_raw_fd(), fd);
    }

    #[test]
    fn memory_of_the_process() {
        let buffer = Buffer::new(4096).unwrap();
        let mut memory = memory();
        memory.write(buffer.addr() + 3, b"hello").unwrap();
        let mut bytes = [0; 6];
        memory.read(buffer.addr() + 2, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0hello");
        let word = buffer.addr() + 64;
        assert_eq!(memory.fetch_add(word, 5), Ok(0));
        assert_eq!(memory.compare_swap(word, 5, 9), Ok(5));
        assert_eq!(memory.compare_swap(word, 5, 1), Ok(9));
        assert_eq!(buffer.load_u64(64), Ok(9));
        assert_eq!(memory.fetch_add(word + 1, 1), Err(MemoryFault { addr: word + 1 }));
    }

    #[test]
    fn bytes_are_appended_all_or_none() {
        let buffer = Buffer::new(4096).unwrap();
        buffer.write_at(0, &[7; 4096]).unwrap();
        let mut memory = memory();
        let file = memory.add_file(file_of(&[8; 64])).unwrap();
        let mut out = vec![1];
        for (addr, len) in [(buffer.addr() + 3, 4093), (file, 64), (CHECKED | buffer.addr(), 5)] {
            memory.append(addr, len, &mut out).unwrap();
        }
        let expected = [vec![1], vec![7; 4093], vec![8; 64], vec![7; 5]].concat();
        assert!(out == expected);
        // Behind the file, not mapped, and past the last address.
        for addr in [file + 60, CHECKED | 8, u64::MAX - 3] {
            assert!(memory.append(addr, 8, &mut out).is_err(), "{addr:#x}");
            assert!(out == expected);
        }
    }

    #[test]
    fn addresses_to_prefetch_need_not_be_mapped() {
        let buffer = Buffer::new(4096).unwrap();
        buffer.fill(7);
        let mut memory = memory();
        for addr in [buffer.addr() + 1, 0, LOWEST_ADDR, CHECKED | 8, FILE_BIT, u64::MAX - 3] {
            memory.prefetch(addr, 4095);
        }
        let mut bytes = [0; 4096];
        memory.read(buffer.addr(), &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
    }

    #[test]
    fn words_are_lent_of_memory_that_is_mapped() {
        let buffer = Buffer::new(4096).unwrap();
        let mut memory = memory();
        let words = memory.words(buffer.addr() + 8, 511).unwrap();
        words[510].store(7, Ordering::Relaxed);
        assert_eq!(buffer.load_u64(4088), Ok(7));
        assert_eq!(memory.fetch_add(buffer.addr() + 4088, 1), Ok(7));
        let base = memory.add_file(file_of(&[7; 64])).unwrap();
        for addr in [buffer.addr() + 4, CHECKED | buffer.addr(), base, 0, u64::MAX - 7] {
            assert!(memory.words(addr, 8).is_none(), "{addr:#x}");
        }
        assert!(memory.words(buffer.addr(), u64::MAX / 8).is_none());
    }

    #[test]
    fn checked_memory_need_not_be_mapped() {
        let buffer = Buffer::new(8192).unwrap();
        let mut memory = memory();
        let addr = CHECKED | buffer.addr();
        memory.write(addr + 5, b"hello").unwrap();
        let mut bytes = [0; 5];
        memory.read(addr + 5, &mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        assert_eq!(memory.fetch_add(addr + 64, 2), Ok(0));
        assert_eq!(memory.compare_swap(addr + 64, 2, 7), Ok(2));
        for addr in [CHECKED, CHECKED | 4096, CHECKED | (1 << 50)] {
            assert_eq!(memory.read(addr, &mut [0; 8]), Err(MemoryFault { addr }), "{addr:#x}");
            assert_eq!(memory.write(addr, &[0; 8]), Err(MemoryFault { addr }), "{addr:#x}");
            assert_eq!(memory.fetch_add(addr, 1), Err(MemoryFault { addr }), "{addr:#x}");
        }
    }

    #[test]
    fn addresses_that_cannot_be_are_faults() {
        let mut memory = memory();
        for addr in [0, 8, FILE_BIT - 4, FILE_BIT, u64::MAX - 3] {
            assert_eq!(memory.read(addr, &mut [0; 8]), Err(MemoryFault { addr }), "{addr:#x}");
            assert_eq!(memory.write(addr, &[0; 8]), Err(MemoryFault { addr }), "{addr:#x}");
        }
        assert_eq!(memory.read(0, &mut []), Ok(()));
    }

    #[test]
    fn a_file_that_shrinks_makes_a_fault() {
        let file = file_of(&[7; 10_000]);
        let mut memory = memory();
        let base = memory.add_file(file.try_clone().unwrap()).unwrap();
        let mut bytes = [0; 100];
        memory.read(base + 9_900, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 100]);
        memory.write(base + 9_999, b"x").unwrap();
        file.set_len(9_950).unwrap();
        assert_eq!(memory.read(base + 9_900, &mut bytes), Err(MemoryFault { addr: base + 9_900 }));
        assert!(memory.write(base + 9_949, b"xy").is_err());
        assert_eq!(file.metadata().unwrap().len(), 9_950, "a write makes no file longer");
        assert!(memory.fetch_add(base, 1).is_err());
        assert!(memory.compare_swap(base, 0, 1).is_err());
    }

    #[test]
    fn file_numbers_are_used_again() {
        let mut memory = memory();
        let first = memory.add_file(file_of(b"one")).unwrap();
        let second = memory.add_file(file_of(b"two")).unwrap();
        assert_ne!(first, second);
        assert!(memory.remove_file(first).is_some());
        assert!(memory.remove_file(first).is_none());
        assert!(memory.read(first, &mut [0; 3]).is_err());
        assert_eq!(memory.add_file(file_of(b"new")), Ok(first));
        let mut bytes = [0; 3];
        memory.read(second, &mut bytes).unwrap();
        assert_eq!(&bytes, b"two");
    }
}
