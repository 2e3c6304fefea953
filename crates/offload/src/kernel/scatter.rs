//! Writing granted memory in many places.

use remora_nic::Pd;
use remora_nic::kernel::{KernelIo, Writer};

use super::CallStatus;
use super::grant::{Grant, granted, refused};

/// Granted memory for many small writes in a row, in different places.
#[derive(Debug)]
pub struct Scatter<'a> {
    writer: Writer<'a>,
    grants: &'a [Grant],
    /// The index of the grant that was used last.
    hint: &'a mut usize,
}

impl<'a> Scatter<'a> {
    pub(super) fn new(
        io: &'a mut KernelIo<'_>,
        pd: Pd,
        grants: &'a [Grant],
        hint: &'a mut usize,
    ) -> Scatter<'a> {
        let keys = grants.iter().filter(|grant| grant.write).map(|grant| grant.key);
        Scatter { writer: io.writer(pd, keys), grants, hint }
    }

    /// Stores 8-byte words in granted memory, each at its address. Stops at the first word that
    /// needs more than a store, and returns it; see [`Writer::store`]. The card expects further
    /// words behind each of these addresses soon.
    #[inline(always)]
    pub fn store(
        &mut self,
        words: &mut impl Iterator<Item = (u64, [u8; 8])>,
    ) -> Option<(u64, [u8; 8])> {
        self.writer.store(words)
    }

    /// Writes granted memory.
    ///
    /// # Errors
    /// The address was not granted, or cannot be reached.
    pub fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), CallStatus> {
        match self.writer.write_open(addr, src) {
            Some(written) => written.map_err(refused),
            None => granted(self.grants, self.hint, true, |key| self.writer.write(key, addr, src)),
        }
    }
}
