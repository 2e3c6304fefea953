//! The table of what keys name. A key's place follows from its bits, so that a look-up needs no
//! search.
//!
//! Keys are random, and a key whose place is taken is not drawn. At most half of the places are
//! taken, so two draws do on average.

use super::key::{Key, OWNER_BITS};

/// The places of the smallest table: so many that the keys of a few regions seldom meet.
const FEWEST: usize = 256;

/// The entry of a key.
#[derive(Debug)]
pub(super) struct KeySlot<T> {
    /// The whole key, with the owner's bits.
    pub(super) key: Key,
    pub(super) named: T,
}

/// The entries of all keys.
#[derive(Debug)]
pub(super) struct KeyTable<T> {
    /// Each at the low bits of its key without the owner's. The length is zero or a power of two.
    places: Vec<Option<Box<KeySlot<T>>>>,
    len: usize,
}

impl<T> KeyTable<T> {
    pub(super) const EMPTY: KeyTable<T> = KeyTable { places: Vec::new(), len: 0 };

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of the entries and their places.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Option<Box<KeySlot<T>>>>()
            + self.len * size_of::<KeySlot<T>>()
    }

    /// The entry of a key, all of whose bits count.
    #[inline(always)]
    pub(super) fn get(&self, key: Key) -> Option<&KeySlot<T>> {
        let slot = self.places.get(self.at(key))?.as_deref()?;
        if slot.key == key { Some(slot) } else { None }
    }

    /// The entry of a key; its owner's bits do not matter.
    pub(super) fn slot_mut(&mut self, key: Key) -> Option<&mut KeySlot<T>> {
        let at = self.at(key);
        let slot = self.places.get_mut(at)?.as_deref_mut()?;
        if is_same(slot.key, key) { Some(slot) } else { None }
    }

    /// Removes the entry of a key, so that the key is free. The owner's bits do not matter.
    pub(super) fn remove(&mut self, key: Key) -> Option<KeySlot<T>> {
        let at = self.at(key);
        let slot = self.places.get_mut(at)?.take_if(|slot| is_same(slot.key, key))?;
        self.len -= 1;
        Some(*slot)
    }

    /// Makes room for one more entry.
    pub(super) fn make_room(&mut self) {
        if 2 * (self.len + 1) > self.places.len() {
            self.grow();
        }
    }

    /// Is the place of a key vacant, so that the key can be given?
    pub(super) fn is_vacant(&self, key: Key) -> bool {
        self.places.get(self.at(key)).is_some_and(Option::is_none)
    }

    /// Has the table this key, whatever its owner's bits?
    pub(super) fn holds(&self, key: Key) -> bool {
        let slot = self.places.get(self.at(key)).and_then(Option::as_deref);
        slot.is_some_and(|slot| is_same(slot.key, key))
    }

    /// Adds an entry whose key the table does not hold. If its place is taken, the table grows
    /// until it is not: for keys from another table, that was at most as large as that one.
    pub(super) fn insert(&mut self, slot: KeySlot<T>) {
        self.make_room();
        while !self.is_vacant(slot.key) {
            self.grow();
        }
        let at = self.at(slot.key);
        self.places[at] = Some(Box::new(slot));
        self.len += 1;
    }

    /// Doubles the places. Keys that differed in their low bits still do.
    fn grow(&mut self) {
        let before = core::mem::take(&mut self.places);
        self.places.resize_with((2 * before.len()).max(FEWEST), || None);
        for slot in before.into_iter().flatten() {
            let at = self.at(slot.key);
            self.places[at] = Some(slot);
        }
    }

    /// The index of the only place that may have a key. (Without places it is out of range.)
    #[inline(always)]
    fn at(&self, key: Key) -> usize {
        (key >> OWNER_BITS) as usize & self.places.len().wrapping_sub(1)
    }
}

/// Are the keys the same but for their owner's bits?
fn is_same(a: Key, b: Key) -> bool {
    (a ^ b) >> OWNER_BITS == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(key: Key) -> KeySlot<()> {
        KeySlot { key, named: () }
    }

    #[test]
    fn a_key_is_found_by_all_its_bits_and_changed_without_its_owners() {
        let mut table = KeyTable::EMPTY;
        assert!(table.get(0x101).is_none() && !table.holds(0x101) && table.remove(0x101).is_none());
        table.insert(slot(0x101));
        assert!(table.get(0x101).is_some() && table.get(0x102).is_none());
        table.slot_mut(0x1ff).unwrap().key = 0x102;
        assert!(table.get(0x101).is_none() && table.get(0x102).is_some());
        // Another key with the same place.
        let other = 0x101 + ((FEWEST as u32) << OWNER_BITS);
        assert!(table.get(other).is_none() && table.slot_mut(other).is_none());
        assert!(!table.holds(other) && !table.is_vacant(other) && table.remove(other).is_none());
        assert_eq!(table.remove(0x1aa).map(|slot| slot.key), Some(0x102));
        assert_eq!((table.len(), table.holds(0x102)), (0, false));
    }

    #[test]
    fn keys_that_meet_make_the_table_grow_and_all_are_kept() {
        let mut table = KeyTable::EMPTY;
        let keys: Vec<Key> = (1..1000).map(|n| (n * FEWEST as u32) << OWNER_BITS >> 3).collect();
        let keys: Vec<Key> = keys.into_iter().filter(|key| key >> OWNER_BITS != 0).collect();
        for key in &keys {
            if !table.holds(*key) {
                table.insert(slot(*key));
            }
        }
        assert!(keys.iter().all(|key| table.holds(*key)));
        assert!(2 * table.len() <= table.places.len(), "at most half are taken");
    }
}
