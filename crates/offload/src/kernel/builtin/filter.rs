//! Filter: the rows of a stream that match a condition. StRoM §1 names such a kernel and does not
//! describe one.
//!
//! Called by RPC WRITE, the payload is rows and the result is the rows that match. As a receive
//! kernel it writes only the matching rows, one after the other from the WRITE's own address on.

use super::column::{Column, ROW_MAX, Rows};
use super::reader::{Reader, require};
use crate::kernel::{CallStatus, Context, Passing, Tap, TapIo, Verdict};

/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 24;

/// How a column's value is compared with the operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Compare {
    /// Equal.
    Equal = 0,
    /// Not equal.
    NotEqual = 1,
    /// Less.
    Less = 2,
    /// Less or equal.
    LessOrEqual = 3,
    /// Greater.
    Greater = 4,
    /// Greater or equal.
    GreaterOrEqual = 5,
}

/// The layout of rows, and which rows match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Bytes of a row.
    pub row_len: u16,
    /// The column that is compared.
    pub column: Column,
    /// The comparison.
    pub compare: Compare,
    /// The value to compare with, sign-extended if the column is signed.
    pub operand: u64,
    /// The result is the number of matching rows instead of the rows.
    pub count_only: bool,
}

impl Params {
    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] if the bytes are no valid parameters.
    pub fn parse(bytes: &[u8]) -> Result<Params, CallStatus> {
        let mut reader = Reader(bytes);
        let row_len = reader.u16()?;
        require((1..=ROW_MAX).contains(&row_len.into()))?;
        let compare = match reader.u8()? {
            0 => Compare::Equal,
            1 => Compare::NotEqual,
            2 => Compare::Less,
            3 => Compare::LessOrEqual,
            4 => Compare::Greater,
            5 => Compare::GreaterOrEqual,
            _ => return Err(CallStatus::BAD_PARAMS),
        };
        let count_only = reader.u8()?;
        require(count_only <= 1)?;
        let column = Column::parse(&mut reader, row_len)?;
        let operand = reader.u64()?;
        require(reader.u64()? == 0)?;
        reader.end()?;
        Ok(Params { row_len, column, compare, operand, count_only: count_only == 1 })
    }

    /// The parameters' bytes.
    pub fn to_bytes(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        out[..2].copy_from_slice(&self.row_len.to_le_bytes());
        (out[2], out[3]) = (self.compare as u8, self.count_only.into());
        out[4..8].copy_from_slice(&self.column.to_bytes());
        out[8..16].copy_from_slice(&self.operand.to_le_bytes());
        out
    }

    /// Whether a row matches.
    #[inline]
    pub fn matches(&self, row: &[u8]) -> bool {
        let (value, operand) = (self.column.ordered(self.column.of(row)), self.bound());
        match self.compare {
            Compare::Equal => value == operand,
            Compare::NotEqual => value != operand,
            Compare::Less => value < operand,
            Compare::LessOrEqual => value <= operand,
            Compare::Greater => value > operand,
            Compare::GreaterOrEqual => value >= operand,
        }
    }

    fn bound(&self) -> u64 {
        self.column.ordered(self.operand)
    }

    /// Appends the matching rows among whole `rows` to `out`. Returns their number.
    pub fn select(&self, rows: &[u8], out: &mut Vec<u8>) -> u64 {
        let bound = self.bound();
        if self.row_len == 8 && self.column == Column::u64(0) {
            // An unsigned 8-byte column that fills the row: a faster form of the general loop
            // below.
            return match self.compare {
                Compare::Equal => plain(rows, out, |v| v == bound),
                Compare::NotEqual => plain(rows, out, |v| v != bound),
                Compare::Less => plain(rows, out, |v| v < bound),
                Compare::LessOrEqual => plain(rows, out, |v| v <= bound),
                Compare::Greater => plain(rows, out, |v| v > bound),
                Compare::GreaterOrEqual => plain(rows, out, |v| v >= bound),
            };
        }
        let mut found = 0;
        for row in rows.chunks_exact(self.row_len.into()) {
            if self.matches(row) {
                out.extend_from_slice(row);
                found += 1;
            }
        }
        found
    }

    /// The number of matching rows among whole `rows`.
    pub fn count(&self, rows: &[u8]) -> u64 {
        rows.chunks_exact(self.row_len.into()).filter(|row| self.matches(row)).count() as u64
    }
}

/// Appends the wanted values without a branch for each: every value is stored behind those kept so
/// far, and the next value overwrites it if it is not wanted.
#[inline]
fn plain(rows: &[u8], out: &mut Vec<u8>, wanted: impl Fn(u64) -> bool) -> u64 {
    let (values, _) = rows.as_chunks::<8>();
    let start = out.len();
    out.resize(start + rows.len() + 8, 0);
    let (places, _) = out[start..].as_chunks_mut::<8>();
    let mut kept = 0;
    for value in values {
        // No more values are kept than were examined, so the place exists.
        if let Some(place) = places.get_mut(kept) {
            *place = *value;
        }
        kept += usize::from(wanted(u64::from_le_bytes(*value)));
    }
    out.truncate(start + kept * 8);
    kept as u64
}

/// The kernel, called by RPC WRITE. With [`Params::count_only`] the result is the number of
/// matching rows, u64 little-endian.
///
/// # Errors
/// [`CallStatus::BAD_PARAMS`] for invalid parameters, and for a payload that ends within a row.
pub async fn filter(context: Context) -> Result<(), CallStatus> {
    let params = context.params(Params::parse).await?;
    let mut rows = Rows::new(params.row_len);
    let mut found = 0;
    loop {
        if !params.count_only {
            context.room().await?;
        }
        let more = context.payload(|piece, port| {
            if params.count_only {
                rows.push(piece, |run| found += params.count(run));
                return Ok(());
            }
            let out = port.output()?;
            rows.push(piece, |run| found += params.select(run, out));
            Ok(())
        });
        match more.await? {
            Some(result) => result?,
            None => break,
        }
    }
    require(rows.end() == 0)?;
    if params.count_only {
        context.output(|out| out.extend_from_slice(&found.to_le_bytes())).await?;
    }
    Ok(())
}

/// The receive kernel; see the module documentation. No row may lie on two packets: the row's
/// length must divide the path MTU. Each WRITE of a queue pair starts again at its own address.
#[derive(Clone, Debug)]
pub struct FilterTap {
    params: Params,
    /// By queue pair: bytes written for the unfinished WRITE.
    kept: Vec<(u32, u64)>,
}

impl FilterTap {
    /// A receive kernel with these parameters.
    pub fn new(params: Params) -> FilterTap {
        FilterTap { params, kept: Vec::new() }
    }
}

impl Tap for FilterTap {
    fn receiving(
        &mut self,
        io: &mut TapIo<'_, '_>,
        passing: &Passing,
        bytes: &[u8],
        replaced: &mut Vec<u8>,
    ) -> Verdict {
        let at = match self.kept.iter().position(|(qpn, _)| *qpn == passing.qpn) {
            Some(at) => at,
            None => {
                self.kept.push((passing.qpn, 0));
                self.kept.len() - 1
            }
        };
        if passing.offset == 0 {
            self.kept[at].1 = 0;
        }
        self.params.select(bytes, replaced);
        let to = passing.addr - u64::from(passing.offset) + self.kept[at].1;
        self.kept[at].1 += replaced.len() as u64;
        if passing.ends(bytes.len()) {
            self.kept.swap_remove(at);
        }
        // The card has checked the range of the whole WRITE, and the kept rows lie within it.
        if !replaced.is_empty() && io.write_through(passing, to, replaced).is_err() {
            replaced.clear();
        }
        Verdict::Take
    }

    fn closed(&mut self, qpn: u32) {
        self.kept.retain(|(of, _)| *of != qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn params() -> Params {
        Params {
            row_len: 8,
            column: Column::u64(0),
            compare: Compare::Less,
            operand: 100,
            count_only: false,
        }
    }

    #[test]
    fn parameters_round_trip() {
        let params = Params { count_only: true, compare: Compare::GreaterOrEqual, ..params() };
        assert_eq!(Params::parse(&params.to_bytes()), Ok(params));
        let outside = Params { column: Column::u64(1), ..params };
        assert_eq!(Params::parse(&outside.to_bytes()), Err(CallStatus::BAD_PARAMS));
    }

    #[test]
    fn a_queue_pair_that_ends_within_a_write_is_forgotten() {
        let mut tap = FilterTap { params: params(), kept: vec![(1, 8), (2, 16)] };
        tap.closed(1);
        assert_eq!(tap.kept, [(2, 16)]);
    }

    #[test]
    fn signed_columns_compare_as_numbers() {
        let column = Column { offset: 0, width: 2, signed: true };
        let below = Params { row_len: 2, column, operand: -1i64 as u64, ..params() };
        let matches = |value: i16| below.matches(&value.to_le_bytes());
        assert_eq!([-2, -1, 0, 1].map(matches), [true, false, false, false]);
    }

    proptest! {
        #[test]
        fn the_quick_loop_and_the_general_one_agree(
            values in prop::collection::vec(0u64..200, 0..100), compare in 0u8..6,
        ) {
            let mut bytes = params().to_bytes();
            bytes[2] = compare;
            let params = Params::parse(&bytes).unwrap();
            let rows: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let (mut quick, mut slow) = (vec![9], vec![9]);
            let found = params.select(&rows, &mut quick);
            for row in rows.chunks(8).filter(|row| params.matches(row)) {
                slow.extend_from_slice(row);
            }
            prop_assert_eq!(quick, slow);
            prop_assert_eq!(found, params.count(&rows));
        }
    }
}
