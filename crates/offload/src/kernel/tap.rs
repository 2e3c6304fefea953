//! Kernels bound to streams of WRITEs: a bump in the wire (StRoM §3.2). The card hands them payload
//! in `qp/kernel.rs` of `remora-nic`, by way of `executor`.

use remora_nic::Pd;
use remora_nic::kernel::KernelIo;

use super::caught::caught;
use super::grant::{Grant, granted, refused};
use super::{CallStatus, Passing, Scatter, Verdict};

/// A kernel that sees the payload of WRITEs as it passes. Its work must be bounded by the
/// payload's length, and it keeps no reference to the payload. One that panics is stopped with
/// [`CallStatus::TRAP`].
pub trait Tap: Send {
    /// Handles payload that arrives: each byte of each message once, in order. `replaced` holds
    /// what is written if the verdict is [`Verdict::Replace`].
    fn receiving(
        &mut self,
        io: &mut TapIo<'_, '_>,
        passing: &Passing,
        bytes: &[u8],
        replaced: &mut Vec<u8>,
    ) -> Verdict {
        let _ = (io, passing, bytes, replaced);
        Verdict::Pass
    }

    /// Handles payload that is sent, and may change it. If [`Passing::again`], the payload is sent
    /// again and must be changed in the same way as before.
    fn sending(&mut self, passing: &Passing, bytes: &mut [u8]) {
        let _ = (passing, bytes);
    }

    /// A queue pair has ended, perhaps within a message: no more of its payload comes.
    fn closed(&mut self, qpn: u32) {
        let _ = qpn;
    }

    /// The error that stopped the kernel, if one did. From then on all payload passes unseen and
    /// unchanged, so that no WRITE is lost.
    fn failed(&self) -> Option<CallStatus> {
        None
    }
}

/// The memory that a [`Tap`] may use.
pub struct TapIo<'a, 'b> {
    pub(super) io: &'a mut KernelIo<'b>,
    pub(super) grants: &'a [Grant],
    pub(super) pd: Pd,
    pub(super) hint: usize,
}

impl TapIo<'_, '_> {
    /// Reads granted memory.
    ///
    /// # Errors
    /// The address was not granted, or cannot be reached.
    pub fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), CallStatus> {
        let (io, pd) = (&mut *self.io, self.pd);
        granted(self.grants, &mut self.hint, false, |key| io.read((key, pd), addr, dst))
    }

    /// Writes granted memory.
    ///
    /// # Errors
    /// The address was not granted, or cannot be reached.
    pub fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), CallStatus> {
        let (io, pd) = (&mut *self.io, self.pd);
        granted(self.grants, &mut self.hint, true, |key| io.write((key, pd), addr, src))
    }
}

impl TapIo<'_, '_> {
    /// Access to granted memory for many small writes in a row.
    pub fn scatter(&mut self) -> Scatter<'_> {
        Scatter::new(self.io, self.pd, self.grants, &mut self.hint)
    }

    /// Writes with the key of the passing WRITE, as its peer may.
    ///
    /// # Errors
    /// The memory cannot be reached.
    pub fn write_through(
        &mut self,
        passing: &Passing,
        addr: u64,
        src: &[u8],
    ) -> Result<(), CallStatus> {
        self.io.write_for_peer(passing, addr, src).map_err(refused)
    }
}

impl core::fmt::Debug for TapIo<'_, '_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TapIo").field("grants", &self.grants).finish_non_exhaustive()
    }
}

/// A bound kernel's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TapInfo {
    /// The payloads that it has seen, usually one for each packet.
    pub payloads: u64,
    /// The error that stopped it, if one did.
    pub stopped: Option<CallStatus>,
}

/// A bound kernel.
pub(super) struct Bound {
    pub(super) tap: Box<dyn Tap>,
    pub(super) grants: Vec<Grant>,
    pub(super) info: TapInfo,
}

impl Bound {
    pub(super) fn new(grants: Vec<Grant>, tap: Box<dyn Tap>) -> Bound {
        Bound { tap, grants, info: TapInfo::default() }
    }

    /// Lets the kernel look at a payload. If it fails, it is stopped, and by a panic there is no
    /// result.
    pub(super) fn look<R>(&mut self, look: impl FnOnce(&mut dyn Tap, &[Grant]) -> R) -> Option<R> {
        self.info.payloads += 1;
        let Bound { tap, grants, .. } = self;
        let seen = caught(|| (look(&mut **tap, grants), tap.failed()));
        self.info.stopped = seen.as_ref().map_or(Some(CallStatus::TRAP), |(_, failed)| *failed);
        seen.map(|(result, _)| result)
    }

    /// A queue pair has ended. Returns whether the kernel stopped at that.
    pub(super) fn closed(&mut self, qpn: u32) -> bool {
        let panicked = caught(|| self.tap.closed(qpn)).is_none();
        if panicked {
            self.info.stopped = Some(CallStatus::TRAP);
        }
        panicked
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.info.stopped.is_some()
    }
}

impl core::fmt::Debug for Bound {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bound").field("grants", &self.grants).finish_non_exhaustive()
    }
}
