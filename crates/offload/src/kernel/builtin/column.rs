//! Rows of fixed length, reassembled from a stream of packets, and integer columns in them.

use super::reader::{Reader, require};
use crate::kernel::CallStatus;

/// The most bytes of a row.
pub const ROW_MAX: usize = 4096;

/// A column: an integer at a fixed place in each row, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Bytes of the row before the column.
    pub offset: u16,
    /// Bytes of the column: 1, 2, 4 or 8.
    pub width: u8,
    /// Values are signed.
    pub signed: bool,
}

impl Column {
    /// An unsigned column of 8 bytes.
    pub fn u64(offset: u16) -> Column {
        Column { offset, width: 8, signed: false }
    }

    pub(super) fn parse(reader: &mut Reader<'_>, row_len: u16) -> Result<Column, CallStatus> {
        let (offset, width, signed) = (reader.u16()?, reader.u8()?, reader.u8()?);
        require(matches!(width, 1 | 2 | 4 | 8) && signed <= 1)?;
        require(u32::from(offset) + u32::from(width) <= u32::from(row_len))?;
        Ok(Column { offset, width, signed: signed == 1 })
    }

    pub(super) fn to_bytes(self) -> [u8; 4] {
        let [low, high] = self.offset.to_le_bytes();
        [low, high, self.width, self.signed.into()]
    }

    /// The column's value in `row`, sign-extended if the column is signed; 0 if it lies beyond the
    /// row.
    #[inline]
    pub fn of(&self, row: &[u8]) -> u64 {
        let at = usize::from(self.offset);
        let Some(bytes) = row.get(at..at + usize::from(self.width)) else { return 0 };
        match *bytes {
            [a] if self.signed => i64::from(a as i8) as u64,
            [a] => a.into(),
            [a, b] if self.signed => i64::from(i16::from_le_bytes([a, b])) as u64,
            [a, b] => u16::from_le_bytes([a, b]).into(),
            [a, b, c, d] if self.signed => i64::from(i32::from_le_bytes([a, b, c, d])) as u64,
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
            [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => 0,
        }
    }

    /// A number that compares with others as the column's values do.
    #[inline]
    pub(super) fn ordered(&self, value: u64) -> u64 {
        if self.signed { value ^ 1 << 63 } else { value }
    }
}

/// Cuts a stream into rows of fixed length.
#[derive(Clone, Debug)]
pub struct Rows {
    row_len: usize,
    /// The beginning of a row whose rest is in the next piece.
    carry: Vec<u8>,
}

impl Rows {
    /// A stream of rows of `row_len` bytes, 1 to [`ROW_MAX`].
    pub fn new(row_len: u16) -> Rows {
        Rows { row_len: usize::from(row_len).clamp(1, ROW_MAX), carry: Vec::new() }
    }

    /// Adds a piece of the stream, and calls `each` with runs of whole rows.
    #[inline]
    pub fn push(&mut self, piece: &[u8], mut each: impl FnMut(&[u8])) {
        let mut rest = piece;
        if !self.carry.is_empty() {
            let take = (self.row_len - self.carry.len()).min(rest.len());
            let (now, later) = rest.split_at(take);
            self.carry.extend_from_slice(now);
            rest = later;
            if self.carry.len() < self.row_len {
                return;
            }
            each(&self.carry);
            self.carry.clear();
        }
        let whole = rest.len() - rest.len() % self.row_len;
        if whole > 0 {
            each(&rest[..whole]);
        }
        self.carry.extend_from_slice(&rest[whole..]);
    }

    /// Ends the stream. Returns the bytes of a last row that is incomplete.
    pub fn end(&mut self) -> usize {
        let ragged = self.carry.len();
        self.carry.clear();
        ragged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn columns_have_widths_and_signs() {
        let row = [0xFE, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0, 0xFF];
        let value = |offset, width, signed| Column { offset, width, signed }.of(&row);
        assert_eq!(value(0, 1, false), 0xFE);
        assert_eq!(value(0, 1, true) as i64, -2);
        assert_eq!((value(0, 4, true) as i64, value(0, 4, false)), (-2, 0xFFFF_FFFE));
        assert_eq!(value(0, 8, false), 0x1_FFFF_FFFE);
        assert_eq!(value(6, 4, false), 0, "a column beyond the row has the value 0");
    }

    proptest! {
        #[test]
        fn rows_do_not_depend_on_packets(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            cuts in prop::collection::vec(0usize..60, 0..40),
            row_len in 1u16..50,
        ) {
            let mut rows = Rows::new(row_len);
            let mut seen = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                rows.push(now, |run| seen.extend_from_slice(run));
                rest = later;
            }
            rows.push(rest, |run| seen.extend_from_slice(run));
            let whole = bytes.len() - bytes.len() % usize::from(row_len);
            prop_assert_eq!(&seen[..], &bytes[..whole]);
            prop_assert_eq!(rows.end(), bytes.len() - whole);
        }
    }
}
