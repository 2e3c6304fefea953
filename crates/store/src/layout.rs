//! What lies where in the store's memory, and how a one-sided reader finds a key in it.
//!
//! ```text
//! 0           the head: words MAGIC, seed, partitions, place of index and area, limit
//! COUNTS_AT   for each partition a word: how many buckets it has
//! index       buckets of 128 bytes; bucket b of partition p is the one at b * partitions + p
//! area        the items' blocks
//! ```
//!
//! Address space is reserved for the largest index, so that no bucket ever moves; what is not used
//! of it costs nothing where the operating system provides memory on first use.
//!
//! # How a one-sided reader looks up a key
//!
//! 1. Once: it reads the head and the bucket counts, and checks the magic word.
//! 2. It computes the key's [`Hash`](crate::table::Hash) with the seed, and from it the partition
//!    and both buckets for the count that it knows.
//! 3. It reads both buckets, and then the first bucket's header again, in this order on one queue
//!    pair. It starts anew if a header's sequence number is odd or the first header's has changed:
//!    a key moves between these two buckets, and each move changes both headers. If a header's
//!    level is not the level of that bucket for its count, the partition has grown: it reads the
//!    count and starts anew.
//! 4. In a slot with the key's id and the tablespace's tag it finds an address and a length, reads
//!    the item there, and accepts it if [`Item::parse`](crate::item::Item::parse) does, the
//!    tablespace and the key are the ones wanted, and the item has not expired. It may keep the
//!    address and read there again: an item is marked DEAD before its successor can be seen, and
//!    its block is written again only after [`Options::quarantine_ms`](crate::store::Options).
//!    That is longer than a READ or a chain is under way, with what is sent again of its answer, so
//!    that all packets are of one item. Where memory is short a block does not rest, and a reader
//!    may have got parts of two items. It finds out, since the checksum fails.
//! 5. In every other case it asks the kernel, which also sees keys that are in the stash: a miss of
//!    a one-sided reader is no proof that the key is absent.
//!
//! A chain does step 4 on one bucket, ignores sequence numbers, and returns the item; its client
//! checks the item as above.

use crate::item::ITEM_MAX;

/// The first word of a store's memory: its name and the version of this layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rmrsto\x02\0");
/// Where the bucket counts are.
pub const COUNTS_AT: u64 = 4096;
/// Bytes of the head and the bucket counts.
pub const HEAD_LEN: u64 = COUNTS_AT + 8 * PARTITIONS_MAX;
/// Bytes of a bucket.
pub const BUCKET: u64 = 128;
/// Slots of a bucket.
pub const SLOTS: usize = 5;
/// Bytes of a slot.
pub const SLOT: u64 = 24;
/// Bytes of a bucket before its slots.
pub const BUCKET_HEADER: u64 = 8;
/// The most partitions.
pub const PARTITIONS_MAX: u64 = 4096;
/// The fewest buckets of a partition.
pub const BUCKETS_MIN: u32 = 4;
/// Bytes of a page of the area.
pub const PAGE: u64 = 32 << 10;
/// Bytes of the smallest block: no quota below it has room for a key.
pub const BLOCK_MIN: u64 = 48;
/// The smallest limit, in bytes.
pub const LIMIT_MIN: u64 = 256 << 10;

const INDEX_AT: u64 = 64 << 10;
/// A partition for so many bytes of the limit.
const PARTITION_FOR: u64 = 2 << 20;

/// The places and sizes that follow from a store's limit, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The most bytes that buckets and pages in use may have together.
    pub limit: u64,
    /// Partitions, a power of two.
    pub partitions: u64,
    /// The most buckets of a partition.
    pub buckets_max: u32,
    /// Where the area begins, a multiple of [`PAGE`].
    pub area_at: u64,
    /// Pages of the area.
    pub pages: u32,
}

impl Geometry {
    /// The geometry for a limit; a smaller limit than [`LIMIT_MIN`] counts as that.
    ///
    /// The area has twice the limit, so that a long item finds pages in a row although others are
    /// scattered: the limit bounds the pages in use, not their places.
    pub fn for_limit(limit: u64) -> Geometry {
        let limit = limit.max(LIMIT_MIN);
        let partitions = (limit / PARTITION_FOR).clamp(4, PARTITIONS_MAX);
        let partitions = 1 << partitions.ilog2();
        // The shortest items have blocks of 48 bytes and 27 bytes of index.
        let buckets_max = (limit * 3 / 8 / BUCKET / partitions).clamp(16, u64::from(u32::MAX / 2));
        let index_len = buckets_max * partitions * BUCKET;
        let area_at = (INDEX_AT + index_len).next_multiple_of(PAGE);
        let longest = (ITEM_MAX as u64).div_ceil(PAGE);
        let pages = (limit * 2 / PAGE + longest).min(u64::from(u32::MAX)) as u32;
        Geometry { limit, partitions, buckets_max: buckets_max as u32, area_at, pages }
    }

    /// Bytes of memory that a store of this geometry lives in.
    pub fn memory_len(&self) -> u64 {
        self.area_end()
    }

    /// Where the index begins.
    pub fn index_at(&self) -> u64 {
        INDEX_AT
    }

    /// Where the area ends.
    pub fn area_end(&self) -> u64 {
        self.area_at + u64::from(self.pages) * PAGE
    }

    /// Where a bucket of a partition is.
    #[inline]
    pub fn bucket_at(&self, partition: u64, bucket: u32) -> u64 {
        INDEX_AT + (u64::from(bucket) * self.partitions + partition) * BUCKET
    }

    /// Where the word with a partition's bucket count is.
    pub fn count_at(&self, partition: u64) -> u64 {
        COUNTS_AT + partition * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        for limit in [0, 1 << 20, 3 << 20, 1 << 30, 100 << 30] {
            let geometry = Geometry::for_limit(limit);
            assert!(geometry.partitions.is_power_of_two());
            assert!(geometry.count_at(geometry.partitions) <= geometry.index_at());
            let end =
                geometry.bucket_at(geometry.partitions - 1, geometry.buckets_max - 1) + BUCKET;
            assert!(end <= geometry.area_at && geometry.area_at.is_multiple_of(PAGE));
            assert!(u64::from(geometry.pages) * PAGE >= 2 * limit + ITEM_MAX as u64);
        }
    }
}
