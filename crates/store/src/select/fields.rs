//! Rows as people write them: a field of text for each column.

use std::fmt::{self, Write};

use remora::calendar::Day;
use thiserror::Error;

use super::bind::number_at;
use super::schema::{Column, Schema, Type};
use super::value::{Number, write_scaled};

/// The most bytes of a number or date as text.
const NUMBER_MAX: usize = 24;

/// Why fields are no row.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FieldError {
    /// A field cannot be its column's value.
    #[error("column `{column}`: `{field}` is not {wanted}")]
    Value {
        /// The column's name.
        column: String,
        /// The begin of the field.
        field: String,
        /// What a value of the column is.
        wanted: String,
    },
    /// There are more or fewer fields than columns.
    #[error("there are {fields} fields, and the schema has {columns} columns")]
    Count {
        /// The number of fields, or that of columns and one if there are more.
        fields: usize,
        /// The number of columns.
        columns: usize,
    },
}

impl Schema {
    /// Appends the row of these fields, in the order of the columns, to `row`.
    ///
    /// # Errors
    /// The fields are no row of this schema. `row` is then as it was.
    pub fn write_row<'a>(
        &self,
        fields: impl IntoIterator<Item = &'a str>,
        row: &mut Vec<u8>,
    ) -> Result<(), FieldError> {
        let start = row.len();
        let columns = self.columns().len();
        let mut fields = fields.into_iter();
        row.resize(start + usize::from(self.fixed()), 0);
        for (index, column) in self.columns().iter().enumerate() {
            let written = match fields.next() {
                Some(field) => column.write(field, row, start),
                None => Err(FieldError::Count { fields: index, columns }),
            };
            written.inspect_err(|_| row.truncate(start))?;
        }
        if fields.next().is_some() {
            row.truncate(start);
            return Err(FieldError::Count { fields: columns + 1, columns });
        }
        Ok(())
    }

    /// Whether a value is a row that can be written again from what its columns show: bytes that
    /// are no text, and days that are no date, cannot.
    pub fn is_shown_whole(&self, value: &[u8]) -> bool {
        let shown: Vec<String> = self.columns().iter().map(|c| c.show(value).to_string()).collect();
        let mut again = Vec::with_capacity(value.len());
        let written = self.write_row(shown.iter().map(String::as_str), &mut again);
        written.is_ok() && again == value
    }
}

impl Column {
    /// Writes a value into its place in the row that begins at `start`; text is appended.
    fn write(&self, field: &str, row: &mut Vec<u8>, start: usize) -> Result<(), FieldError> {
        let wrong = |wanted: String| {
            let field = field.chars().take(40).collect();
            FieldError::Value { column: self.name.clone(), field, wanted }
        };
        let at = start + usize::from(self.offset);
        let place = at..at + usize::from(self.of.width());
        let (number, wanted) = match self.of {
            Type::Text => {
                row.extend_from_slice(field.as_bytes());
                return Ok(());
            }
            Type::Char { len } => {
                let bytes = field.as_bytes();
                let place = row.get_mut(place).and_then(|place| place.get_mut(..bytes.len()));
                // Zeroes at the end would not be found again.
                let place = place.filter(|_| !field.ends_with('\0'));
                let wanted = || wrong(format!("a text of at most {len} bytes"));
                place.ok_or_else(wanted)?.copy_from_slice(bytes);
                return Ok(());
            }
            Type::Date => {
                let days = Day::parse(field).map(|Day(days)| days.into());
                (days, "a date, such as 1994-01-31".to_owned())
            }
            Type::Decimal { scale, .. } => {
                let exact = Number::parse(field).map(|number| number.floor(scale.into()));
                let wanted = format!("a number with at most {scale} digits behind the point");
                (exact.filter(|(_, exact)| *exact).map(|(number, _)| number), wanted)
            }
            Type::Integer { width, signed } => {
                let sign = if signed { "" } else { " that is not negative" };
                let wanted = format!("an integer of {width} bytes{sign}");
                (field.parse().ok(), wanted)
            }
        };
        let fits = |number: &i128| number_at(self).is_some_and(|at| at.key_of(*number).is_some());
        let number = number.filter(fits).ok_or_else(|| wrong(wanted))?.to_le_bytes();
        for (to, from) in row[place].iter_mut().zip(number) {
            *to = from;
        }
        Ok(())
    }

    /// The value of the column in a row of its schema, for a person. A row that is too short has
    /// no value there.
    pub fn show<'a>(&'a self, row: &'a [u8]) -> impl fmt::Display + 'a {
        Shown { column: self, row }
    }

    /// As [`Column::show`], in bytes: text as it is in the row, also where it is no UTF-8.
    pub fn show_bytes(&self, row: &[u8]) -> Vec<u8> {
        match number_at(self) {
            None => self.text(row).to_vec(),
            Some(_) => self.show(row).to_string().into_bytes(),
        }
    }

    /// The bytes of [`Column::show_bytes`], at most, without a copy of a text.
    pub(crate) fn shown_len(&self, row: &[u8]) -> usize {
        match number_at(self) {
            None => self.text(row).len(),
            Some(_) => NUMBER_MAX,
        }
    }

    /// The bytes of the column in a row.
    fn place<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        let place = row.get(usize::from(self.offset)..).unwrap_or_default();
        match self.of {
            Type::Text => place,
            of => place.get(..usize::from(of.width())).unwrap_or_default(),
        }
    }

    /// The text of a column that holds text.
    fn text<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        let place = self.place(row);
        let zeroes = place.iter().rev().take_while(|byte| **byte == 0).count();
        let len = if self.of == Type::Text { place.len() } else { place.len() - zeroes };
        &place[..len]
    }

    fn write_value(&self, row: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match number_at(self) {
            None => f.write_str(&String::from_utf8_lossy(self.text(row))),
            Some(_) if self.place(row).is_empty() => Ok(()),
            Some(number) => self.write_number(number.number(number.key(row)), f),
        }
    }

    /// Writes a number of the column's, or a sum of such, as a person writes it.
    pub(super) fn write_number(&self, number: i128, f: &mut impl Write) -> fmt::Result {
        match self.of {
            Type::Date => match i32::try_from(number) {
                Ok(days) => write!(f, "{}", Day(days)),
                Err(_) => write!(f, "{number} days"),
            },
            Type::Decimal { scale, .. } => write_scaled(f, number, scale),
            _ => write!(f, "{number}"),
        }
    }
}

/// A column's value in a row.
struct Shown<'a> {
    column: &'a Column,
    row: &'a [u8],
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.column.write_value(self.row, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "a u8\nb i16\nc u64\nd decimal(9,2)\ne decimal(18,0)\nf date\ng char(4)\nskip(2)\nh text";

    fn row(fields: &str) -> Result<Vec<u8>, FieldError> {
        let mut row = vec![9];
        let written = Schema::parse(TEXT).unwrap().write_row(fields.split('|'), &mut row);
        assert!(written.is_ok() || row == [9]);
        written.map(|()| row.split_off(1))
    }

    #[test]
    fn rows_are_shown_as_they_were_written() {
        let schema = Schema::parse(TEXT).unwrap();
        for fields in [
            "255|-32768|18446744073709551615|-0.05|-7|1994-01-31|abcd|some text",
            "0|0|0|21474836.47|0|0000-01-01||",
        ] {
            let row = row(fields).unwrap();
            let shown = schema.columns().iter().map(|column| column.show(&row).to_string());
            assert_eq!(shown.collect::<Vec<_>>().join("|"), fields);
        }
        let columns = schema.columns();
        assert!(columns.iter().all(|column| column.show(&[]).to_string().is_empty()));
    }

    #[test]
    fn a_field_that_is_no_value_is_named() {
        let refused = [
            ("256|0|0|0|0|1994-01-31||", "`a`: `256` is not an integer of 1 bytes that is not"),
            ("0|32768|0|0|0|1994-01-31||", "`b`"),
            ("0|0|-1|0|0|1994-01-31||", "`c`"),
            ("0|0|0|0.055|0|1994-01-31||", "`d`: `0.055` is not a number with at most 2 digits"),
            ("0|0|0|21474836.48|0|1994-01-31||", "`d`"),
            ("0|0|0|0|x|1994-01-31||", "`e`"),
            ("0|0|0|0|0|1994-02-31||", "`f`: `1994-02-31` is not a date"),
            ("0|0|0|0|0|1994-01-31|abcde|", "`g`: `abcde` is not a text of at most 4 bytes"),
            ("0|0|0|0|0|1994-01-31|a\0|", "`g`"),
            ("0|0|0|0|0|1994-01-31|a", "there are 7 fields"),
            ("0|0|0|0|0|1994-01-31|a||", "there are 9 fields"),
        ];
        for (fields, says) in refused {
            let error = row(fields).unwrap_err().to_string();
            assert!(error.contains(says), "{fields}: {error}");
        }
    }
}
