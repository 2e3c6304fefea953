//! Whether numbers are in a range: for one row, and for many at once.

use super::condition::{Form, NumberAt};
use super::rows::{BLOCK, Places, Rows, bits};
use remora_offload::cpu::{Level, Work};

/// If fewer rows of a block are still of interest, each is looked at for itself.
const FEW: u32 = 8;

/// A range of a number's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub number: NumberAt,
    pub least: i64,
    pub most: i64,
    /// Keys in the range are wanted, or else those outside.
    pub inside: bool,
}

impl Range {
    #[inline]
    pub(super) fn holds(&self, row: &[u8]) -> bool {
        self.has(self.number.key(row))
    }

    #[inline(always)]
    fn has(&self, key: i64) -> bool {
        (self.least <= key && key <= self.most) == self.inside
    }

    /// The rows of a block, of those in `mask`, of which it holds.
    #[inline]
    pub(super) fn mark(&self, rows: &Rows<'_>, mask: u64, level: Level) -> u64 {
        if mask.count_ones() <= FEW {
            let holds = |row: &usize| self.holds(rows.row(*row));
            return bits(mask).filter(holds).fold(0, |marks, row| marks | 1 << row);
        }
        mask & level.run(Marking { range: self, rows })
    }
}

struct Marking<'a> {
    range: &'a Range,
    rows: &'a Rows<'a>,
}

impl Work for Marking<'_> {
    type Result = u64;

    #[inline(always)]
    fn run(self, _: Level) -> u64 {
        let mut keys = [0; BLOCK];
        load(self.rows, self.range.number, &mut keys);
        let Range { least, most, inside, .. } = *self.range;
        let marks = keys.iter().enumerate().fold(0, |marks: u64, (row, key)| {
            marks | if least <= *key && *key <= most { 1 << row } else { 0 }
        });
        if inside { marks } else { !marks }
    }
}

/// Loads the keys of a block's rows. The key of a row that is too short is of no meaning.
#[inline(always)]
fn load(rows: &Rows<'_>, number: NumberAt, keys: &mut [i64; BLOCK]) {
    let at = usize::from(number.offset);
    match number.form {
        Form::Unsigned(1) => each(rows, at, keys, |[a]: [u8; 1]| a.into()),
        Form::Unsigned(2) => each(rows, at, keys, |bytes| u16::from_le_bytes(bytes).into()),
        Form::Unsigned(4) => each(rows, at, keys, |bytes| u32::from_le_bytes(bytes).into()),
        Form::Signed(1) => each(rows, at, keys, |[a]: [u8; 1]| (a as i8).into()),
        Form::Signed(2) => each(rows, at, keys, |bytes| i16::from_le_bytes(bytes).into()),
        Form::Signed(4) => each(rows, at, keys, |bytes| i32::from_le_bytes(bytes).into()),
        Form::Signed(8) => each(rows, at, keys, i64::from_le_bytes),
        _ => {
            for (row, key) in keys.iter_mut().enumerate().take(rows.count()) {
                *key = number.key(rows.row(row));
            }
        }
    }
}

#[inline(always)]
fn each<const N: usize>(
    rows: &Rows<'_>,
    at: usize,
    keys: &mut [i64; BLOCK],
    key_of: impl Fn([u8; N]) -> i64,
) {
    match rows.places {
        Places::Packed(len) => {
            for (key, row) in keys.iter_mut().zip(rows.bytes.chunks_exact(len)) {
                if let Some(bytes) = row.get(at..).and_then(|rest| rest.first_chunk()) {
                    *key = key_of(*bytes);
                }
            }
        }
        Places::Listed(spans) => {
            for (key, span) in keys.iter_mut().zip(spans) {
                let row = span.of(rows.bytes);
                if let Some(bytes) = row.get(at..).and_then(|rest| rest.first_chunk()) {
                    *key = key_of(*bytes);
                }
            }
        }
    }
}
