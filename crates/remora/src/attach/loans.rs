//! How the memory of a client comes within reach of the card of another process.
//!
//! Memory of this crate's own is in sealed memory files, which the card's process maps. The
//! program's other memory is reached by system calls (`process_vm_readv`), which have no atomics.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use remora_nic::RegMrError;

use super::session::Session;
use crate::commands::{Bytes, Place};
use crate::memory::{Buffer, memfd};
use crate::message::Loan;
use crate::shared::Arena;

/// What a client has lent.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// The number under which the whole process is lent.
    process: Option<u32>,
    /// Memory files, by the address at which this process has them: their length and number.
    files: BTreeMap<u64, (u64, u32)>,
}

impl Loans {
    /// Turns a buffer, which nobody writes meanwhile, into memory that the card's process maps,
    /// too. Where that cannot be, the card reaches it like other memory.
    pub(super) fn share(&mut self, session: &mut Session, buffer: &mut Buffer) {
        let len = buffer.len();
        let lent = memfd::sealed("remora-region", len as u64).and_then(|file| {
            buffer.move_to(file.as_fd())?;
            Ok(session.lend(Loan::Sealed, Some(file.as_fd())))
        });
        match lent {
            Ok(Some(number)) => {
                self.files.insert(buffer.addr(), (len as u64, number));
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, len, "memory is not shared with the card"),
        }
    }

    /// Ends the loan of a buffer that [`Loans::share`] has shared, if it did.
    pub(super) fn end(&mut self, session: &mut Session, addr: u64) {
        if let Some((_, number)) = self.files.remove(&addr) {
            session.take_back(number);
        }
    }

    /// The bytes as the card's process can reach them.
    pub(super) fn reach(
        &mut self,
        session: &mut Session,
        arena: &Arena,
        bytes: Bytes,
    ) -> Result<Bytes, RegMrError> {
        let place = match bytes.place {
            Place::Process(addr) => match self.shared(arena, addr, bytes.len) {
                Some(place) => place,
                None => self.by_calls(session, addr)?,
            },
            Place::Checked(addr) => self.by_calls(session, addr)?,
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
        let (start, (size, number)) = self.files.range(..=addr).next_back()?;
        let offset = within(*start, *size)?;
        Some(Place::Lent { number: *number, offset })
    }

    /// Any memory of this process.
    fn by_calls(&mut self, session: &mut Session, addr: u64) -> Result<Place, RegMrError> {
        let number = match self.process {
            Some(number) => number,
            None => {
                admit(session.daemon());
                let lent = session.lend(Loan::Process, None);
                let refused = || match session.over() {
                    Some(_) => RegMrError::Gone,
                    None => RegMrError::Place,
                };
                *self.process.insert(lent.ok_or_else(refused)?)
            }
        };
        Ok(Place::Lent { number, offset: addr })
    }
}

/// Lets a process at this one's memory where the system lets only its ancestors (Yama).
fn admit(process: Option<i32>) {
    let Some(pid) = process else { return };
    // SAFETY: the call takes numbers only. Where the system has no such restriction, it fails, and
    // nothing is lost.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, pid as libc::c_ulong, 0, 0, 0) };
}
