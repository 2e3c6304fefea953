//! Reads numbers and times as memcached's clients write them; `operations` adds to the numbers.

/// Times up to this many seconds count from now; later ones are Unix time: 30 days.
const RELATIVE_S: i64 = 60 * 60 * 24 * 30;

/// The number that `text` is, as memcached reads it, which is as C does: blanks, a sign, digits,
/// and behind them nothing, or a blank and anything. The answer begins with whether there is a `-`.
fn read(text: &[u8]) -> Option<(bool, u64)> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|byte| !is_blank(byte))?;
    let (is_negative, digits) = match &text[start..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    };
    if !digits.first()?.is_ascii_digit() {
        return None;
    }
    let mut number = 0u64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return is_blank(byte).then_some((is_negative, number));
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some((is_negative, number))
}

/// A whole number of 64 bits that is not negative.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    read(text).filter(|(is_negative, number)| !is_negative || *number == 0).map(|it| it.1)
}

/// The same of 32 bits.
pub(super) fn unsigned_32(text: &[u8]) -> Option<u32> {
    unsigned(text).and_then(|number| u32::try_from(number).ok())
}

/// The same that may be negative.
pub(super) fn signed(text: &[u8]) -> Option<i64> {
    match read(text)? {
        (true, number) => 0i64.checked_sub_unsigned(number),
        (false, number) => i64::try_from(number).ok(),
    }
}

/// When a key ends, in ms of Unix time, by the seconds that a client gives. None: never. A
/// negative number is a time that has passed.
pub(super) fn end(seconds: i64, now: u64) -> Option<u64> {
    match seconds {
        0 => None,
        ..0 => Some(1),
        1..=RELATIVE_S => Some(now + seconds as u64 * 1000),
        _ => Some((seconds as u64).saturating_mul(1000)),
    }
}

#[cfg(test)]
mod tests {
    use super::{end, signed, unsigned, unsigned_32};

    #[test]
    fn numbers() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        for text in [
            "",
            " ",
            "+",
            "- 1",
            "+-1",
            "18446744073709551616",
            "-1",
            "1a",
            "111111111111111111111",
        ] {
            assert_eq!(unsigned(text.as_bytes()), None, "{text}");
        }
        for (text, number) in [("+5", 5), ("-0", 0), (" \t5\r", 5), ("5 x", 5)] {
            assert_eq!(unsigned(text.as_bytes()), Some(number), "{text}");
        }
        assert_eq!(unsigned(&[b'0'; 100]), Some(0));
        assert_eq!(
            (unsigned_32(b"4294967295"), unsigned_32(b"4294967296")),
            (Some(u32::MAX), None)
        );
        assert_eq!((signed(b"-9"), signed(b"+9"), signed(b"--9")), (Some(-9), Some(9), None));
        assert_eq!(signed(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!((signed(b"9223372036854775808"), signed(b"-9223372036854775809")), (None, None));
    }

    #[test]
    fn times() {
        assert_eq!(end(0, 5000), None);
        assert_eq!(end(-1, 5000), Some(1));
        assert_eq!(end(60, 5000), Some(65_000));
        assert_eq!(end(RELATIVE, 5000), Some(5000 + RELATIVE as u64 * 1000));
        assert_eq!(end(RELATIVE + 1, 5000), Some((RELATIVE as u64 + 1) * 1000));
        assert_eq!(end(i64::MAX, 5000), Some(u64::MAX));
    }

    const RELATIVE: i64 = super::RELATIVE_S;
}
