//! Numbers with fractions, as `INCRBYFLOAT` adds them.

/// Digits behind the point that are kept.
const DIGITS: u32 = 17;
const ONE: i128 = 10i128.pow(DIGITS);

/// The longest text of a number, in bytes: what is written of the largest one has 309 digits.
const TEXT_MAX: usize = 5 * 1024;

/// A number: exact where it fits, as sums of money must be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    /// In units of 10^-17.
    Exact(i128),
    Float(f64),
}

/// The sum of two numbers as text, without digits that say nothing.
pub(crate) enum Sum {
    /// The sum.
    Is(String),
    /// The first or second text is no number.
    NoNumber,
    /// The sum is infinite.
    Infinite,
}

/// Adds two numbers that are given as texts.
pub(crate) fn add(a: &[u8], b: &[u8]) -> Sum {
    let (Some(a), Some(b)) = (parse(a), parse(b)) else { return Sum::NoNumber };
    if let (Number::Exact(a), Number::Exact(b)) = (a, b)
        && let Some(sum) = a.checked_add(b)
    {
        return Sum::Is(exact(sum));
    }
    let sum = float(a) + float(b);
    if !sum.is_finite() {
        return Sum::Infinite;
    }
    // Rust writes all digits and no exponent, as Redis does.
    Sum::Is(if sum == 0.0 { "0".to_owned() } else { sum.to_string() })
}

fn float(number: Number) -> f64 {
    match number {
        Number::Exact(units) => units as f64 / ONE as f64,
        Number::Float(float) => float,
    }
}

fn exact(units: i128) -> String {
    let sign = if units < 0 { "-" } else { "" };
    let (whole, part) = (units.unsigned_abs() / ONE as u128, units.unsigned_abs() % ONE as u128);
    if part == 0 {
        return format!("{sign}{whole}");
    }
    let part = format!("{part:0width$}", width = DIGITS as usize);
    format!("{sign}{whole}.{}", part.trim_end_matches('0'))
}

fn parse(text: &[u8]) -> Option<Number> {
    if text.len() > TEXT_MAX {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    if let Some(units) = parse_exact(text) {
        return Some(Number::Exact(units));
    }
    let float: f64 = text.parse().ok()?;
    (!float.is_nan()).then_some(Number::Float(float))
}

/// A decimal number, with an exponent or without one, rounded to 17 digits behind the point. None
/// if it is none, or too large.
fn parse_exact(text: &str) -> Option<i128> {
    let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (negative, digits) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let all = [whole, part].concat();
    if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let all: i128 = all.parse().ok()?;
    let part = i32::try_from(part.len()).ok()?;
    let shift = part.checked_sub(exponent.parse().ok()?)?;
    let shift = (DIGITS as i32).checked_sub(shift)?;
    let power = 10i128.checked_pow(shift.unsigned_abs());
    let units = match power {
        _ if all == 0 => 0,
        Some(power) if shift >= 0 => all.checked_mul(power)?,
        Some(power) => round(all, power),
        None if shift >= 0 => return None,
        None => 0,
    };
    Some(if negative { -units } else { units })
}

/// Divides, to the nearest whole number; from the middle, to the even one.
fn round(units: i128, by: i128) -> i128 {
    let (whole, rest) = (units / by, units % by);
    let up = rest > by - rest || rest == by - rest && whole % 2 == 1;
    whole + i128::from(up)
}

#[cfg(test)]
mod tests {
    use super::{Sum, add};

    #[test]
    fn sums_are_exact_where_they_can_be() {
        let cases = [
            ("1", "0.25", "1.25"),
            ("0.1", "0.2", "0.3"),
            ("3.0", "1.10", "4.1"),
            ("-1.1", "1.1", "0"),
            ("17179869184", "1.5", "17179869185.5"),
            ("1e3", "1", "1001"),
            ("-0.5", "-0.5", "-1"),
            ("5.0e3", "2.0e2", "5200"),
            ("1e17", "1", "100000000000000001"),
            ("1E+20", "1e-17", "100000000000000000000.00000000000000001"),
            ("-1", "1e-17", "-0.99999999999999999"),
            ("5.5036e-13", "0", "0.00000000000055036"),
            ("1e-18", "2", "2"),
            ("0.000000000000000005", "0", "0"),
            ("0.000000000000000015", "0", "0.00000000000000002"),
            ("-0.0000000000000000151", "0", "-0.00000000000000002"),
            ("1e-400", "0e400", "0"),
            ("3e-99999", "1.50", "1.5"),
            ("2e-2147483648", "1", "1"),
        ];
        for (a, b, sum) in cases {
            let Sum::Is(found) = add(a.as_bytes(), b.as_bytes()) else { panic!("{a} + {b}") };
            assert_eq!(found, sum, "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_number() {
        for text in [
            "", ".", "e1", "1e", "1e1e1", "1e0.5", ".e1", "1_0", "a", " 1", "1 ", "1a", "nan",
            "--1",
        ] {
            assert!(matches!(add(text.as_bytes(), b"1"), Sum::NoNumber), "{text:?}");
        }
        assert!(matches!(add(b"1e308", b"1.7e308"), Sum::Infinite));
        assert!(matches!(add(b"inf", b"1"), Sum::Infinite));
        assert!(matches!(add(b"1e2147483647", b"1"), Sum::Infinite));
        let Sum::Is(long) = add(b"1e300", b"1") else { panic!("it is a number") };
        assert!(matches!(add(long.as_bytes(), b"1"), Sum::Is(_)), "{long}");
    }
}
