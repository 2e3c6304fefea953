//! [`Env`]: everything outside a queue pair that it needs to act, lent for one call.

use crate::card::Card;
use crate::kernel::{KernelIo, Kernels, Runner};
use crate::memory::Memory;
use crate::memory::key::{Access, AccessError, Scope};
use crate::time::Time;

/// The time, the memory, the card's shared state, and its kernels.
pub(crate) struct Env<'a> {
    pub(crate) now: Time,
    pub(crate) mem: &'a mut dyn Memory,
    pub(crate) card: &'a mut Card,
    pub(crate) kernels: &'a mut Runner,
}

impl Env<'_> {
    /// Lets the card's kernels act; `None` if it has none.
    #[inline]
    pub(crate) fn with_kernels<R>(
        &mut self,
        act: impl FnOnce(&mut dyn Kernels, &mut KernelIo<'_>) -> R,
    ) -> Option<R> {
        let (kernels, io) = self.lend();
        kernels.act(io, act)
    }

    /// The runner of the card's kernels, and the card as it is lent to them.
    #[inline]
    pub(crate) fn lend(&mut self) -> (&mut Runner, KernelIo<'_>) {
        (self.kernels, KernelIo { now: self.now, mem: &mut *self.mem, card: &mut *self.card })
    }

    /// Writes `bytes` through a key, in the order of rising addresses.
    #[inline]
    pub(crate) fn write_region(
        &mut self,
        key: (u32, Scope),
        addr: u64,
        bytes: &[u8],
        need: Access,
    ) -> Result<(), AccessError> {
        self.card.regions.write(self.mem, key, addr, bytes, need)
    }

    /// Reads through a key into `bytes`.
    #[inline]
    pub(crate) fn read_region(
        &mut self,
        key: (u32, Scope),
        addr: u64,
        bytes: &mut [u8],
        need: Access,
    ) -> Result<(), AccessError> {
        self.card.regions.read(self.mem, key, addr, bytes, need)
    }

    /// Announces that bytes will soon be written through a key, so that the processor can fetch
    /// their memory meanwhile.
    #[inline]
    pub(crate) fn prefetch(&mut self, key: (u32, Scope), addr: u64, len: u32, need: Access) {
        self.card.regions.prefetch(self.mem, key, addr, len, need);
    }
}
