//! [`Writer`]: many small writes in a row, as the shuffle kernel makes them (StRoM §6.4).

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::memory::Memory;
use crate::memory::check::Opened;
use crate::memory::key::{Access, AccessError, Key, Pd, Scope};
use crate::memory::region::Regions;
use crate::prefetch::prefetch;

/// How many regions are kept open at most.
const OPEN: usize = 4;
/// Words in a cache line.
const LINE: usize = 8;

/// Writes memory of a protection domain, as [`super::KernelIo::write`] does, many times in a row.
///
/// The first few regions that it was made for stay open while it lives: the card is lent to it, so
/// that no region can change or go away meanwhile.
pub struct Writer<'a> {
    regions: &'a Regions,
    mem: &'a mut dyn Memory,
    pd: Pd,
    /// The open regions, each in one piece. An unused entry has no length.
    open: [Opened; OPEN],
}

impl<'a> Writer<'a> {
    pub(crate) fn new(
        regions: &'a Regions,
        mem: &'a mut dyn Memory,
        pd: Pd,
        keys: impl Iterator<Item = Key>,
    ) -> Writer<'a> {
        let mut open = [Opened::default(); OPEN];
        let opened = keys.filter_map(|key| regions.open(key, pd, Access::LOCAL_WRITE));
        open.iter_mut().zip(opened).for_each(|(place, region)| *place = region);
        Writer { regions, mem, pd, open }
    }

    /// Writes through a key.
    ///
    /// # Errors
    /// If the key does not open the range for writing, or the memory cannot be reached.
    pub fn write(&mut self, key: Key, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        let key = (key, Scope::card(self.pd));
        self.regions.write(self.mem, key, addr, src, Access::LOCAL_WRITE)
    }

    /// Writes into an open region. `None` if the bytes do not all lie in one.
    ///
    /// # Errors
    /// If the memory cannot be reached.
    pub fn write_open(&mut self, addr: u64, src: &[u8]) -> Option<Result<(), AccessError>> {
        let to = self.open.iter().find_map(|region| region.bus(addr, src.len()))?;
        Some(self.mem.write(to, src).map_err(|_| AccessError::Memory))
    }

    /// Stores words, each at its address, up to the first for which a store is not enough: its
    /// address is in no open region, or is not aligned, or the memory there is not lent
    /// ([`Memory::words`]). Returns that word.
    ///
    /// The cache line behind each word is fetched meanwhile, as further words usually go there.
    /// Such lines are in no cache, and a store that misses holds up those behind it.
    #[inline(always)]
    pub fn store(
        &mut self,
        words: &mut impl Iterator<Item = (u64, [u8; 8])>,
    ) -> Option<(u64, [u8; 8])> {
        let [first, others @ ..] = self.open.map(|region| Lent::new(region, &*self.mem));
        // Usually there is only one region, so that case has a loop of its own.
        let left = loop {
            match words.find(|(addr, word)| !first.store(*addr, *word)) {
                Some((addr, word)) if others.iter().any(|region| region.store(addr, word)) => {}
                left => break left,
            }
        };
        // Later writes become visible after these.
        fence(Ordering::Release);
        left
    }
}

impl core::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Writer").field("pd", &self.pd).finish_non_exhaustive()
    }
}

/// An open region's words.
struct Lent<'m> {
    /// The address of the first word.
    first: u64,
    words: &'m [AtomicU64],
    /// The words from one cache line further on.
    behind: &'m [AtomicU64],
}

impl<'m> Lent<'m> {
    fn new(region: Opened, mem: &'m dyn Memory) -> Lent<'m> {
        let (first, words) = region.words(mem);
        Lent { first, words, behind: words.get(LINE..).unwrap_or_default() }
    }

    /// Stores a word, if its address is that of one of these words.
    #[inline(always)]
    fn store(&self, addr: u64, word: [u8; 8]) -> bool {
        // An address inside a word becomes an index that is out of range.
        let index = addr.wrapping_sub(self.first).rotate_right(8u32.ilog2());
        let Ok(index) = usize::try_from(index) else { return false };
        let Some(place) = self.words.get(index) else { return false };
        if let Some(behind) = self.behind.get(index) {
            prefetch(behind);
        }
        place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryFault;
    use crate::memory::page_table::PageTable;
    use crate::memory::region::MrInit;
    use rand_chacha::ChaCha8Rng;
    use rand_core::SeedableRng;

    const PD: Pd = Pd(1);

    /// Memory from bus address 0 on, which lends only its first half.
    struct Half([AtomicU64; 64]);

    impl Memory for Half {
        fn read(&mut self, addr: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
            Err(MemoryFault { addr })
        }
        fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
            for (at, byte) in (addr as usize..).zip(src) {
                let word = self.0.get_mut(at / 8).ok_or(MemoryFault { addr })?.get_mut();
                let mut bytes = word.to_ne_bytes();
                bytes[at % 8] = *byte;
                *word = u64::from_ne_bytes(bytes);
            }
            Ok(())
        }
        fn words(&self, addr: u64, count: u64) -> Option<&[AtomicU64]> {
            assert_eq!(addr % 8, 0);
            let first = addr as usize / 8;
            self.0[..32].get(first..first + count as usize)
        }
        fn compare_swap(&mut self, addr: u64, _: u64, _: u64) -> Result<u64, MemoryFault> {
            Err(MemoryFault { addr })
        }
        fn fetch_add(&mut self, addr: u64, _: u64) -> Result<u64, MemoryFault> {
            Err(MemoryFault { addr })
        }
    }

    /// Regions, each by its bus address, its length and its address.
    fn regions(of: &[(u64, u64, u64)]) -> (Regions, Vec<Key>) {
        let (mut regions, mut rng) = (Regions::new(9, 9, 9), ChaCha8Rng::seed_from_u64(1));
        let mut add = |&(bus, len, iova)| {
            let (pages, access) = (PageTable::contiguous(12, bus, len), Access::LOCAL_WRITE);
            regions.register(PD, MrInit { iova, len, access, pages }, &mut rng).unwrap()
        };
        let keys = of.iter().map(&mut add).collect();
        (regions, keys)
    }

    fn memory() -> Half {
        Half([const { AtomicU64::new(0) }; 64])
    }

    #[test]
    fn words_go_to_the_region_that_has_them() {
        let (regions, keys) = regions(&[(0, 64, 0x1000), (128, 64, 0x2000)]);
        let mut mem = memory();
        let mut writer = Writer::new(&regions, &mut mem, PD, keys.into_iter());
        let places = [0x2038, 0x1000, 0x2000, 0x1038];
        let mut words = places.into_iter().zip((1u64..).map(u64::to_ne_bytes));
        assert_eq!(writer.store(&mut words), None);
        let got = [23, 0, 16, 7].map(|at: usize| *mem.0[at].get_mut());
        assert_eq!(got, [1, 2, 3, 4]);
        assert_eq!(mem.0.iter().filter(|word| word.load(Ordering::Relaxed) != 0).count(), 4);
    }

    #[test]
    fn what_no_store_can_write_comes_back() {
        // The second begins and ends within words, the third is not lent.
        let (regions, keys) = regions(&[(0, 64, 0x1000), (99, 26, 0x2003), (256, 64, 0x3000)]);
        let (mut mem, keys) = (memory(), keys.into_iter());
        let mut writer = Writer::new(&regions, &mut mem, PD, keys);
        let word = [7; 8];
        for addr in [0x2008, 0x2010, 0x1000] {
            assert_eq!(writer.store(&mut [(addr, word)].into_iter()), None, "{addr:#x}");
        }
        for addr in [0, 0xff8, 0xfff, 0x1004, 0x1039, 0x1040, 0x2004, 0x2018, 0x3000, u64::MAX] {
            let mut words = [(addr, word), (0x1008, word)].into_iter();
            assert_eq!(writer.store(&mut words), Some((addr, word)), "{addr:#x}");
            assert_eq!(words.len(), 1, "those behind were not looked at");
        }
        assert_eq!(writer.write_open(0x3000, &word), Some(Ok(())));
        assert_eq!(writer.write_open(0x2003, &word), Some(Ok(())));
        assert_eq!(writer.write_open(0x2016, &word), None);
        let there = |at: usize, mem: &mut Half| mem.0[at].get_mut().to_ne_bytes();
        assert_eq!(there(0, &mut mem), word);
        assert_eq!(there(32, &mut mem), word);
        assert_eq!(there(12, &mut mem), [0, 0, 0, 7, 7, 7, 7, 7]);
        assert_eq!(there(13, &mut mem), word);
        assert_eq!(there(14, &mut mem), word);
        assert_eq!(there(1, &mut mem), [0; 8]);
    }

    #[test]
    fn a_region_of_another_domain_stays_closed() {
        let (regions, keys) = regions(&[(0, 64, 0x1000)]);
        let (mut mem, keys) = (memory(), keys.into_iter());
        let mut writer = Writer::new(&regions, &mut mem, Pd(2), keys);
        let word = (0x1000, [1; 8]);
        assert_eq!(writer.store(&mut [word].into_iter()), Some(word));
        assert_eq!(writer.write_open(0x1000, &[1; 8]), None);
    }
}
