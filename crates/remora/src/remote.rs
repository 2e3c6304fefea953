//! Memory of a peer: where it is, how long it is, and the key that opens it.

use std::ops::{Bound, RangeBounds};

use remora_nic::queue;
use thiserror::Error;

/// A range of a peer's registered memory, which the peer offers to be read and written.
///
/// The side that registered the memory makes it ([`MemorySlice::remote`]). It travels to the other
/// side as [`Remote::LEN`] bytes by any means ([`Connection::send_remote`], private data, another
/// socket), and requests there name it. The card of the side that registered the memory checks
/// every access again, so a range that is too long gives nothing away.
///
/// ```
/// use remora::Remote;
///
/// let table = Remote { addr: 0x7000, len: 4096, rkey: 17 }; // or what a peer has sent
/// let bytes = table.to_bytes();
/// assert_eq!(Remote::from_bytes(&bytes), Ok(table));
/// assert!(Remote::from_bytes(&bytes[1..]).is_err());
///
/// let entry = table.slice(64..128);
/// assert_eq!((entry.addr, entry.len), (0x7040, 64));
/// assert_eq!(table.get(4000..5000), None);
/// ```
///
/// [`MemorySlice::remote`]: crate::MemorySlice::remote
/// [`Connection::send_remote`]: crate::Connection::send_remote
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "Fields"))]
pub struct Remote {
    /// Address of the first byte, as the peer registered it.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// Why bytes are not a [`Remote`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RemoteError {
    /// There are too few bytes, or too many.
    #[error("a description of remote memory has {len} bytes, and not {0}", len = Remote::LEN)]
    Length(usize),
    /// The range would go past the last address.
    #[error("{len} bytes of remote memory from address {addr:#x} on go past the last address")]
    Range {
        /// Address of the first byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
}

impl Remote {
    /// Length of [`Remote::to_bytes`].
    pub const LEN: usize = 20;

    /// A part of the range.
    ///
    /// # Panics
    /// The part is not within the range. Use [`Remote::get`] where a peer's message decides the
    /// part or the range.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Remote {
        self.get(range).expect("a part of remote memory lies within it")
    }

    /// A part of the range; `None` if it is not within the range.
    pub fn get(&self, range: impl RangeBounds<usize>) -> Option<Remote> {
        let (start, len) = resolve(range, self.len)?;
        Some(Remote { addr: self.addr.wrapping_add(start), len, rkey: self.rkey })
    }

    /// The form that travels, all numbers in network byte order: the address (8 bytes), the length
    /// (8), the key (4).
    pub fn to_bytes(&self) -> [u8; Remote::LEN] {
        let mut bytes = [0; Remote::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Reads what [`Remote::to_bytes`] wrote.
    ///
    /// # Errors
    /// The number of bytes is not [`Remote::LEN`], or the range goes past the last address.
    pub fn from_bytes(bytes: &[u8]) -> Result<Remote, RemoteError> {
        let wrong = RemoteError::Length(bytes.len());
        let (addr, rest) = bytes.split_first_chunk().ok_or(wrong)?;
        let (len, rkey) = rest.split_first_chunk().ok_or(wrong)?;
        let rkey = rkey.try_into().map_err(|_| wrong)?;
        Remote::checked(
            u64::from_be_bytes(*addr),
            u64::from_be_bytes(*len),
            u32::from_be_bytes(rkey),
        )
    }

    fn checked(addr: u64, len: u64, rkey: u32) -> Result<Remote, RemoteError> {
        match addr.checked_add(len) {
            Some(_) => Ok(Remote { addr, len, rkey }),
            None => Err(RemoteError::Range { addr, len }),
        }
    }
}

/// The beginning of the range, as the target of a work request.
impl From<Remote> for queue::RemoteAddress {
    fn from(remote: Remote) -> queue::RemoteAddress {
        queue::RemoteAddress { addr: remote.addr, rkey: remote.rkey }
    }
}

/// Where `range` begins within `len` bytes, and how long it is; `None` if it is not within them.
pub(crate) fn resolve(range: impl RangeBounds<usize>, len: u64) -> Option<(u64, u64)> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start as u64,
        Bound::Excluded(before) => (*before as u64).checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => (*last as u64).checked_add(1)?,
        Bound::Excluded(end) => *end as u64,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then(|| (start, end - start))
}

/// The fields as they are deserialized, before they are checked.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct Fields {
    addr: u64,
    len: u64,
    rkey: u32,
}

#[cfg(feature = "serde")]
impl TryFrom<Fields> for Remote {
    type Error = RemoteError;

    fn try_from(fields: Fields) -> Result<Remote, RemoteError> {
        Remote::checked(fields.addr, fields.len, fields.rkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Remote = Remote { addr: 0x0102_0304_0506_0708, len: 0x40, rkey: 0xA0B0_C0D0 };

    #[test]
    fn the_form_that_travels() {
        let bytes = TABLE.to_bytes();
        let fixed = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0x40, 0xA0, 0xB0, 0xC0, 0xD0];
        assert_eq!(bytes, fixed);
        assert_eq!(Remote::from_bytes(&bytes), Ok(TABLE));
        for len in [0, 7, 8, 15, 16, 19] {
            assert_eq!(Remote::from_bytes(&bytes[..len]), Err(RemoteError::Length(len)));
        }
        let long = [bytes.as_slice(), &[0]].concat();
        assert_eq!(Remote::from_bytes(&long), Err(RemoteError::Length(21)));
        let around = Remote { addr: u64::MAX - 3, len: 5, rkey: 1 };
        let wrong = RemoteError::Range { addr: around.addr, len: 5 };
        assert_eq!(Remote::from_bytes(&around.to_bytes()), Err(wrong));
    }

    #[test]
    fn parts_lie_within() {
        assert_eq!(TABLE.slice(..), TABLE);
        assert_eq!(TABLE.slice(0x3F..), Remote { addr: TABLE.addr + 0x3F, len: 1, ..TABLE });
        assert_eq!(TABLE.slice(2..=3).len, 2);
        assert_eq!(TABLE.slice(0x40..).len, 0);
        assert_eq!(TABLE.get(0x41..), None);
        assert_eq!(TABLE.get(..0x41), None);
        assert_eq!(TABLE.get(..=usize::MAX), None);
        #[expect(clippy::reversed_empty_ranges, reason = "such a range is refused")]
        let reversed = 3..2;
        assert_eq!(TABLE.get(reversed), None);
        assert_eq!(TABLE.slice(8..32).get(..25), None, "a part knows its own end");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn what_is_deserialized_is_judged() {
        let text = serde_json::to_string(&TABLE).unwrap();
        assert_eq!(serde_json::from_str::<Remote>(&text).unwrap(), TABLE);
        let around = r#"{"addr":18446744073709551615,"len":2,"rkey":1}"#;
        assert!(serde_json::from_str::<Remote>(around).is_err());
    }
}
