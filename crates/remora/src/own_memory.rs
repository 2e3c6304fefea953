//! The memory of an embedded card: what it gives out as device memory.

use std::ops::Range;
use std::sync::Arc;

use crate::dma::Piece;
use crate::memory::Buffer;

/// The device's own memory, and the piece of card memory that it is, if it is one.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    pub(crate) bytes: Buffer,
    /// Kept, so that it is given to nobody else.
    #[expect(dead_code, reason = "it is kept only")]
    pub(crate) piece: Option<Arc<Piece>>,
}

impl OwnMemory {
    /// Its bus addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        self.bytes.addr()..self.bytes.addr() + self.bytes.len() as u64
    }
}
