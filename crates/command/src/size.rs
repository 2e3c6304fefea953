//! Sizes as people write them: `1500`, `64K`, `64KB`, `64KiB`.

use std::ops::RangeInclusive;

use thiserror::Error;

use crate::output::bytes;

/// Why a text is not the size that is meant.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SizeError {
    /// The text is not a size.
    #[error("`{0}` is not a size: write bytes, or K, M, G, T (powers of 1024), as in 64M")]
    Form(String),
    /// It is less than what works.
    #[error(
        "`{text}` is too little: the least is {}; K, M, G, T are powers of 1024, as in 64M",
        bytes(*least)
    )]
    TooSmall {
        /// The text.
        text: String,
        /// The least, in bytes.
        least: u64,
    },
    /// It is more than what works.
    #[error("`{text}` is too much: the most is {}", bytes(*most))]
    TooLarge {
        /// The text.
        text: String,
        /// The most, in bytes.
        most: u64,
    },
}

/// Parses a number of bytes. The units K, M, G and T are powers of 1024, with `B` or `iB` behind
/// them or not, in capitals or not.
///
/// # Errors
/// It is neither digits nor digits with a unit, or too large for 64 bits.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let error = || SizeError::Form(text.into());
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

/// What parses sizes that lie in this range, as [`parse_size`] does.
pub fn size_in(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, SizeError> + Clone + Send + Sync + 'static {
    let (least, most) = range.into_inner();
    move |text| match parse_size(text)? {
        size if size < least => Err(SizeError::TooSmall { text: text.into(), least }),
        size if size > most => Err(SizeError::TooLarge { text: text.into(), most }),
        size => Ok(size),
    }
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

    #[test]
    fn sizes_that_do_not_work_are_told_what_does() {
        let parse = size_in(256 << 10..=1 << 30);
        assert_eq!(parse("64M"), Ok(64 << 20));
        let told = |text| parse(text).unwrap_err().to_string();
        assert!(told("64").starts_with("`64` is too little: the least is 256 KiB;"));
        assert_eq!(told("2G"), "`2G` is too much: the most is 1 GiB");
        assert!(told("x").contains("is not a size"));
    }
}
