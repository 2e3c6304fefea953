//! Memory that a program and its card share for as long as the program has it: that of a store. The
//! program changes it by itself; the card reads it.

use std::sync::Arc;

use remora_nic::MemoryFault;
use remora_store::memory::{Heap, Memory};

/// Bus addresses from here on are shared memory's.
pub const SHARED: u64 = 1 << 45;
/// Areas lie at multiples of this.
const ALIGN: u64 = 1 << 16;

/// An area of a host's shared memory. Clones are the same area.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    base: u64,
    heap: Arc<Heap>,
}

impl Memory for SharedMemory {
    fn len(&self) -> u64 {
        self.heap.len()
    }

    fn base(&self) -> u64 {
        self.base
    }

    fn load(&self, at: u64) -> u64 {
        self.heap.load(at)
    }

    fn store(&self, at: u64, value: u64) {
        self.heap.store(at, value);
    }

    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64, u64> {
        self.heap.compare_swap(at, old, new)
    }

    fn read(&self, at: u64, dst: &mut [u8]) {
        self.heap.read(at, dst);
    }

    fn write(&self, at: u64, src: &[u8]) {
        self.heap.write(at, src);
    }
}

/// The areas of a host's shared memory.
#[derive(Clone, Debug, Default)]
pub struct SharedAreas {
    areas: Vec<SharedMemory>,
    end: u64,
}

impl SharedAreas {
    /// A new area of at least `len` bytes, all zero. No other area gets its addresses.
    pub fn add(&mut self, len: u64) -> SharedMemory {
        let heap = Arc::new(Heap::new(len));
        let area = SharedMemory { base: SHARED + self.end, heap };
        self.end = (self.end + area.len() + 1).next_multiple_of(ALIGN);
        self.areas.push(area.clone());
        area
    }

    /// The program has ended: no card reaches the area any more.
    pub fn remove(&mut self, area: &SharedMemory) {
        self.areas.retain(|other| other.base != area.base);
    }

    /// Copies bytes, as the card does.
    pub(crate) fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        let inside = |area: &&SharedMemory| {
            let end = addr.checked_add(dst.len() as u64);
            addr >= area.base && end.is_some_and(|end| end <= area.base + area.len())
        };
        let area = self.areas.iter().find(inside).ok_or(MemoryFault { addr })?;
        area.heap.read(addr - area.base, dst);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_reads_what_the_program_writes_and_nothing_beyond() {
        let mut areas = SharedAreas::default();
        let (first, second) = (areas.add(100), areas.add(8));
        first.write(96, b"12345678");
        second.write(0, b"abcdefgh");
        let mut four = [0; 4];
        areas.read(first.base() + 98, &mut four).unwrap();
        assert_eq!(&four, b"3456");
        areas.read(second.base() + 4, &mut four).unwrap();
        assert_eq!(&four, b"efgh");
        assert!(areas.read(second.base() + 5, &mut four).is_err(), "beyond the end");
        assert!(areas.read(first.base() - 1, &mut four).is_err(), "before the beginning");
        assert!(areas.read(u64::MAX - 1, &mut four).is_err());
        areas.remove(&first);
        assert!(areas.read(first.base(), &mut four).is_err(), "it is gone");
        areas.read(second.base(), &mut four).unwrap();
    }
}
