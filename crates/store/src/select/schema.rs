//! The schema: what the bytes of a row mean, described by a small text.
//!
//! ```text
//! # a column a line: its name, and its type
//! orderkey   u64
//! quantity   decimal(9, 2)
//! shipdate   date
//! flag       char(1)
//! skip(3)
//! comment    text
//! ```
//!
//! A row is these columns one after the other, little-endian, without gaps (`skip` makes one). A
//! column of the type `text` is the last one, and has all bytes that follow. docs/selection.md is
//! the reference.

use std::ops::Range;

use super::mistake::Mistake;
use crate::codec;

/// The most bytes of the columns before the text, so that they can always be a plain head.
pub const FIXED_MAX: u16 = codec::HEAD_MAX;
/// The most columns.
pub const COLUMNS_MAX: usize = 256;
/// The most bytes of a schema's text.
pub const TEXT_MAX: usize = 1 << 16;
/// The most bytes of a column's name.
pub const NAME_MAX: usize = 64;

/// Words of the language of predicates; a column cannot be called so.
pub(super) const WORDS: [&str; 10] =
    ["and", "or", "not", "like", "contains", "matches", "between", "true", "false", "skip"];

/// The type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// An integer.
    Integer {
        /// Its bytes: 1, 2, 4 or 8.
        width: u8,
        /// Whether it may be negative.
        signed: bool,
    },
    /// A signed integer that counts units of 10^-`scale`.
    Decimal {
        /// Its bytes: 4 or 8.
        width: u8,
        /// The digits behind the point, at most 18.
        scale: u8,
    },
    /// Days since 1970-01-01, a signed integer of 4 bytes.
    Date,
    /// Text in a fixed place, with bytes of zero behind it.
    Char {
        /// Its bytes.
        len: u16,
    },
    /// Text up to the row's end.
    Text,
}

impl Type {
    /// Bytes in the row's fixed part.
    pub fn width(self) -> u16 {
        match self {
            Type::Integer { width, .. } | Type::Decimal { width, .. } => width.into(),
            Type::Date => 4,
            Type::Char { len } => len,
            Type::Text => 0,
        }
    }
}

/// A column of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub of: Type,
    /// The bytes of the row before it.
    pub offset: u16,
}

/// The columns of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schema {
    columns: Vec<Column>,
    fixed: u16,
}

impl Schema {
    /// Reads a schema's text.
    ///
    /// # Errors
    /// The first mistake, with its place in the text.
    pub fn parse(text: &str) -> Result<Schema, Mistake> {
        if text.len() > TEXT_MAX {
            return Err(Mistake::new(0..0, format!("a schema has at most {TEXT_MAX} bytes")));
        }
        let mut schema = Schema { columns: Vec::new(), fixed: 0 };
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let content = line.split('#').next().unwrap_or_default();
            let words = content.trim();
            if !words.is_empty() {
                let at = start + (content.len() - content.trim_start().len());
                schema.read_line(words, at)?;
            }
            start += line.len();
        }
        if schema.columns.is_empty() {
            return Err(Mistake::new(0..text.len(), "there is no column: write `NAME TYPE`"));
        }
        Ok(schema)
    }

    /// Reads a line's words, which begin at `at`.
    fn read_line(&mut self, words: &str, at: usize) -> Result<(), Mistake> {
        let whole = at..at + words.len();
        if let Some(last) = self.columns.last().filter(|last| last.of == Type::Text) {
            let says = format!("`{}` has the rest of the row: no column follows a text", last.name);
            return Err(Mistake::new(whole, says));
        }
        if let Some(skipped) = call(words, "skip") {
            let bytes = number(skipped, 1..=FIXED_MAX.into());
            let says = format!("`skip(N)` leaves out N bytes, 1 to {FIXED_MAX}");
            let bytes = bytes.ok_or_else(|| Mistake::new(whole.clone(), says))?;
            return self.extend(bytes, whole);
        }
        let name = words.split(char::is_whitespace).next().unwrap_or_default();
        let of = words[name.len()..].trim_start();
        let name_at = at..at + name.len();
        self.check_name(name, name_at)?;
        if of.is_empty() {
            let says = format!("`{name}` has no type: write one of {TYPES}");
            return Err(Mistake::new(whole, says));
        }
        let of_at = whole.end - of.len()..whole.end;
        let parsed = parse_type(of).map_err(|says| Mistake::new(of_at, says))?;
        if self.columns.len() == COLUMNS_MAX {
            return Err(Mistake::new(whole, format!("a row has at most {COLUMNS_MAX} columns")));
        }
        let offset = self.fixed;
        self.extend(parsed.width(), whole)?;
        self.columns.push(Column { name: name.to_owned(), of: parsed, offset });
        Ok(())
    }

    fn check_name(&self, name: &str, at: Range<usize>) -> Result<(), Mistake> {
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            let says = format!("`{name}` is no name: a name has letters, digits and `_`");
            return Err(Mistake::new(at, says));
        }
        if name.len() > NAME_MAX {
            return Err(Mistake::new(at, format!("a name has at most {NAME_MAX} letters")));
        }
        if WORDS.iter().any(|word| word.eq_ignore_ascii_case(name)) {
            let says = format!("`{name}` is a word of predicates: call the column otherwise");
            return Err(Mistake::new(at, says));
        }
        if self.column(name).is_some() {
            return Err(Mistake::new(at, format!("there is a column `{name}` already")));
        }
        Ok(())
    }

    fn extend(&mut self, bytes: u16, at: Range<usize>) -> Result<(), Mistake> {
        let fixed = self.fixed.checked_add(bytes).filter(|fixed| *fixed <= FIXED_MAX);
        let says = || format!("the row is too long: columns before a text have {FIXED_MAX} bytes");
        self.fixed = fixed.ok_or_else(|| Mistake::new(at, says()))?;
        Ok(())
    }

    /// The columns, in the order of the row.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Bytes of the columns that have a fixed place. A shorter row is none of this schema.
    pub fn fixed(&self) -> u16 {
        self.fixed
    }

    /// Whether text of any length follows the columns of fixed place.
    pub fn has_text(&self) -> bool {
        self.columns.last().is_some_and(|last| last.of == Type::Text)
    }

    /// The columns' names, for a person.
    pub(super) fn names(&self) -> String {
        const SHOWN: usize = 20;
        let names = self.columns.iter().take(SHOWN).map(|column| column.name.as_str());
        let more = if self.columns.len() > SHOWN { ", …" } else { "" };
        names.collect::<Vec<_>>().join(", ") + more
    }
}

const TYPES: &str =
    "u8, u16, u32, u64, i8, i16, i32, i64, decimal(DIGITS, BEHIND THE POINT), date, char(N), text";

fn parse_type(text: &str) -> Result<Type, String> {
    let integer = |width, signed| Ok(Type::Integer { width, signed });
    match text {
        "u8" => return integer(1, false),
        "u16" => return integer(2, false),
        "u32" => return integer(4, false),
        "u64" => return integer(8, false),
        "i8" => return integer(1, true),
        "i16" => return integer(2, true),
        "i32" => return integer(4, true),
        "i64" => return integer(8, true),
        "date" => return Ok(Type::Date),
        "text" => return Ok(Type::Text),
        _ => {}
    }
    if let Some(len) = call(text, "char") {
        let says = || format!("`char(N)` has N bytes, 1 to {FIXED_MAX}");
        let len = number(len, 1..=FIXED_MAX.into()).ok_or_else(says)?;
        return Ok(Type::Char { len });
    }
    if let Some(inside) = call(text, "decimal") {
        let says = || "`decimal(P, S)` has P digits, 1 to 18, and S behind the point".to_owned();
        let (digits, scale) = inside.split_once(',').ok_or_else(says)?;
        let digits = number(digits, 1..=18).ok_or_else(says)?;
        let scale = number(scale, 0..=digits.into()).ok_or_else(says)? as u8;
        return Ok(Type::Decimal { width: if digits <= 9 { 4 } else { 8 }, scale });
    }
    Err(format!("`{text}` is no type: write one of {TYPES}"))
}

/// What stands between the brackets of `NAME(…)`.
fn call<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')')
}

fn number(text: &str, within: std::ops::RangeInclusive<u32>) -> Option<u16> {
    let number = text.trim().parse().ok().filter(|number| within.contains(number))?;
    u16::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_lie_one_after_the_other() {
        let text = "# of a shop\nprice decimal(15, 2) # in euros\n\n  flag char (1)\nskip(3)\n\
            day date\ncomment\ttext\n";
        let schema = Schema::parse(text).unwrap();
        let places: Vec<_> =
            schema.columns().iter().map(|c| (c.name.as_str(), c.offset, c.of)).collect();
        let expected = [
            ("price", 0, Type::Decimal { width: 8, scale: 2 }),
            ("flag", 8, Type::Char { len: 1 }),
            ("day", 12, Type::Date),
            ("comment", 16, Type::Text),
        ];
        assert_eq!(places, expected);
        assert_eq!((schema.fixed(), schema.has_text()), (16, true));
    }

    #[test]
    fn a_mistake_has_its_line() {
        let refused = [
            ("", "there is no column", (1, 1)),
            ("a u8\nb\n", "`b` has no type", (2, 1)),
            ("a u8\nb  u9\n", "`u9` is no type", (2, 4)),
            ("a u8\n a u8", "a column `a` already", (2, 2)),
            ("And u8", "word of predicates", (1, 1)),
            ("9a u8", "is no name", (1, 1)),
            ("a text\nb u8", "no column follows a text", (2, 1)),
            ("a char(0)", "1 to 16383", (1, 3)),
            ("a decimal(19,2)", "1 to 18", (1, 3)),
            ("a decimal(2,3)", "behind the point", (1, 3)),
            ("a char(16383)\nb u8", "too long", (2, 1)),
            ("skip(0)", "leaves out", (1, 1)),
        ];
        for (text, says, at) in refused {
            let mistake = Schema::parse(text).unwrap_err();
            assert!(mistake.says.contains(says), "{text}: {mistake}");
            assert_eq!(mistake.line_column(text), at, "{text}");
        }
    }

    #[test]
    fn a_schema_has_limits() {
        let columns = |count| (0..count).map(|i| format!("c{i} u8\n")).collect::<String>();
        assert!(Schema::parse(&columns(COLUMNS_MAX)).is_ok());
        assert!(Schema::parse(&columns(COLUMNS_MAX + 1)).is_err());
        assert!(Schema::parse(&"#".repeat(TEXT_MAX + 1)).is_err());
        assert!(Schema::parse(&format!("{} u8", "n".repeat(NAME_MAX + 1))).is_err());
    }
}
