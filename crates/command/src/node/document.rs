//! A document in a region: JSON that the node rewrites while clients read it one-sided.
//!
//! ```text
//!   0  magic "RDoc"
//!   4  length of the text
//!   8  sequence number, one higher at each writing
//!  16  CRC-32 of bytes 4 to 16 and of the text
//!  20  the text
//! ```
//! A reader whose READ overlaps a write sees parts of both versions, and the CRC tells it so.

use remora::MemoryRegion;
use remora::memory::BufferError;
use thiserror::Error;

/// Bytes before the text.
pub const HEADER_LEN: usize = 20;

/// The longest document, with its header. A client reads no more, whatever a node promises.
pub const DOCUMENT_MAX: u64 = 1 << 20;

const MAGIC: &[u8; 4] = b"RDoc";

/// A document that was read completely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Document<'a> {
    /// The number of documents written before it.
    pub sequence: u64,
    /// Its text, JSON.
    pub text: &'a str,
}

/// Why bytes are not a document.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DocumentError {
    /// No document was ever written here.
    #[error("the region holds no document")]
    NotOurs,
    /// It was read while it was written; the reader should try again.
    #[error("the document was being written while it was read")]
    Torn,
}

/// Parses a document from the beginning of `bytes`.
///
/// # Errors
/// See [`DocumentError`].
pub fn parse(bytes: &[u8]) -> Result<Document<'_>, DocumentError> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(DocumentError::NotOurs)?;
    if &header[..4] != MAGIC {
        return Err(DocumentError::NotOurs);
    }
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b));
    let len = usize::try_from(number(&header[4..8])).map_err(|_| DocumentError::Torn)?;
    let text = rest.get(..len).ok_or(DocumentError::Torn)?;
    if u64::from(checksum(&header[4..16], text)) != number(&header[16..]) {
        return Err(DocumentError::Torn);
    }
    let text = std::str::from_utf8(text).map_err(|_| DocumentError::NotOurs)?;
    Ok(Document { sequence: number(&header[8..16]), text })
}

/// The bytes of a document.
pub fn emit(sequence: u64, text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + text.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(text.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&sequence.to_be_bytes());
    let crc = checksum(&bytes[4..], text.as_bytes());
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn checksum(header: &[u8], text: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(header);
    crc.update(text);
    crc.finalize()
}

/// Writes documents into a region.
#[derive(Debug)]
pub struct Publisher {
    region: MemoryRegion,
    sequence: u64,
}

impl Publisher {
    /// Publishes in `region`, which must have a buffer of its own.
    pub fn new(region: MemoryRegion) -> Publisher {
        Publisher { region, sequence: 0 }
    }

    /// Writes the next document over the last.
    ///
    /// # Errors
    /// It is too long for the region; the previous document stays.
    pub fn publish(&mut self, text: &str) -> Result<(), BufferError> {
        self.region.write_at(0, &emit(self.sequence, text))?;
        self.sequence += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_comes_back() {
        let mut bytes = emit(7, "{\"a\":1}");
        bytes.resize(4096, 0xee);
        assert_eq!(parse(&bytes), Ok(Document { sequence: 7, text: "{\"a\":1}" }));
        assert_eq!(parse(&emit(0, "")), Ok(Document { sequence: 0, text: "" }));
    }

    #[test]
    fn every_torn_byte_is_noticed() {
        let (old, new) = (emit(1, "{\"count\": 111}"), emit(2, "{\"count\": 999}"));
        for at in 1..old.len() {
            let mixed = [&new[..at], &old[at..]].concat();
            let read = parse(&mixed);
            let whole = mixed == old || mixed == new;
            assert!(whole || read == Err(DocumentError::Torn), "torn at {at}: {read:?}");
        }
    }

    #[test]
    fn hostile_bytes_are_not_taken_for_a_document() {
        assert_eq!(parse(&[]), Err(DocumentError::NotOurs));
        assert_eq!(parse(&[0; 4096]), Err(DocumentError::NotOurs));
        let bytes = emit(1, "text");
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "cut at {len}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bytes).is_err(), "bit {bit}");
        }
        let not_utf8 = {
            let mut bytes = emit(1, "text");
            bytes[HEADER_LEN] = 0xff;
            let crc = checksum(&bytes[4..16], &bytes[HEADER_LEN..]);
            bytes[16..20].copy_from_slice(&crc.to_be_bytes());
            bytes
        };
        assert_eq!(parse(&not_utf8), Err(DocumentError::NotOurs));
    }
}
