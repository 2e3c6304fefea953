//! Memory that processes share: files of memory whose length is sealed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, ftruncate, memfd_create,
};
use thiserror::Error;

/// The file system of memory in ordinary pages, as `statfs(2)` names it.
const TMPFS: i64 = 0x0102_1994;

/// Why a file cannot be mapped as shared memory.
#[derive(Debug, Error)]
pub enum MapError {
    /// The descriptor is not of memory in ordinary pages.
    #[error(
        "this descriptor is not of shared memory: pass one that memfd_create made, without \
         MFD_HUGETLB"
    )]
    NotMemory,
    /// The file may be cut while it is mapped, which would end the process that touches it, or grow
    /// where its length counts.
    #[error(
        "the length of this memory may change while it is mapped: seal it first \
         (F_SEAL_SHRINK and F_SEAL_GROW)"
    )]
    NotSealed,
    /// The file is shorter than what is to be mapped.
    #[error("bytes {offset} to {end} are not within shared memory of {len} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// The byte behind the last.
        end: u64,
        /// Length of the file.
        len: u64,
    },
    /// The system does not map it.
    #[error("cannot map {len} bytes of shared memory: {source}")]
    Refused {
        /// Bytes asked for.
        len: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The system does not tell about it.
    #[error("cannot examine shared memory: {0}")]
    System(#[from] io::Error),
}

/// A file of `len` bytes of zeroes in memory, whose length can never change. `name` appears behind
/// `memfd:` in `/proc/PID/maps`.
///
/// # Errors
/// The process has too many open files, or the length exceeds its limit of file sizes.
pub fn sealed(name: &str, len: u64) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len)?;
    fcntl_add_seals(&file, FIXED | SealFlags::SEAL)?;
    Ok(file)
}

/// A file in memory with these bytes, which nobody can change.
///
/// # Errors
/// The process has too many open files.
pub(crate) fn constant(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::io::pwrite(&file, bytes, 0)?;
    fcntl_add_seals(&file, CONSTANT | SealFlags::SEAL)?;
    Ok(file)
}

/// The bytes of a file that [`constant`] has made, of which `max` at most are expected.
///
/// # Errors
/// It is no such file, or longer.
pub(crate) fn read_constant(file: BorrowedFd<'_>, max: usize) -> io::Result<Vec<u8>> {
    // Only a file of memory has seals, so that reading it waits for nobody.
    if !fcntl_get_seals(file)?.contains(CONSTANT) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let len = usize::try_from(fstat(file)?.st_size).ok().filter(|len| *len <= max);
    let mut bytes = vec![0; len.ok_or(io::ErrorKind::InvalidInput)?];
    let read = rustix::io::pread(file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// What keeps a file as long as it is.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// What keeps a file as it is.
const CONSTANT: SealFlags = FIXED.union(SealFlags::WRITE);

/// Gives pages of a file of memory back to the system: they read as zeroes.
///
/// # Errors
/// The file is none of memory.
pub(crate) fn punch(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, offset, len)?)
}

/// May these bytes of a file be mapped? Only where touching them cannot end the process.
pub(crate) fn check(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), MapError> {
    let size = sealed_len(file)?;
    let about = fstatfs(file).map_err(io::Error::from)?;
    // (The field's type differs from one processor to another.)
    #[allow(clippy::unnecessary_cast)]
    if about.f_type as i64 != TMPFS {
        return Err(MapError::NotMemory);
    }
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        end => Err(MapError::OutOfRange { offset, end: end.unwrap_or(u64::MAX), len: size }),
    }
}

/// The length of a file in memory that cannot shrink, in bytes.
///
/// # Errors
/// It is another file, of whose server nothing was asked, or its length is not sealed.
pub(crate) fn sealed_len(file: BorrowedFd<'_>) -> Result<u64, MapError> {
    len_behind(file, SealFlags::SHRINK)
}

/// The length of a file in memory that can never change, in bytes.
///
/// # Errors
/// As [`sealed_len`].
pub(crate) fn fixed_len(file: BorrowedFd<'_>) -> Result<u64, MapError> {
    len_behind(file, FIXED)
}

fn len_behind(file: BorrowedFd<'_>, seals: SealFlags) -> Result<u64, MapError> {
    let found = fcntl_get_seals(file).map_err(|_| MapError::NotMemory)?;
    if !found.contains(seals) {
        return Err(MapError::NotSealed);
    }
    Ok(len_of(file)?)
}

/// The length of a file in bytes.
pub(crate) fn len_of(file: impl AsFd) -> io::Result<u64> {
    Ok(u64::try_from(fstat(file)?.st_size).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::Buffer;
    use super::*;

    #[test]
    fn two_mappings_are_one_memory() {
        let file = sealed("remora-test", 12_288).unwrap();
        let whole = Buffer::map(file.as_fd(), 0, 12_288).unwrap();
        let part = Buffer::map(file.as_fd(), 4096, 4096).unwrap();
        whole.write_at(4100, b"shared").unwrap();
        let mut bytes = [0; 6];
        part.read_at(4, &mut bytes).unwrap();
        assert_eq!(&bytes, b"shared");
        assert!(ftruncate(&file, 0).is_err(), "the length is sealed");
    }

    #[test]
    fn what_could_end_the_process_is_refused() {
        let file = sealed("remora-test", 4096).unwrap();
        let beyond = Buffer::map(file.as_fd(), 0, 4097);
        assert!(matches!(beyond, Err(MapError::OutOfRange { len: 4096, .. })), "{beyond:?}");
        assert!(Buffer::map(file.as_fd(), u64::MAX, 2).is_err());
        assert!(matches!(Buffer::map(file.as_fd(), 7, 8), Err(MapError::Refused { .. })));
        let open = memfd_create("remora-test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert!(matches!(Buffer::map(open.as_fd(), 0, 4096), Err(MapError::NotSealed)));
        let (pipe, _other) = io::pipe().unwrap();
        assert!(matches!(Buffer::map(pipe.as_fd(), 0, 1), Err(MapError::NotMemory)));
        let directory = std::fs::File::open("/").unwrap();
        assert!(matches!(Buffer::map(directory.as_fd(), 0, 1), Err(MapError::NotMemory)));
    }
}
