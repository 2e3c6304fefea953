//! A bucket's bytes.
//!
//! ```text
//! 0    sequence number 32 bits, odd while the bucket changes | level 6 | CLOCK 5 x 2 | unused 16
//! 8    five slots of: address 64 | length of the item 32, expiry in s 32 | id 48, tablespace 16
//! ```
//!
//! Only the holder of the partition's lock changes a bucket, but for the bits of CLOCK. All of it
//! may be changed by hostile clients at any time.

use super::hash::{Hash, ID, ID_BITS};
use crate::layout::{BUCKET_HEADER, SLOT, SLOTS};
use crate::memory::Memory;
use crate::tablespace::TablespaceId;

const SEQUENCE: u64 = u32::MAX as u64;
const LEVEL_SHIFT: u32 = 32;
const LEVEL: u64 = 0x3F << LEVEL_SHIFT;
const CLOCK_SHIFT: u32 = 38;
const CLOCK_MAX: u64 = 3;

/// Where an item is, and whose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The item's address, as remote readers name it.
    pub address: u64,
    /// Bytes of the item.
    pub len: u32,
    /// The second of Unix time from which on the item has expired for sure; 0 if it never does.
    pub expiry: u32,
    /// The hash of the key.
    pub hash: Hash,
    /// The item's tablespace.
    pub tablespace: TablespaceId,
}

impl Slot {
    fn to_words(self) -> [u64; 3] {
        [
            self.address,
            u64::from(self.len) | u64::from(self.expiry) << 32,
            self.hash.id() | u64::from(self.tablespace.0) << ID_BITS,
        ]
    }

    /// The slot with these words, unless it is empty.
    #[inline]
    fn from_words([address, sizes, tag]: [u64; 3]) -> Option<Slot> {
        Some(Slot {
            address,
            len: sizes as u32,
            expiry: (sizes >> 32) as u32,
            hash: Hash::from_id(tag)?,
            tablespace: TablespaceId((tag >> ID_BITS) as u16),
        })
    }

    /// The second for a slot whose item expires at that ms.
    pub fn expiry_of(expires_ms: Option<u64>) -> u32 {
        expires_ms.map_or(0, |ms| u32::try_from(ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1))
    }
}

/// A bucket in memory.
#[derive(Clone, Copy)]
pub(crate) struct Bucket<'m, M> {
    pub(crate) memory: &'m M,
    pub(crate) at: u64,
}

impl<M: Memory> Bucket<'_, M> {
    /// How many bits of the hash have chosen the bucket, as the bucket says.
    pub(crate) fn level(&self) -> u32 {
        ((self.header() & LEVEL) >> LEVEL_SHIFT) as u32
    }

    /// The header.
    #[inline]
    pub(crate) fn header(&self) -> u64 {
        self.memory.load(self.at)
    }

    #[inline]
    fn slot_at(&self, slot: usize) -> u64 {
        self.at + BUCKET_HEADER + slot as u64 * SLOT
    }

    /// The word with a slot's id and tag; 0 if the slot is empty.
    #[inline]
    pub(super) fn tag(&self, slot: usize) -> u64 {
        self.memory.load(self.slot_at(slot) + 16)
    }

    /// The slot, unless it is empty.
    #[inline]
    pub(crate) fn slot(&self, slot: usize) -> Option<Slot> {
        let tag = self.tag(slot);
        Hash::from_id(tag)?;
        let at = self.slot_at(slot);
        Slot::from_words([self.memory.load(at), self.memory.load(at + 8), tag])
    }

    /// Calls `each` with the slots that are not empty, under the partition's lock.
    #[inline]
    pub(super) fn each_slot(&self, each: impl FnMut(Slot)) {
        let mut bytes = [0; SLOTS * SLOT as usize];
        self.memory.read(self.slot_at(0), &mut bytes);
        let (words, _) = bytes.as_chunks::<8>();
        let (slots, _) = words.as_chunks::<3>();
        slots
            .iter()
            .filter_map(|words| Slot::from_words(words.map(u64::from_ne_bytes)))
            .for_each(each);
    }

    /// A bit for each slot that is empty.
    pub(super) fn free_slots(&self) -> u32 {
        let free = |slot: usize| u32::from(self.tag(slot) & ID == 0) << slot;
        (0..SLOTS).map(free).sum()
    }

    /// Makes the sequence number odd, so that readers wait.
    pub(super) fn begin(&self) {
        self.memory.store(self.at, self.header() | 1);
    }

    /// Makes the sequence number even, and another than before.
    pub(super) fn end(&self) {
        let header = self.header() | 1;
        let sequence = u64::from((header as u32).wrapping_add(1));
        self.memory.store(self.at, header & !SEQUENCE | sequence);
    }

    /// Changes a slot, between [`Bucket::begin`] and [`Bucket::end`].
    pub(super) fn set(&self, index: usize, slot: Option<Slot>) {
        let words = slot.map_or([0; 3], Slot::to_words);
        for (word, at) in words.into_iter().zip((self.slot_at(index)..).step_by(8)) {
            self.memory.store(at, word);
        }
    }

    /// Empties the bucket, whatever it holds.
    pub(super) fn clear(&self, level: u32) {
        self.begin();
        for slot in 0..SLOTS {
            self.set(slot, None);
        }
        let sequence = self.header() & SEQUENCE;
        self.memory.store(self.at, sequence | u64::from(level) << LEVEL_SHIFT);
        self.end();
    }

    /// Changes the level, between [`Bucket::begin`] and [`Bucket::end`].
    pub(super) fn set_level(&self, level: u32) {
        let header = self.header() & !LEVEL;
        self.memory.store(self.at, header | u64::from(level) << LEVEL_SHIFT & LEVEL);
    }

    /// How recently a slot was used, 0 to 3.
    pub(super) fn clock(&self, slot: usize) -> u64 {
        self.header() >> clock_shift(slot) & CLOCK_MAX
    }

    /// Says how recently a slot was used, under the partition's lock.
    pub(super) fn set_clock(&self, slot: usize, clock: u64) {
        let header = self.header() & !(CLOCK_MAX << clock_shift(slot));
        self.memory.store(self.at, header | clock.min(CLOCK_MAX) << clock_shift(slot));
    }

    /// Says that a slot was used, without the lock: a change that comes in between makes this say
    /// nothing. `header` is what the bucket's header was.
    #[inline]
    pub(super) fn touch(&self, slot: usize, header: u64) {
        let clock = header >> clock_shift(slot) & CLOCK_MAX;
        if clock < CLOCK_MAX {
            let _ = self.memory.compare_swap(self.at, header, header + (1 << clock_shift(slot)));
        }
    }
}

fn clock_shift(slot: usize) -> u32 {
    CLOCK_SHIFT + 2 * slot as u32
}

/// Whether a header says that the bucket is changing.
#[inline]
pub(crate) fn is_changing(header: u64) -> bool {
    header & 1 != 0
}

/// Whether the slots may differ between two readings of the header.
#[inline]
pub(crate) fn differs(before: u64, after: u64) -> bool {
    (before ^ after) & (SEQUENCE | LEVEL) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Heap;

    #[test]
    fn a_slot_is_read_as_it_was_set() {
        let heap = Heap::new(256);
        let bucket = Bucket { memory: &heap, at: 128 };
        let hash = Hash::from_id(0xABCD_1234_5678).unwrap();
        let slot = Slot { address: 77, len: 5, expiry: 6, hash, tablespace: TablespaceId(0xFEDC) };
        bucket.begin();
        assert!(is_changing(bucket.header()));
        bucket.set(3, Some(slot));
        bucket.set_level(9);
        bucket.end();
        assert!(!is_changing(bucket.header()));
        assert_eq!(bucket.slot(3), Some(slot));
        assert_eq!(bucket.slot(2), None);
        assert_eq!(bucket.free_slots(), 0b10111);
        // A chain finds the id where its own slots have it.
        assert_eq!(heap.load(128 + 8 + 3 * 24 + 16) & ID, 0xABCD_1234_5678);
    }

    #[test]
    fn changes_show_in_the_header_and_uses_do_not() {
        let heap = Heap::new(128);
        let bucket = Bucket { memory: &heap, at: 0 };
        let before = bucket.header();
        bucket.touch(4, before);
        bucket.touch(4, bucket.header());
        assert_eq!(bucket.clock(4), 2);
        assert!(!differs(before, bucket.header()));
        bucket.touch(4, before);
        assert_eq!(bucket.clock(4), 2, "the header was another one");
        bucket.begin();
        bucket.end();
        assert!(differs(before, bucket.header()));
        assert_eq!(bucket.clock(4), 2);
    }

    #[test]
    fn expiry_is_rounded_up() {
        assert_eq!(Slot::expiry_of(None), 0);
        assert_eq!(Slot::expiry_of(Some(0)), 1);
        assert_eq!(Slot::expiry_of(Some(1001)), 2);
        assert_eq!(Slot::expiry_of(Some(u64::MAX)), u32::MAX);
    }
}
