//! Memory without bytes, for worlds in which the payload does not matter.
//!
//! It stands for buffers of any length. What a card writes there is noted as *covered*: so it can
//! be said whether and when a message has arrived whole and in its place, and nothing elsewhere.

/// Bus addresses from here on have no bytes.
pub const HOLLOW: u64 = 1 << 46;
/// log2 of how many bytes there are.
pub const SHIFT: u32 = 45;
/// Areas lie so far apart, and at multiples of this, that no access reaches another by mistake.
const GAP: u64 = 1 << 12;

/// A buffer, and which of its bytes have been written.
#[derive(Clone, Debug)]
struct Area {
    start: u64,
    len: u64,
    /// All bytes before this one are covered.
    covered: u64,
    /// Covered ranges behind, in order and apart from each other.
    ahead: Vec<(u64, u64)>,
    /// [`Hollow::now`] when the last byte was covered.
    whole_at: Option<u64>,
}

/// The buffers of a host that have no bytes.
#[derive(Clone, Debug, Default)]
pub struct Hollow {
    /// By address.
    areas: Vec<Area>,
    end: u64,
    /// The area of the last access: the next is probably to the same.
    last: usize,
    /// The moment of what is written next. The world sets it.
    pub now: u64,
}

impl Hollow {
    /// Adds a buffer of `len` bytes; returns its bus address. `None` if the address space is full.
    pub fn alloc(&mut self, len: u64) -> Option<u64> {
        let next = self.end.checked_add(len)?.checked_add(GAP)?.checked_next_multiple_of(GAP)?;
        if next > 1 << SHIFT {
            return None;
        }
        let start = HOLLOW + self.end;
        self.end = next;
        self.areas.push(Area { start, len, covered: 0, ahead: Vec::new(), whole_at: None });
        Some(start)
    }

    /// The bytes from the first buffer's start to behind the last one's end.
    pub fn len(&self) -> u64 {
        self.end
    }

    /// Are there no buffers?
    pub fn is_empty(&self) -> bool {
        self.areas.is_empty()
    }

    /// The buffer with all of these bytes.
    #[inline]
    fn find(&mut self, addr: u64, len: u64) -> Option<&mut Area> {
        let holds = |area: &Area| addr >= area.start && addr + len <= area.start + area.len;
        if !self.areas.get(self.last).is_some_and(holds) {
            let behind = self.areas.partition_point(|area| area.start <= addr);
            self.last = behind.checked_sub(1)?;
        }
        self.areas.get_mut(self.last).filter(|area| holds(area))
    }

    /// Does a buffer have all of these bytes?
    pub fn holds(&mut self, addr: u64, len: u64) -> bool {
        self.find(addr, len).is_some()
    }

    /// Notes that these bytes were written. Returns whether a buffer has them.
    #[inline]
    pub fn cover(&mut self, addr: u64, len: u64) -> bool {
        let now = self.now;
        let Some(area) = self.find(addr, len) else { return false };
        let (from, to) = (addr - area.start, addr - area.start + len);
        if from > area.covered {
            area.put_ahead(from, to);
        } else if to > area.covered {
            area.covered = to;
            area.catch_up();
            if area.covered == area.len {
                area.whole_at = Some(now);
            }
        }
        true
    }

    /// How many bytes from its start on the buffer at `addr` has covered without a hole.
    pub fn covered(&mut self, addr: u64) -> u64 {
        self.find(addr, 0).map_or(0, |area| area.covered)
    }

    /// When the buffer at `addr` had been written whole; `None` if it has not been yet.
    pub fn whole_at(&mut self, addr: u64) -> Option<u64> {
        self.find(addr, 0)?.whole_at
    }
}

impl Area {
    /// Notes a range behind a hole.
    fn put_ahead(&mut self, from: u64, to: u64) {
        let first = self.ahead.partition_point(|range| range.1 < from);
        let behind = self.ahead.partition_point(|range| range.0 <= to);
        let touching = &self.ahead[first..behind];
        let from = touching.first().map_or(from, |range| range.0.min(from));
        let to = touching.last().map_or(to, |range| range.1.max(to));
        self.ahead.splice(first..behind, [(from, to)]);
    }

    /// Takes in the ranges that the covered part has reached.
    fn catch_up(&mut self) {
        while let Some((from, to)) = self.ahead.first().copied()
            && from <= self.covered
        {
            self.covered = self.covered.max(to);
            self.ahead.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_outside_a_buffer_is_covered() {
        let mut hollow = Hollow::default();
        let (a, b) = (hollow.alloc(100).unwrap(), hollow.alloc(5000).unwrap());
        assert!(!hollow.cover(a + 50, 51) && !hollow.cover(a + 100, 1) && !hollow.cover(b - 1, 1));
        assert!(!hollow.cover(b + 5000, 1) && !hollow.cover(0, 1) && !hollow.cover(1 << 50, 1));
        hollow.now = 7;
        assert!(hollow.cover(b + 4096, 904) && hollow.cover(a, 100));
        hollow.now = 8;
        assert_eq!((hollow.whole_at(a), hollow.whole_at(b)), (Some(7), None));
        assert!(hollow.cover(b, 4096));
        hollow.now = 9;
        // What comes once more makes it whole no later.
        assert!(hollow.cover(b, 5000) && hollow.cover(a, 100));
        assert_eq!((hollow.whole_at(a), hollow.whole_at(b)), (Some(7), Some(8)));
        assert_eq!(hollow.alloc(u64::MAX), None);
        assert_eq!(hollow.alloc(1 << SHIFT), None);
    }

    proptest! {
        /// As a map of bytes has it, in any order and with any overlap.
        #[test]
        fn coverage_is_that_of_a_map(writes in prop::collection::vec((0u64..60, 1u64..12), 0..60)) {
            let mut hollow = Hollow::default();
            let addr = hollow.alloc(64).unwrap();
            let mut map = [false; 64];
            for (from, len) in writes {
                let len = len.min(64 - from);
                prop_assert!(hollow.cover(addr + from, len));
                map[from as usize..(from + len) as usize].fill(true);
                let whole = map.iter().position(|b| !b).unwrap_or(64);
                prop_assert_eq!(hollow.covered(addr), whole as u64);
            }
        }
    }
}
