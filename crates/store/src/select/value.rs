//! Numbers and dates as people write them.

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

/// Days from 1970-01-01 to a date of the Gregorian calendar, written `1994-01-31`; years 0000 to
/// 9999. `None` if the text is no such date.
pub(super) fn parse_date(text: &str) -> Option<i32> {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let number = |part: &[u8]| {
        part.iter().try_fold(0, |sum, byte| {
            byte.is_ascii_digit().then(|| sum * 10 + i32::from(byte - b'0'))
        })
    };
    let (year, month, day) = (number(&bytes[..4])?, number(&bytes[5..7])?, number(&bytes[8..])?);
    let exists = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    exists.then(|| days_before(year) + (1..month).map(|m| days_of(year, m)).sum::<i32>() + day - 1)
}

/// The date that is so many days after 1970-01-01. A date outside the years 0000 to 9999 is shown
/// as its number of days.
pub(super) fn write_date(f: &mut impl fmt::Write, days: i32) -> fmt::Result {
    if !(days_before(0)..days_before(10_000)).contains(&days) {
        return write!(f, "{days} days");
    }
    // A year has at most 366 days, so this one is not later than the date's.
    let mut year = (days - days_before(0)) / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let (mut month, mut day) = (1, days - days_before(year));
    while day >= days_of(year, month) {
        day -= days_of(year, month);
        month += 1;
    }
    write!(f, "{year:04}-{month:02}-{:02}", day + 1)
}

fn is_leap(year: i32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i32, month: i32) -> i32 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to the first day of a year, which is not negative.
fn days_before(year: i32) -> i32 {
    let leaps = |year: i32| (year + 3) / 4 - (year + 99) / 100 + (year + 399) / 400;
    365 * (year - 1970) + leaps(year) - leaps(1970)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_date(days: i32) -> String {
        let mut out = String::new();
        write_date(&mut out, days).unwrap();
        out
    }

    #[test]
    fn dates_are_days() {
        let known = [
            ("1970-01-01", 0),
            ("1969-12-31", -1),
            ("2000-02-29", 11016),
            ("1994-01-01", 8766),
            ("0000-01-01", -719_528),
            ("9999-12-31", 2_932_896),
        ];
        for (text, days) in known {
            assert_eq!(parse_date(text), Some(days), "{text}");
            assert_eq!(shown_date(days), text);
        }
        let wrong =
            ["1999-02-29", "1900-02-29", "1994-13-01", "1994-00-01", "1994-1-01", "19940101"];
        for text in wrong.into_iter().chain(["1994-01-00", "1994-04-31", "1994-01-1x", "", "äöüäö"])
        {
            assert_eq!(parse_date(text), None, "{text}");
        }
        assert_eq!(shown_date(i32::MAX), "2147483647 days");
    }

    #[test]
    fn every_date_is_what_it_shows() {
        for days in (-719_528..=2_932_896).step_by(11) {
            assert_eq!(parse_date(&shown_date(days)), Some(days));
        }
    }

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
