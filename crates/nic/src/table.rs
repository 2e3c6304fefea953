//! Tables of the card's objects, with handles that become invalid when their object is removed.

/// A table whose handles contain an index and a generation, so that the handle of a removed object
/// does not name the object that took its place.
///
/// A handle has `BITS` bits, the low `INDEX` of which are the index. The generation is never zero,
/// so no handle is below 2^`INDEX`: small numbers (queue pairs 0 and 1) are never handles.
#[derive(Debug)]
pub(crate) struct Table<T, const INDEX: u32, const BITS: u32> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T, const INDEX: u32, const BITS: u32> Table<T, INDEX, BITS> {
    /// An empty table for at most `limit` values (and at most 2^`INDEX`).
    pub(crate) fn new(limit: usize) -> Self {
        Table { slots: Vec::new(), free: Vec::new(), limit: limit.min(1 << INDEX) }
    }

    /// The highest generation.
    const GENERATIONS: u32 = (1 << (BITS - INDEX)) - 1;

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds the value that `make` builds from its handle. `None` if the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.limit => {
                self.slots.push(Slot { generation: 1, value: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        let handle = slot.generation << INDEX | index;
        slot.value = Some(make(handle));
        Some(handle)
    }

    /// Adds a value under a handle that it had in another table. Returns false if the handle's
    /// place is taken, or is none of this table.
    pub(crate) fn insert_at(&mut self, handle: u32, value: T) -> bool {
        let (index, generation) = (Self::index(handle), handle >> INDEX);
        let is_valid = (1..=Self::GENERATIONS).contains(&generation);
        if !is_valid || index as usize >= self.limit {
            return false;
        }
        while self.slots.len() <= index as usize {
            self.free.push(self.slots.len() as u32);
            self.slots.push(Slot { generation: 1, value: None });
        }
        let slot = &mut self.slots[index as usize];
        if slot.value.is_some() {
            return false;
        }
        *slot = Slot { generation, value: Some(value) };
        self.free.retain(|free| *free != index);
        true
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let index = Self::index(handle);
        let slot =
            self.slots.get_mut(index as usize).filter(|s| s.generation == handle >> INDEX)?;
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & Self::GENERATIONS;
        slot.generation = slot.generation.max(1);
        self.free.push(index);
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        let slot = self.slots.get(Self::index(handle) as usize)?;
        if slot.generation == handle >> INDEX { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        let index = Self::index(handle);
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation == handle >> INDEX { slot.value.as_mut() } else { None }
    }

    /// The values, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    #[inline]
    const fn index(handle: u32) -> u32 {
        handle & ((1 << INDEX) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_goes_stale() {
        let mut table: Table<&str, 4, 8> = Table::new(16);
        let a = table.insert_with(|_| "a").unwrap();
        assert_eq!(table.remove(a), Some("a"));
        let b = table.insert_with(|_| "b").unwrap();
        assert_eq!(a & 0xF, b & 0xF, "the slot is used again");
        assert_eq!(table.get(a), None);
        assert_eq!(table.remove(a), None);
        assert_eq!(table.get(b), Some(&"b"));
    }

    #[test]
    fn a_handle_of_another_table_is_kept() {
        let mut table: Table<&str, 4, 8> = Table::new(4);
        let handle = 3 << 4 | 2;
        assert!(table.insert_at(handle, "old"));
        assert_eq!((table.get(handle), table.len()), (Some(&"old"), 1));
        assert!(!table.insert_at(4 << 4 | 2, "taken"));
        for wrong in [2, 1 << 4 | 4, u32::MAX] {
            assert!(!table.insert_at(wrong, "no handle"), "{wrong:#x}");
        }
        let others: Vec<u32> = std::iter::from_fn(|| table.insert_with(|_| "new")).collect();
        assert_eq!((others.len(), table.len()), (3, 4));
        assert!(!others.iter().any(|other| other & 15 == 2));
        assert_eq!(table.remove(handle), Some("old"));
        assert_eq!(table.insert_with(|_| "next"), Some(4 << 4 | 2));
    }

    #[test]
    fn generations_wrap_without_reaching_zero() {
        let mut table: Table<(), 4, 8> = Table::new(1);
        for _ in 0..40 {
            let h = table.insert_with(|_| ()).unwrap();
            assert!((16..256).contains(&h));
            assert!(table.insert_with(|_| ()).is_none(), "the limit holds");
            table.remove(h).unwrap();
        }
        assert_eq!(table.len(), 0);
    }
}
