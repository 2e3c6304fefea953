//! The store's memory as registered memory, which the card reaches, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remora::MemoryRegion;
use remora::memory::Buffer;

use crate::memory::Memory;

/// A region with a buffer of its own.
#[derive(Clone, Debug)]
pub struct Region {
    region: MemoryRegion,
    readers: Readers,
}

/// Whether a client may read a store's memory by READs or by a chain.
#[derive(Clone, Debug)]
pub struct Readers(Arc<AtomicBool>);

impl Readers {
    /// Says so, before the first such client learns of the memory, and after the last has gone.
    pub fn expect(&self, any: bool) {
        self.0.store(any, Ordering::SeqCst);
    }
}

impl Region {
    /// The store's memory in `region`; `None` if the region has no buffer. Readers are expected.
    pub fn new(region: MemoryRegion) -> Option<Region> {
        let readers = Readers(Arc::new(AtomicBool::new(true)));
        region.buffer().is_some().then_some(Region { region, readers })
    }

    /// Who says whether there are readers.
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    /// The region.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    #[inline]
    fn buffer(&self) -> &Buffer {
        self.region.buffer().expect("a region with a buffer keeps it")
    }
}

impl Memory for Region {
    fn len(&self) -> u64 {
        self.region.len() & !7
    }

    fn base(&self) -> u64 {
        self.region.addr()
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.buffer().load(at)
    }

    #[inline]
    fn store(&self, at: u64, value: u64) {
        self.buffer().store(at, value);
    }

    #[inline]
    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64, u64> {
        self.buffer().compare_swap(at, old, new)
    }

    #[inline]
    fn read(&self, at: u64, dst: &mut [u8]) {
        self.buffer().read(at, dst);
    }

    #[inline]
    fn has_readers(&self) -> bool {
        self.readers.0.load(Ordering::SeqCst)
    }

    #[inline]
    fn prefetch(&self, at: u64, len: u64) {
        self.buffer().prefetch(at, len);
    }

    #[inline]
    fn write(&self, at: u64, src: &[u8]) {
        self.buffer().write(at, src);
    }

    fn give_back(&self, at: u64, len: u64) {
        Memory::give_back(self.buffer(), at, len);
    }
}
