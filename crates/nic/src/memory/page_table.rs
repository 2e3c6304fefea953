//! Address translation: a page table per region (StRoM §4.3).

use crate::transmit::Segment;

/// The pages behind a region, in order.
///
/// Pages lie anywhere on the bus, so an access that crosses from one to the next is split, unless
/// the next page happens to follow the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageTable {
    /// log2 of the page size.
    shift: u32,
    /// Where in the first page the region begins.
    offset: u64,
    /// The bus address of each page.
    pages: Box<[u64]>,
    /// The region's bus address, if its pages follow each other: then no access is split.
    start: Option<u64>,
}

impl PageTable {
    /// A table of pages of 2^`shift` bytes; the region begins `offset` bytes into the first.
    pub fn new(shift: u32, offset: u64, pages: impl Into<Box<[u64]>>) -> PageTable {
        let pages = pages.into();
        let in_a_row =
            pages.windows(2).all(|pair| pair[0].checked_add(1 << shift) == Some(pair[1]));
        let start = pages.first().filter(|_| in_a_row).map(|first| first.wrapping_add(offset));
        PageTable { shift, offset, pages, start }
    }

    /// The table of `len` bytes from bus address `addr` on, contiguous on the bus. Ask
    /// [`PageTable::entries_for`] first if `len` is not known to be moderate.
    pub fn contiguous(shift: u32, addr: u64, len: u64) -> PageTable {
        let offset = addr & ((1 << shift) - 1);
        let first = addr - offset;
        let count = PageTable::entries_for(shift, addr, len);
        let pages: Box<[u64]> = (0..count).map(|i| first.wrapping_add(i << shift)).collect();
        PageTable::new(shift, offset, pages)
    }

    /// How many pages of 2^`shift` bytes the `len` bytes from `addr` on lie in.
    pub fn entries_for(shift: u32, addr: u64, len: u64) -> u64 {
        let offset = addr & ((1 << shift) - 1);
        offset.saturating_add(len).div_ceil(1 << shift)
    }

    /// How many entries of the card's translation memory this table takes.
    pub fn entries(&self) -> usize {
        self.pages.len()
    }

    /// Bytes from the region's start to the end of the last page.
    pub fn reach(&self) -> u64 {
        ((self.pages.len() as u64) << self.shift).saturating_sub(self.offset)
    }

    /// The bus address of the region, if it lies there in one piece.
    pub(crate) fn start(&self) -> Option<u64> {
        self.start
    }

    /// Calls `each` with the contiguous pieces of `len` bytes from `from` on, in order.
    ///
    /// The caller must have checked that they lie within [`PageTable::reach`].
    #[inline]
    pub fn split(&self, from: u64, len: u32, mut each: impl FnMut(Segment)) {
        if let Some(start) = self.start {
            if len > 0 {
                each(Segment { addr: start + from, len });
            }
            return;
        }
        let size = 1u64 << self.shift;
        let mut at = self.offset + from;
        let mut left = u64::from(len);
        // Most accesses lie within one page.
        let within = at & (size - 1);
        if left > 0 && left <= size - within {
            let addr = self.pages[(at >> self.shift) as usize] + within;
            return each(Segment { addr, len });
        }
        let mut piece = Segment { addr: 0, len: 0 };
        while left > 0 {
            let within = at & (size - 1);
            let addr = self.pages[(at >> self.shift) as usize] + within;
            let take = left.min(size - within);
            if piece.len > 0 && piece.addr + u64::from(piece.len) == addr {
                piece.len += take as u32;
            } else {
                if piece.len > 0 {
                    each(piece);
                }
                piece = Segment { addr, len: take as u32 };
            }
            at += take;
            left -= take;
        }
        if piece.len > 0 {
            each(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(table: &PageTable, from: u64, len: u32) -> Vec<(u64, u32)> {
        let mut out = Vec::new();
        table.split(from, len, |s| out.push((s.addr, s.len)));
        out
    }

    #[test]
    fn an_access_is_split_where_pages_part() {
        let table = PageTable::new(12, 0x10, [0x10_000, 0x40_000, 0x41_000]);
        assert_eq!(table.reach(), 3 * 4096 - 16);
        assert_eq!(split(&table, 0, 4096 - 16), [(0x10_010, 4096 - 16)]);
        assert_eq!(split(&table, 4096 - 20, 8), [(0x10_ffc, 4), (0x40_000, 4)]);
        assert_eq!(split(&table, 4096 - 16, 8192), [(0x40_000, 8192)], "neighbours are joined");
        assert_eq!(split(&table, 5, 0), []);
    }

    #[test]
    fn a_contiguous_range_is_never_split() {
        let table = PageTable::contiguous(21, 0x7fff_1234, 5 << 20);
        assert_eq!(table.entries(), 4);
        assert_eq!(split(&table, 7, 5 << 19), [(0x7fff_123b, 5 << 19)]);
    }
}
