//! Aggregate: count, sum, minimum and maximum of a column, over all rows of a stream or by group.
//! StRoM §1 names such a kernel and does not describe one.

use std::collections::BTreeMap;

use super::column::{Column, ROW_MAX, Rows};
use super::reader::{Reader, require, word};
use crate::kernel::hosting::charge;
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
    row_len: u16,
    value: Column,
    rows: Rows,
    groups: Groups,
    /// Another group did not fit.
    full: bool,
}

#[derive(Clone, Debug)]
enum Groups {
    /// All rows.
    One(Group),
    /// By the column, so many at most. They are in order at all times, as to sort very many at the
    /// end would take a card long.
    By(Column, usize, BTreeMap<u64, Group>),
}

/// What a group takes of a card's memory, about: nodes of the map are half full at least.
const GROUP_BYTES: usize = 2 * (size_of::<Group>() + size_of::<u64>());

impl Aggregation {
    /// An aggregation that has seen nothing.
    pub fn new(params: Params) -> Aggregation {
        let Params { row_len, value, group_by, groups_max } = params;
        let most = if groups_max == 0 { GROUPS_MAX } else { groups_max } as usize;
        let groups = match group_by {
            None => Groups::One(Group::new(0)),
            Some(column) => Groups::By(column, most, BTreeMap::new()),
        };
        Aggregation { row_len, value, rows: Rows::new(row_len), groups, full: false }
    }

    /// Adds the next piece of the stream, which need not end with a row.
    ///
    /// # Errors
    /// [`CallStatus::MEMORY`] if there are too many groups.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), CallStatus> {
        let Aggregation { row_len, value, rows, groups, full } = self;
        rows.push(piece, |run| {
            let rows = run.chunks_exact((*row_len).into());
            match groups {
                Groups::One(group) => rows.for_each(|row| group.add(*value, value.of(row))),
                Groups::By(column, most, groups) => {
                    for row in rows {
                        let (key, has_room) = (column.of(row), groups.len() < *most);
                        match groups.get_mut(&key) {
                            Some(group) => group.add(*value, value.of(row)),
                            None if has_room => {
                                let mut group = Group::new(key);
                                group.add(*value, value.of(row));
                                groups.insert(key, group);
                            }
                            None => *full = true,
                        }
                    }
                }
            }
        });
        if self.full { Err(CallStatus::MEMORY) } else { Ok(()) }
    }

    /// About how many bytes its groups take.
    fn bytes(&self) -> usize {
        match &self.groups {
            Groups::One(_) => 0,
            Groups::By(.., groups) => groups.len() * GROUP_BYTES,
        }
    }

    /// The groups, sorted by key.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] if the stream ended within a row.
    pub fn end(mut self) -> Result<impl Iterator<Item = Group> + Send, CallStatus> {
        require(self.rows.end() == 0)?;
        let (one, many) = match self.groups {
            Groups::One(group) => (Some(group), BTreeMap::new()),
            Groups::By(.., groups) => (None, groups),
        };
        Ok(one.into_iter().chain(many.into_values()))
    }
}

/// The kernel, called by RPC WRITE: the payload is rows, the result is [`Group`]s sorted by key.
///
/// # Errors
/// Those of [`Params::parse`], [`Aggregation::push`] and [`Aggregation::end`];
/// [`CallStatus::MEMORY`], too, if the card has no memory for more groups.
pub async fn aggregate(context: Context) -> Result<(), CallStatus> {
    let mut aggregation = Aggregation::new(context.params(Params::parse).await?);
    while let Some(result) = context.payload(|piece, _| aggregation.push(piece)).await? {
        result?;
        context.keep(aggregation.bytes()).await?;
    }
    for group in aggregation.end()? {
        charge(GROUP_LEN).await?;
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
        let groups: Vec<Group> = aggregation.clone().end().unwrap().collect();
        let figures: Vec<_> =
            groups.iter().map(|g| (g.key, g.count, g.sum, g.min as i64, g.max as i64)).collect();
        let least = i64::from(i32::MIN);
        let expected =
            [(1, 2, 14, 7, 7), (5, 2, 1, -3, 4), (9, 1, i128::from(least), least, least)];
        assert_eq!(figures, expected);
        assert_eq!(Group::parse(&groups[2].to_bytes()), groups[2]);
        assert_eq!(aggregation.push(&[77; 12]), Err(CallStatus::MEMORY));
        aggregation.push(&[1]).unwrap_err();
        assert_eq!(aggregation.end().err(), Some(CallStatus::BAD_PARAMS));
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
        assert_eq!(aggregation.end().unwrap().collect::<Vec<_>>(), [expected]);
    }
}
