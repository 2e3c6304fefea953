//! Redis' RDB files, for strings.
//!
//! [`RdbReader`] reads what Redis and Valkey save (`dump.rdb`), versions 5 to 12, and gives the
//! strings; values of other types are skipped and counted by type. [`RdbWriter`] writes version 9,
//! which every Redis since 5.0 and every Valkey loads. [`import`] and [`export`] are these for a
//! store. [`dump`] and [`restore`] are for the payloads of the commands of these names, which have
//! one value.
//!
//! The format, as far as it is needed: the word `REDIS` and four digits of version; then items,
//! each an op-code or a type, lengths of one to nine bytes, strings that are plain, an integer or
//! compressed by LZF; at the end a CRC-64 (Jones) of all before it, or zero for none.

mod lzf;
mod payload;
mod read;
mod skip;
mod source;
mod store;
mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;

pub use lzf::decompress as decompress_lzf;
pub use payload::{PayloadError, dump, restore};
pub use read::{RdbEntry, RdbReader};
pub use store::{Exported, ImportError, Imported, database_name, database_of, export, import};
pub use write::RdbWriter;

/// The oldest version that is read: the first with a checksum.
pub const OLDEST: u32 = 5;
/// The newest version that is read.
pub const NEWEST: u32 = 12;
/// The version that is written.
pub const WRITTEN: u32 = 9;

/// The type of a string.
const STRING: u8 = 0;

/// Bytes before a type, instead of one.
mod op {
    pub(super) const SLOT_INFO: u8 = 244;
    pub(super) const FUNCTION: u8 = 245;
    pub(super) const MODULE_AUX: u8 = 247;
    pub(super) const IDLE: u8 = 248;
    pub(super) const FREQUENCY: u8 = 249;
    pub(super) const AUX: u8 = 250;
    pub(super) const RESIZE: u8 = 251;
    pub(super) const EXPIRES_MS: u8 = 252;
    pub(super) const EXPIRES_SECONDS: u8 = 253;
    pub(super) const DATABASE: u8 = 254;
    pub(super) const END: u8 = 255;
}

/// What a file had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdbReport {
    /// The version of its format.
    pub version: u32,
    /// Strings given to the caller.
    pub strings: u64,
    /// Keys of other types, by the name of the type: they were skipped.
    pub skipped: BTreeMap<&'static str, u64>,
    /// Strings whose key or value is longer than the store takes: they were skipped.
    pub too_long: u64,
    /// Whether the file has a checksum.
    pub checked: bool,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RdbError {
    /// The operating system refuses.
    #[error("cannot read or write the RDB file: {0}")]
    Io(#[from] io::Error),
    /// It begins with something else.
    #[error("this is no RDB file: it does not begin with REDIS and a version")]
    Magic,
    /// Its version is not known.
    #[error(
        "the RDB file has version {0}, and versions {OLDEST} to {NEWEST} are known; save it with \
         another version of Redis"
    )]
    Version(u32),
    /// It ends in the middle.
    #[error("the RDB file ends at byte {0}, before its end mark: it was cut, or is being written")]
    Cut(u64),
    /// Something in it is not as it should be.
    #[error("the RDB file is damaged at byte {at}: {reason}")]
    Damaged {
        /// Where, in bytes.
        at: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A type that is not known cannot be skipped, since its length is not known.
    #[error(
        "the RDB file has a value of type {kind} at byte {at}, which is not known; remove such \
         keys before the file is saved"
    )]
    Type {
        /// Where, in bytes.
        at: u64,
        /// Its number.
        kind: u8,
    },
    /// The checksum differs.
    #[error("the RDB file's checksum is {found:016x}, and its bytes give {computed:016x}")]
    Checksum {
        /// What the file says.
        found: u64,
        /// What its bytes give.
        computed: u64,
    },
}
