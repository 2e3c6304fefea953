//! Reading and writing memory through a key, once [`super::check`] allows it.

use super::key::{Access, AccessError, Scope};
use super::region::Regions;
use super::{Memory, MemoryFault};
use crate::transmit::Segment;

impl Regions {
    /// Writes `bytes` through a key, in the order of rising addresses.
    #[inline]
    pub(crate) fn write(
        &self,
        mem: &mut dyn Memory,
        (key, scope): (u32, Scope),
        addr: u64,
        bytes: &[u8],
        need: Access,
    ) -> Result<(), AccessError> {
        // The usual region lies in one piece.
        if let Some(at) = self.locate(key, scope, addr, bytes.len() as u64, need)? {
            return mem.write(at, bytes).map_err(|MemoryFault { .. }| AccessError::Memory);
        }
        self.write_pieces(mem, (key, scope), addr, bytes, need)
    }

    /// As [`Regions::write`], to memory that may lie in pieces or not exist.
    #[inline(never)]
    fn write_pieces(
        &self,
        mem: &mut dyn Memory,
        (key, scope): (u32, Scope),
        addr: u64,
        bytes: &[u8],
        need: Access,
    ) -> Result<(), AccessError> {
        let len = u32::try_from(bytes.len()).map_err(|_| AccessError::Bounds)?;
        let (mut rest, mut result) = (bytes, Ok(()));
        self.translate(key, scope, addr, len, need, |piece: Segment| {
            let (now, later) = rest.split_at(piece.len as usize);
            rest = later;
            if result.is_ok() && piece.addr != Segment::NOWHERE {
                result = mem.write(piece.addr, now);
            }
        })?;
        result.map_err(|MemoryFault { .. }| AccessError::Memory)
    }

    /// Reads through a key into `bytes`.
    #[inline]
    pub(crate) fn read(
        &self,
        mem: &mut dyn Memory,
        (key, scope): (u32, Scope),
        addr: u64,
        bytes: &mut [u8],
        need: Access,
    ) -> Result<(), AccessError> {
        // As in `write`.
        if let Some(at) = self.locate(key, scope, addr, bytes.len() as u64, need)? {
            return mem.read(at, bytes).map_err(|MemoryFault { .. }| AccessError::Memory);
        }
        self.read_pieces(mem, (key, scope), addr, bytes, need)
    }

    /// As [`Regions::read`], from memory that may lie in pieces or not exist.
    #[inline(never)]
    fn read_pieces(
        &self,
        mem: &mut dyn Memory,
        (key, scope): (u32, Scope),
        addr: u64,
        bytes: &mut [u8],
        need: Access,
    ) -> Result<(), AccessError> {
        let len = u32::try_from(bytes.len()).map_err(|_| AccessError::Bounds)?;
        let (mut at, mut result) = (0, Ok(()));
        self.translate(key, scope, addr, len, need, |piece: Segment| {
            let now = &mut bytes[at..at + piece.len as usize];
            at += now.len();
            if piece.addr == Segment::NOWHERE {
                now.fill(0);
            } else if result.is_ok() {
                result = mem.read(piece.addr, now);
            }
        })?;
        result.map_err(|MemoryFault { .. }| AccessError::Memory)
    }

    /// Announces that bytes will soon be written through a key, so that the processor can fetch
    /// their memory meanwhile.
    #[inline]
    pub(crate) fn prefetch(
        &self,
        mem: &mut dyn Memory,
        (key, scope): (u32, Scope),
        addr: u64,
        len: u32,
        need: Access,
    ) {
        let fetch = |piece: Segment| {
            if piece.addr != Segment::NOWHERE {
                mem.prefetch(piece.addr, piece.len as usize);
            }
        };
        // A range that may not be written is refused when the write comes.
        let _ = self.translate(key, scope, addr, len, need, fetch);
    }
}
