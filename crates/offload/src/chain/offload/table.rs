//! The tables that look-ups read, as a server fills them.

use thiserror::Error;

/// Bytes of a slot: the value's address, its length, and a key of 48 bits.
pub const SLOT: u64 = 24;
/// The largest key.
pub const KEY_MAX: u64 = (1 << 48) - 1;
/// The most keys that are moved to make room for one.
const MOVES_MAX: usize = 500;

/// The place of a value in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Value {
    /// Its address.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
}

/// Why a key cannot be put into a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum InsertError {
    /// The key is 0 or has more than 48 bits.
    #[error("the key {0:#x} is not between 1 and 2^48 - 1")]
    Key(u64),
    /// The key's buckets are full, and no key could be moved out of them.
    #[error("no room for the key {0:#x}: make the table larger")]
    Full(u64),
}

/// A table in which each key is in one of two buckets.
///
/// With one slot for each bucket it is RedN's hash table. With four slots it is MemC3's cuckoo
/// table: buckets have 96 bytes, and keys move to their other buckets to make room.
#[derive(Clone, Debug)]
pub struct Table {
    slots: usize,
    /// Bucket by bucket; key 0 marks an empty slot.
    entries: Vec<(u64, Value)>,
}

impl Table {
    /// An empty table of `buckets` buckets, rounded up to a power of two, with `slots` slots each.
    pub fn new(buckets: usize, slots: usize) -> Table {
        let entries = vec![(0, Value::default()); buckets.next_power_of_two() * slots.max(1)];
        Table { slots: slots.max(1), entries }
    }

    fn mask(&self) -> u64 {
        (self.entries.len() / self.slots) as u64 - 1
    }

    /// The indices of the two buckets that may hold a key.
    pub fn buckets(&self, key: u64) -> [u64; 2] {
        buckets(key, self.mask())
    }

    /// The addresses of those buckets in a table at `base`.
    pub fn addresses(&self, base: u64, key: u64) -> [u64; 2] {
        self.buckets(key).map(|bucket| base + bucket * self.slots as u64 * SLOT)
    }

    fn slots_of(&mut self, bucket: u64) -> &mut [(u64, Value)] {
        let at = bucket as usize * self.slots;
        &mut self.entries[at..at + self.slots]
    }

    /// Puts a key in, or replaces its value.
    ///
    /// # Errors
    /// See [`InsertError`]. After [`InsertError::Full`] another key may have lost its place: build
    /// a larger table.
    pub fn insert(&mut self, key: u64, value: Value) -> Result<(), InsertError> {
        if key == 0 || key > KEY_MAX {
            return Err(InsertError::Key(key));
        }
        for bucket in self.buckets(key) {
            if let Some(slot) = self.slots_of(bucket).iter_mut().find(|slot| slot.0 == key) {
                slot.1 = value;
                return Ok(());
            }
        }
        let (mut homeless, mut bucket) = ((key, value), self.buckets(key)[0]);
        for turn in 0..MOVES_MAX {
            for bucket in self.buckets(homeless.0) {
                if let Some(slot) = self.slots_of(bucket).iter_mut().find(|slot| slot.0 == 0) {
                    *slot = homeless;
                    return Ok(());
                }
            }
            let slots = self.slots;
            std::mem::swap(&mut self.slots_of(bucket)[turn % slots], &mut homeless);
            let [first, second] = self.buckets(homeless.0);
            bucket = if bucket == first { second } else { first };
        }
        Err(InsertError::Full(homeless.0))
    }

    /// Puts a key into its second bucket, so that measurements can force collisions.
    ///
    /// # Errors
    /// See [`InsertError`].
    pub fn insert_second(&mut self, key: u64, value: Value) -> Result<(), InsertError> {
        let [_, second] = self.buckets(key);
        let slot = self.slots_of(second).iter_mut().find(|slot| slot.0 == 0);
        *slot.ok_or(InsertError::Full(key))? = (key, value);
        Ok(())
    }

    /// The bytes of the table.
    pub fn bytes(&self) -> Vec<u8> {
        let slot = |(key, value): &(u64, Value)| [value.addr, u64::from(value.len), *key];
        self.entries.iter().flat_map(slot).flat_map(u64::to_le_bytes).collect()
    }
}

/// The two buckets of a key in a table of `mask + 1` buckets.
pub fn buckets(key: u64, mask: u64) -> [u64; 2] {
    // Two rounds of SplitMix64.
    let mix = |seed: u64| {
        let z = key.wrapping_add(seed).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    };
    let first = mix(0x9E37_79B9_7F4A_7C15) & mask;
    let second = mix(0x3C6E_F372_FE94_F82A) & mask;
    // Two equal buckets would halve the room for the key.
    [first, if second == first { (second + 1) & mask } else { second }]
}
