//! Memory that clients lend to the card: what the daemon accepts, and how it reaches it. `answers`
//! hands it in, as far as quotas allow.
//!
//! A hostile client may lend anything. What could end the daemon by a signal, or block it, is
//! refused here:
//! - a memory file is mapped only if its length is sealed, and not of huge pages, which may be
//!   missing when they are touched. One that shrinks would end the daemon; one that grows would be
//!   more memory than counts, and that of a kept session outlives its client. (The daemon does not
//!   set the seal itself: it would wait for the client's own long calls on the file.)
//! - other files are read and written by system calls, in which the card stands: only files of file
//!   systems whose server is the kernel, since a client could let a request to its own server wait
//!   for ever. And only the daemon's own user lends such, or a user whom the policy trusts: who has
//!   a file open can make each write wait for its disk (`chattr +S`), or keep it from all others by
//!   one long call;
//! - memory of the client's process is reached by the daemon's rights. So only clients of the same
//!   user may lend it: another user's process could become a privileged one by `exec`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::process::{Resource, getrlimit};
use thiserror::Error;

use super::descriptors::{is_local, is_of_proc};
use super::record::Entry;
use crate::event::Event;
use crate::memory::memfd::{self, MapError};
use crate::memory::{Buffer, FilesFull, HostMemory, Process};
use crate::message::Loan;

/// Memory that a client lends.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) loan: Loan,
    /// The bus address of its first byte.
    base: u64,
    /// Bytes from there on.
    pub(crate) len: u64,
    /// Regions that are in it.
    pub(crate) users: u32,
    /// What is mapped, as long as the loan.
    _mapping: Option<Buffer>,
    /// The file that is mapped, for others to map, if the session has asked for that.
    file: Option<OwnedFd>,
}

/// Why lent memory is refused.
#[derive(Debug, Error)]
pub(crate) enum LentError {
    #[error("this way of lending memory takes one descriptor, or none")]
    Descriptors,
    #[error("only regular files of local file systems can be lent")]
    FileSystem,
    #[error("each write to the file waits for its disk: open it without O_SYNC and O_DSYNC")]
    Synchronous,
    #[error(
        "only processes of the daemon’s own user can lend their memory as it is; of another user’s \
         the daemon takes /proc/self/mem, if its policy says lend_process_memory"
    )]
    OtherUser,
    #[error(
        "the daemon reads and writes files of its own user, and of another only if its policy says \
         lend_files: lend a memory file whose length is sealed"
    )]
    OtherUsersFile,
    #[error("the process that has connected has ended")]
    Ended,
    #[error("the descriptor is none of /proc/self/mem")]
    NotMemory,
    #[error("the memory is empty")]
    Empty,
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Full(#[from] FilesFull),
    #[error("cannot look at the memory: {0}")]
    System(#[from] io::Error),
}

/// Who lends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lender {
    /// The process, as long as it lives.
    pub(crate) pid: Option<i32>,
    pub(crate) uid: u32,
    /// The daemon's policy lets other users lend by `/proc/PID/mem`.
    pub(crate) may_lend_process_file: bool,
    /// It lets them lend files.
    pub(crate) may_lend_files: bool,
}

/// Where the addresses of processes end.
pub(super) const ADDRESSES: u64 = 1 << 47;

impl Lent {
    /// Takes a loan.
    ///
    /// # Errors
    /// See [`LentError`].
    pub(crate) fn take(
        loan: Loan,
        descriptors: Vec<OwnedFd>,
        lender: Lender,
        memory: &mut HostMemory,
    ) -> Result<Lent, LentError> {
        let mut descriptors = descriptors.into_iter();
        let (first, more) = (descriptors.next(), descriptors.next());
        if more.is_some() || first.is_some() == (loan == Loan::Process) {
            return Err(LentError::Descriptors);
        }
        let own_user = rustix::process::geteuid().as_raw() == lender.uid;
        let mut kept = None;
        let (base, len, mapping) = match (loan, first) {
            (Loan::Sealed, Some(file)) => {
                let mapping = map(&file)?;
                kept = Some(file);
                (mapping.addr(), mapping.len() as u64, Some(mapping))
            }
            (Loan::File, Some(_)) if !(own_user || lender.may_lend_files) => {
                return Err(LentError::OtherUsersFile);
            }
            (Loan::File, Some(file)) => {
                let file = local(file)?;
                let len = file.metadata()?.len();
                (memory.add_file(file)?, len, None)
            }
            (Loan::ProcessFile, Some(file)) if own_user || lender.may_lend_process_file => {
                let process = Process::by_file(process_file(file)?);
                (memory.add_process(process)?, ADDRESSES, None)
            }
            (Loan::Process, None) if own_user => {
                let pid = lender.pid.ok_or(LentError::Ended)?;
                (memory.add_process(Process::by_number(pid)?)?, ADDRESSES, None)
            }
            _ => return Err(LentError::OtherUser),
        };
        if len == 0 {
            memory.remove(base);
            return Err(LentError::Empty);
        }
        Ok(Lent { loan, base, len, users: 0, _mapping: mapping, file: kept })
    }

    /// Ends the loan; no region is in it any more. The caller drops it, and with it the mapping,
    /// when the card is free for others: to unmap much takes time.
    pub(crate) fn give_back(&self, memory: &mut HostMemory) {
        if self._mapping.is_none() {
            memory.remove(self.base);
        }
    }

    /// Closes the file that is mapped: nobody else will map it.
    pub(crate) fn close_file(&mut self) {
        self.file = None;
    }

    /// The file that is mapped, for others to map.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Bytes that count for the session's quota: those that the daemon maps, or a file's.
    pub(crate) fn quota_bytes(&self) -> u64 {
        match self.loan {
            Loan::Sealed | Loan::File => self.len,
            Loan::Process | Loan::ProcessFile => 0,
        }
    }

    /// What outlives the daemon: memory that does not end with the client's process.
    pub(crate) fn entry(&self, number: u32) -> Option<Entry> {
        let outlives = matches!(self.loan, Loan::Sealed | Loan::File);
        outlives.then_some(Entry::Lent { number, loan: self.loan })
    }

    /// The bus address of `len` bytes at `offset`, if they are within what is lent.
    pub(crate) fn bus(&self, offset: u64, len: u64) -> Option<u64> {
        (offset.checked_add(len)? <= self.len).then(|| self.base + offset)
    }
}

/// The most loans of all sessions: the system gives a process 65,530 mappings
/// (`vm.max_map_count`), and a daemon that has no more of them can allocate no memory.
pub(crate) const LOANS_MAX: usize = 16_384;

/// What is said where few descriptors are left, of what would take some.
pub(super) const FEW_DESCRIPTORS: &str = "the daemon keeps its last descriptors for other clients: \
    lend memory files, or give the daemon a higher limit (ulimit -n)";

/// Are so few descriptors free that those are for what clients do besides lending?
pub(crate) fn has_few_descriptors() -> bool {
    let limit = getrlimit(Resource::Nofile).current;
    // The system gives out the lowest number that is free.
    match Event::new() {
        Ok(event) => are_few(event.as_fd().as_raw_fd() as u64, limit),
        Err(_) => true,
    }
}

/// Is less than a quarter left, when all below this number are taken?
fn are_few(number: u64, limit: Option<u64>) -> bool {
    limit.is_some_and(|limit| number >= limit - limit / 4)
}

/// Maps a memory file whose length cannot change.
fn map(file: &OwnedFd) -> Result<Buffer, LentError> {
    match usize::try_from(memfd::fixed_len(file.as_fd())?) {
        Ok(len) if len > 0 => Ok(Buffer::map_only(file.as_fd(), 0, len)?),
        _ => Err(LentError::Empty),
    }
}

/// A regular file of a local file system.
pub(super) fn local(file: OwnedFd) -> Result<File, LentError> {
    if !is_local(&file)? {
        return Err(LentError::FileSystem);
    }
    // (O_DSYNC is one of the two bits of O_SYNC. Neither can be set later.)
    if fcntl_getfl(&file).map_err(io::Error::from)?.intersects(OFlags::SYNC) {
        return Err(LentError::Synchronous);
    }
    let file = File::from(file);
    if file.metadata()?.file_type().is_file() { Ok(file) } else { Err(LentError::FileSystem) }
}

/// A file `/proc/PID/mem`, which the kernel alone makes: a regular file of that name.
pub(super) fn process_file(file: OwnedFd) -> Result<File, LentError> {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let is_memory = is_of_proc(&file)? && name.to_str().is_some_and(is_memory_name);
    let file = File::from(file);
    let kind = file.metadata()?.file_type();
    let is_regular = kind.is_file() && !kind.is_fifo();
    if is_memory && is_regular { Ok(file) } else { Err(LentError::NotMemory) }
}

/// Is this `/proc/PID/mem`, or that of a thread?
fn is_memory_name(name: &str) -> bool {
    let mut parts = name.strip_prefix("/proc/").unwrap_or_default().split('/');
    let is_number = |part: Option<&str>| {
        part.is_some_and(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    if !is_number(parts.next()) {
        return false;
    }
    match parts.next() {
        Some("mem") => parts.next().is_none(),
        Some("task") => {
            is_number(parts.next()) && parts.next() == Some("mem") && parts.next().is_none()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;
    use std::os::unix::net::UnixDatagram;

    use remora_nic::Memory;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;
    use crate::memory::tests::memory;

    const LENGTH: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

    fn lender() -> Lender {
        let uid = rustix::process::geteuid().as_raw();
        let (may_lend_process_file, may_lend_files) = (false, false);
        Lender { pid: Some(std::process::id() as i32), uid, may_lend_process_file, may_lend_files }
    }

    fn memory_file(len: u64) -> OwnedFd {
        let file = memfd_create("lent", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }

    #[test]
    fn sealed_memory_is_mapped_and_bounded() {
        let mut memory = memory();
        let file = memory_file(8192);
        let unsealed =
            Lent::take(Loan::Sealed, vec![file.try_clone().unwrap()], lender(), &mut memory);
        assert!(matches!(unsealed, Err(LentError::Map(MapError::NotSealed))));
        fcntl_add_seals(&file, LENGTH).unwrap();
        let lent = Lent::take(Loan::Sealed, vec![file], lender(), &mut memory).unwrap();
        let bus = lent.bus(8184, 8).unwrap();
        assert_eq!(memory.fetch_add(bus, 7), Ok(0), "atomics work");
        assert_eq!(lent.bus(8185, 8), None);
        assert_eq!(lent.bus(u64::MAX, 8), None);
        lent.give_back(&mut memory);
    }

    /// What counts for quotas is all that the file will ever take.
    #[test]
    fn memory_whose_length_may_change_is_refused() {
        let mut memory = memory();
        for seals in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SHRINK | SealFlags::SEAL] {
            let file = memory_file(4096);
            fcntl_add_seals(&file, seals).unwrap();
            let taken = Lent::take(Loan::Sealed, vec![file], lender(), &mut memory);
            assert!(matches!(taken, Err(LentError::Map(MapError::NotSealed))), "{seals:?}");
        }
    }

    #[test]
    fn descriptors_of_wrong_kinds_are_refused() {
        let mut memory = memory();
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let folder = || OwnedFd::from(File::open("/").unwrap());
        let status = || OwnedFd::from(File::open("/proc/self/status").unwrap());
        let pipe = || OwnedFd::from(std::io::pipe().unwrap().0);
        let socket = || OwnedFd::from(UnixDatagram::unbound().unwrap());
        let zero =
            || OwnedFd::from(File::options().read(true).write(true).open("/dev/zero").unwrap());
        let empty = || memory_file(0);
        let kinds: [&dyn Fn() -> OwnedFd; 7] =
            [&null, &zero, &folder, &status, &pipe, &socket, &empty];
        for loan in [Loan::Sealed, Loan::File, Loan::ProcessFile] {
            for (at, make) in kinds.iter().enumerate() {
                let taken = Lent::take(loan, vec![make()], lender(), &mut memory);
                assert!(taken.is_err(), "{loan:?} of kind {at}");
            }
            for descriptors in [vec![], vec![memory_file(64), memory_file(64)]] {
                let taken = Lent::take(loan, descriptors, lender(), &mut memory);
                assert!(matches!(taken, Err(LentError::Descriptors)));
            }
        }
        let taken = Lent::take(Loan::Process, vec![null()], lender(), &mut memory);
        assert!(matches!(taken, Err(LentError::Descriptors)));
    }

    /// Touching them could end the daemon, or writing them would.
    #[test]
    fn huge_pages_and_constant_memory_are_refused() {
        let mut memory = memory();
        let huge = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // A system without huge pages makes no such file.
        if let Ok(file) = memfd_create("huge", huge)
            && ftruncate(&file, 2 << 20).is_ok()
        {
            fcntl_add_seals(&file, LENGTH).unwrap();
            let taken = Lent::take(Loan::Sealed, vec![file], lender(), &mut memory);
            assert!(matches!(taken, Err(LentError::Map(MapError::NotMemory))), "{taken:?}");
        }
        let constant = memory_file(4096);
        fcntl_add_seals(&constant, LENGTH | SealFlags::WRITE).unwrap();
        let taken = Lent::take(Loan::Sealed, vec![constant], lender(), &mut memory);
        assert!(matches!(taken, Err(LentError::Map(MapError::Refused { .. }))), "{taken:?}");
    }

    /// The card stands while it writes.
    #[test]
    fn files_whose_writes_wait_for_a_disk_are_refused() {
        let (mut memory, file) = (memory(), memory_file(4096));
        let same = format!("/proc/self/fd/{}", file.as_raw_fd());
        for (flags, is_lent) in [(0, true), (libc::O_SYNC, false), (libc::O_DSYNC, false)] {
            let opened = File::options().read(true).write(true).custom_flags(flags).open(&same);
            let taken = Lent::take(Loan::File, vec![opened.unwrap().into()], lender(), &mut memory);
            assert_eq!(taken.is_ok(), is_lent, "{flags:#x}: {taken:?}");
        }
    }

    /// Who has a file open can let those wait who read and write it.
    #[test]
    fn files_of_others_are_lent_if_the_policy_says_so() {
        let mut memory = memory();
        let other = Lender { uid: lender().uid + 1, ..lender() };
        let taken = Lent::take(Loan::File, vec![memory_file(4096)], other, &mut memory);
        let refused = taken.unwrap_err().to_string();
        assert!(refused.contains("lend_files") && refused.contains("sealed"), "{refused}");
        let sealed = memory_file(4096);
        fcntl_add_seals(&sealed, LENGTH).unwrap();
        let lent = Lent::take(Loan::Sealed, vec![sealed], other, &mut memory).unwrap();
        lent.give_back(&mut memory);
        for allowed in [lender(), Lender { may_lend_files: true, ..other }] {
            let file = memory_file(4096);
            let lent = Lent::take(Loan::File, vec![file], allowed, &mut memory).unwrap();
            lent.give_back(&mut memory);
        }
    }

    #[test]
    fn processes_of_others_are_not_reached() {
        let mut memory = memory();
        let other = Lender { uid: lender().uid + 1, ..lender() };
        let taken = Lent::take(Loan::Process, vec![], other, &mut memory);
        assert!(matches!(taken, Err(LentError::OtherUser)));
        let own = || OwnedFd::from(File::open("/proc/self/mem").unwrap());
        let taken = Lent::take(Loan::ProcessFile, vec![own()], other, &mut memory);
        assert!(matches!(taken, Err(LentError::OtherUser)));
        let allowed = Lender { may_lend_process_file: true, ..other };
        let word = 7u64;
        for lent in [
            Lent::take(Loan::ProcessFile, vec![own()], allowed, &mut memory).unwrap(),
            Lent::take(Loan::Process, vec![], lender(), &mut memory).unwrap(),
        ] {
            let bus = lent.bus((&raw const word).addr() as u64, 8).unwrap();
            let mut bytes = [0; 8];
            memory.read(bus, &mut bytes).unwrap();
            assert_eq!(u64::from_ne_bytes(bytes), 7);
            lent.give_back(&mut memory);
            assert!(memory.read(bus, &mut bytes).is_err());
        }
    }

    #[test]
    fn names_of_memory_files() {
        for name in ["/proc/12/mem", "/proc/12/task/13/mem"] {
            assert!(is_memory_name(name), "{name}");
        }
        for name in ["/proc/12/maps", "/proc//mem", "/x/proc/12/mem", "/proc/12/task/13/mem/x"] {
            assert!(!is_memory_name(name), "{name}");
        }
    }
}
