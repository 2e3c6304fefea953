//! A host's memory, and the regions that its card opens in it.

use core::ops::Range;

use remora_nic::{Access, Key, Memory, MemoryFault, MrInit, PageTable};

use crate::dice::Dice;
use crate::hollow::{HOLLOW, Hollow};
use crate::shared_memory::{SHARED, SharedAreas};

/// The value of bytes that have never been written.
pub const UNTOUCHED: u8 = 0xA5;

/// A host's memory. A bus address is an offset in it.
#[derive(Clone, Debug, Default)]
pub struct SimMemory {
    bytes: Vec<u8>,
    /// Ranges whose access fails.
    faulty: Vec<Range<u64>>,
    /// Buffers without bytes.
    pub hollow: Hollow,
    /// Buffers that programs change by themselves.
    pub shared: SharedAreas,
}

impl SimMemory {
    /// An empty memory.
    pub fn new() -> SimMemory {
        SimMemory::default()
    }

    /// Adds `len` bytes at a multiple of `align`; returns their bus address.
    pub fn alloc(&mut self, len: usize, align: usize) -> u64 {
        let addr = self.bytes.len().next_multiple_of(align);
        self.bytes.resize(addr + len, UNTOUCHED);
        addr as u64
    }

    /// Makes every access to `range` fail from now on.
    pub fn break_range(&mut self, range: Range<u64>) {
        self.faulty.push(range);
    }

    /// Makes all memory accessible again.
    pub fn mend(&mut self) {
        self.faulty.clear();
    }

    /// The bytes of the whole memory.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The `len` bytes at `addr`, which must exist.
    pub fn slice(&self, addr: u64, len: usize) -> &[u8] {
        &self.bytes[addr as usize..addr as usize + len]
    }

    /// The `len` bytes at `addr`, which must exist, for the host to write.
    pub fn slice_mut(&mut self, addr: u64, len: usize) -> &mut [u8] {
        &mut self.bytes[addr as usize..addr as usize + len]
    }

    /// The range of these bytes, if all of them are accessible.
    fn reach(&self, addr: u64, len: usize) -> Result<Range<usize>, MemoryFault> {
        let end = addr.checked_add(len as u64).filter(|end| *end <= self.bytes.len() as u64);
        let end = end.ok_or(MemoryFault { addr })?;
        if self.faulty.iter().any(|bad| bad.start < end && addr < bad.end) {
            return Err(MemoryFault { addr });
        }
        Ok(addr as usize..end as usize)
    }

    /// Reads what is not among `bytes`.
    #[cold]
    fn read_elsewhere(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        if addr < HOLLOW {
            return self.shared.read(addr, dst);
        }
        dst.fill(0);
        let there = self.hollow.holds(addr, dst.len() as u64);
        there.then_some(()).ok_or(MemoryFault { addr })
    }

    /// Writes to a buffer without bytes.
    #[cold]
    fn write_hollow(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
        let there = self.hollow.cover(addr, src.len() as u64);
        there.then_some(()).ok_or(MemoryFault { addr })
    }

    #[inline]
    fn update_word(
        &mut self,
        addr: u64,
        update: impl FnOnce(u64) -> u64,
    ) -> Result<u64, MemoryFault> {
        assert!(addr.is_multiple_of(8), "the card accessed an atomic that is not aligned");
        let range = self.reach(addr, 8)?;
        let word: &mut [u8; 8] = (&mut self.bytes[range]).try_into().expect("8 bytes were asked");
        let before = u64::from_ne_bytes(*word);
        *word = update(before).to_ne_bytes();
        Ok(before)
    }
}

impl Memory for SimMemory {
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        if addr >= SHARED {
            return self.read_elsewhere(addr, dst);
        }
        let range = self.reach(addr, dst.len())?;
        dst.copy_from_slice(&self.bytes[range]);
        Ok(())
    }

    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
        if addr >= HOLLOW {
            return self.write_hollow(addr, src);
        }
        let range = self.reach(addr, src.len())?;
        self.bytes[range].copy_from_slice(src);
        Ok(())
    }

    fn compare_swap(&mut self, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault> {
        self.update_word(addr, |before| if before == compare { swap } else { before })
    }

    fn fetch_add(&mut self, addr: u64, add: u64) -> Result<u64, MemoryFault> {
        self.update_word(addr, |before| before.wrapping_add(add))
    }
}

/// How the pages of a region lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One after the other.
    Contiguous,
    /// In a random order with gaps between them; pages have 2^`shift` bytes.
    Scattered {
        /// The page size as a power of two.
        shift: u32,
    },
}

/// Memory laid out for a region. It knows the place of each byte independently of the card.
#[derive(Clone, Debug)]
pub struct Region {
    /// The region's key, once it is registered.
    pub key: Key,
    /// The address of the first byte in work requests.
    pub iova: u64,
    /// The length in bytes.
    pub len: u64,
    shift: u32,
    offset: u64,
    pages: Vec<u64>,
}

impl Region {
    /// Lays out `len` bytes in `memory`.
    pub fn lay_out(memory: &mut SimMemory, dice: &mut Dice, len: u64, layout: Layout) -> Region {
        let (shift, gaps) = match layout {
            Layout::Contiguous => (12, false),
            Layout::Scattered { shift } => (shift, true),
        };
        let size = 1u64 << shift;
        // Aligned to words, so that atomics work on any layout.
        let offset = if gaps { dice.below(size / 8) * 8 } else { 0 };
        let count = (offset + len).div_ceil(size).max(1);
        let slots = if gaps { count + count.div_ceil(4) } else { count };
        let first = memory.alloc((slots << shift) as usize, size as usize);
        let mut pages: Vec<u64> = (0..slots).map(|i| first + (i << shift)).collect();
        if gaps {
            dice.shuffle(&mut pages);
        }
        pages.truncate(count as usize);
        let iova = 0x1000_0000_0000 + dice.below(1 << 30) * 4096 + offset;
        Region { key: 0, iova, len, shift, offset, pages }
    }

    /// The arguments that register this region.
    pub fn init(&self, access: Access) -> MrInit {
        let pages = PageTable::new(self.shift, self.offset, self.pages.clone());
        MrInit { iova: self.iova, len: self.len, access, pages }
    }

    /// The pieces of memory on the bus that hold bytes `from..from + len`, in order.
    pub fn pieces(&self, from: u64, len: u64) -> Vec<Range<u64>> {
        let size = 1u64 << self.shift;
        let (mut at, end) = (self.offset + from, self.offset + from + len);
        let mut pieces = Vec::new();
        while at < end {
            let start = self.pages[(at >> self.shift) as usize] + at % size;
            let take = (size - at % size).min(end - at);
            pieces.push(start..start + take);
            at += take;
        }
        pieces
    }

    /// `len` bytes of the region, starting at `from`.
    pub fn read(&self, memory: &SimMemory, from: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len as usize);
        for piece in self.pieces(from, len) {
            bytes.extend_from_slice(memory.slice(piece.start, (piece.end - piece.start) as usize));
        }
        bytes
    }

    /// Writes `bytes` into the region at `from`, as the host would.
    pub fn write(&self, memory: &mut SimMemory, from: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in self.pieces(from, bytes.len() as u64) {
            let (now, later) = rest.split_at((piece.end - piece.start) as usize);
            memory.slice_mut(piece.start, now.len()).copy_from_slice(now);
            rest = later;
        }
    }
}
