//! Reads numbers and times as memcached's clients write them; `operations` adds to the numbers.

/// Times up to this many seconds count from now; later ones are Unix time: 30 days.
const RELATIVE_S: i64 = 60 * 60 * 24 * 30;

/// The whole number of 64 bits that all of `text` is.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    let mut number = 0u64;
    for digit in text {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(number)
}

/// The same of 32 bits.
pub(super) fn unsigned_32(text: &[u8]) -> Option<u32> {
    unsigned(text).and_then(|number| u32::try_from(number).ok())
}

/// The same with a sign.
pub(super) fn signed(text: &[u8]) -> Option<i64> {
    match text.split_first() {
        Some((b'-', rest)) => 0i64.checked_sub_unsigned(unsigned(rest)?),
        _ => i64::try_from(unsigned(text)?).ok(),
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
        for text in ["", "18446744073709551616", "-1", "1a", "111111111111111111111"] {
            assert_eq!(unsigned(text.as_bytes()), None, "{text}");
        }
        assert_eq!(
            (unsigned_32(b"4294967295"), unsigned_32(b"4294967296")),
            (Some(u32::MAX), None)
        );
        assert_eq!((signed(b"-9"), signed(b"9"), signed(b"--9")), (Some(-9), Some(9), None));
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
