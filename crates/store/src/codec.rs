//! How a value is stored: as it is, or compressed.
//!
//! A compressed value may keep its first bytes plain ("the head"), where a row's fixed columns
//! lie. A selection then judges these columns without decompressing anything, and decompresses the
//! rest only of rows that may still match.
//!
//! ```text
//! head (plain) | decoded bytes of the rest: u32, little-endian | compressed rest
//! ```
//!
//! What is stored may have been written by anybody. Its length is believed only up to a limit that
//! the caller gives, nothing is allocated beyond that limit, and decoding ends at it.

use thiserror::Error;

/// The most bytes of a plain head.
pub const HEAD_MAX: u16 = (1 << KIND_SHIFT) - 1;
/// LZ4 represents at most so many bytes by one.
const LZ4_RATIO: usize = 255;
/// Bytes of the length before the compressed rest.
const LEN: usize = 4;
const KIND_SHIFT: u32 = 14;
/// The level of zstd: the one that its authors chose as default.
#[cfg(feature = "zstd")]
const ZSTD_LEVEL: i32 = 3;

/// How a value is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Codec {
    /// As it is.
    #[default]
    None,
    /// As LZ4: quick to decompress.
    Lz4 {
        /// The bytes at the value's begin that stay plain, at most [`HEAD_MAX`].
        head: u16,
    },
    /// As zstd: smaller and slower, for archives. Only builds with the feature `zstd` have it.
    Zstd {
        /// The bytes at the value's begin that stay plain, at most [`HEAD_MAX`].
        head: u16,
    },
}

/// Why a stored value cannot be decoded.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CodecError {
    /// The value is longer than the caller allows.
    #[error("the value says that it has {len} bytes, and at most {limit} are allowed")]
    TooLong {
        /// The length that the value gives itself, in bytes.
        len: usize,
        /// The most bytes allowed.
        limit: usize,
    },
    /// The value ends before its head and length do.
    #[error("the value is cut off: {len} bytes are stored, and the codec needs {least}")]
    CutOff {
        /// The stored bytes.
        len: usize,
        /// The fewest bytes of this codec.
        least: usize,
    },
    /// The compressed bytes do not result in as many as the value says.
    #[error("the value says that {said} bytes are compressed in it, and that is not so")]
    WrongLength {
        /// The decoded length of the rest that the value gives, in bytes.
        said: usize,
    },
    /// The compressed bytes are damaged.
    #[error("the compressed bytes are damaged: {reason}")]
    Damaged {
        /// What the codec says.
        reason: String,
    },
    /// This build lacks the codec.
    #[error("the value is stored as zstd, which this program was built without (feature `zstd`)")]
    Lacking,
}

impl Codec {
    /// The number that stands for the codec in an item.
    pub fn to_u16(self) -> u16 {
        match self {
            Codec::None => 0,
            Codec::Lz4 { head } => 1 << KIND_SHIFT | head.min(HEAD_MAX),
            Codec::Zstd { head } => 2 << KIND_SHIFT | head.min(HEAD_MAX),
        }
    }

    /// The codec that a number in an item stands for; `None` if there is no such codec.
    pub fn from_u16(number: u16) -> Option<Codec> {
        let head = number & HEAD_MAX;
        match number >> KIND_SHIFT {
            0 if head == 0 => Some(Codec::None),
            1 => Some(Codec::Lz4 { head }),
            2 => Some(Codec::Zstd { head }),
            _ => None,
        }
    }

    /// Whether this build can encode and decode it.
    pub fn is_available(self) -> bool {
        cfg!(feature = "zstd") || !matches!(self, Codec::Zstd { .. })
    }

    /// The bytes of a value's begin that stay plain, if the value is compressed.
    #[inline]
    pub fn head(self) -> Option<u16> {
        match self {
            Codec::None => None,
            Codec::Lz4 { head } | Codec::Zstd { head } => Some(head),
        }
    }

    /// The part of a stored value that can be read without decoding: the begin of the value, or all
    /// of it.
    #[inline]
    pub fn plain_part(self, stored: &[u8]) -> &[u8] {
        &stored[..self.plain_len(stored.len())]
    }

    /// The bytes of [`Codec::plain_part`] of so many that are stored.
    #[inline]
    pub(crate) fn plain_len(self, stored: usize) -> usize {
        match self {
            Codec::None => stored,
            // A compressed value ends with a length and a block; a shorter one is cut off.
            Codec::Lz4 { head } | Codec::Zstd { head } => {
                stored.saturating_sub(LEN).min(head.into())
            }
        }
    }

    /// Appends a value as it is to be stored to `out`. Returns the codec that was used: a value
    /// that would not become shorter is stored as it is, as are all values if this build lacks the
    /// codec.
    pub fn encode(self, value: &[u8], out: &mut Vec<u8>) -> Codec {
        let start = out.len();
        let (Codec::Lz4 { head } | Codec::Zstd { head }) = self else {
            out.extend_from_slice(value);
            return Codec::None;
        };
        let split = value.split_at_checked(head.min(HEAD_MAX).into());
        if let Some((plain, rest)) = split
            && let Ok(rest_len) = u32::try_from(rest.len())
        {
            out.extend_from_slice(plain);
            out.extend_from_slice(&rest_len.to_le_bytes());
            if self.compress(rest, out).is_some() && out.len() - start < value.len() {
                return Codec::from_u16(self.to_u16()).unwrap_or_default();
            }
            out.truncate(start);
        }
        out.extend_from_slice(value);
        Codec::None
    }

    /// Appends the compressed `rest`; `None` if that cannot be done.
    fn compress(self, rest: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let at = out.len();
        let written = match self {
            Codec::None => None,
            Codec::Lz4 { .. } => {
                out.resize(at + lz4_flex::block::get_maximum_output_size(rest.len()), 0);
                lz4_flex::block::compress_into(rest, &mut out[at..]).ok()
            }
            #[cfg(feature = "zstd")]
            Codec::Zstd { .. } => {
                out.resize(at + zstd::zstd_safe::compress_bound(rest.len()), 0);
                zstd::bulk::compress_to_buffer(rest, &mut out[at..], ZSTD_LEVEL).ok()
            }
            #[cfg(not(feature = "zstd"))]
            Codec::Zstd { .. } => None,
        };
        out.truncate(at + written.unwrap_or(0));
        written.map(|_| ())
    }

    /// Bytes of the value that `stored` stands for, as it says.
    ///
    /// # Errors
    /// There are more than `limit`, or it cannot be so many.
    #[inline]
    pub fn decoded_len(self, stored: &[u8], limit: usize) -> Result<usize, CodecError> {
        let (plain, block, said) = self.split(stored)?;
        let len = plain.len().saturating_add(said);
        if len > limit {
            return Err(CodecError::TooLong { len, limit });
        }
        if matches!(self, Codec::Lz4 { .. }) && said > block.len().saturating_mul(LZ4_RATIO) {
            return Err(CodecError::WrongLength { said });
        }
        Ok(len)
    }

    /// Fills `out` with the value that `stored` stands for.
    ///
    /// # Errors
    /// `stored` is not what the codec writes, or its value is not as long as `out`, whose bytes are
    /// then of no meaning.
    #[inline]
    pub fn decode_into(self, stored: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        let (plain, block, said) = self.split(stored)?;
        match out.split_at_mut_checked(plain.len()) {
            Some((head, rest)) if rest.len() == said => {
                head.copy_from_slice(plain);
                if matches!(self, Codec::None) { Ok(()) } else { self.decompress(block, rest) }
            }
            _ => Err(CodecError::TooLong { len: plain.len() + said, limit: out.len() }),
        }
    }

    /// Appends the value that `stored` stands for to `out`.
    ///
    /// # Errors
    /// The value has more than `limit` bytes, or is not what the codec writes. `out` is then as it
    /// was, and no more than `limit` bytes were allocated for it.
    pub fn decode(self, stored: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let (start, len) = (out.len(), self.decoded_len(stored, limit)?);
        out.resize(start + len, 0);
        self.decode_into(stored, &mut out[start..]).inspect_err(|_| out.truncate(start))
    }

    /// The plain part, the compressed part, and the length that it says it has.
    #[inline]
    fn split(self, stored: &[u8]) -> Result<(&[u8], &[u8], usize), CodecError> {
        let (Codec::Lz4 { head } | Codec::Zstd { head }) = self else {
            return Ok((stored, &[], 0));
        };
        let cut_off = || CodecError::CutOff { len: stored.len(), least: usize::from(head) + LEN };
        let (plain, rest) = stored.split_at_checked(head.into()).ok_or_else(cut_off)?;
        let (said, block) = rest.split_first_chunk().ok_or_else(cut_off)?;
        Ok((plain, block, u32::from_le_bytes(*said) as usize))
    }

    /// Fills `rest` with what `block` stands for.
    fn decompress(self, block: &[u8], rest: &mut [u8]) -> Result<(), CodecError> {
        let said = rest.len();
        let written = match self {
            Codec::None => Err(CodecError::WrongLength { said }),
            Codec::Lz4 { .. } => lz4_flex::block::decompress_into(block, rest).map_err(damaged),
            #[cfg(feature = "zstd")]
            Codec::Zstd { .. } => zstd::bulk::decompress_to_buffer(block, rest).map_err(damaged),
            #[cfg(not(feature = "zstd"))]
            Codec::Zstd { .. } => Err(CodecError::Lacking),
        };
        if written? == said { Ok(()) } else { Err(CodecError::WrongLength { said }) }
    }
}

fn damaged(error: impl ToString) -> CodecError {
    CodecError::Damaged { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] =
        b"the quick brown fox and the quick brown dog and the quick brown cow; again: \
        the quick brown fox and the quick brown dog and the quick brown cow";

    fn all(head: u16) -> Vec<Codec> {
        let codecs = [Codec::None, Codec::Lz4 { head }, Codec::Zstd { head }];
        codecs.into_iter().filter(|codec| codec.is_available()).collect()
    }

    #[test]
    fn numbers_stand_for_codecs() {
        for codec in [Codec::None, Codec::Lz4 { head: 0 }, Codec::Zstd { head: HEAD_MAX }] {
            assert_eq!(Codec::from_u16(codec.to_u16()), Some(codec));
        }
        assert_eq!(Codec::from_u16(1), None, "nothing is plain in a value that is not compressed");
        assert_eq!(Codec::from_u16(3 << KIND_SHIFT), None);
        assert_eq!(Codec::Lz4 { head: u16::MAX }.to_u16(), Codec::Lz4 { head: HEAD_MAX }.to_u16());
    }

    #[test]
    fn a_compressed_value_is_shorter_and_keeps_its_head() {
        for codec in &all(12)[1..] {
            let mut stored = Vec::new();
            assert_eq!(codec.encode(TEXT, &mut stored), *codec);
            assert!(stored.len() < TEXT.len());
            assert_eq!(codec.plain_part(&stored), &TEXT[..12]);
        }
    }

    #[test]
    fn a_value_that_would_become_longer_stays_as_it_is() {
        for codec in all(3) {
            for value in [&b""[..], b"ab", b"abc", b"abcd", b"0123456789abcdef"] {
                let mut stored = vec![7];
                assert_eq!(codec.encode(value, &mut stored), Codec::None);
                assert_eq!(stored[1..], *value);
                assert_eq!(Codec::None.plain_part(&stored[1..]), value);
            }
        }
    }

    #[test]
    fn a_length_that_lies_is_refused_before_anything_is_allocated() {
        let codec = Codec::Lz4 { head: 0 };
        let mut out = vec![1];
        let mut stored = u32::MAX.to_le_bytes().to_vec();
        stored.extend([0; 40]);
        let limit = 1 << 24;
        let len = u32::MAX as usize;
        assert_eq!(codec.decode(&stored, limit, &mut out), Err(CodecError::TooLong { len, limit }));
        stored[..4].copy_from_slice(&(1u32 << 23).to_le_bytes());
        let said = 1 << 23;
        let refused = codec.decode(&stored, limit, &mut out);
        assert_eq!(refused, Err(CodecError::WrongLength { said }));
        assert_eq!(out, [1]);
        assert!(out.capacity() < 100);
    }

    #[test]
    fn a_bomb_ends_at_its_limit() {
        for codec in &all(0)[1..] {
            let mut stored = Vec::new();
            codec.encode(&vec![0; 1 << 20], &mut stored);
            assert!(stored.len() < 8192);
            let mut out = Vec::new();
            let refused = codec.decode(&stored, (1 << 20) - 1, &mut out);
            assert!(matches!(refused, Err(CodecError::TooLong { .. })), "{refused:?}");
            // It says less than it holds: the rest has no place to go.
            stored[..4].copy_from_slice(&1000u32.to_le_bytes());
            assert!(codec.decode(&stored, 1 << 20, &mut out).is_err());
            // It says more than it holds.
            stored[..4].copy_from_slice(&((1u32 << 20) + 1).to_le_bytes());
            assert!(codec.decode(&stored, 1 << 21, &mut out).is_err());
            assert!(out.capacity() <= 1 << 21);
            assert!(out.is_empty());
        }
    }

    #[test]
    fn a_value_that_is_cut_off_anywhere_is_refused() {
        for codec in &all(5)[1..] {
            let mut stored = Vec::new();
            codec.encode(TEXT, &mut stored);
            for cut in 0..stored.len() {
                let mut out = Vec::new();
                assert!(codec.decode(&stored[..cut], 1 << 20, &mut out).is_err(), "cut at {cut}");
                assert!(TEXT.starts_with(codec.plain_part(&stored[..cut])));
            }
        }
    }

    #[cfg(not(feature = "zstd"))]
    #[test]
    fn a_codec_that_is_lacking_is_named() {
        let codec = Codec::Zstd { head: 0 };
        assert_eq!(codec.encode(TEXT, &mut Vec::new()), Codec::None);
        assert_eq!(codec.decode(&[0; 9], 100, &mut Vec::new()), Err(CodecError::Lacking));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            words in prop::collection::vec(0u8..4, 0..500), head in 0u16..80, before in 0usize..3,
        ) {
            for codec in all(head) {
                let (mut stored, mut value) = (vec![9; before], vec![8; before]);
                let used = codec.encode(&words, &mut stored);
                prop_assert!(words.starts_with(used.plain_part(&stored[before..])));
                let decoded = used.decode(&stored[before..], words.len(), &mut value);
                prop_assert_eq!(decoded, Ok(()));
                prop_assert_eq!(&value[before..], &words[..]);
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            number in any::<u16>(), stored in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Some(codec) = Codec::from_u16(number & 0xC00F) {
                let mut out = Vec::new();
                let decoded = codec.decode(&stored, 300, &mut out);
                prop_assert!(out.len() <= 300);
                prop_assert!(decoded.is_ok() || out.is_empty());
                prop_assert!(codec.plain_part(&stored).len() <= stored.len());
            }
        }
    }
}
