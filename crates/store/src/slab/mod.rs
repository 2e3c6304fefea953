//! Blocks of memory, by size class.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::layout::Geometry;
use crate::tablespace::TablespaceId;

/// A block that its item has left, while readers may still see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retired {
    /// Where it is.
    pub(crate) at: u64,
}

/// Bytes that every block's place and size are multiples of.
const GRAIN: u64 = 16;

/// The area's blocks.
#[derive(Debug)]
pub(crate) struct Blocks {
    geometry: Geometry,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    sizes: HashMap<u64, (TablespaceId, u64)>,
    free: HashMap<u64, Vec<u64>>,
}

impl Blocks {
    pub(crate) fn new(geometry: Geometry) -> Blocks {
        let inner = Inner { next: geometry.area_at, ..Inner::default() };
        Blocks { geometry, inner: Mutex::new(inner) }
    }

    /// Bytes of the block for so many bytes.
    pub(crate) fn size_for(len: u64) -> u64 {
        len.next_multiple_of(GRAIN)
    }

    /// A block for so many bytes.
    pub(crate) fn alloc(&self, space: TablespaceId, len: u64) -> Option<u64> {
        let size = Self::size_for(len);
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match inner.free.get_mut(&size).and_then(Vec::pop) {
            Some(at) => at,
            None => {
                let end = (inner.next + size).checked_sub(self.geometry.area_at)?;
                if end > self.geometry.limit {
                    return None;
                }
                let at = inner.next;
                inner.next += size;
                at
            }
        };
        inner.sizes.insert(at, (space, size));
        Some(at)
    }

    /// Takes a block back. Returns whose it was and its size; `None` if there is no such block.
    pub(crate) fn free(&self, at: u64) -> Option<(TablespaceId, u64)> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let owned = inner.sizes.remove(&at)?;
        inner.free.entry(owned.1).or_default().push(at);
        Some(owned)
    }
}
