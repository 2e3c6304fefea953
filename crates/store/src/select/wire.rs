//! The bytes of a selection, as a client sends them to a kernel.
//!
//! ```text
//! version u8 = 1 | output u8 | fewest bytes of a row u16 | limit u64 | outputs | condition
//!
//! outputs    0 whole rows | 1 columns: count u16, places | 2 aggregates: count u16, aggregates
//! place      offset u16, bytes u16 (0xFFFF: to the row's end)
//! number     offset u16, form u8: 1, 2, 4, 8 unsigned; + 16 signed; 33 to 40 letters
//! aggregate  0 count | 1 sum, 2 least, 3 greatest: number | 4 distinct: place
//! condition  0 all, 1 any: count u16, conditions | 2 not: condition
//!            3 within: number, least i64, most i64 (keys)
//!            4 text: place, test u8, count u16, bytes
//! test       0 =, 1 !=, 2 <, 3 <=, 4 >, 5 >= | 6 like | 7 contains | 8 matches
//! ```
//!
//! All numbers are little-endian. Places lie within the fewest bytes of a row. The decoder takes
//! any bytes, and its work and memory are in proportion to their number.

use thiserror::Error;

use super::condition::{
    Compare, Form, LEVELS_MAX, NODES_MAX, NumberAt, PATTERN_MAX, RowCondition, TextAt, TextTest,
};
use super::schema::FIXED_MAX;
use super::selection::{Aggregate, BytesAt, DISTINCT_MAX, OUTPUTS_MAX, Output, Selection};

/// The most bytes of a selection.
pub const SELECTION_MAX: usize = 1 << 16;

const VERSION: u8 = 1;
const TO_THE_END: u16 = u16::MAX;
const SIGNED: u8 = 16;
const LETTERS: u8 = 32;
const LIKE: u8 = 6;
const CONTAINS: u8 = 7;
const MATCHES: u8 = 8;

/// Why bytes are no selection, or a selection has no bytes.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum WireError {
    /// The bytes end too early.
    #[error("the selection is cut off")]
    CutOff,
    /// The bytes go on behind the selection.
    #[error("{0} bytes follow the selection")]
    Trailing(usize),
    /// They are of another version.
    #[error("the selection has version {0}, and this program reads version {VERSION}")]
    Version(u8),
    /// A number in them stands for nothing.
    #[error("the selection has an unknown {0}")]
    Unknown(&'static str),
    /// A place lies outside the fewest bytes of a row.
    #[error("the selection names bytes outside the fixed part of a row")]
    Place,
    /// There is too much of something.
    #[error("the selection has too many {0}")]
    TooMany(&'static str),
    /// There is a limit on rows of which none comes.
    #[error("a limit is on the rows that come, and aggregates are over all that are selected")]
    Limited,
}

impl Selection {
    /// The selection's bytes.
    ///
    /// # Errors
    /// It is larger than a decoder takes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WireError> {
        let mut out = vec![VERSION];
        let kind = match &self.output {
            Output::Whole => 0,
            Output::Columns(_) => 1,
            Output::Aggregates(_) => 2,
        };
        out.push(kind);
        out.extend(self.row_least.to_le_bytes());
        out.extend(self.limit.to_le_bytes());
        match &self.output {
            Output::Whole => {}
            Output::Columns(columns) => {
                put_count(&mut out, columns.len(), OUTPUTS_MAX, "columns")?;
                columns.iter().for_each(|place| put_place(&mut out, place.offset, place.len));
            }
            Output::Aggregates(aggregates) => {
                check_aggregates(aggregates, self.limit)?;
                put_count(&mut out, aggregates.len(), OUTPUTS_MAX, "aggregates")?;
                aggregates.iter().for_each(|aggregate| put_aggregate(&mut out, *aggregate));
            }
        }
        put_condition(&mut out, &self.condition)?;
        if out.len() > SELECTION_MAX {
            return Err(WireError::TooMany("bytes"));
        }
        Ok(out)
    }

    /// Reads a selection from any bytes.
    ///
    /// # Errors
    /// They are none.
    pub fn parse(bytes: &[u8]) -> Result<Selection, WireError> {
        if bytes.len() > SELECTION_MAX {
            return Err(WireError::TooMany("bytes"));
        }
        let mut reader = Reader { rest: bytes, row_least: 0, nodes: 0 };
        match reader.u8()? {
            VERSION => {}
            other => return Err(WireError::Version(other)),
        }
        let kind = reader.u8()?;
        let row_least = reader.u16()?;
        if row_least > FIXED_MAX {
            return Err(WireError::TooMany("bytes in a row's fixed part"));
        }
        reader.row_least = row_least;
        let limit = u64::from_le_bytes(reader.array()?);
        let output = match kind {
            0 => Output::Whole,
            1 => Output::Columns(reader.list("columns", Reader::bytes_at)?),
            2 => {
                let aggregates = reader.list("aggregates", Reader::aggregate)?;
                check_aggregates(&aggregates, limit)?;
                Output::Aggregates(aggregates)
            }
            _ => return Err(WireError::Unknown("output")),
        };
        let condition = reader.condition(0)?;
        match reader.rest.len() {
            0 => Ok(Selection { row_least, condition, output, limit }),
            more => Err(WireError::Trailing(more)),
        }
    }
}

fn put_count(
    out: &mut Vec<u8>,
    count: usize,
    most: usize,
    what: &'static str,
) -> Result<(), WireError> {
    let small = u16::try_from(count).ok().filter(|_| count <= most);
    out.extend(small.ok_or(WireError::TooMany(what))?.to_le_bytes());
    Ok(())
}

/// Refuses aggregates that a selection cannot have: with a limit, which would count the rows of one
/// call where a scan is many, or with too many distinct counts, which take memory and long answers.
fn check_aggregates(aggregates: &[Aggregate], limit: u64) -> Result<(), WireError> {
    if limit < u64::MAX {
        return Err(WireError::Limited);
    }
    let distinct = aggregates.iter().filter(|one| matches!(one, Aggregate::Distinct(_))).count();
    if distinct > DISTINCT_MAX { Err(WireError::TooMany("distinct counts")) } else { Ok(()) }
}

fn put_place(out: &mut Vec<u8>, offset: u16, len: Option<u16>) {
    out.extend(offset.to_le_bytes());
    out.extend(len.unwrap_or(TO_THE_END).to_le_bytes());
}

fn put_number(out: &mut Vec<u8>, number: NumberAt) {
    out.extend(number.offset.to_le_bytes());
    out.push(match number.form {
        Form::Unsigned(width) => width,
        Form::Signed(width) => SIGNED + width,
        Form::Letters(width) => LETTERS + width,
    });
}

fn put_aggregate(out: &mut Vec<u8>, aggregate: Aggregate) {
    let (kind, number) = match aggregate {
        Aggregate::Count => (0, None),
        Aggregate::Sum(number) => (1, Some(number)),
        Aggregate::Least(number) => (2, Some(number)),
        Aggregate::Greatest(number) => (3, Some(number)),
        Aggregate::Distinct(_) => (4, None),
    };
    out.push(kind);
    if let Some(number) = number {
        put_number(out, number);
    }
    if let Aggregate::Distinct(place) = aggregate {
        put_place(out, place.offset, place.len);
    }
}

fn put_condition(out: &mut Vec<u8>, condition: &RowCondition) -> Result<(), WireError> {
    let mut put_all = |kind: u8, all: &[RowCondition]| {
        out.push(kind);
        put_count(out, all.len(), NODES_MAX, "conditions")?;
        all.iter().try_for_each(|one| put_condition(out, one))
    };
    match condition {
        RowCondition::All(all) => put_all(0, all),
        RowCondition::Any(any) => put_all(1, any),
        RowCondition::Not(not) => {
            out.push(2);
            put_condition(out, not)
        }
        RowCondition::Within { number, least, most } => {
            out.push(3);
            put_number(out, *number);
            out.extend(least.to_le_bytes());
            out.extend(most.to_le_bytes());
            Ok(())
        }
        RowCondition::Text { text, test } => {
            out.push(4);
            put_place(out, text.offset, text.len);
            let (kind, bytes) = match test {
                TextTest::Compare(compare, with) => (*compare as u8, &with[..]),
                TextTest::Like(pattern) => (LIKE, &pattern[..]),
                TextTest::Contains(part) => (CONTAINS, &part[..]),
                TextTest::Matches(pattern) => (MATCHES, pattern.as_bytes()),
            };
            out.push(kind);
            put_count(out, bytes.len(), PATTERN_MAX, "bytes in a pattern")?;
            out.extend(bytes);
            Ok(())
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    row_least: u16,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(WireError::CutOff)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(WireError::CutOff)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn list<T>(
        &mut self,
        what: &'static str,
        mut each: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = usize::from(self.u16()?);
        if count > OUTPUTS_MAX {
            return Err(WireError::TooMany(what));
        }
        (0..count).map(|_| each(self)).collect()
    }

    fn place(&mut self) -> Result<(u16, Option<u16>), WireError> {
        let (offset, len) = (self.u16()?, self.u16()?);
        let len = Some(len).filter(|len| *len != TO_THE_END);
        let end = u32::from(offset) + u32::from(len.unwrap_or(0));
        if end > self.row_least.into() {
            return Err(WireError::Place);
        }
        Ok((offset, len))
    }

    fn bytes_at(&mut self) -> Result<BytesAt, WireError> {
        let (offset, len) = self.place()?;
        Ok(BytesAt { offset, len })
    }

    fn number(&mut self) -> Result<NumberAt, WireError> {
        let (offset, form) = (self.u16()?, self.u8()?);
        let form = match form {
            1 | 2 | 4 | 8 => Form::Unsigned(form),
            17 | 18 | 20 | 24 => Form::Signed(form - SIGNED),
            33..=40 => Form::Letters(form - LETTERS),
            _ => return Err(WireError::Unknown("form of a number")),
        };
        let number = NumberAt { offset, form };
        if number.end() > self.row_least.into() { Err(WireError::Place) } else { Ok(number) }
    }

    fn aggregate(&mut self) -> Result<Aggregate, WireError> {
        Ok(match self.u8()? {
            0 => Aggregate::Count,
            1 => Aggregate::Sum(self.number()?),
            2 => Aggregate::Least(self.number()?),
            3 => Aggregate::Greatest(self.number()?),
            4 => Aggregate::Distinct(self.bytes_at()?),
            _ => return Err(WireError::Unknown("aggregate")),
        })
    }

    fn condition(&mut self, level: usize) -> Result<RowCondition, WireError> {
        self.nodes += 1;
        if self.nodes > NODES_MAX || level >= LEVELS_MAX {
            return Err(WireError::TooMany("conditions"));
        }
        Ok(match self.u8()? {
            0 => RowCondition::All(self.conditions(level)?),
            1 => RowCondition::Any(self.conditions(level)?),
            2 => RowCondition::Not(Box::new(self.condition(level + 1)?)),
            3 => {
                let number = self.number()?;
                let least = i64::from_le_bytes(self.array()?);
                let most = i64::from_le_bytes(self.array()?);
                RowCondition::Within { number, least, most }
            }
            4 => self.text()?,
            _ => return Err(WireError::Unknown("condition")),
        })
    }

    fn conditions(&mut self, level: usize) -> Result<Vec<RowCondition>, WireError> {
        let count = usize::from(self.u16()?);
        // Each has a byte at least, so a vector of them is in proportion to the bytes there are.
        if count > NODES_MAX || count > self.rest.len() {
            return Err(WireError::TooMany("conditions"));
        }
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            all.push(self.condition(level + 1)?);
        }
        Ok(all)
    }

    fn text(&mut self) -> Result<RowCondition, WireError> {
        let (offset, len) = self.place()?;
        let (test, count) = (self.u8()?, usize::from(self.u16()?));
        if count > PATTERN_MAX {
            return Err(WireError::TooMany("bytes in a pattern"));
        }
        let bytes = self.take(count)?;
        let test = match test {
            LIKE => TextTest::Like(bytes.into()),
            CONTAINS => TextTest::Contains(bytes.into()),
            MATCHES => {
                let pattern = std::str::from_utf8(bytes);
                TextTest::Matches(pattern.map_err(|_| WireError::Unknown("character"))?.into())
            }
            test => {
                let compare = Compare::from_u8(test).ok_or(WireError::Unknown("test of a text"))?;
                TextTest::Compare(compare, bytes.into())
            }
        };
        Ok(RowCondition::Text { text: TextAt { offset, len }, test })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::Predicate;
    use crate::select::schema::Schema;
    use proptest::prelude::*;

    fn schema() -> Schema {
        let text = "id u64\nprice decimal(9,2)\nday date\nflag char(1)\ncity char(20)\nnote text";
        Schema::parse(text).unwrap()
    }

    fn selection(predicate: &str, output: &str) -> Selection {
        let schema = schema();
        let output = Output::parse(output, &schema).unwrap();
        Selection {
            row_least: schema.fixed(),
            condition: Predicate::parse(predicate).unwrap().bind(&schema, &["7"]).unwrap(),
            limit: if matches!(output, Output::Aggregates(_)) { u64::MAX } else { 1000 },
            output,
        }
    }

    fn selections() -> Vec<Selection> {
        vec![
            selection("true", "*"),
            selection("price < 24 and not (flag = 'R' or id != $1)", "note, id"),
            selection("city >= 'B' or note like '%a_b%' or note contains 'x'", "count, sum(price)"),
            selection("note matches '^a+$' and day between '1994-01-01' and '1995-01-01'", "id"),
            selection("false", "min(day), max(id), distinct(flag), distinct(note)"),
        ]
    }

    #[test]
    fn selections_round_trip() {
        for selection in selections() {
            let bytes = selection.to_bytes().unwrap();
            assert_eq!(Selection::parse(&bytes), Ok(selection));
        }
    }

    #[test]
    fn the_bytes_of_a_selection_stay_as_they_are() {
        let bytes = selection("price < 24", "id").to_bytes().unwrap();
        let head = [1, 1, 37, 0, 0xE8, 3, 0, 0, 0, 0, 0, 0];
        let output = [1, 0, 0, 0, 8, 0];
        let mut expected = [&head[..], &output, &[3, 8, 0, 20]].concat();
        expected.extend(i64::MIN.to_le_bytes());
        expected.extend(2399i64.to_le_bytes());
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_selection_that_is_cut_off_or_too_long_is_refused() {
        for selection in selections() {
            let mut bytes = selection.to_bytes().unwrap();
            for cut in 0..bytes.len() {
                assert!(Selection::parse(&bytes[..cut]).is_err(), "cut at {cut}");
            }
            bytes.push(0);
            assert_eq!(Selection::parse(&bytes), Err(WireError::Trailing(1)));
            bytes[0] = 2;
            assert_eq!(Selection::parse(&bytes), Err(WireError::Version(2)));
        }
    }

    #[test]
    fn deep_and_wide_conditions_are_refused() {
        let start = [1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        let nested = |levels: usize| [&start[..], &vec![2; levels], &[0, 0, 0]].concat();
        assert!(Selection::parse(&nested(LEVELS_MAX - 1)).is_ok());
        let too_many = Err(WireError::TooMany("conditions"));
        assert_eq!(Selection::parse(&nested(LEVELS_MAX)), too_many);
        let wide = [&start[..], &[0, 0xFF, 0xFF], &[0; 60_000]].concat();
        assert_eq!(Selection::parse(&wide), too_many);
        let many = vec![RowCondition::ALWAYS; NODES_MAX];
        let output = Output::Whole;
        let many = Selection { row_least: 0, condition: RowCondition::Any(many), output, limit: 1 };
        assert_eq!(Selection::parse(&many.to_bytes().unwrap()), too_many);
    }

    #[test]
    fn aggregates_take_no_limit() {
        let count = selection("true", "count");
        let mut bytes = count.to_bytes().unwrap();
        assert_eq!(Selection { limit: 1000, ..count }.to_bytes(), Err(WireError::Limited));
        bytes[4..12].copy_from_slice(&1000u64.to_le_bytes());
        assert_eq!(Selection::parse(&bytes), Err(WireError::Limited));
    }

    #[test]
    fn places_outside_a_row_are_refused() {
        for selection in selections().iter_mut().skip(1) {
            selection.row_least = 3;
            let bytes = selection.to_bytes().unwrap();
            assert_eq!(Selection::parse(&bytes), Err(WireError::Place));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            which in 0usize..5, at in any::<prop::sample::Index>(), byte in any::<u8>(),
            noise in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut bytes = selections()[which].to_bytes().unwrap();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            for bytes in [bytes, noise] {
                if let Ok(selection) = Selection::parse(&bytes) {
                    prop_assert_eq!(selection.to_bytes(), Ok(bytes));
                }
            }
        }
    }
}
