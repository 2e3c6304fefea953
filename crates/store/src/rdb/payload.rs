//! What `DUMP` answers and `RESTORE` takes: one value as in a file, the version of the format, and
//! a checksum.

use crc_fast::{CrcAlgorithm, checksum};

use super::source::Source;
use super::{NEWEST, STRING, WRITTEN, write};
use crate::item::VALUE_MAX;

/// Why a payload gives no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// It is short, of a version that is not known, or damaged.
    #[error("DUMP payload version or checksum are wrong")]
    Seal,
    /// It is no string.
    #[error("Bad data format")]
    Format,
    /// Its string is longer than the store takes.
    #[error("string exceeds maximum allowed size (proto-max-bulk-len)")]
    TooLong,
}

/// Appends the payload of a string.
pub fn dump(value: &[u8], payload: &mut Vec<u8>) {
    let start = payload.len();
    payload.push(STRING);
    write::length(value.len() as u64, payload);
    payload.extend_from_slice(value);
    payload.extend_from_slice(&(WRITTEN as u16).to_le_bytes());
    let sum = checksum(CrcAlgorithm::Crc64Redis, &payload[start..]);
    payload.extend_from_slice(&sum.to_le_bytes());
}

/// Reads the string of a payload to `value`, which it empties first.
///
/// # Errors
///
/// [`PayloadError`].
pub fn restore(payload: &[u8], value: &mut Vec<u8>) -> Result<(), PayloadError> {
    let (summed, sum) = payload.split_last_chunk().ok_or(PayloadError::Seal)?;
    let (body, version) = summed.split_last_chunk().ok_or(PayloadError::Seal)?;
    let is_known = u32::from(u16::from_le_bytes(*version)) <= NEWEST;
    if !is_known || u64::from_le_bytes(*sum) != checksum(CrcAlgorithm::Crc64Redis, summed) {
        return Err(PayloadError::Seal);
    }
    let [STRING, string @ ..] = body else { return Err(PayloadError::Format) };
    let mut source = Source::new(string);
    match source.string(VALUE_MAX, value) {
        Ok(true) if source.at() == string.len() as u64 => Ok(()),
        Ok(false) => Err(PayloadError::TooLong),
        _ => Err(PayloadError::Format),
    }
}
