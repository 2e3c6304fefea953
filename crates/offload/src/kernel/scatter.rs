//! Granted memory, written in many places.

use remora_nic::Pd;
use remora_nic::kernel::{KernelIo, Writer};

use super::invocation::{granted, refused};
use super::{CallStatus, Grant};

/// Granted memory, for many small writes in a row: a partition's here, another's there.
#[derive(Debug)]
pub struct Scatter<'a> {
    writer: Writer<'a>,
    grants: &'a [Grant],
    /// The grant that was used last.
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

    /// Writes words of 8 bytes to granted memory, each to its address. Others will probably follow
    /// behind each of them soon.
    ///
    /// # Errors
    /// An address was not granted, or cannot be reached: the words before are there, those behind
    /// it were not looked at.
    #[inline(always)]
    pub fn write(
        &mut self,
        mut words: impl Iterator<Item = (u64, [u8; 8])>,
    ) -> Result<(), CallStatus> {
        while let Some((addr, word)) = self.writer.store(&mut words) {
            self.write_one(addr, &word)?;
        }
        Ok(())
    }

    #[cold]
    fn write_one(&mut self, addr: u64, word: &[u8]) -> Result<(), CallStatus> {
        match self.writer.write_open(addr, word) {
            Some(written) => written.map_err(refused),
            None => granted(self.grants, self.hint, true, |key| self.writer.write(key, addr, word)),
        }
    }
}
