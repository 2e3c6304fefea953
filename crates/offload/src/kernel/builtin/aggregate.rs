//! Aggregate: count, sum, minimum and maximum of a column, over all rows of a stream or by group.
//! StRoM §1 names such a kernel and does not describe one.

use std::collections::HashMap;

use super::column::{Column, ROW_MAX, Rows};
use super::reader::{Reader, require, word};
use crate::kernel::{CallStatus, Context};

/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 16;
/// Bytes of a [`Group`] in a result.
pub const GROUP_LEN: usize = 48;
/// The most groups of one stream.
pub const GROUPS_MAX: u32 = 1 << 16;

/// The layout of rows, and which columns are aggregated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Bytes of a row.
    pub row_len: u16,
    /// The column whose values are summed and compared.
    pub value: Column,
    /// The column whose values form the groups; `None`: all rows form one group.
    pub group_by: Option<Column>,
    /// The most groups; one more ends the call with [`CallStatus::MEMORY`]. 0 means
    /// [`GROUPS_MAX`].
    pub groups_max: u32,
}

impl Params {
    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] if the bytes are no valid parameters.
    pub fn parse(bytes: &[u8]) -> Result<Params, CallStatus> {
        let mut reader = Reader(bytes);
        let (row_len, grouped) = (reader.u16()?, reader.u16()?);
        require((1..=ROW_MAX).contains(&row_len.into()) && grouped <= 1)?;
        let value = Column::parse(&mut reader, row_len)?;
        let group_by = if grouped == 1 {
            Some(Column::parse(&mut reader, row_len)?)
        } else {
            require(reader.u32()? == 0)?;
            None
        };
        let groups_max = reader.u32()?;
        reader.end()?;
        require(groups_max <= GROUPS_MAX)?;
        Ok(Params { row_len, value, group_by, groups_max })
    }

    /// The parameters' bytes.
    pub fn to_bytes(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        out[..2].copy_from_slice(&self.row_len.to_le_bytes());
        out[2] = self.group_by.is_some().into();
        out[4..8].copy_from_slice(&self.value.to_bytes());
        if let Some(column) = self.group_by {
            out[8..12].copy_from_slice(&column.to_bytes());
        }
        out[12..].copy_from_slice(&self.groups_max.to_le_bytes());
        out
    }
}

/// The result for one group, 48 bytes: key u64, count u64, sum i128, minimum u64, maximum u64,
/// little-endian. Values of a signed column are sign-extended. Without grouping the key is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// The value of the `group_by` column in all of its rows.
    pub key: u64,
    /// The number of rows.
    pub count: u64,
    /// The sum of their values.
    pub sum: i128,
    /// The smallest value.
    pub min: u64,
    /// The largest value.
    pub max: u64,
}

impl Group {
    fn new(key: u64) -> Group {
        Group { key, count: 0, sum: 0, min: 0, max: 0 }
    }

    #[inline]
    fn add(&mut self, column: Column, value: u64) {
        let first = self.count == 0;
        self.count += 1;
        let number = if column.signed { i128::from(value as i64) } else { value.into() };
        self.sum += number;
        if first || column.ordered(value) < column.ordered(self.min) {
            self.min = value;
        }
        if first || column.ordered(value) > column.ordered(self.max) {
            self.max = value;
        }
    }

    /// The group's bytes.
    pub fn to_bytes(&self) -> [u8; GROUP_LEN] {
        let mut out = [0; GROUP_LEN];
        out[..8].copy_from_slice(&self.key.to_le_bytes());
        out[8..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..32].copy_from_slice(&self.sum.to_le_bytes());
        out[32..40].copy_from_slice(&self.min.to_le_bytes());
        out[40..].copy_from_slice(&self.max.to_le_bytes());
        out
    }

    /// Reads a group's bytes.
    pub fn parse(bytes: &[u8; GROUP_LEN]) -> Group {
        let sum = u128::from(word(bytes, 16)) | u128::from(word(bytes, 24)) << 64;
        Group {
            key: word(bytes, 0),
            count: word(bytes, 8),
            sum: sum as i128,
            min: word(bytes, 32),
            max: word(bytes, 40),
        }
    }

    /// Reads the groups in the result of a call. Ignores bytes after the last whole group.
    pub fn parse_all(bytes: &[u8]) -> Vec<Group> {
        bytes.as_chunks().0.iter().map(Group::parse).collect()
    }
}

/// An aggregation that has seen part of its stream.
#[derive(Clone, Debug)]
pub struct Aggregation {
    params: Params,
    rows: Rows,
    groups: Vec<Group>,
    by_key: HashMap<u64, u32>,
    full: bool,
}

impl Aggregation {
    /// An aggregation that has seen nothing.
    pub fn new(params: Params) -> Aggregation {
        let groups = if params.group_by.is_none() { vec![Group::new(0)] } else { Vec::new() };
        let rows = Rows::new(params.row_len);
        Aggregation { params, rows, groups, by_key: HashMap::new(), full: false }
    }

    /// Adds the next piece of the stream, which need not end with a row.
    ///
    /// # Errors
    /// [`CallStatus::MEMORY`] if there are too many groups.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), CallStatus> {
        let Aggregation { params, rows, groups, by_key, full } = self;
        let Params { row_len, value, group_by, groups_max } = *params;
        let most = if groups_max == 0 { GROUPS_MAX } else { groups_max } as usize;
        rows.push(piece, |run| {
            for row in run.chunks_exact(row_len.into()) {
                let at = match group_by {
                    None => 0,
                    Some(column) => {
                        let key = column.of(row);
                        let next = groups.len() as u32;
                        match by_key.get(&key) {
                            Some(at) => *at as usize,
                            None if groups.len() < most => {
                                by_key.insert(key, next);
                                groups.push(Group::new(key));
                                next as usize
                            }
                            None => {
                                *full = true;
                                continue;
                            }
                        }
                    }
                };
                groups[at].add(value, value.of(row));
            }
        });
        if self.full { Err(CallStatus::MEMORY) } else { Ok(()) }
    }

    /// The groups, sorted by key.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] if the stream ended within a row.
    pub fn end(mut self) -> Result<Vec<Group>, CallStatus> {
        require(self.rows.end() == 0)?;
        self.groups.sort_unstable_by_key(|group| group.key);
        Ok(self.groups)
    }
}

/// The kernel, called by RPC WRITE: the payload is rows, the result is [`Group`]s sorted by key.
///
/// # Errors
/// Those of [`Params::parse`], [`Aggregation::push`] and [`Aggregation::end`].
pub async fn aggregate(context: Context) -> Result<(), CallStatus> {
    let mut aggregation = Aggregation::new(context.params(Params::parse).await?);
    while let Some(result) = context.payload(|piece, _| aggregation.push(piece)).await? {
        result?;
    }
    for group in aggregation.end()? {
        context.output(|out| out.extend_from_slice(&group.to_bytes())).await?;
        context.settle().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_match_a_straightforward_count() {
        let value = Column { offset: 8, width: 4, signed: true };
        let params = Params { row_len: 12, value, group_by: Some(Column::u64(0)), groups_max: 3 };
        assert_eq!(Params::parse(&params.to_bytes()), Ok(params));
        let mut stream = Vec::new();
        for (key, value) in [(5u64, -3i32), (1, 7), (5, 4), (1, 7), (9, i32::MIN)] {
            stream.extend_from_slice(&key.to_le_bytes());
            stream.extend_from_slice(&value.to_le_bytes());
        }
        let mut aggregation = Aggregation::new(params);
        for piece in stream.chunks(5) {
            aggregation.push(piece).unwrap();
        }
        let groups = aggregation.clone().end().unwrap();
        let figures: Vec<_> =
            groups.iter().map(|g| (g.key, g.count, g.sum, g.min as i64, g.max as i64)).collect();
        let least = i64::from(i32::MIN);
        let expected =
            [(1, 2, 14, 7, 7), (5, 2, 1, -3, 4), (9, 1, i128::from(least), least, least)];
        assert_eq!(figures, expected);
        assert_eq!(Group::parse(&groups[2].to_bytes()), groups[2]);
        assert_eq!(aggregation.push(&[77; 12]), Err(CallStatus::MEMORY));
        aggregation.push(&[1]).unwrap_err();
        assert_eq!(aggregation.end(), Err(CallStatus::BAD_PARAMS));
    }

    #[test]
    fn without_grouping_all_rows_form_one_group() {
        let params = Params { row_len: 8, value: Column::u64(0), group_by: None, groups_max: 0 };
        assert_eq!(Params::parse(&params.to_bytes()), Ok(params));
        let mut aggregation = Aggregation::new(params);
        for value in [u64::MAX, 3, 9] {
            aggregation.push(&value.to_le_bytes()).unwrap();
        }
        let sum = i128::from(u64::MAX) + 12;
        let expected = Group { key: 0, count: 3, sum, min: 3, max: u64::MAX };
        assert_eq!(aggregation.end(), Ok(vec![expected]));
    }
}
