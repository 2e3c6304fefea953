//! Kernels bound to streams: a bump in the wire (StRoM §3.4).

use remora_nic::Pd;
use remora_nic::kernel::KernelIo;

use super::grant::{Grant, granted, refused};
use super::{CallStatus, Passing, Scatter, Verdict};

/// A kernel that sees the payload of WRITEs as it passes. Its work is bounded by the payload's
/// length; it keeps no reference to it.
pub trait Tap: Send {
    /// Payload arrives: each byte of each message once, in order.
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

    /// Payload leaves, and may be changed; if [`Passing::again`], it did before, and must be
    /// changed the same way.
    fn sending(&mut self, passing: &Passing, bytes: &mut [u8]) {
        let _ = (passing, bytes);
    }

    /// Why it has failed, if it has. It is stopped then: from here on all payload passes unseen and
    /// unchanged, so that no WRITE comes to harm.
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
    /// Granted memory, for many small writes in a row.
    pub fn scatter(&mut self) -> Scatter<'_> {
        Scatter::new(self.io, self.pd, self.grants, &mut self.hint)
    }

    /// Writes through the key of the WRITE that passes, whose range was judged for the peer.
    ///
    /// # Errors
    /// The memory cannot be reached.
    pub fn write_through(&mut self, key: u32, addr: u64, src: &[u8]) -> Result<(), CallStatus> {
        self.io.write((key, self.pd), addr, src).map_err(refused)
    }
}

impl core::fmt::Debug for TapIo<'_, '_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TapIo").field("grants", &self.grants).finish_non_exhaustive()
    }
}

/// A bound kernel, as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TapInfo {
    /// Payloads that it has seen: packets, as a rule.
    pub payloads: u64,
    /// Why it was stopped, if it was.
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

    /// It has seen a payload. Returns whether it was stopped by that.
    pub(super) fn saw(&mut self) -> bool {
        self.info.payloads += 1;
        self.info.stopped = self.tap.failed();
        self.info.stopped.is_some()
    }
}

impl core::fmt::Debug for Bound {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bound").field("grants", &self.grants).finish_non_exhaustive()
    }
}
