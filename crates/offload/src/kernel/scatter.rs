//! Granted memory, written in many places.

use remora_nic::kernel::Writer;

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
    pub(super) fn new(writer: Writer<'a>, grants: &'a [Grant], hint: &'a mut usize) -> Scatter<'a> {
        Scatter { writer, grants, hint }
    }

    /// Writes granted memory. `more` bytes behind will probably be written soon (zero if not), and
    /// are fetched meanwhile: such places miss every cache, and a store that misses holds up those
    /// behind it.
    ///
    /// # Errors
    /// The address was not granted, or cannot be reached.
    #[inline(always)]
    pub fn write(&mut self, addr: u64, src: &[u8], more: usize) -> Result<(), CallStatus> {
        match self.writer.write_on(addr, src, more) {
            Some(written) => written.map_err(refused),
            None => self.write_elsewhere(addr, src),
        }
    }

    #[cold]
    fn write_elsewhere(&mut self, addr: u64, src: &[u8]) -> Result<(), CallStatus> {
        granted(self.grants, self.hint, true, |key| self.writer.write(key, addr, src))
    }
}
