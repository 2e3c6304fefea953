//! How the memory of a client comes within reach of the card of another process.
//!
//! Memory of this crate's own is in sealed memory files, which the card's process maps. The
//! program's other memory is reached by system calls (`process_vm_readv`), which have no atomics.
//! Where peers may use atomics, or the memory is to outlive the program, it is converted, if that
//! is safe (`convert`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use remora_nic::{Access, RegMrError};

use super::convert::{convert, is_mapped};
use super::session::Session;
use super::ways::{Owner, Way, Ways};
use crate::commands::{Bytes, Place};
use crate::memory::{Buffer, memfd};
use crate::message::Loan;
use crate::shared::{Arena, Gates};

/// What a client has lent.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// The numbers under which the whole process is lent.
    processes: BTreeMap<Way, u32>,
    /// The ways that may be used.
    ways: Ways,
    /// What is mapped of memory files, by the address at which this process has it.
    files: BTreeMap<u64, Mapped>,
    /// Those addresses where a file took the place of the program's memory. The program may have
    /// unmapped it.
    converted: BTreeSet<u64>,
    /// The numbers of files that are used no more here, while the card still has regions in them.
    left: Vec<u32>,
    /// The least bytes of memory that the daemon has refused since something was taken back: it
    /// has a bound, and to ask again for each region costs time.
    refused: Option<u64>,
    /// The session outlives this process, and so must its memory.
    is_kept: bool,
    /// The program was told that some memory of a kept session ends with it, or that some is out of
    /// the daemon's reach.
    has_warned: bool,
    /// By which others write and read what is in memory files themselves.
    gates: Shared,
}

/// Bytes that are a mapping of a lent file.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    len: u64,
    /// Where in the file they begin.
    offset: u64,
    loan: LentFile,
}

/// A file that the daemon has mapped.
#[derive(Clone, Copy, Debug)]
struct LentFile {
    /// The number of the loan.
    number: u32,
    /// The file's device and its number there.
    device: u64,
    inode: u64,
    /// Its length.
    len: u64,
}

/// Are there gates for others to reach this process's memory?
#[derive(Debug, Default)]
enum Shared {
    /// There shall be none.
    #[default]
    Never,
    /// There will be when something is lent.
    Later,
    /// There are.
    By(Gates),
}

impl Loans {
    /// Nothing is lent, by a session that may outlive this process.
    /// `shares`: others may be let at memory files without the card.
    pub(super) fn new(ways: Ways, is_kept: bool, shares: bool) -> Loans {
        let gates = if shares { Shared::Later } else { Shared::Never };
        Loans { ways, is_kept, gates, ..Loans::default() }
    }

    /// Tells the daemon, before something is lent for the first time, by which gates others may
    /// reach it.
    fn share_gates(&mut self, session: &mut Session) {
        if !matches!(self.gates, Shared::Later) {
            return;
        }
        self.gates = match Gates::create() {
            Ok((gates, file)) if session.share_gates(file.as_fd()) => Shared::By(gates),
            Ok(_) => Shared::Never,
            Err(error) => {
                tracing::debug!(%error, "other processes reach this one’s memory by the card only");
                Shared::Never
            }
        };
    }

    /// Waits until nobody is within the memory of this process by a gate that was shut before.
    pub(super) fn settle(&mut self) {
        if let Shared::By(gates) = &mut self.gates {
            gates.wait();
        }
    }

    /// Is a process stopped within the memory of this one, by a gate that was shut?
    pub(super) fn has_stopped(&self) -> bool {
        matches!(&self.gates, Shared::By(gates) if gates.has_stopped())
    }

    /// The daemon has gone: nobody reaches the memory of this process any more.
    pub(super) fn shut(&mut self) {
        if let Shared::By(gates) = &self.gates {
            gates.shut_all();
            self.settle();
        }
        self.gates = Shared::Never;
    }

    /// Turns a buffer, which nobody writes meanwhile, into memory that the card's process maps,
    /// too; what is a mapping of a file already stays one, for all who have it mapped. Where that
    /// cannot be, the card reaches it like other memory.
    pub(super) fn share(&mut self, session: &mut Session, buffer: &mut Buffer) {
        self.share_gates(session);
        let (addr, len) = (buffer.addr(), buffer.len() as u64);
        if let Some((file, offset)) = buffer.file() {
            if let Some(loan) = self.lend(session, file, offset + len) {
                self.files.insert(addr, Mapped { len, offset, loan });
            }
            return;
        }
        // Part of another buffer shares its pages with bytes that others may write now.
        if !buffer.is_mapping() || self.is_refused(len) {
            return;
        }
        let lent = memfd::sealed("remora-region", len).and_then(|file| {
            buffer.move_to(file.as_fd())?;
            Ok(lend(session, file.as_fd()))
        });
        match lent {
            Ok(Some(loan)) => {
                self.files.insert(addr, Mapped { len, offset: 0, loan });
            }
            Ok(None) => self.note_refusal(len),
            Err(error) => tracing::debug!(%error, len, "memory is not shared with the card"),
        }
    }

    /// Lends a file of which `end` bytes are needed. All mappings of a file share one loan, which
    /// counts for the session's quotas.
    fn lend(&self, session: &mut Session, file: BorrowedFd<'_>, end: u64) -> Option<LentFile> {
        let about = rustix::fs::fstat(file).ok()?;
        let is_same = |loan: &LentFile| (loan.device, loan.inode) == (about.st_dev, about.st_ino);
        let mut lent = self.files.values().map(|mapped| mapped.loan);
        let known = lent.find(|loan| is_same(loan) && end <= loan.len);
        known.or_else(|| lend(session, file))
    }

    /// Ends the loan of a buffer that [`Loans::share`] has shared, if it did and no other mapping
    /// of the file is lent.
    pub(super) fn end(&mut self, session: &mut Session, addr: u64) {
        let Some(Mapped { loan: LentFile { number, .. }, .. }) = self.files.remove(&addr) else {
            return;
        };
        let is_used = self.files.values().any(|mapped| mapped.loan.number == number);
        if !is_used {
            self.refused = None;
            if !session.take_back(number) {
                self.left.push(number);
            }
        }
    }

    /// Would so much memory be refused as it was before?
    fn is_refused(&self, len: u64) -> bool {
        self.refused.is_some_and(|least| least <= len)
    }

    fn note_refusal(&mut self, len: u64) {
        self.refused = Some(self.refused.map_or(len, |least| least.min(len)));
    }

    /// This is a forked child now: what was lent of the process is its parent's memory, and what
    /// was converted is private here. (Other memory files are shared with the parent.)
    pub(super) fn fork(&mut self) {
        self.processes.clear();
        self.left.clear();
        self.gates = Shared::Never;
        for start in std::mem::take(&mut self.converted) {
            self.files.remove(&start);
        }
    }

    /// The bytes as the card's process can reach them.
    pub(super) fn reach(
        &mut self,
        session: &mut Session,
        arena: &Arena,
        bytes: Bytes,
        access: Access,
    ) -> Result<Bytes, RegMrError> {
        let place = match bytes.place {
            Place::Process(addr) => {
                self.forget_unmapped(session);
                let ways = self.ways.of(access, self.is_kept, session.owner());
                match self.shared(arena, addr, bytes.len) {
                    Some(place) => place,
                    None => self.by(session, arena, (addr, bytes.len), &ways)?,
                }
            }
            Place::Checked(addr) => {
                let mut ways = self.ways.of(Access::empty(), false, session.owner());
                // What need not be mapped cannot be converted.
                ways.retain(|way| *way != Way::Convert);
                self.by(session, arena, (addr, bytes.len), &ways)?
            }
            other => other,
        };
        Ok(Bytes { place, ..bytes })
    }

    /// Memory that both processes have mapped.
    fn shared(&self, arena: &Arena, addr: u64, len: u64) -> Option<Place> {
        let within = |start: u64, size: u64| {
            let offset = addr.checked_sub(start)?;
            (offset.checked_add(len)? <= size).then_some(offset)
        };
        let memory = arena.memory();
        if let Some(offset) = within(memory.addr(), memory.len() as u64) {
            return Some(Place::Arena(offset));
        }
        let (start, mapped) = self.files.range(..=addr).next_back()?;
        let offset = mapped.offset + within(*start, mapped.len)?;
        Some(Place::Lent { number: mapped.loan.number, offset })
    }

    /// Has the card's process map memory of the program, if it is private and that is safe.
    fn convert(&mut self, session: &mut Session, arena: &Arena, addr: u64, len: u64) {
        if self.shared(arena, addr, len).is_some() || self.is_refused(len) {
            return;
        }
        self.share_gates(session);
        match convert(addr, len) {
            Ok(Some(made)) => {
                if let Some(loan) = lend(session, made.file.as_fd()) {
                    self.files.insert(made.start, Mapped { len: made.len, offset: 0, loan });
                    self.converted.insert(made.start);
                } else {
                    self.note_refusal(len);
                }
            }
            Ok(None) => tracing::info!(
                "atomics on this memory are such among the card’s own accesses only, and it ends \
                 with this process: it cannot be shared with the card’s process, since it is no \
                 ordinary private memory, or other threads run and the system permits no \
                 userfaultfd"
            ),
            Err(error) => tracing::warn!(%error, "memory is not shared with the card’s process"),
        }
    }

    /// Says once that memory of a session that is kept ends with this process.
    fn warn_if_kept(&mut self) {
        if self.is_kept && !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                "memory of this kept session ends with this process: the card reaches it by system \
                 calls, since it cannot be shared with the card’s process (remora nic status shows \
                 how much; REMORA_MEMORY=convert has such memory refused)"
            );
        }
    }

    /// Forgets converted memory that the program has unmapped, and takes it back from the card, as
    /// soon as no region is in it.
    pub(super) fn forget_unmapped(&mut self, session: &mut Session) {
        if self.converted.is_empty() && self.left.is_empty() {
            return;
        }
        let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
        let (files, left) = (&mut self.files, &mut self.left);
        self.converted.retain(|start| {
            let Some(Mapped { len, loan, .. }) = files.get(start).copied() else { return false };
            let is_there = is_mapped(&maps, loan.inode, *start, *start + len);
            if !is_there {
                files.remove(start);
                left.push(loan.number);
            }
            is_there
        });
        let before = left.len();
        left.retain(|number| !session.take_back(*number));
        if left.len() < before {
            self.refused = None;
        }
    }

    /// Any memory of this process.
    fn by(
        &mut self,
        session: &mut Session,
        arena: &Arena,
        (addr, len): (u64, u64),
        ways: &[Way],
    ) -> Result<Place, RegMrError> {
        for way in ways {
            let place = match way {
                Way::Convert => {
                    self.convert(session, arena, addr, len);
                    self.shared(arena, addr, len)
                }
                Way::ProcessVm | Way::ProcMem => {
                    let number = self.processes.get(way).copied();
                    let number = number.or_else(|| lend_process(session, *way));
                    number.map(|number| {
                        self.warn_if_kept();
                        self.processes.insert(*way, number);
                        Place::Lent { number, offset: addr }
                    })
                }
            };
            if let Some(place) = place {
                return Ok(place);
            }
        }
        if session.over().is_some() {
            return Err(RegMrError::Gone);
        }
        if session.owner() == Owner::Other && !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                "the card’s process, which is another user’s, does not reach memory that cannot be \
                 shared with it; REMORA_MEMORY=convert,proc_mem lets it read and write all memory \
                 of this process, if its policy says lend_process_memory"
            );
        }
        Err(RegMrError::Place)
    }
}

/// Lends a memory file; `None` if the daemon refuses.
fn lend(session: &mut Session, file: BorrowedFd<'_>) -> Option<LentFile> {
    let about = rustix::fs::fstat(file).ok()?;
    let number = session.lend(Loan::Sealed, Some(file))?;
    let len = u64::try_from(about.st_size).ok()?;
    Some(LentFile { number, device: about.st_dev, inode: about.st_ino, len })
}

/// Lends all memory of this process, to be reached by system calls; `None` if the daemon refuses.
fn lend_process(session: &mut Session, way: Way) -> Option<u32> {
    if way == Way::ProcessVm {
        admit(session.daemon());
        return session.lend(Loan::Process, None);
    }
    let file = File::options().read(true).write(true).open("/proc/self/mem");
    let file = file.inspect_err(|error| tracing::warn!(%error, "/proc/self/mem")).ok()?;
    session.lend(Loan::ProcessFile, Some(file.as_fd()))
}

/// Lets a process at this one's memory where the system lets only its ancestors (Yama).
fn admit(process: Option<i32>) {
    let Some(pid) = process else { return };
    // SAFETY: the call takes numbers only. Where the system has no such restriction, it fails, and
    // nothing is lost.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, pid as libc::c_ulong, 0, 0, 0) };
}
