//! The regions of a node as a person types them: `NAME=FILE` or `NAME=SIZE`, with `,rw` after it if
//! clients may write.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use super::protocol::{NAME_MAX, is_name};
use crate::size::parse_size;

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
    /// Something else than `,rw` follows a size.
    #[error("region `{name}`: after a size stands ,rw or nothing, not ,{behind}")]
    Behind {
        /// The region.
        name: String,
        /// What follows.
        behind: String,
    },
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
            Err(_) => match value.rsplit_once(',') {
                Some((size, behind)) if parse_size(size).is_ok() && !Path::new(value).exists() => {
                    return Err(SpecError::Behind { name: name.into(), behind: behind.into() });
                }
                _ => Source::File(value.into()),
            },
        };
        Ok(RegionSpec { name: name.into(), source, writable })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(matches!(parse("a=1M,rx"), Err(SpecError::Behind { .. })));
        assert!(matches!(parse("a=0K"), Err(SpecError::Zero(_))));
    }
}
