//! What is computed over selected rows, so that only answers travel.
//!
//! A scan may come in many parts, from many nodes: each part's answers have bytes, which are added
//! to those of the others.

use std::fmt;

use thiserror::Error;

use super::condition::NumberAt;
use super::distinct::{REGISTERS, Sketch};
use super::rows::{Marks, Rows};
use super::selection::{Aggregate, BytesAt};

/// The aggregates of a selection, over the rows that were added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Aggregation {
    running: Vec<Running>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Running {
    Count(u64),
    Sum(NumberAt, i128),
    /// With the least key so far.
    Least(NumberAt, Option<i64>),
    Greatest(NumberAt, Option<i64>),
    Distinct(BytesAt, Sketch),
}

/// The answer of an aggregate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Answer {
    /// A number of rows.
    Count(u64),
    /// A number in the units of its column: a sum, or the least or the greatest number, which there
    /// is none of without rows.
    Number(Option<i128>),
    /// About how many different values there are.
    About(f64),
}

/// Bytes are not those of these aggregates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("these are not the answers of these aggregates")]
pub struct ForeignAnswers;

impl Aggregation {
    /// Aggregates over no rows yet.
    pub fn new(aggregates: &[Aggregate]) -> Aggregation {
        let start = |aggregate: &Aggregate| match *aggregate {
            Aggregate::Count => Running::Count(0),
            Aggregate::Sum(number) => Running::Sum(number, 0),
            Aggregate::Least(number) => Running::Least(number, None),
            Aggregate::Greatest(number) => Running::Greatest(number, None),
            Aggregate::Distinct(place) => Running::Distinct(place, Sketch::default()),
        };
        Aggregation { running: aggregates.iter().map(start).collect() }
    }

    /// Adds a row.
    #[inline]
    pub fn add(&mut self, row: &[u8]) {
        self.running.iter_mut().for_each(|running| running.add(row));
    }

    /// Adds the rows that are marked.
    pub fn add_marked(&mut self, rows: &Rows<'_>, marks: &Marks) {
        for running in &mut self.running {
            match running {
                Running::Count(count) => *count = count.saturating_add(marks.count()),
                _ => marks.iter().for_each(|row| running.add(rows.row(row))),
            }
        }
    }

    /// Appends the answers' bytes: of each aggregate a number of 16 bytes, or a byte that says
    /// whether there is a key, and the key of 8 bytes, or [`REGISTERS`] registers.
    pub fn write(&self, out: &mut Vec<u8>) {
        for running in &self.running {
            match running {
                Running::Count(count) => out.extend(u128::from(*count).to_le_bytes()),
                Running::Sum(_, sum) => out.extend(sum.to_le_bytes()),
                Running::Least(_, key) | Running::Greatest(_, key) => {
                    out.push(key.is_some().into());
                    out.extend(key.unwrap_or(0).to_le_bytes());
                }
                Running::Distinct(_, sketch) => out.extend(sketch.registers()),
            }
        }
    }

    /// Adds the answers of another part of the scan, as they were written.
    ///
    /// # Errors
    /// They are not of the same aggregates. Nothing was added then.
    pub fn merge(&mut self, mut answers: &[u8]) -> Result<(), ForeignAnswers> {
        let mut merged = self.clone();
        for running in &mut merged.running {
            running.merge(&mut answers).ok_or(ForeignAnswers)?;
        }
        if !answers.is_empty() {
            return Err(ForeignAnswers);
        }
        *self = merged;
        Ok(())
    }

    /// The answers, in the order of the aggregates.
    pub fn answers(&self) -> impl Iterator<Item = Answer> {
        self.running.iter().map(|running| match running {
            Running::Count(count) => Answer::Count(*count),
            Running::Sum(_, sum) => Answer::Number(Some(*sum)),
            Running::Least(number, key) | Running::Greatest(number, key) => {
                Answer::Number(key.map(|key| number.number(key)))
            }
            Running::Distinct(_, sketch) => Answer::About(sketch.estimate()),
        })
    }
}

impl Running {
    #[inline]
    fn add(&mut self, row: &[u8]) {
        match self {
            Running::Count(count) => *count = count.saturating_add(1),
            Running::Sum(number, sum) => *sum = sum.saturating_add(number.number(number.key(row))),
            Running::Least(number, least) => lower(least, Some(number.key(row))),
            Running::Greatest(number, most) => *most = (*most).max(Some(number.key(row))),
            Running::Distinct(place, sketch) => sketch.add(place.of(row)),
        }
    }

    /// Adds the answer that the bytes begin with, and takes it off them; `None` if it is foreign.
    fn merge(&mut self, answers: &mut &[u8]) -> Option<()> {
        match self {
            Running::Count(count) => {
                let more = u64::try_from(u128::from_le_bytes(take(answers)?)).ok()?;
                *count = count.saturating_add(more);
            }
            Running::Sum(_, sum) => *sum = sum.saturating_add(i128::from_le_bytes(take(answers)?)),
            Running::Least(_, least) => lower(least, take_key(answers)?),
            Running::Greatest(_, most) => *most = (*most).max(take_key(answers)?),
            Running::Distinct(_, sketch) => {
                let registers: [u8; REGISTERS] = take(answers)?;
                return sketch.merge(&registers).then_some(());
            }
        }
        Some(())
    }
}

fn lower(least: &mut Option<i64>, key: Option<i64>) {
    *least = match (*least, key) {
        (Some(least), Some(key)) => Some(least.min(key)),
        (least, key) => least.or(key),
    };
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

fn take_key(bytes: &mut &[u8]) -> Option<Option<i64>> {
    let [some]: [u8; 1] = take(bytes)?;
    let key = i64::from_le_bytes(take(bytes)?);
    match some {
        0 => Some(None),
        1 => Some(Some(key)),
        _ => None,
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Count(count) => write!(f, "{count}"),
            Answer::Number(Some(number)) => write!(f, "{number}"),
            Answer::Number(None) => f.write_str("none"),
            Answer::About(number) => write!(f, "~{number:.0}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::condition::Form;

    fn aggregates() -> Vec<Aggregate> {
        let signed = NumberAt { offset: 0, form: Form::Signed(2) };
        let unsigned = NumberAt { offset: 2, form: Form::Unsigned(8) };
        let place = BytesAt { offset: 0, len: Some(2) };
        vec![
            Aggregate::Count,
            Aggregate::Sum(signed),
            Aggregate::Sum(unsigned),
            Aggregate::Least(signed),
            Aggregate::Greatest(unsigned),
            Aggregate::Distinct(place),
        ]
    }

    fn rows() -> Vec<u8> {
        let row = |i: i16| [&i.to_le_bytes()[..], &(u64::MAX - i as u64).to_le_bytes()].concat();
        (-5..100).flat_map(row).collect()
    }

    #[test]
    fn answers_are_those_of_the_marked_rows() {
        let bytes = rows();
        let rows = Rows::packed(&bytes, 10);
        let mut marks = Marks::default();
        marks.all(rows.count());
        marks.0[0] = 0b111;
        marks.0[1] = 0;
        let (mut marked, mut each) =
            (Aggregation::new(&aggregates()), Aggregation::new(&aggregates()));
        marked.add_marked(&rows, &marks);
        (0..3).for_each(|row| each.add(rows.row(row)));
        assert_eq!(marked, each);
        let answers: Vec<_> = marked.answers().map(|answer| answer.to_string()).collect();
        // Rows have -5, -4 and -3, and as many more than 2^64 - 1, which wraps.
        assert_eq!(answers, ["3", "-12", "9", "-5", "4", "~3"]);
        let none = Aggregation::new(&aggregates());
        let none: Vec<_> = none.answers().map(|answer| answer.to_string()).collect();
        assert_eq!(none, ["0", "0", "0", "none", "none", "~0"]);
    }

    #[test]
    fn parts_are_added_to_the_whole() {
        let bytes = rows();
        let mut all = Aggregation::new(&aggregates());
        bytes.chunks(10).for_each(|row| all.add(row));
        let mut merged = Aggregation::new(&aggregates());
        for part in bytes.chunks(70) {
            let mut one = Aggregation::new(&aggregates());
            part.chunks(10).for_each(|row| one.add(row));
            let mut answers = Vec::new();
            one.write(&mut answers);
            merged.merge(&answers).unwrap();
            for cut in [0, 1, 20, 60, answers.len() - 1] {
                assert_eq!(merged.clone().merge(&answers[..cut]), Err(ForeignAnswers));
            }
            answers.push(0);
            assert_eq!(merged.clone().merge(&answers), Err(ForeignAnswers));
        }
        assert_eq!(merged, all);
    }
}
