//! What a reader of buckets has to know of a store's index, and what it computes from it.
//!
//! A store answers a Describe with these bytes, little-endian:
//!
//! ```text
//! byte  0  magic  u64   of the layout
//!       8  seed   u64   of the keys' hashes
//!      16  limit  u64   of the store, from which its geometry follows
//!      24  base   u64   the address of the store's first byte
//!      32  for each partition u32: how many buckets it has
//! ```
//!
//! The answer's flags say whether clients may see what is not on the store's disk.

use std::fmt;

use crate::journal::Journal;
use crate::layout::{COUNTS_AT, Geometry, MAGIC};
use crate::memory::Memory;
use crate::store::Store;
use crate::table::{Hash, Hasher};
use crate::tablespace::TablespaceId;

/// Bytes before the counts.
const HEAD_LEN: usize = 32;
/// The largest limit that is believed, in bytes.
const LIMIT_MAX: u64 = 1 << 48;

/// What is known of a store's index.
pub struct Index {
    hasher: Hasher,
    geometry: Geometry,
    base: u64,
    counts: Vec<u32>,
    /// Changes up to this position are known to be on the store's disk, if clients are not to see
    /// others.
    durable: Option<u64>,
}

impl fmt::Debug for Index {
    // The seed of the hashes is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

impl Index {
    /// Appends the description of a store's index.
    pub fn describe<M: Memory, J: Journal>(store: &Store<M, J>, out: &mut Vec<u8>) {
        let (seed, geometry, counts) = store.index();
        for word in [MAGIC, seed, geometry.limit, store.memory().base()] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        counts.for_each(|count| out.extend_from_slice(&count.to_le_bytes()));
    }

    /// Reads a description; `None` if it is of another layout, or none at all.
    pub fn parse(bytes: &[u8]) -> Option<Index> {
        let (head, counts) = bytes.split_at_checked(HEAD_LEN)?;
        let (words, _) = head.as_chunks();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let (magic, seed, limit, base) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        if magic != MAGIC || limit > LIMIT_MAX {
            return None;
        }
        let geometry = Geometry::for_limit(limit);
        base.checked_add(geometry.memory_len())?;
        let (counts, rest) = counts.as_chunks();
        if counts.len() as u64 != geometry.partitions || !rest.is_empty() {
            return None;
        }
        let hasher = Hasher::new(seed);
        let mut index =
            Index { hasher, geometry, base, counts: vec![2; counts.len()], durable: None };
        for (partition, count) in (0..).zip(counts) {
            index.set_count(partition, u32::from_le_bytes(*count).into());
        }
        Some(index)
    }

    /// The store shows clients nothing that is not on its disk.
    pub(crate) fn hold_back(&mut self) {
        self.durable = Some(0);
    }

    /// Whether a reader may take an item of this version. If not, it asks a kernel, which waits for
    /// the disk.
    pub(crate) fn is_shown(&self, version: u64) -> bool {
        self.durable.is_none_or(|durable| version <= durable)
    }

    /// A kernel has shown an item of this version: the disk has it, and all before.
    pub(crate) fn learn(&mut self, version: u64) {
        self.durable = self.durable.map(|durable| durable.max(version));
    }

    /// The hash of a key.
    pub fn hash(&self, space: TablespaceId, key: &[u8]) -> Hash {
        self.hasher.hash(space, key)
    }

    /// The partition of a hash.
    pub fn partition(&self, hash: Hash) -> u64 {
        hash.partition(self.geometry.partitions)
    }

    /// How many buckets a partition has, as far as is known.
    pub fn count(&self, partition: u64) -> u32 {
        self.counts[partition as usize]
    }

    /// A partition has so many buckets now.
    pub fn set_count(&mut self, partition: u64, count: u64) {
        // A look-up can work with any count in these bounds, whatever the store says.
        let count = count.clamp(2, self.geometry.buckets_max.into()) as u32;
        self.counts[partition as usize] = count;
    }

    /// The addresses of both buckets of a hash.
    pub fn buckets(&self, hash: Hash) -> [u64; 2] {
        let partition = self.partition(hash);
        let both = hash.buckets(self.count(partition));
        both.map(|bucket| self.base + self.geometry.bucket_at(partition, bucket))
    }

    /// The address of a partition's count.
    pub fn count_at(&self, partition: u64) -> u64 {
        self.base + COUNTS_AT + partition * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Unlogged;
    use crate::memory::Heap;
    use crate::store::Options;

    #[test]
    fn a_description_round_trips_and_others_are_refused() {
        let options = Options::new(8 << 20, 77);
        let heap = Heap::new(options.memory_len());
        let store = Store::new(heap, Unlogged::default(), options).unwrap();
        let mut bytes = Vec::new();
        Index::describe(&store, &mut bytes);
        let index = Index::parse(&bytes).unwrap();
        let hash = index.hash(TablespaceId(3), b"key");
        assert_eq!(hash, Hasher::new(77).hash(TablespaceId(3), b"key"));
        let end = store.index().1.area_at;
        assert!(index.buckets(hash).iter().all(|at| *at < end));
        for len in 0..bytes.len() {
            assert!(Index::parse(&bytes[..len]).is_none(), "{len}");
        }
        for at in 0..HEAD_LEN {
            let mut other = bytes.clone();
            other[at] ^= 0x80;
            if let Some(index) = Index::parse(&other) {
                let _ = index.buckets(hash);
            }
        }
        bytes[HEAD_LEN..].fill(0xFF);
        let index = Index::parse(&bytes).unwrap();
        assert!(index.buckets(hash).iter().all(|at| *at < end));
        bytes[HEAD_LEN..].fill(0);
        let _ = Index::parse(&bytes).unwrap().buckets(hash);
    }
}
