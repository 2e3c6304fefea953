//! The regions of a node as a person types them: `NAME=FILE` or `NAME=SIZE`, with `,rw` after it if
//! clients may write. [`parse_size`], which reads such a size, serves other commands, too.

use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use super::protocol::{NAME_MAX, is_name};

/// A region to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionSpec {
    /// The name by which clients know it.
    pub name: String,
    /// The bytes that it holds.
    pub source: Source,
    /// Clients may WRITE.
    pub writable: bool,
}

/// The bytes that a region holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The bytes of a file, read and written in place.
    File(PathBuf),
    /// Memory of this many bytes, zero at first.
    Memory(u64),
}

/// Why a text does not describe a region.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SpecError {
    /// The text has no `=`.
    #[error("`{0}` is not a region: write NAME=FILE or NAME=SIZE, and ,rw after it for writing")]
    Form(String),
    /// The name is not valid.
    #[error(
        "`{0}` is not a name for a region: use 1 to {NAME_MAX} letters, digits, dots, dashes and \
         underscores"
    )]
    Name(String),
    /// Nothing follows the `=`.
    #[error("region `{0}` has neither a file nor a size: write {0}=FILE or {0}=64M")]
    Empty(String),
    /// The size is zero.
    #[error("region `{0}` would be empty: give it at least one byte")]
    Zero(String),
}

impl FromStr for RegionSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<RegionSpec, SpecError> {
        let (name, value) = text.split_once('=').ok_or_else(|| SpecError::Form(text.into()))?;
        if !is_name(name) || name.starts_with('@') {
            return Err(SpecError::Name(name.into()));
        }
        let (value, writable) = match value.rsplit_once(',') {
            Some((value, "rw")) => (value, true),
            Some((value, "ro")) => (value, false),
            _ => (value, false),
        };
        let source = match parse_size(value) {
            Ok(0) => return Err(SpecError::Zero(name.into())),
            Ok(bytes) => Source::Memory(bytes),
            Err(_) if value.is_empty() => return Err(SpecError::Empty(name.into())),
            Err(_) => Source::File(value.into()),
        };
        Ok(RegionSpec { name: name.into(), source, writable })
    }
}

/// The text is not a size.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is not a size: write bytes, or K, M, G, T (powers of 1024), as in 64M")]
pub struct SizeError(String);

/// Parses a number of bytes: `1500`, `64K`, `64KiB`, `1G`.
///
/// # Errors
/// It is neither digits nor digits with a unit, or too large for 64 bits.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let error = || SizeError(text.into());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
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
        for (text, bytes) in
            [("0", 0), ("1500", 1500), ("64K", 65_536), ("64kib", 65_536), ("1G", 1 << 30)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "K", "-1", "1.5G", "64MB", "64 M", "99999999999999999999", "9999999999T"]
        {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn regions() {
        let parse = |text: &str| text.parse::<RegionSpec>();
        let spec = parse("scratch=64M,rw").unwrap();
        assert_eq!((spec.source, spec.writable), (Source::Memory(64 << 20), true));
        let spec = parse("data=/srv/a,b=c").unwrap();
        assert_eq!((spec.source, spec.writable), (Source::File("/srv/a,b=c".into()), false));
        assert_eq!(parse("f=./64M,ro").unwrap().source, Source::File("./64M".into()));
        assert!(matches!(parse("data"), Err(SpecError::Form(_))));
        assert!(matches!(parse("@stats=1M"), Err(SpecError::Name(_))));
        assert!(matches!(parse("a/b=1M"), Err(SpecError::Name(_))));
        assert!(matches!(parse("a=,rw"), Err(SpecError::Empty(_))));
        assert!(matches!(parse("a=0K"), Err(SpecError::Zero(_))));
    }
}
