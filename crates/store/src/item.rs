//! An item: a key and its value, which say themselves whether they are whole.
//!
//! ```text
//!  0  live word: DEAD 1 bit | stamp 15 | TOUCHED 1 | expiry in ms of Unix time 47 (0: never)
//!  8  version: the position of the change in the log
//! 16  shape: stored length 25 bits | key's length - 1, 16 | extended 1 | traced 1 | unused 5 |
//!     tablespace 16
//! 24  only if extended: the client's flags 32 | codec 16 | unused 16
//!     key, stored value, CRC-64/NVME of everything from 8 on
//! ```
//!
//! Behind an item that is traced, at the next multiple of 8, is a word that says when it was used
//! last: [`Trace`]. It is no part of the item, since it changes while the item stays.
//!
//! All numbers are little-endian. The live word alone changes while a slot refers to the item, by
//! one store of 8 bytes. Its stamp is the lowest 15 bits of the version, so that a reader who mixes
//! the live word of one item with the rest of another finds out. It is TOUCHED once its expiry has
//! changed: the version says nothing of whether that change is durable. From 8 on, an item is an
//! object as the kernel `consistency` reads it.
//!
//! A reader that has all of an item's bytes accepts it if [`Item::parse`] does and the key is the
//! one wanted.

use crc_fast::CrcAlgorithm::Crc64Nvme;

use crate::codec::Codec;
use crate::tablespace::TablespaceId;

/// The longest key, in bytes.
pub const KEY_MAX: usize = 64 << 10;
/// The longest value, in bytes, as clients give it.
pub const VALUE_MAX: usize = 16 << 20;
/// Bytes before the key if the item is not extended.
pub const HEAD: usize = 24;
/// Bytes that the flags and the codec take if either is not the usual one.
pub const EXTENSION: usize = 8;
/// Bytes of the checksum.
pub const CHECKSUM: usize = 8;
/// The longest item, in bytes.
pub const ITEM_MAX: usize = HEAD + EXTENSION + KEY_MAX + VALUE_MAX + CHECKSUM;
/// The shortest item, in bytes.
pub const ITEM_MIN: usize = HEAD + 1 + CHECKSUM;
/// The latest expiry, in ms of Unix time; later ones are kept as this one.
pub const EXPIRY_MAX: u64 = (1 << EXPIRY_BITS) - 1;

/// Bytes up to where an item does not depend on its version.
const UNDATED: usize = 16;
const EXPIRY_BITS: u32 = 47;
const TOUCHED: u64 = 1 << EXPIRY_BITS;
const STAMP_SHIFT: u32 = EXPIRY_BITS + 1;
const DEAD: u64 = 1 << 63;
const STAMP: u64 = 0x7FFF;
const LEN_BITS: u32 = 25;
const EXTENDED: u64 = 1 << 41;
const TRACED: u64 = 1 << 42;
/// Bytes of the word that says when an item was used last.
pub(crate) const TRACE: usize = 8;
const READ: u64 = 1 << 32;
const TABLESPACE_SHIFT: u32 = 48;

/// The word that says whether an item is still the one for its key, and how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live(pub u64);

impl Live {
    /// The word of a new item.
    pub fn new(version: u64, expires_ms: Option<u64>) -> Live {
        Live((version & STAMP) << STAMP_SHIFT).with_expiry(expires_ms)
    }

    /// The word once the item's expiry has changed.
    pub fn touched(self, expires_ms: Option<u64>) -> Live {
        Live(self.0 | TOUCHED).with_expiry(expires_ms)
    }

    /// Whether the item's expiry has changed since the item was written.
    pub fn is_touched(self) -> bool {
        self.0 & TOUCHED != 0
    }

    fn with_expiry(self, expires_ms: Option<u64>) -> Live {
        // 0 would mean never, and whatever expires at 0 has done so at 1.
        let expiry = expires_ms.map_or(0, |ms| ms.clamp(1, EXPIRY_MAX));
        Live(self.0 & !EXPIRY_MAX | expiry)
    }

    /// The word of an item that has been replaced or deleted.
    pub fn dead(self) -> Live {
        Live(self.0 | DEAD)
    }

    /// The word as it was before that.
    pub fn alive(self) -> Live {
        Live(self.0 & !DEAD)
    }

    /// Whether the item has been replaced or deleted.
    pub fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    /// When the item expires, in ms of Unix time.
    pub fn expires_ms(self) -> Option<u64> {
        Some(self.0 & EXPIRY_MAX).filter(|&ms| ms > 0)
    }

    /// Whether that time has come.
    pub fn is_expired(self, now: u64) -> bool {
        self.expires_ms().is_some_and(|ms| ms <= now)
    }

    /// Whether this word may belong to an item of that version.
    pub fn is_of(self, version: u64) -> bool {
        self.0 >> STAMP_SHIFT & STAMP == version & STAMP
    }
}

/// When an item was used last: written, or read by a thread or a kernel. READs of memory leave no
/// trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// The second of Unix time; 0: not since the store was opened.
    pub second: u32,
    /// Whether it was read since it was written.
    pub is_read: bool,
}

impl Trace {
    pub(crate) fn at(now_ms: u64, is_read: bool) -> Trace {
        Trace { second: u32::try_from(now_ms / 1000).unwrap_or(u32::MAX), is_read }
    }

    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.second) | if self.is_read { READ } else { 0 }
    }

    pub(crate) fn from_word(word: u64) -> Trace {
        Trace { second: word as u32, is_read: word & READ != 0 }
    }
}

/// What an item's first 24 bytes say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The live word.
    pub live: Live,
    /// The log position of the change that wrote the item.
    pub version: u64,
    /// Bytes of the stored value.
    pub stored: usize,
    /// Bytes of the key.
    pub key: usize,
    /// Whether flags and codec follow.
    pub extended: bool,
    /// Whether a word behind the item says when it was used last.
    pub traced: bool,
    /// Whose item it is.
    pub tablespace: TablespaceId,
}

impl Head {
    /// Reads the three words. Any words can be read: what they say need not be true.
    pub fn from_words(words: [u64; 3]) -> Head {
        let [live, version, shape] = words;
        Head {
            live: Live(live),
            version,
            stored: (shape & ((1 << LEN_BITS) - 1)) as usize,
            key: (shape >> LEN_BITS & 0xFFFF) as usize + 1,
            extended: shape & EXTENDED != 0,
            traced: shape & TRACED != 0,
            tablespace: TablespaceId((shape >> TABLESPACE_SHIFT) as u16),
        }
    }

    fn shape(&self) -> u64 {
        let extended = if self.extended { EXTENDED } else { 0 };
        let traced = if self.traced { TRACED } else { 0 };
        self.stored as u64
            | (self.key as u64 - 1) << LEN_BITS
            | extended
            | traced
            | u64::from(self.tablespace.0) << TABLESPACE_SHIFT
    }

    /// Bytes before the key.
    pub fn key_at(&self) -> usize {
        if self.extended { HEAD + EXTENSION } else { HEAD }
    }

    /// Bytes before the stored value.
    pub fn value_at(&self) -> usize {
        self.key_at() + self.key
    }

    /// Bytes of the item.
    pub fn item_len(&self) -> usize {
        self.value_at() + self.stored + CHECKSUM
    }

    /// Bytes before the word that says when the item was used last, if there is one.
    pub(crate) fn trace_at(&self) -> Option<usize> {
        self.traced.then(|| self.item_len().next_multiple_of(TRACE))
    }

    /// Bytes that the item needs of a block.
    pub(crate) fn block_len(&self) -> usize {
        self.trace_at().map_or(self.item_len(), |at| at + TRACE)
    }
}

/// The flags and the codec of an extended item, from its fourth word.
pub fn extension(word: u64) -> (u32, Option<Codec>) {
    (word as u32, Codec::from_u16((word >> 32) as u16))
}

/// A whole item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// Whose item it is.
    pub tablespace: TablespaceId,
    /// The key, of 1 to [`KEY_MAX`] bytes.
    pub key: &'a [u8],
    /// The value as it is stored.
    pub stored: &'a [u8],
    /// How it is stored.
    pub codec: Codec,
    /// What the client wishes to have kept beside the value.
    pub flags: u32,
    /// When the item expires, in ms of Unix time.
    pub expires_ms: Option<u64>,
    /// The log position of the change that wrote the item.
    pub version: u64,
    /// Whether a word behind the item says when it was used last.
    pub traced: bool,
    /// Whether the expiry has changed since the item was written.
    pub touched: bool,
}

impl<'a> Item<'a> {
    pub(crate) fn head(&self) -> Head {
        Head {
            live: Live::new(self.version, self.expires_ms),
            version: self.version,
            stored: self.stored.len(),
            key: self.key.len(),
            extended: self.flags != 0 || self.codec != Codec::None,
            traced: self.traced,
            tablespace: self.tablespace,
        }
    }

    /// Bytes of the item.
    pub fn len(&self) -> usize {
        self.head().item_len()
    }

    /// Never: an item has a head.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Replaces `out` by the item's bytes.
    ///
    /// # Panics
    /// The key is empty or longer than [`KEY_MAX`], or what is stored longer than [`VALUE_MAX`].
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_unsummed(out);
        let sum = crc_fast::checksum(Crc64Nvme, &out[8..]);
        out.extend_from_slice(&sum.to_le_bytes());
    }

    /// Replaces `out` by the item's bytes without those that depend on its version, and marked as
    /// dead: [`Item::date`] has the rest. Returns the checksum of what lies behind the version.
    ///
    /// # Panics
    /// See [`Item::write`].
    pub fn write_undated(&self, out: &mut Vec<u8>) -> u64 {
        self.write_unsummed(out);
        out[..8].copy_from_slice(&Live::new(0, None).dead().0.to_le_bytes());
        let sum = crc_fast::checksum(Crc64Nvme, &out[UNDATED..]);
        out.extend_from_slice(&[0; CHECKSUM]);
        sum
    }

    /// The live word and the checksum of an item that [`Item::write_undated`] has written, of which
    /// what lies behind the version has the checksum `undated`.
    pub fn date(&self, undated: u64) -> (Live, u64) {
        let head = self.head();
        let version = crc_fast::checksum(Crc64Nvme, &self.version.to_le_bytes());
        let len = (head.item_len() - UNDATED - CHECKSUM) as u64;
        (head.live, crc_fast::checksum_combine(Crc64Nvme, version, undated, len))
    }

    fn write_unsummed(&self, out: &mut Vec<u8>) {
        assert!((1..=KEY_MAX).contains(&self.key.len()) && self.stored.len() <= VALUE_MAX);
        let head = self.head();
        out.clear();
        out.reserve(head.item_len());
        for word in [head.live.0, head.version, head.shape()] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        if head.extended {
            let word = u64::from(self.flags) | u64::from(self.codec.to_u16()) << 32;
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.stored);
    }

    /// The item that the first bytes are, if they are a whole one that has not been replaced or
    /// deleted. Nothing behind it is looked at.
    pub fn parse(bytes: &'a [u8]) -> Option<Item<'a>> {
        Item::parse_unsummed(bytes).filter(|item| item.has_sum(bytes))
    }

    /// As [`Item::parse`], without a look at the checksum: the bytes may be anything.
    pub(crate) fn parse_unsummed(bytes: &'a [u8]) -> Option<Item<'a>> {
        let words = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        let head = Head::from_words([words(0)?, words(8)?, words(16)?]);
        let bytes = bytes.get(..head.item_len())?;
        let end = head.item_len() - CHECKSUM;
        if head.live.is_dead() || !head.live.is_of(head.version) {
            return None;
        }
        let (flags, codec) =
            if head.extended { extension(words(HEAD)?) } else { (0, Some(Codec::None)) };
        Some(Item {
            tablespace: head.tablespace,
            key: &bytes[head.key_at()..head.value_at()],
            stored: &bytes[head.value_at()..end],
            codec: codec?,
            flags,
            expires_ms: head.live.expires_ms(),
            version: head.version,
            traced: head.traced,
            touched: head.live.is_touched(),
        })
    }

    /// Whether the bytes that this item was parsed from have its checksum.
    pub(crate) fn has_sum(&self, bytes: &[u8]) -> bool {
        // Flags and codec of 0 may stand in an extended item, too.
        let shape = bytes.get(16..24).and_then(<[u8]>::first_chunk);
        let shape = shape.map_or(0, |shape| u64::from_le_bytes(*shape));
        let end = Head::from_words([0, 0, shape]).item_len() - CHECKSUM;
        let sum = bytes.get(end..).and_then(<[u8]>::first_chunk);
        sum.is_some_and(|sum| {
            crc_fast::checksum(Crc64Nvme, &bytes[8..end]) == u64::from_le_bytes(*sum)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item<'a>(key: &'a [u8], stored: &'a [u8], flags: u32, codec: Codec) -> Item<'a> {
        let (tablespace, version) = (TablespaceId(300), 1 << 40 | 5);
        let (expires_ms, traced) = (Some(77), false);
        Item { tablespace, key, stored, codec, flags, expires_ms, version, traced, touched: false }
    }

    #[test]
    fn a_plain_item_has_32_bytes_besides_key_and_value() {
        let mut bytes = Vec::new();
        item(b"key", b"value", 0, Codec::None).write(&mut bytes);
        assert_eq!(bytes.len(), HEAD + 3 + 5 + CHECKSUM);
        assert_eq!(bytes[..8], (5u64 << 48 | 77).to_le_bytes());
        assert_eq!(bytes[8..16], (1u64 << 40 | 5).to_le_bytes());
        assert_eq!(bytes[16..24], (5u64 | 2 << 25 | 300 << 48).to_le_bytes());
        assert_eq!(&bytes[24..32], b"keyvalue");
    }

    #[test]
    fn a_trace_lies_behind_its_item() {
        let plain = item(b"key", b"value", 0, Codec::None);
        let traced = Item { traced: true, ..plain };
        assert_eq!((plain.head().trace_at(), plain.head().block_len()), (None, 40));
        assert_eq!((traced.len(), traced.head().block_len()), (40, 48));
        let odd = item(b"key", b"values", 0, Codec::None);
        assert_eq!(Item { traced: true, ..odd }.head().trace_at(), Some(48));
        let trace = Trace::at(1 << 41, true);
        assert_eq!(Trace::from_word(trace.to_word()), trace);
    }

    #[test]
    fn a_dead_item_and_one_with_anothers_live_word_are_refused() {
        let mut bytes = Vec::new();
        item(b"key", b"value", 0, Codec::None).write(&mut bytes);
        let live = Live(u64::from_le_bytes(*bytes.first_chunk().unwrap()));
        for (word, whole) in [
            (live, true),
            (live.touched(None), true),
            (live.touched(Some(u64::MAX)), true),
            (live.dead(), false),
            (Live::new(6, Some(77)), false),
        ] {
            bytes[..8].copy_from_slice(&word.0.to_le_bytes());
            assert_eq!(Item::parse(&bytes).is_some(), whole, "{word:?}");
        }
        assert_eq!(live.touched(Some(u64::MAX)).expires_ms(), Some(EXPIRY_MAX));
        assert!(live.touched(Some(0)).is_expired(1), "an expiry of 0 is not never");
    }

    proptest! {
        #[test]
        fn an_item_is_read_as_it_was_written_and_no_other_way(
            key in prop::collection::vec(any::<u8>(), 1..300),
            stored in prop::collection::vec(any::<u8>(), 0..300),
            flags in prop_oneof![Just(0), any::<u32>()],
            packed: bool,
            traced: bool,
            bit: prop::sample::Index,
            cut: prop::sample::Index,
        ) {
            let codec = if packed { Codec::Lz4 { head: 9 } } else { Codec::None };
            let item = Item { traced, ..item(&key, &stored, flags, codec) };
            let mut bytes = Vec::new();
            item.write(&mut bytes);
            prop_assert_eq!(bytes.len(), item.len());
            prop_assert_eq!(Item::parse(&bytes), Some(item));
            let mut dated = Vec::new();
            let sum = Item { version: 0, ..item }.write_undated(&mut dated);
            prop_assert_eq!(Item::parse(&dated), None);
            let (live, sum) = item.date(sum);
            dated[..8].copy_from_slice(&live.0.to_le_bytes());
            dated[8..16].copy_from_slice(&item.version.to_le_bytes());
            let end = dated.len() - CHECKSUM;
            dated[end..].copy_from_slice(&sum.to_le_bytes());
            prop_assert_eq!(&dated, &bytes);
            prop_assert_eq!(Item::parse(&bytes[..cut.index(bytes.len())]), None);
            // The expiry alone, and whether it has changed, are outside the checksum.
            let bit = STAMP_SHIFT as usize + bit.index(bytes.len() * 8 - STAMP_SHIFT as usize);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Item::parse(&bytes), None);
        }

        #[test]
        fn any_bytes_can_be_parsed(bytes: Vec<u8>) {
            prop_assert_eq!(Item::parse(&bytes), None);
        }
    }
}
