//! What a kernel may do immediately while it looks at payload.

use super::{CallStatus, Scatter};

/// What a kernel may do immediately while it looks at payload. See
/// [`Context::payload`](super::Context::payload).
pub struct Port<'a> {
    pub(super) turn: &'a mut dyn Ports,
}

/// The part of a turn that a [`Port`] uses.
pub(super) trait Ports {
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), CallStatus>;
    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), CallStatus>;
    fn scatter(&mut self) -> Scatter<'_>;
    fn output(&mut self, len: usize) -> Result<&mut Vec<u8>, CallStatus>;
}

impl Port<'_> {
    /// Reads granted memory.
    ///
    /// # Errors
    /// The address was not granted, or cannot be reached.
    pub fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), CallStatus> {
        self.turn.read(addr, dst)
    }

    /// Writes granted memory without waiting, like a posted PCIe write.
    ///
    /// # Errors
    /// The address was not granted, or cannot be reached.
    pub fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), CallStatus> {
        self.turn.write(addr, src)
    }

    /// Access to granted memory for many small writes in a row.
    pub fn scatter(&mut self) -> Scatter<'_> {
        self.turn.scatter()
    }

    /// The results, to append to; see [`Context::output`](super::Context::output).
    ///
    /// # Errors
    /// The card has no room for more results now: wait with
    /// [`Context::room`](super::Context::room) first.
    pub fn output(&mut self) -> Result<&mut Vec<u8>, CallStatus> {
        self.turn.output(0)
    }
}

impl core::fmt::Debug for Port<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Port")
    }
}
