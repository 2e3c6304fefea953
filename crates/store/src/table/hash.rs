//! Where a key may be.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use remora::nic::split_mix::SplitMix;

use crate::tablespace::TablespaceId;

/// Bits of an id.
pub(super) const ID_BITS: u32 = 48;
/// The bits of a slot's word that are its id.
pub(super) const ID: u64 = (1 << ID_BITS) - 1;

/// What stands for a key in the index: 48 bits that are not 0.
///
/// The partition and both buckets follow from the id alone, so that slots move to other buckets,
/// and partitions grow, without a look at the items.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Hash(u64);

/// Turns keys into hashes; two stores with the same seed do so alike.
#[derive(Clone)]
pub struct Hasher {
    secrets: RapidSecrets,
}

impl Hasher {
    /// A hasher with that seed. It should be random and known only to those who look up keys
    /// one-sided, or others can choose keys that all want the same buckets.
    pub fn new(seed: u64) -> Hasher {
        Hasher { secrets: RapidSecrets::seed(seed) }
    }

    /// The hash of a tablespace's key.
    #[inline]
    pub fn hash(&self, tablespace: TablespaceId, key: &[u8]) -> Hash {
        let hash = rapidhash_v3_seeded(key, &self.secrets);
        let id = mix(hash.wrapping_add(u64::from(tablespace.0) << ID_BITS)) & ID;
        Hash(id.max(1))
    }
}

impl Hash {
    /// The hash whose id a slot has; `None` for an empty slot.
    pub fn from_id(id: u64) -> Option<Hash> {
        (id & ID != 0).then_some(Hash(id & ID))
    }

    /// The 48 bits.
    #[inline]
    pub fn id(self) -> u64 {
        self.0
    }

    /// Which of `partitions`, a power of two, has the key.
    #[inline]
    pub fn partition(self, partitions: u64) -> u64 {
        mix(self.0) >> 52 & (partitions - 1)
    }

    /// The two buckets, which differ, of a partition that has `count` buckets, two or more.
    #[inline]
    pub fn buckets(self, count: u32) -> [u32; 2] {
        let first = mix(self.0) as u32;
        let second = first ^ (mix(self.0 ^ u64::MAX) as u32 | 1);
        [bucket(first, count), bucket(second, count)]
    }
}

/// The number of SplitMix64 that the word is the seed of.
#[inline]
fn mix(word: u64) -> u64 {
    SplitMix::new(word).number()
}

/// Linear hashing: the bucket of `bits` among `count` buckets. Bucket `count` is next split off the
/// bucket that lacks its highest bit.
#[inline]
fn bucket(bits: u32, count: u32) -> u32 {
    let mask = u32::MAX >> (count - 1).leading_zeros();
    let bucket = bits & mask;
    if bucket < count { bucket } else { bucket & mask >> 1 }
}

/// The bucket from which bucket `count` is split off, when a partition grows beyond `count`.
pub(super) fn split_from(count: u32) -> u32 {
    count & !(1 << count.ilog2())
}

/// How many bits of the hash choose bucket `at` among `count`.
pub fn level(at: u32, count: u32) -> u32 {
    let bits = u32::BITS - (count - 1).leading_zeros();
    let half = 1 << (bits - 1);
    if at >= half || at < count - half { bits } else { bits - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_differ_and_growth_splits_one_bucket() {
        let hasher = Hasher::new(7);
        for key in 0..500u32 {
            let hash = hasher.hash(TablespaceId(1), &key.to_le_bytes());
            for count in 2..200 {
                let (old, new) = (hash.buckets(count), hash.buckets(count + 1));
                assert!(old[0] != old[1] && old.iter().all(|&bucket| bucket < count));
                for (old, new) in old.into_iter().zip(new) {
                    let split = old == split_from(count) && new == count;
                    assert!(old == new || split, "{old} {new} {count}");
                }
            }
        }
    }

    #[test]
    fn levels_say_how_often_a_bucket_was_split() {
        assert_eq!([0, 1, 2, 3].map(|at| level(at, 4)), [2; 4]);
        assert_eq!([0, 1, 2, 3, 4].map(|at| level(at, 5)), [3, 2, 2, 2, 3]);
        assert_eq!(level(0, 2), 1);
    }

    #[test]
    fn tablespaces_and_seeds_tell_keys_apart() {
        let hash = |seed, space| Hasher::new(seed).hash(TablespaceId(space), b"key");
        assert_ne!(hash(1, 1), hash(1, 2));
        assert_ne!(hash(1, 1), hash(2, 1));
    }
}
