//! Device memory: memory that lives on the card.
//!
//! It is a range of bus addresses behind which the driver puts memory of its own. The card only
//! divides the range.

use std::collections::BTreeMap;

/// A first-fit allocator over a range of bus addresses.
#[derive(Debug)]
pub struct DeviceMemory {
    /// Free pieces, from their addresses to their ends; no two of them touch.
    free: BTreeMap<u64, u64>,
    /// Pieces in use, the same.
    given: BTreeMap<u64, u64>,
}

/// Pieces start and end at multiples of this many bytes.
const GRANULE: u64 = 64;

impl DeviceMemory {
    /// All of `range`, free.
    pub fn new(range: core::ops::Range<u64>) -> DeviceMemory {
        let free = (!range.is_empty()).then_some((range.start, range.end));
        DeviceMemory { free: free.into_iter().collect(), given: BTreeMap::new() }
    }

    /// The bus address of `len` bytes of device memory; `None` if no free piece is long enough.
    pub fn alloc(&mut self, len: u64) -> Option<u64> {
        let len = len.max(1).checked_next_multiple_of(GRANULE)?;
        let (addr, _) = self.free.iter().find(|(start, end)| **end - **start >= len)?;
        let addr = *addr;
        self.alloc_at(addr, len).then_some(addr)
    }

    /// Takes `len` bytes from `addr` on, both multiples of the pieces'. Returns whether they were
    /// free.
    pub fn alloc_at(&mut self, addr: u64, len: u64) -> bool {
        let Some(end) = addr.checked_add(len).filter(|end| *end > addr) else { return false };
        let around = self.free.range(..=addr).next_back().filter(|piece| end <= *piece.1);
        let aligned = addr.is_multiple_of(GRANULE) && len.is_multiple_of(GRANULE);
        let Some((&before, &behind)) = around.filter(|_| aligned) else { return false };
        self.free.remove(&before);
        let left = [(before, addr), (end, behind)].into_iter().filter(|(start, end)| start < end);
        self.free.extend(left);
        self.given.insert(addr, end);
        true
    }

    /// Frees the piece at `addr`. Returns whether there was one.
    pub fn free(&mut self, addr: u64) -> bool {
        let Some(end) = self.given.remove(&addr) else { return false };
        let end = self.free.remove(&end).unwrap_or(end);
        match self.free.range_mut(..addr).next_back() {
            Some((_, before)) if *before == addr => *before = end,
            _ => _ = self.free.insert(addr, end),
        }
        true
    }

    /// How many pieces are in use.
    pub fn pieces(&self) -> usize {
        self.given.len()
    }

    /// Does the whole range lie within one piece that is in use?
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        let before = self.given.range(..=addr).next_back();
        before.is_some_and(|(_, end)| len <= end.saturating_sub(addr))
    }

    /// Where the piece in use begins that holds this address, and its length.
    pub fn piece(&self, addr: u64) -> Option<(u64, u64)> {
        let before = self.given.range(..=addr).next_back().filter(|(_, end)| addr < **end);
        before.map(|(start, end)| (*start, end - start))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_piece_is_taken_where_it_was() {
        let mut dm = DeviceMemory::new(1024..2048);
        for (addr, len) in [(1024, 0), (1030, 64), (1024, 65), (960, 64), (1984, 128)] {
            assert!(!dm.alloc_at(addr, len), "{addr} {len}");
        }
        assert!(!dm.alloc_at(1088, u64::MAX - 63));
        assert!(dm.alloc_at(1088, 128) && !dm.alloc_at(1152, 64));
        assert!(dm.alloc_at(1920, 128) && dm.alloc_at(1024, 64));
        assert_eq!((dm.alloc(704), dm.alloc(1)), (Some(1216), None));
        assert!(dm.free(1088) && dm.free(1024));
        assert_eq!(dm.alloc(192), Some(1024));
    }

    #[test]
    fn pieces_come_back_and_join() {
        let mut dm = DeviceMemory::new(1024..2048);
        let a = dm.alloc(100).unwrap();
        let b = dm.alloc(64).unwrap();
        let c = dm.alloc(2048 - 1024 - 128 - 64).unwrap();
        assert_eq!((a, b, c), (1024, 1152, 1216));
        assert_eq!(dm.alloc(1), None);
        assert!(dm.holds(a, 128) && !dm.holds(a, 129) && !dm.holds(a - 1, 1));
        assert_eq!((dm.piece(b + 63), dm.piece(4096)), (Some((b, 64)), None));
        assert!(dm.free(b) && dm.free(a) && dm.free(c));
        assert!(!dm.free(a));
        assert_eq!(dm.alloc(1024), Some(1024));
        assert_eq!(dm.alloc(u64::MAX), None);
    }

    /// What the allocator does by intervals, by granules: to each belongs the piece that has it.
    struct Granules(Vec<Option<u64>>);

    impl Granules {
        fn is_free(&self, addr: u64, len: u64) -> bool {
            let (at, count) = ((addr / GRANULE) as usize, len.div_ceil(GRANULE) as usize);
            let there = self.0.get(at..at + count);
            count > 0 && there.is_some_and(|pieces| pieces.iter().all(Option::is_none))
        }

        fn give(&mut self, addr: u64, len: u64) {
            let (at, count) = ((addr / GRANULE) as usize, len.div_ceil(GRANULE) as usize);
            self.0[at..at + count].fill(Some(addr));
        }

        fn alloc(&mut self, len: u64) -> Option<u64> {
            let starts = (0..self.0.len() as u64).map(|granule| granule * GRANULE);
            let addr = starts.into_iter().find(|addr| self.is_free(*addr, len.max(1)))?;
            self.give(addr, len.max(1));
            Some(addr)
        }

        fn free(&mut self, addr: u64) -> bool {
            let its: Vec<usize> =
                (0..self.0.len()).filter(|at| self.0[*at] == Some(addr)).collect();
            its.iter().for_each(|at| self.0[*at] = None);
            !its.is_empty()
        }

        fn piece(&self, addr: u64) -> Option<(u64, u64)> {
            let start = (*self.0.get((addr / GRANULE) as usize)?)?;
            let granules = self.0.iter().filter(|of| **of == Some(start)).count();
            Some((start, granules as u64 * GRANULE))
        }
    }

    const GRANULES: u64 = 48;

    proptest! {
        #[test]
        fn it_gives_and_takes_as_a_row_of_granules_does(
            steps in prop::collection::vec((0..4u8, 0..GRANULES + 2, 0..GRANULE * 9), 0..200)
        ) {
            let mut memory = DeviceMemory::new(0..GRANULES * GRANULE);
            let mut row = Granules(vec![None; GRANULES as usize]);
            for (what, granule, len) in steps {
                let addr = granule * GRANULE;
                match what {
                    0 => prop_assert_eq!(memory.alloc(len), row.alloc(len)),
                    1 => {
                        let len = len / GRANULE * GRANULE;
                        let taken = row.is_free(addr, len);
                        prop_assert_eq!(memory.alloc_at(addr, len), taken);
                        if taken {
                            row.give(addr, len);
                        }
                    }
                    _ => prop_assert_eq!(memory.free(addr), row.free(addr)),
                }
                let place = addr + len;
                prop_assert_eq!(memory.piece(place), row.piece(place));
                let ends = row.piece(place).map_or(0, |(start, len)| start + len - place);
                prop_assert!(ends == 0 || memory.holds(place, ends));
                prop_assert!(!memory.holds(place, ends + 1));
                let pieces: BTreeSet<u64> = row.0.iter().copied().flatten().collect();
                prop_assert_eq!(memory.pieces(), pieces.len());
            }
        }
    }
}
