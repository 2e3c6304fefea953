//! Reading the parameters of a kernel from the bytes of a call.

use crate::kernel::CallStatus;

/// Takes fields off the front of bytes that come from a peer and may be anything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], CallStatus> {
        let (first, rest) = self.0.split_first_chunk().ok_or(CallStatus::BAD_PARAMS)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u8(&mut self) -> Result<u8, CallStatus> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, CallStatus> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, CallStatus> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, CallStatus> {
        self.take().map(u64::from_le_bytes)
    }

    /// Refuses bytes that are left over.
    pub(super) fn end(self) -> Result<(), CallStatus> {
        require(self.0.is_empty())
    }
}

/// Refuses parameters that do not meet a condition.
pub(super) fn require(fulfilled: bool) -> Result<(), CallStatus> {
    if fulfilled { Ok(()) } else { Err(CallStatus::BAD_PARAMS) }
}

/// The little-endian 64-bit word at `at`; bytes beyond the end count as zero.
#[inline]
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
