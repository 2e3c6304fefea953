//! Tables of the card's objects, addressed by handles that go stale.

/// A table whose handles hold an index and a generation, so that a handle of something destroyed
/// does not open what took its place.
///
/// A handle has `BITS` bits in all, the low `INDEX` of which are the index. The generation is
/// never zero, so no handle is below 2^`INDEX`: small numbers (queue pairs 0 and 1) stay free.
#[derive(Debug)]
pub(crate) struct Table<T, const INDEX: u32, const BITS: u32> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: usize,
    /// The first handle: others follow it.
    first: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T, const INDEX: u32, const BITS: u32> Table<T, INDEX, BITS> {
    /// An empty table that will hold at most `limit` values (and at most 2^`INDEX`).
    pub(crate) fn new(limit: usize) -> Self {
        Table::starting_at(limit, 0)
    }

    /// As [`Table::new`], with `first` as the first handle, if that can be one.
    pub(crate) fn starting_at(limit: usize, first: u32) -> Self {
        let first = first & (u32::MAX >> (32 - BITS));
        let first = if first >> INDEX == 0 { first | 1 << INDEX } else { first };
        Table { slots: Vec::new(), free: Vec::new(), limit: limit.min(1 << INDEX), first }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds the value that `make` builds from its handle; `None` when the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.limit => {
                self.slots.push(Slot { generation: self.first >> INDEX, value: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        let low = index.wrapping_add(self.first) & ((1 << INDEX) - 1);
        let handle = slot.generation << INDEX | low;
        slot.value = Some(make(handle));
        Some(handle)
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let index = self.index(handle);
        let slot =
            self.slots.get_mut(index as usize).filter(|s| s.generation == handle >> INDEX)?;
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & ((1 << (BITS - INDEX)) - 1);
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
        let index = self.index(handle) as usize;
        let slot = self.slots.get_mut(index)?;
        if slot.generation == handle >> INDEX { slot.value.as_mut() } else { None }
    }

    #[inline]
    const fn index(&self, handle: u32) -> u32 {
        handle.wrapping_sub(self.first) & ((1 << INDEX) - 1)
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
    fn handles_follow_the_first() {
        let mut table: Table<u32, 4, 8> = Table::starting_at(16, 0xFFFF_FF3E);
        let handles: Vec<u32> = (0..16).map(|i| table.insert_with(|_| i).unwrap()).collect();
        assert_eq!(handles[..4], [0x3E, 0x3F, 0x30, 0x31]);
        assert!(handles.iter().zip(0..).all(|(h, i)| table.get(*h) == Some(&i)));
        assert_eq!(table.get(0x1E), None, "the slot, but another generation");
        let mut small: Table<(), 4, 8> = Table::starting_at(16, 3);
        assert_eq!(small.insert_with(|_| ()), Some(0x13), "small numbers stay free");
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
