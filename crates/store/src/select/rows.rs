//! Rows to select from, and marks at those that are selected.

/// Where a row lies among other bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// The bytes before it.
    pub start: u32,
    /// Its bytes.
    pub len: u32,
}

/// Rows in memory that nobody changes meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) places: Places<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Places<'a> {
    /// One after the other, of this length, which is not 0.
    Packed(usize),
    /// As listed.
    Listed(&'a [Span]),
}

/// The most rows that are judged together: as many as a word has bits.
pub(super) const BLOCK: usize = 64;

impl<'a> Rows<'a> {
    /// Rows of `len` bytes that lie one after the other; an incomplete last one is left out. A
    /// length of 0 is that of no row.
    pub fn packed(bytes: &'a [u8], len: usize) -> Rows<'a> {
        let whole = bytes.len() - bytes.len().checked_rem(len).unwrap_or(bytes.len());
        Rows { bytes: &bytes[..whole], places: Places::Packed(len.max(1)) }
    }

    /// Rows at places in `bytes`. A place that is not within `bytes` is an empty row.
    pub fn listed(bytes: &'a [u8], spans: &'a [Span]) -> Rows<'a> {
        Rows { bytes, places: Places::Listed(spans) }
    }

    /// The number of rows.
    pub fn count(&self) -> usize {
        match self.places {
            Places::Packed(len) => self.bytes.len() / len,
            Places::Listed(spans) => spans.len(),
        }
    }

    /// A row; empty if there is none of this number.
    #[inline]
    pub fn row(&self, index: usize) -> &'a [u8] {
        match self.places {
            Places::Packed(len) => {
                self.bytes.get(index * len..(index + 1) * len).unwrap_or_default()
            }
            Places::Listed(spans) => spans.get(index).map_or(&[], |span| span.of(self.bytes)),
        }
    }

    /// The rows in runs of [`BLOCK`].
    pub(super) fn blocks(&self) -> impl Iterator<Item = Rows<'a>> {
        let rows = *self;
        (0..self.count().div_ceil(BLOCK)).map(move |block| rows.block(block))
    }

    fn block(&self, block: usize) -> Rows<'a> {
        let (bytes, places) = (self.bytes, self.places);
        match places {
            Places::Packed(len) => {
                let start = block * BLOCK * len;
                let end = bytes.len().min(start + BLOCK * len);
                Rows { bytes: &bytes[start..end], places }
            }
            Places::Listed(spans) => {
                let start = block * BLOCK;
                let end = spans.len().min(start + BLOCK);
                Rows { bytes, places: Places::Listed(&spans[start..end]) }
            }
        }
    }

    /// A mark at each row of a block that has so many bytes.
    #[inline]
    pub(super) fn long_enough(&self, least: usize) -> u64 {
        match self.places {
            Places::Packed(len) if len < least => 0,
            Places::Packed(_) => u64::MAX,
            Places::Listed(spans) => {
                let is_long = |span: &Span| {
                    let end = u64::from(span.start) + u64::from(span.len);
                    // A row outside of the bytes is empty.
                    span.len as usize >= least && (end <= self.bytes.len() as u64 || least == 0)
                };
                let marks = spans.iter().enumerate();
                marks.fold(0, |marks, (row, span)| marks | u64::from(is_long(span)) << row)
            }
        }
    }
}

impl Span {
    #[inline(always)]
    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        let start = self.start as usize;
        bytes.get(start..start.saturating_add(self.len as usize)).unwrap_or_default()
    }
}

/// Marks at rows, a bit each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Marks(pub(super) Vec<u64>);

impl Marks {
    /// Marks at all of so many rows, in place of those before.
    pub fn all(&mut self, rows: usize) {
        self.0.clear();
        self.0.resize(rows / BLOCK, u64::MAX);
        if !rows.is_multiple_of(BLOCK) {
            self.0.push((1 << (rows % BLOCK)) - 1);
        }
    }

    /// The number of rows that are marked.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The marked rows' numbers, in their order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.0.iter().enumerate();
        words.flat_map(|(block, word)| bits(*word).map(move |bit| block * BLOCK + bit))
    }
}

/// The bits of a word that are set, in their order.
#[inline(always)]
pub(super) fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        let any = word != 0;
        word &= word.wrapping_sub(1);
        any.then_some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_into_blocks() {
        let bytes: Vec<u8> = (0..=255).collect();
        let spans: Vec<_> = (0..85).map(|i| Span { start: 3 * i, len: 3 }).collect();
        for rows in [Rows::packed(&bytes, 3), Rows::listed(&bytes, &spans)] {
            assert_eq!(rows.count(), 85);
            let blocks: Vec<_> = rows.blocks().collect();
            assert_eq!(blocks.iter().map(|block| block.count()).collect::<Vec<_>>(), [64, 21]);
            assert_eq!(blocks[1].row(20), [252, 253, 254]);
            assert_eq!((rows.row(84), rows.row(85)), (&[252, 253, 254][..], &[][..]));
        }
        assert_eq!(Rows::packed(&bytes, 0).count(), 0);
        assert_eq!(Rows::packed(&[], 3).count(), 0);
    }

    #[test]
    fn a_place_outside_the_bytes_is_an_empty_row() {
        let spans = [(0, 4), (3, 1), (4, 1), (2, u32::MAX), (u32::MAX, u32::MAX)];
        let spans = spans.map(|(start, len)| Span { start, len });
        let rows = Rows::listed(b"abc", &spans);
        assert!((0..rows.count()).all(|row| rows.row(row).is_empty()));
    }

    #[test]
    fn marks_are_numbers_of_rows() {
        let mut marks = Marks::default();
        marks.all(130);
        assert_eq!((marks.count(), marks.iter().last()), (130, Some(129)));
        marks.0[0] = 1 << 63 | 4;
        marks.0[1] = 0;
        assert_eq!(marks.iter().collect::<Vec<_>>(), [2, 63, 128, 129]);
        marks.all(64);
        assert_eq!(marks.count(), 64);
    }
}
