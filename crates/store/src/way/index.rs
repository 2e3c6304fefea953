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
//! The answer's flags say whether clients may see what is not on the store's disk, and its expiry
//! what time it is there.

use std::fmt;

use super::clock::{boot_ns, now_ms};
use crate::item::Item;
use crate::journal::Journal;
use crate::layout::{COUNTS_AT, Geometry, MAGIC, PARTITIONS_MAX};
use crate::memory::Memory;
use crate::store::Store;
use crate::table::{Hash, Hasher};
use crate::tablespace::TablespaceId;

/// Bytes before the counts.
const HEAD_LEN: usize = 32;
/// The largest limit that is believed, in bytes.
const LIMIT_MAX: u64 = 1 << 48;

/// How long a reader believes what it was told of the store's clock, in ms.
const CLOCK_MS: u64 = 60_000;

/// What the store's clock shows at most, by a clock of the reader's own.
#[derive(Clone, Copy)]
struct Clock {
    /// What is to be added, which wraps.
    ahead_ms: u64,
    /// When the reader asked for it.
    asked_ms: u64,
}

/// What is known of a store's index.
pub struct Index {
    hasher: Hasher,
    geometry: Geometry,
    base: u64,
    counts: Vec<u32>,
    /// Changes up to this position are known to be durable, if clients are not to see others.
    durable: Option<u64>,
    /// Of a part of a cluster: its tablespace, and until when what is read there counts.
    leased: Option<(TablespaceId, u64)>,
    /// The store's clock, if a kernel has told it.
    clock: Option<Clock>,
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

    /// What the head and the bucket counts of a store say that lie in `memory` as in the store's,
    /// whose first byte has the address `base`; `None` if they are of another layout.
    pub(crate) fn read(memory: &impl Memory, base: u64) -> Option<Index> {
        let [magic, seed, partitions, limit] = [0, 8, 16, 40].map(|at| memory.load(at));
        if partitions > PARTITIONS_MAX {
            return None;
        }
        let mut bytes: Vec<u8> = [magic, seed, limit, base].map(u64::to_le_bytes).concat();
        for partition in 0..partitions {
            let count = memory.load(COUNTS_AT + 8 * partition) as u32;
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        Index::parse(&bytes)
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
        let counted = vec![2; counts.len()];
        let (durable, leased, clock) = (None, None, None);
        let mut index = Index { hasher, geometry, base, counts: counted, durable, leased, clock };
        for (partition, count) in (0..).zip(counts) {
            index.set_count(partition, u32::from_le_bytes(*count).into());
        }
        Some(index)
    }

    /// The store shows clients nothing that is not on its disk.
    pub(crate) fn hold_back(&mut self) {
        self.durable = Some(0);
    }

    /// The store is a part of a cluster, with its keys in this tablespace: it is read under a
    /// lease, of which there is none yet.
    pub(crate) fn await_lease(&mut self, space: TablespaceId) {
        self.leased = Some((space, 0));
    }

    /// Whether there is no lease, where one is needed.
    pub(crate) fn needs_lease(&self) -> bool {
        self.leased.is_some_and(|(_, until)| boot_ns() >= until)
    }

    /// What is read until then, of this machine's [`boot_ns`], is so for everybody.
    pub(crate) fn lease_until(&mut self, until: u64) {
        self.leased = self.leased.map(|(space, before)| (space, before.max(until)));
    }

    /// A kernel that was asked at `asked_ms`, of a clock of the reader's own, has read `store_ms`
    /// of Unix time. Since the answer took some time, and both are cut to milliseconds, the store's
    /// clock is taken to be ahead: a reader shows no item too long, and asks a kernel for one that
    /// expires in the next moment.
    pub(crate) fn set_clock(&mut self, store_ms: u64, asked_ms: u64) {
        let ahead_ms = store_ms.saturating_add(2).wrapping_sub(asked_ms);
        self.clock = Some(Clock { ahead_ms, asked_ms });
    }

    /// Whether the store is to be asked anew for its clock.
    pub(crate) fn needs_clock(&self, own_ms: u64) -> bool {
        self.clock.is_some_and(|clock| own_ms.wrapping_sub(clock.asked_ms) >= CLOCK_MS)
    }

    /// What Unix time it is for the store, in ms. A store without kernels does not tell: then the
    /// machine's own clock has to do.
    pub(crate) fn now_ms(&self, own_ms: u64) -> u64 {
        self.clock.map_or_else(now_ms, |clock| own_ms.wrapping_add(clock.ahead_ms))
    }

    /// The tablespace that a reader looks in, which asks for this one.
    pub(crate) fn space(&self, asked: TablespaceId) -> TablespaceId {
        self.leased.map_or(asked, |(space, _)| space)
    }

    /// Whether a reader may take an item that it has read. If not, it asks a kernel, which waits
    /// until that is durable and looks whether its store may answer still. Nobody but a kernel
    /// knows whether a change of an expiry is durable.
    pub(crate) fn is_shown(&self, item: &Item<'_>) -> bool {
        self.is_durable(item.version)
            && !(item.touched && self.durable.is_some())
            && !self.needs_lease()
    }

    /// Whether an item of this version is known to be durable.
    pub(crate) fn is_durable(&self, version: u64) -> bool {
        self.durable.is_none_or(|durable| version <= durable)
    }

    /// A kernel has shown an item of this version: it is durable, and all before.
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
        let read = Index::read(store.memory(), 0).unwrap();
        assert_eq!(read.buckets(hash), index.buckets(hash));
        for lie in [0, index.geometry.partitions + 1, PARTITIONS_MAX, u64::MAX] {
            let memory = Heap::new(options.memory_len());
            for (at, word) in [(0, MAGIC), (16, lie), (40, 8 << 20)] {
                memory.store(at, word);
            }
            assert!(Index::read(&memory, 0).is_none(), "{lie}");
        }
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
