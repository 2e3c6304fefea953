//! Numbers as people write them.

use std::fmt;

/// The most digits of a number in a text.
const DIGITS_MAX: usize = 36;
/// 10^38 is the greatest power of ten that an i128 holds.
const SCALE_MAX: u32 = 38;

/// A decimal number: `unscaled` · 10^-`scale`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Number {
    unscaled: i128,
    scale: u32,
}

impl Number {
    /// An integer.
    pub fn integer(value: i128) -> Number {
        Number { unscaled: value, scale: 0 }
    }

    /// Reads `-12.50`; `_` may stand between digits. `None` if the text is no number, or has more
    /// than 36 digits.
    pub fn parse(text: &str) -> Option<Number> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let well_formed = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
        if !well_formed(whole) || !well_formed(fraction) || digits.len() > 2 * DIGITS_MAX {
            return None;
        }
        let has_point = digits.contains('.');
        let (mut unscaled, mut count, mut scale) = (0i128, 0, 0);
        for (byte, behind) in whole
            .bytes()
            .map(|byte| (byte, false))
            .chain(fraction.bytes().filter(|_| has_point).map(|byte| (byte, true)))
        {
            if byte == b'_' {
                continue;
            }
            count += 1;
            scale += u32::from(behind);
            if !byte.is_ascii_digit() || count > DIGITS_MAX {
                return None;
            }
            unscaled = unscaled * 10 + i128::from(byte - b'0');
        }
        Some(Number { unscaled: if negative { -unscaled } else { unscaled }, scale })
    }

    /// The number in units of 10^-`scale`, rounded down, and whether nothing was lost by that. A
    /// number that is too large for an i128 becomes the nearest that is not, and is inexact.
    pub fn floor(self, scale: u32) -> (i128, bool) {
        if scale >= self.scale {
            let factor = 10i128.checked_pow(scale - self.scale);
            return match factor.and_then(|factor| self.unscaled.checked_mul(factor)) {
                Some(scaled) => (scaled, true),
                None if self.unscaled < 0 => (i128::MIN, false),
                None => (i128::MAX, false),
            };
        }
        let unit = 10i128.pow((self.scale - scale).min(SCALE_MAX));
        (self.unscaled.div_euclid(unit), self.unscaled.rem_euclid(unit) == 0)
    }
}

/// A number of units of 10^-`scale`, as a person writes it.
pub(super) fn write_scaled(f: &mut impl fmt::Write, units: i128, scale: u8) -> fmt::Result {
    if scale == 0 {
        return write!(f, "{units}");
    }
    let unit = 10u128.pow(u32::from(scale).min(SCALE_MAX));
    let (whole, fraction) = (units.unsigned_abs() / unit, units.unsigned_abs() % unit);
    let sign = if units < 0 { "-" } else { "" };
    write!(f, "{sign}{whole}.{fraction:0places$}", places = usize::from(scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_scale() {
        let floor = |text: &str, scale| Number::parse(text).unwrap().floor(scale);
        assert_eq!(floor("24", 2), (2400, true));
        assert_eq!(floor("0.055", 2), (5, false));
        assert_eq!(floor("-0.055", 2), (-6, false));
        assert_eq!(floor("1_000.50", 1), (10005, true));
        assert_eq!(floor("999999999999999999999999999999", 20), (i128::MAX, false));
        let nines = "9".repeat(DIGITS_MAX);
        assert!(Number::parse(&nines).is_some() && Number::parse(&(nines + "9")).is_none());
        for text in ["", "-", ".5", "5.", "1.2.3", "1e3", "0x10", "--1", "+1", "_1", "1._5"] {
            assert_eq!(Number::parse(text), None, "{text}");
        }
    }

    #[test]
    fn scaled_numbers_are_shown_as_they_were_written() {
        for text in ["0.05", "-0.05", "12.50", "-3.00"] {
            let mut out = String::new();
            write_scaled(&mut out, Number::parse(text).unwrap().floor(2).0, 2).unwrap();
            assert_eq!(out, text);
        }
    }
}
