//! Days of the Gregorian calendar, as people write them.

use std::fmt;

/// A day, by its number: 1970-01-01 is 0, the day before it -1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Day(pub i32);

impl Day {
    /// Reads a date of the years 0000 to 9999, written `1994-01-31`. `None` if the text is no such
    /// date.
    pub fn parse(text: &str) -> Option<Day> {
        let bytes = text.as_bytes();
        if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
            return None;
        }
        let number = |part: &[u8]| {
            part.iter().try_fold(0, |sum, byte| {
                byte.is_ascii_digit().then(|| sum * 10 + i32::from(byte - b'0'))
            })
        };
        let (year, month, day) =
            (number(&bytes[..4])?, number(&bytes[5..7])?, number(&bytes[8..])?);
        let exists = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
        let before = || days_before(year) + (1..month).map(|m| days_of(year, m)).sum::<i32>();
        exists.then(|| Day(before() + day - 1))
    }
}

/// The date. One outside the years 0000 to 9999 is shown as its number of days.
impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Day(days) = *self;
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

    #[test]
    fn dates_are_days() {
        let known = [
            ("1970-01-01", 0),
            ("1969-12-31", -1),
            ("2000-02-29", 11016),
            ("1994-01-01", 8766),
            ("2100-03-01", 47541),
            ("0000-01-01", -719_528),
            ("9999-12-31", 2_932_896),
        ];
        for (text, days) in known {
            assert_eq!(Day::parse(text), Some(Day(days)), "{text}");
            assert_eq!(Day(days).to_string(), text);
        }
        let wrong =
            ["1999-02-29", "1900-02-29", "1994-13-01", "1994-00-01", "1994-1-01", "19940101"];
        for text in wrong.into_iter().chain(["1994-01-00", "1994-04-31", "1994-01-1x", "", "äöüäö"])
        {
            assert_eq!(Day::parse(text), None, "{text}");
        }
        assert_eq!(Day(i32::MAX).to_string(), "2147483647 days");
    }

    #[test]
    fn every_date_is_what_it_shows() {
        for day in (-719_528..=2_932_896).step_by(11).map(Day) {
            assert_eq!(Day::parse(&day.to_string()), Some(day));
        }
    }
}
