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
    /// A number that is XORed into the index of every handle.
    salt: u32,
    /// The generation of a slot's first object.
    first: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T, const INDEX: u32, const BITS: u32> Table<T, INDEX, BITS> {
    /// An empty table for at most `limit` values (and at most 2^`INDEX`).
    pub(crate) fn new(limit: usize) -> Self {
        Table::salted(limit, 1 << INDEX)
    }

    /// As [`Table::new`], with handles that begin at a place that depends on `salt`. So a process
    /// that is started again does not use the handles of the last one, which peers may still know.
    pub(crate) fn salted(limit: usize, salt: u32) -> Self {
        let first = (salt >> INDEX & Self::GENERATIONS).max(1);
        let salt = salt & ((1 << INDEX) - 1);
        Table { slots: Vec::new(), free: Vec::new(), limit: limit.min(1 << INDEX), salt, first }
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
                self.slots.push(Slot { generation: self.first, value: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        let handle = slot.generation << INDEX | (index ^ self.salt);
        slot.value = Some(make(handle));
        Some(handle)
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let index = self.index(handle);
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
        let slot = self.slots.get(self.index(handle) as usize)?;
        if slot.generation == handle >> INDEX { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        let index = self.index(handle);
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation == handle >> INDEX { slot.value.as_mut() } else { None }
    }

    #[inline]
    const fn index(&self, handle: u32) -> u32 {
        (handle ^ self.salt) & ((1 << INDEX) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_moves_all_handles() {
        let mut t: Table<u32, 4, 8> = Table::salted(16, 0xA7);
        let handles: Vec<u32> = (0..16).map(|i| t.insert_with(|_| i).unwrap()).collect();
        assert_eq!(handles[..3], [0xA7, 0xA6, 0xA5]);
        assert!(handles.iter().zip(0..).all(|(h, i)| t.get(*h) == Some(&i)));
        assert_eq!(t.remove(0xA6), Some(1));
        assert_eq!(t.get(0xA6), None);
        assert_eq!(t.insert_with(|_| 99), Some(0xB6));
    }

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
