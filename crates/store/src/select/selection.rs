//! What a client asks of rows: which of them, and what of them.

use super::condition::{NumberAt, RowCondition};

/// The most columns that a selection returns, and the most aggregates.
pub const OUTPUTS_MAX: usize = 256;
/// The most distinct counts of a selection.
pub const DISTINCT_MAX: usize = 8;

/// Which rows are selected, and what becomes of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selection {
    /// The fewest bytes of a row: [`Schema::fixed`](super::schema::Schema::fixed). A shorter row is
    /// not selected, whatever the condition.
    pub row_least: u16,
    /// What the selected rows have in common.
    pub condition: RowCondition,
    /// What becomes of them.
    pub output: Output,
    /// The most rows to select; `u64::MAX` for aggregates, which are over all.
    pub limit: u64,
}

/// What becomes of selected rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// They are returned as they are.
    Whole,
    /// These columns are returned, one after the other.
    Columns(Vec<BytesAt>),
    /// These are computed over them.
    Aggregates(Vec<Aggregate>),
}

impl Output {
    /// The bytes that [`Output::write`] appends.
    #[inline]
    pub fn written_len(&self, row: &[u8]) -> usize {
        match self {
            Output::Whole => row.len(),
            Output::Columns(places) => places.iter().map(|place| place.of(row).len()).sum(),
            Output::Aggregates(_) => 0,
        }
    }

    /// Appends what is wanted of a selected row: all of it, or its columns.
    #[inline]
    pub fn write(&self, row: &[u8], out: &mut Vec<u8>) {
        match self {
            Output::Whole => out.extend_from_slice(row),
            Output::Columns(places) => {
                places.iter().for_each(|place| out.extend_from_slice(place.of(row)));
            }
            Output::Aggregates(_) => {}
        }
    }
}

/// Where bytes lie in a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BytesAt {
    /// The bytes of the row before them.
    pub offset: u16,
    /// Their number; `None`: all up to the row's end.
    pub len: Option<u16>,
}

impl BytesAt {
    /// The bytes in a row; empty if the row is too short.
    #[inline]
    pub fn of(self, row: &[u8]) -> &[u8] {
        let rest = row.get(usize::from(self.offset)..).unwrap_or_default();
        match self.len {
            None => rest,
            Some(len) => rest.get(..usize::from(len)).unwrap_or_default(),
        }
    }

    /// The bytes of a row up to the last of them: `u32::MAX` for all.
    pub fn end(self) -> u32 {
        self.len.map_or(u32::MAX, |len| u32::from(self.offset) + u32::from(len))
    }
}

/// What is computed over selected rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Aggregate {
    /// Their number.
    Count,
    /// The sum of a column.
    Sum(NumberAt),
    /// The least number of a column.
    Least(NumberAt),
    /// The greatest number of a column.
    Greatest(NumberAt),
    /// About how many different values a column has.
    Distinct(BytesAt),
}
