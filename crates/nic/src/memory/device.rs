//! Device memory: memory that lives on the card.
//!
//! It is a range of bus addresses behind which the driver puts memory of its own. The card only
//! divides the range.

/// A first-fit allocator over a range of bus addresses.
#[derive(Debug)]
pub struct DeviceMemory {
    /// Free pieces (address, length), by address; no two of them touch.
    free: Vec<(u64, u64)>,
    /// Pieces in use (address, length), by address.
    given: Vec<(u64, u64)>,
}

/// Pieces start and end at multiples of this many bytes.
const GRANULE: u64 = 64;

impl DeviceMemory {
    /// All of `range`, free.
    pub fn new(range: core::ops::Range<u64>) -> DeviceMemory {
        let free = if range.is_empty() { vec![] } else { vec![(range.start, range.end)] };
        DeviceMemory { free, given: Vec::new() }
    }

    /// The bus address of `len` bytes of device memory; `None` if no free piece is long enough.
    pub fn alloc(&mut self, len: u64) -> Option<u64> {
        let len = len.max(1).checked_next_multiple_of(GRANULE)?;
        let at = self.free.iter().position(|(start, end)| end - start >= len)?;
        let (start, end) = &mut self.free[at];
        let addr = *start;
        *start += len;
        if start == end {
            self.free.remove(at);
        }
        self.given.push((addr, addr + len));
        Some(addr)
    }

    /// Takes `len` bytes from `addr` on, both multiples of the pieces'. Returns whether they were
    /// free.
    pub fn alloc_at(&mut self, addr: u64, len: u64) -> bool {
        let Some(end) = addr.checked_add(len).filter(|end| *end > addr) else { return false };
        let around = self.free.iter().position(|piece| piece.0 <= addr && end <= piece.1);
        let aligned = addr.is_multiple_of(GRANULE) && len.is_multiple_of(GRANULE);
        let Some(at) = around.filter(|_| aligned) else { return false };
        let (before, behind) = (self.free[at].0..addr, end..self.free[at].1);
        let left = [before, behind].into_iter().filter(|range| !range.is_empty());
        self.free.splice(at..=at, left.map(|range| (range.start, range.end)));
        self.given.push((addr, end));
        true
    }

    /// Frees the piece at `addr`. Returns whether there was one.
    pub fn free(&mut self, addr: u64) -> bool {
        let Some(at) = self.given.iter().position(|(start, _)| *start == addr) else {
            return false;
        };
        let piece = self.given.swap_remove(at);
        let at = self.free.partition_point(|(start, _)| *start < addr);
        self.free.insert(at, piece);
        if at + 1 < self.free.len() && self.free[at].1 == self.free[at + 1].0 {
            self.free[at].1 = self.free.remove(at + 1).1;
        }
        if at > 0 && self.free[at - 1].1 == self.free[at].0 {
            self.free[at - 1].1 = self.free.remove(at).1;
        }
        true
    }

    /// Does the whole range lie within one piece that is in use?
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        self.given.iter().any(|&(start, end)| start <= addr && len <= end.saturating_sub(addr))
    }

    /// Where the piece in use begins that holds this address, and its length.
    pub fn piece(&self, addr: u64) -> Option<(u64, u64)> {
        let piece = self.given.iter().find(|(start, end)| (*start..*end).contains(&addr));
        piece.map(|(start, end)| (*start, end - start))
    }
}

#[cfg(test)]
mod tests {
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
}
