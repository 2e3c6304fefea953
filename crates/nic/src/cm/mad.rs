//! The management datagram (MAD) that carries every message: 24 bytes of header, 232 of data.
//!
//! The form is that of InfiniBand volume 1, chapter 13 (Management Model). The only class here is
//! communication management, so that all of the header is fixed except the transaction and
//! attribute identifiers. What the data holds is in [`super::message`].

use super::message::bits::{be16, be64, put};

/// Bytes of a MAD, header and data.
pub const MAD_LEN: usize = 256;
/// Bytes of the header.
pub const HEADER_LEN: usize = 24;
/// Bytes of the data.
pub const DATA_LEN: usize = MAD_LEN - HEADER_LEN;

/// The data of a MAD: the bytes of a message.
pub type Data = [u8; DATA_LEN];

/// The queue pair that MADs of communication management are sent from and to.
pub const CM_QPN: u32 = 1;
/// The queue key of queue pair 1. Keys with the top bit set are privileged: no queue pair of a
/// program takes one (`PrivilegedQkey`), and in a work request that bit means the queue pair's own
/// key. So no program sends with one.
pub const CM_QKEY: u32 = 0x8001_0000;

const BASE_VERSION: u8 = 1;
const COMMUNICATION_MANAGEMENT: u8 = 7;
const CLASS_VERSION: u8 = 2;
/// All messages of the class, answers too, use this method.
const METHOD_SEND: u8 = 3;

mod field {
    pub(super) const BASE_VERSION: usize = 0;
    pub(super) const CLASS: usize = 1;
    pub(super) const CLASS_VERSION: usize = 2;
    pub(super) const METHOD: usize = 3;
    pub(super) const TRANSACTION_ID: usize = 8;
    pub(super) const ATTRIBUTE_ID: usize = 16;
}

/// Why bytes are not a MAD of communication management.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The length is not [`MAD_LEN`].
    #[error("a MAD is 256 bytes long")]
    Length,
    /// Base version other than 1.
    #[error("unknown base version {0}")]
    BaseVersion(u8),
    /// Management class other than 7.
    #[error("management class {0} is not communication management")]
    Class(u8),
    /// Class version other than 2.
    #[error("unknown class version {0}")]
    ClassVersion(u8),
    /// Method other than Send.
    #[error("method {0:#x} is not Send")]
    Method(u8),
    /// A message that the manager does not take: one of path migration, or an unknown one.
    #[error("unknown attribute {0:#x}")]
    Attribute(u16),
}

/// What varies in the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The same in a request and all its answers.
    pub transaction_id: u64,
    /// Which message the data holds.
    pub attribute_id: u16,
}

/// The header and the data of a received MAD.
///
/// # Errors
/// A MAD must have its one length, and a header of communication management in the versions that
/// are known here (chapters 12 and 13). Anything else is dropped by the caller.
pub fn parse(bytes: &[u8]) -> Result<(Header, &Data), Malformed> {
    let mad: &[u8; MAD_LEN] = bytes.try_into().map_err(|_| Malformed::Length)?;
    let (header, data) = mad.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::Length)?;
    match header {
        h if h[field::BASE_VERSION] != BASE_VERSION => {
            Err(Malformed::BaseVersion(h[field::BASE_VERSION]))
        }
        h if h[field::CLASS] != COMMUNICATION_MANAGEMENT => Err(Malformed::Class(h[field::CLASS])),
        h if h[field::CLASS_VERSION] != CLASS_VERSION => {
            Err(Malformed::ClassVersion(h[field::CLASS_VERSION]))
        }
        h if h[field::METHOD] != METHOD_SEND => Err(Malformed::Method(h[field::METHOD])),
        h => Ok((
            Header {
                transaction_id: be64(h, field::TRANSACTION_ID),
                attribute_id: be16(h, field::ATTRIBUTE_ID),
            },
            data.try_into().map_err(|_| Malformed::Length)?,
        )),
    }
}

/// The bytes of a MAD.
pub fn emit(header: Header, data: &Data) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    mad[field::BASE_VERSION] = BASE_VERSION;
    mad[field::CLASS] = COMMUNICATION_MANAGEMENT;
    mad[field::CLASS_VERSION] = CLASS_VERSION;
    mad[field::METHOD] = METHOD_SEND;
    put(&mut mad, field::TRANSACTION_ID, &header.transaction_id.to_be_bytes());
    put(&mut mad, field::ATTRIBUTE_ID, &header.attribute_id.to_be_bytes());
    put(&mut mad, HEADER_LEN, data);
    mad
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_laid_out_as_the_standard_says() {
        let header = Header { transaction_id: 0x0102_0304_0506_0708, attribute_id: 0x0010 };
        let mad = emit(header, &[0xaa; DATA_LEN]);
        assert_eq!(
            mad[..26],
            [1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x10, 0, 0, 0, 0, 0, 0, 0xaa, 0xaa]
        );
        assert_eq!(parse(&mad), Ok((header, &[0xaa; DATA_LEN])));
    }

    #[test]
    fn each_wrong_byte_is_named() {
        let mad = emit(Header { transaction_id: 1, attribute_id: 0x10 }, &[0; DATA_LEN]);
        let with = |at: usize, value: u8| {
            let mut bad = mad;
            bad[at] = value;
            parse(&bad).map(|(header, _)| header)
        };
        assert_eq!(with(0, 2), Err(Malformed::BaseVersion(2)));
        assert_eq!(with(1, 4), Err(Malformed::Class(4)));
        assert_eq!(with(2, 1), Err(Malformed::ClassVersion(1)));
        assert_eq!(with(3, 0x81), Err(Malformed::Method(0x81)));
        assert_eq!(parse(&mad[..255]), Err(Malformed::Length));
        assert_eq!(parse(&[mad.as_slice(), &[0]].concat()), Err(Malformed::Length));
    }
}
