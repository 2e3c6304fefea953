//! Scatter/gather lists of outstanding work: their copies, and the pieces of a message along them.

use core::num::NonZeroU32;

use super::element::{MAX_SGE, Sge, sge_at};
use crate::memory::Memory;
use crate::memory::key::{Access, AccessError, Scope};
use crate::memory::region::Regions;

/// A slot of an [`SglPool`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SglSlot(NonZeroU32);

impl SglSlot {
    /// The slot of a list without entries, which has no copy.
    const EMPTY: SglSlot = SglSlot(NonZeroU32::MAX);
}

/// Copies of the scatter/gather lists of outstanding work.
#[derive(Debug, Default)]
pub(crate) struct SglPool {
    slots: Vec<[Sge; MAX_SGE]>,
    free: Vec<SglSlot>,
}

impl SglPool {
    /// Copies the `count` entries of a fetched element.
    #[inline(always)]
    pub(crate) fn copy_in(&mut self, raw: &[u8], count: u8) -> SglSlot {
        if count == 0 {
            return SglSlot::EMPTY;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push([Sge::default(); MAX_SGE]);
            // The slot is the index plus one, so that it is never zero.
            SglSlot(NonZeroU32::MIN.saturating_add(self.slots.len() as u32 - 1))
        });
        let entries = &mut self.slots[Self::index(slot)];
        for (i, sge) in entries.iter_mut().take(usize::from(count)).enumerate() {
            *sge = sge_at(raw, i);
        }
        slot
    }

    pub(crate) fn entries(&self, slot: SglSlot, count: u8) -> &[Sge] {
        let slot = self.slots.get(Self::index(slot));
        slot.map_or(&[], |entries| &entries[..usize::from(count).min(MAX_SGE)])
    }

    pub(crate) fn release(&mut self, slot: SglSlot) {
        if slot != SglSlot::EMPTY {
            self.free.push(slot);
        }
    }

    pub(crate) fn allocated_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<[Sge; MAX_SGE]>()
            + self.free.capacity() * size_of::<SglSlot>()
    }

    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn index(slot: SglSlot) -> usize {
        slot.0.get() as usize - 1
    }
}

/// Calls `each` with the pieces of `sges` that hold bytes `offset..offset + len` of the message.
#[inline]
pub(crate) fn pieces<E>(
    sges: &[Sge],
    offset: u32,
    len: u32,
    mut each: impl FnMut(Sge) -> Result<(), E>,
) -> Result<(), E> {
    let (mut skip, mut left) = (offset, len);
    for sge in sges {
        if left == 0 {
            break;
        }
        if skip >= sge.len {
            skip -= sge.len;
            continue;
        }
        let len = left.min(sge.len - skip);
        each(Sge { addr: sge.addr.wrapping_add(u64::from(skip)), len, lkey: sge.lkey })?;
        left -= len;
        skip = 0;
    }
    Ok(())
}

/// Writes bytes of a message, from `offset` on, to the memory that its entries name. An error comes
/// with the piece that could not be written.
#[inline]
pub(crate) fn scatter(
    regions: &Regions,
    mem: &mut dyn Memory,
    (scope, sges): (Scope, &[Sge]),
    offset: u32,
    bytes: &[u8],
) -> Result<(), (AccessError, Sge)> {
    let mut rest = bytes;
    pieces(sges, offset, bytes.len() as u32, |piece| {
        let (now, later) = rest.split_at(piece.len as usize);
        rest = later;
        let written = regions.write(mem, (piece.lkey, scope), piece.addr, now, Access::LOCAL_WRITE);
        written.map_err(|error| (error, piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_along_its_entries() {
        let sge = |addr, len| Sge { addr, len, lkey: 1 };
        let sges = [sge(100, 10), sge(200, 0), sge(300, 10)];
        let cut = |offset, len| {
            let mut out = Vec::new();
            pieces(&sges, offset, len, |s| {
                out.push((s.addr, s.len));
                Ok::<_, ()>(())
            })
            .unwrap();
            out
        };
        assert_eq!(cut(0, 20), [(100, 10), (300, 10)]);
        assert_eq!(cut(8, 4), [(108, 2), (300, 2)]);
        assert_eq!(cut(15, 5), [(305, 5)]);
        assert_eq!(cut(3, 0), []);
    }
}
