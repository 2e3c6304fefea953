//! Numbers with fractions, as `INCRBYFLOAT` adds them.

/// Digits behind the point that are kept.
const DIGITS: u32 = 17;
const ONE: i128 = 10i128.pow(DIGITS);

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
    if text.len() > 256 {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    if let Some(units) = parse_exact(text) {
        return Some(Number::Exact(units));
    }
    let float: f64 = text.parse().ok()?;
    (!float.is_nan()).then_some(Number::Float(float))
}

/// A decimal number of up to 17 digits behind the point, without an exponent.
fn parse_exact(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && part.is_empty() || !all_digits(whole) || !all_digits(part) {
        return None;
    }
    if whole.len() > 20 || part.len() > DIGITS as usize {
        return None;
    }
    let read = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<i128>().ok() };
    let units = read(whole)?.checked_mul(ONE)?;
    let units = units.checked_add(read(part)? * 10i128.pow(DIGITS - part.len() as u32))?;
    Some(if negative { -units } else { units })
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
        ];
        for (a, b, sum) in cases {
            let Sum::Is(found) = add(a.as_bytes(), b.as_bytes()) else { panic!("{a} + {b}") };
            assert_eq!(found, sum, "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_number() {
        for text in ["", ".", "a", " 1", "1 ", "1a", "nan", "--1"] {
            assert!(matches!(add(text.as_bytes(), b"1"), Sum::NoNumber), "{text:?}");
        }
        assert!(matches!(add(b"1e308", b"1.7e308"), Sum::Infinite));
        assert!(matches!(add(b"inf", b"1"), Sum::Infinite));
    }
}
