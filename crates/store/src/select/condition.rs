//! Conditions on rows, by places in a row instead of columns' names: what a client sends.

/// The most conditions of a predicate's text, brackets included.
pub const CONDITIONS_MAX: usize = 256;
/// The most brackets of a predicate's text that stand within each other.
pub const DEPTH_MAX: usize = 16;
/// The most nodes of a [`RowCondition`]: what joins conditions, and what negates them, counts too.
pub const NODES_MAX: usize = 1024;
/// The most nodes of a [`RowCondition`] that stand within each other.
pub const LEVELS_MAX: usize = 64;
/// The most bytes of a text that is compared or searched for, and of a pattern.
pub const PATTERN_MAX: usize = 1024;

/// Where a number lies in a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NumberAt {
    /// The bytes of the row before it.
    pub offset: u16,
    /// How it is written.
    pub form: Form,
}

/// How a number is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// Little-endian, without a sign: 1, 2, 4 or 8 bytes.
    Unsigned(u8),
    /// Little-endian, with a sign: 1, 2, 4 or 8 bytes.
    Signed(u8),
    /// 1 to 8 bytes of text, compared as text is.
    Letters(u8),
}

/// Turns the order of numbers without a sign into that of numbers with one.
const FLIP: u64 = 1 << 63;

impl NumberAt {
    /// Its bytes.
    #[inline]
    pub fn width(self) -> u16 {
        match self.form {
            Form::Unsigned(width) | Form::Signed(width) | Form::Letters(width) => width.into(),
        }
    }

    /// The bytes of the row up to the number's end.
    #[inline]
    pub fn end(self) -> u32 {
        u32::from(self.offset) + u32::from(self.width())
    }

    /// The number's key in a row: keys compare as the numbers do. 0 if the row is too short.
    #[inline]
    pub fn key(self, row: &[u8]) -> i64 {
        let at = usize::from(self.offset);
        let bytes = row.get(at..at + usize::from(self.width())).unwrap_or_default();
        match self.form {
            Form::Unsigned(_) => match *bytes {
                [a] => a.into(),
                [a, b] => u16::from_le_bytes([a, b]).into(),
                [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
                [a, b, c, d, e, f, g, h] => {
                    (u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ FLIP) as i64
                }
                _ => 0,
            },
            Form::Signed(_) => match *bytes {
                [a] => (a as i8).into(),
                [a, b] => i16::from_le_bytes([a, b]).into(),
                [a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
                [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
                _ => 0,
            },
            Form::Letters(_) => letters_key(bytes),
        }
    }

    /// The key of a number; `None` if the number cannot stand there.
    pub fn key_of(self, number: i128) -> Option<i64> {
        match self.form {
            Form::Unsigned(8) => u64::try_from(number).ok().map(|number| (number ^ FLIP) as i64),
            Form::Unsigned(width) => in_bits(number, 8 * u32::from(width), 0),
            Form::Signed(width) => in_bits(number, 8 * u32::from(width) - 1, -1),
            Form::Letters(_) => None,
        }
    }

    /// The number of a key. Letters have the number that their key is.
    #[inline]
    pub fn number(self, key: i64) -> i128 {
        match self.form {
            Form::Unsigned(8) => (key as u64 ^ FLIP).into(),
            _ => key.into(),
        }
    }
}

/// The key of up to 8 bytes of text.
#[inline]
pub(super) fn letters_key(bytes: &[u8]) -> i64 {
    let mut padded = [0; 8];
    for (to, from) in padded.iter_mut().zip(bytes) {
        *to = *from;
    }
    (u64::from_be_bytes(padded) ^ FLIP) as i64
}

/// The number, if its size is below 2^`bits`, and it is not negative where `sign` is 0.
fn in_bits(number: i128, bits: u32, sign: i128) -> Option<i64> {
    let limit = 1i128 << bits;
    let fits = (sign * limit..limit).contains(&number);
    i64::try_from(number).ok().filter(|_| fits)
}

/// Where text lies in a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TextAt {
    /// The bytes of the row before it.
    pub offset: u16,
    /// Its bytes, of which zeroes at the end do not count; `None`: it ends with the row.
    pub len: Option<u16>,
}

impl TextAt {
    /// The bytes of a row that the text needs: `u32::MAX` for all.
    pub fn end(self) -> u32 {
        self.len.map_or(u32::MAX, |len| u32::from(self.offset) + u32::from(len))
    }

    /// The text in a row; empty if the row is too short.
    #[inline]
    pub fn of(self, row: &[u8]) -> &[u8] {
        let at = usize::from(self.offset);
        match self.len {
            None => row.get(at..).unwrap_or_default(),
            Some(len) => {
                let text = row.get(at..at + usize::from(len)).unwrap_or_default();
                let zeroes = text.iter().rev().take_while(|byte| **byte == 0).count();
                &text[..text.len() - zeroes]
            }
        }
    }
}

/// How values are compared.
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

impl Compare {
    /// Whether values of this order compare so.
    #[inline]
    pub fn holds(self, order: std::cmp::Ordering) -> bool {
        match self {
            Compare::Equal => order.is_eq(),
            Compare::NotEqual => order.is_ne(),
            Compare::Less => order.is_lt(),
            Compare::LessOrEqual => order.is_le(),
            Compare::Greater => order.is_gt(),
            Compare::GreaterOrEqual => order.is_ge(),
        }
    }

    /// The comparison with its sides exchanged.
    pub fn flipped(self) -> Compare {
        match self {
            Compare::Less => Compare::Greater,
            Compare::LessOrEqual => Compare::GreaterOrEqual,
            Compare::Greater => Compare::Less,
            Compare::GreaterOrEqual => Compare::LessOrEqual,
            same => same,
        }
    }

    /// The comparison of this number.
    pub(super) fn from_u8(number: u8) -> Option<Compare> {
        use Compare::*;
        [Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual]
            .get(usize::from(number))
            .copied()
    }
}

/// A condition on a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TextTest {
    /// It compares so with these bytes, byte by byte.
    Compare(Compare, Box<[u8]>),
    /// It is as a pattern of SQL says: `%` is any text, `_` one character, and `\` takes what
    /// follows as it is.
    Like(Box<[u8]>),
    /// These bytes are in it.
    Contains(Box<[u8]>),
    /// A regular expression matches somewhere in it.
    Matches(Box<str>),
}

/// A condition on a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowCondition {
    /// All of these hold; without any, it holds.
    All(Vec<RowCondition>),
    /// One of these holds; without any, it does not hold.
    Any(Vec<RowCondition>),
    /// This one does not hold.
    Not(Box<RowCondition>),
    /// The key of a number is in a range.
    Within {
        /// Which number.
        number: NumberAt,
        /// The least key.
        least: i64,
        /// The greatest key.
        most: i64,
    },
    /// A text is as wanted.
    Text {
        /// Which text.
        text: TextAt,
        /// What is wanted.
        test: TextTest,
    },
}

impl RowCondition {
    /// The condition that every row meets.
    pub const ALWAYS: RowCondition = RowCondition::All(Vec::new());
    /// The condition that no row meets.
    pub const NEVER: RowCondition = RowCondition::Any(Vec::new());
}
