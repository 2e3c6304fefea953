//! Many small writes in a row, as a shuffle makes them.

use super::io::local;
use crate::card::write_region;
use crate::memory::Memory;
use crate::memory::region::{Access, AccessError, Key, Opened, Pd, Regions};

/// Writes memory of a protection domain, as [`super::KernelIo::write`] does, many times in a row.
///
/// The region that was written last stays open: the card is lent for as long as this lives, so that
/// no region can go, or change, meanwhile. What the next lending finds is looked up again.
pub struct Writer<'a> {
    regions: &'a Regions,
    mem: &'a mut dyn Memory,
    pd: Pd,
    last: Option<Opened>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(regions: &'a Regions, mem: &'a mut dyn Memory, pd: Pd) -> Writer<'a> {
        Writer { regions, mem, pd, last: None }
    }

    /// Writes through a key, whose region is the last one from here on.
    ///
    /// # Errors
    /// The key opens nothing that may be written there, or the memory cannot be reached.
    pub fn write(&mut self, key: Key, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        let need = Access::LOCAL_WRITE;
        write_region(self.regions, self.mem, (key, local(self.pd)), addr, src, need)?;
        self.last = self.regions.open(key, self.pd, need);
        Ok(())
    }

    /// Writes into the last region; `None` if the bytes do not all lie there. `more` bytes behind
    /// will probably be written soon, and their memory may be fetched meanwhile.
    ///
    /// # Errors
    /// The memory cannot be reached.
    #[inline(always)]
    pub fn write_on(
        &mut self,
        addr: u64,
        src: &[u8],
        more: usize,
    ) -> Option<Result<(), AccessError>> {
        let last = self.last?;
        let to = last.bus(addr, src.len())?;
        let written = self.mem.write(to, src);
        if let Some(behind) = last.bus(addr.wrapping_add(src.len() as u64), more) {
            self.mem.prefetch(behind, more);
        }
        Some(written.map_err(|_| AccessError::Memory))
    }
}

impl core::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Writer").field("pd", &self.pd).finish_non_exhaustive()
    }
}
