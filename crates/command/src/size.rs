//! Sizes as people write them: `1500`, `64K`, `64KB`, `64KiB`.

use thiserror::Error;

/// The text is not a size.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is not a size: write bytes, or K, M, G, T (powers of 1024), as in 64M")]
pub struct SizeError(String);

/// Parses a number of bytes. The units K, M, G and T are powers of 1024, with `B` or `iB` behind
/// them or not, in capitals or not.
///
/// # Errors
/// It is neither digits nor digits with a unit, or too large for 64 bits.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let error = || SizeError(text.into());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(error()),
    };
    let number: u64 = number.parse().map_err(|_| error())?;
    number.checked_mul(1 << shift).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("1500", 1500),
            ("8b", 8),
            ("64K", 65_536),
            ("64KB", 65_536),
            ("64kib", 65_536),
            ("64MB", 64 << 20),
            ("1MiB", 1 << 20),
            ("1G", 1 << 30),
            ("2tb", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "K", "-1", "1.5G", "64 M", "5X", "99999999999999999999", "99999999T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
