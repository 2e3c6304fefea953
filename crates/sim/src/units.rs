//! Numbers with units: rates, times, lengths.

use crate::net::topology::LONGEST;
use crate::net::{LineRate, Ps};

/// A number with one of these units, as a number of the last column's.
fn with_unit(word: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = word.find(|c: char| c.is_alphabetic()).unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let value = number.trim_end().parse::<f64>().ok()? * factor;
    (value.is_finite() && value >= 0.0).then_some(value)
}

/// What a rate looks like, for an error.
pub(crate) const RATE: &str = "a rate from 1Mbps to 100Tbps";
/// What the delay of a cable looks like, for an error.
pub(crate) const DELAY: &str = "a delay from 0 to 1s";
/// What a time looks like, for an error.
pub(crate) const TIME: &str = "a time with its unit, as in 10us, and less than 1000000s";
/// What a number of bytes looks like, for an error.
pub(crate) const BYTES: &str = "a number of bytes, as in 1500, 64KB or 32MiB";

/// A rate: `100Gbps`.
pub(crate) fn rate(word: &str) -> Option<LineRate> {
    const UNITS: [(&str, f64); 8] = [
        ("bps", 1.0),
        ("kbps", 1e3),
        ("Kbps", 1e3),
        ("Mbps", 1e6),
        ("Gbps", 1e9),
        ("Tbps", 1e12),
        ("Mb/s", 1e6),
        ("Gb/s", 1e9),
    ];
    let digits = word.replace(' ', "");
    with_unit(&digits, &UNITS).and_then(|bits| LineRate::bits_per_second(bits.round() as u64))
}

/// A time in picoseconds: `10us`, `0.001ms`.
pub(crate) fn time(word: &str) -> Option<Ps> {
    const UNITS: [(&str, f64); 6] =
        [("ps", 1.0), ("ns", 1e3), ("us", 1e6), ("µs", 1e6), ("ms", 1e9), ("s", 1e12)];
    with_unit(&word.replace(' ', ""), &UNITS).filter(|ps| *ps < 1e18).map(|ps| ps.round() as u64)
}

/// A part of the whole, `0.5`, as so many of `whole` parts, rounded.
pub(crate) fn part(word: &str, whole: u64) -> Option<u64> {
    let part = word.parse::<f64>().ok().filter(|part| (0.0..=1.0).contains(part))?;
    Some((part * whole as f64).round() as u64)
}

/// The delay of a cable in picoseconds.
pub(crate) fn delay(word: &str) -> Option<Ps> {
    time(word).filter(|delay| *delay <= LONGEST)
}

/// A number of bytes: `1500`, `64KB` (1000 bytes each), `32MiB`.
pub(crate) fn bytes(word: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 9] = [
        ("", 1.0),
        ("B", 1.0),
        ("KB", 1e3),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
    ];
    /// What a number loses when it is read and multiplied, and a little more.
    const LOST: f64 = 4.0 * f64::EPSILON;
    let bytes = with_unit(&word.replace(' ', ""), &UNITS)?;
    let whole = bytes.round();
    (whole < 1e15 && (bytes - whole).abs() <= LOST * whole).then_some(whole as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        assert_eq!(rate("100Gbps"), Some(LineRate::gigabits(100)));
        assert_eq!(rate("0.4 Tbps"), Some(LineRate::gigabits(400)));
        assert_eq!((rate("0Gbps"), rate("100"), rate("-1Gbps")), (None, None, None));
        assert_eq!((time("1.5us"), time("3"), time("1e3ns")), (Some(1_500_000), None, None));
        assert_eq!((part("0.25", 1000), part("1.1", 10), part("nan", 10)), (Some(250), None, None));
        assert_eq!((delay("1s"), delay("2s")), (Some(LONGEST), None));
        assert_eq!(
            (bytes("1500"), bytes("64KB"), bytes("2 MiB")),
            (Some(1500), Some(64_000), Some(2 << 20))
        );
        assert_eq!((bytes("1.5KB"), bytes("0.5B"), bytes("many")), (Some(1500), None, None));
        // No sum of powers of two is 64.1.
        assert_eq!((bytes("64.1KB"), bytes("0.0011MB")), (Some(64_100), Some(1100)));
        assert_eq!((bytes("64.1001KB"), bytes("64.1000001KB")), (None, None));
        assert_eq!((bytes("999999999.5"), bytes("0.0000001"), bytes("0")), (None, None, Some(0)));
        assert_eq!(
            (bytes("999999.999999999GB"), bytes("1000000GB")),
            (Some(999_999_999_999_999), None)
        );
    }
}
