//! Blocks of memory, by size class.
//!
//! - `class`: the sizes.
//! - `pages`: which pages of the area are in use, and the limit.
//! - `bin`: the spans of pages of one class of one tablespace, as bitmaps.
//! - `epoch`: when nobody sees a retired block any more.
//!
//! A span has items of one tablespace and one size. A longer item than the largest class has has
//! pages of its own, in a row. All books are kept beside the store's memory, which others may
//! write.

mod bin;
pub(crate) mod class;
mod epoch;
mod pages;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use self::bin::Bin;
pub(crate) use self::bin::NoSuchBlock;
use self::class::{Class, class_for, classes};
pub(crate) use self::epoch::Epochs;
pub use self::epoch::Pin;
use self::pages::Pages;
pub(crate) use self::pages::Usage;
use crate::layout::{Geometry, PAGE};
use crate::memory::Memory;
use crate::tablespace::{TABLESPACES_MAX, TablespaceId};

/// A block that its item has left, while readers may still see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retired {
    /// Where it is.
    pub(crate) at: u64,
    /// The epoch in which it was retired.
    pub(crate) epoch: u64,
    /// When, in ms.
    pub(crate) ms: u64,
    /// Its bytes, if it was an item's that was evicted; else 0.
    pub(crate) evicted: u32,
}

/// How long retired blocks rest that readers by READ and by chain may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// As long as the options say.
    Whole,
    /// No longer, since memory is short: [`crate::layout`] says what readers see then.
    Cut,
}

/// A block in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    /// Where it is.
    pub(crate) at: u64,
    /// Its bytes.
    pub(crate) size: u64,
}

/// Bytes of a class, for those who watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassInfo {
    /// Bytes of a block.
    pub size: u64,
    /// Blocks in use.
    pub used: u64,
    /// Blocks there are.
    pub blocks: u64,
}

/// A span whose items should move elsewhere.
#[derive(Debug)]
pub(crate) struct Drained {
    pub(crate) space: TablespaceId,
    class: usize,
    number: u32,
    first: u32,
    /// Where its blocks in use are.
    pub(crate) blocks: Vec<u64>,
}

/// What a page belongs to, packed into a word; 0 is a free page.
///
/// `in use 1 | long 1 | unused 6 | place in the span 8 | class 8 | tablespace 16 | number 24`: the
/// number is that of the span in its bin, or the count of pages of a long item.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner(u64);

impl Owner {
    const USED: u64 = 1 << 63;
    const LONG: u64 = 1 << 62;

    fn span(space: TablespaceId, class: usize, number: u32, place: u32) -> Owner {
        let word = u64::from(place) << 48 | (class as u64) << 40 | u64::from(space.0) << 24;
        Owner(word | u64::from(number) | Self::USED)
    }

    fn long(space: TablespaceId, pages: u32) -> Owner {
        Owner(Self::USED | Self::LONG | u64::from(space.0) << 24 | u64::from(pages))
    }

    fn space(self) -> TablespaceId {
        TablespaceId((self.0 >> 24) as u16)
    }

    fn number(self) -> u32 {
        self.0 as u32 & 0xFF_FFFF
    }

    fn class(self) -> usize {
        (self.0 >> 40) as u8 as usize
    }

    fn place(self) -> u32 {
        (self.0 >> 48) as u8 as u32
    }
}

/// The most pages in a row that the machine gets back at once: nobody else can have them meanwhile.
const GIVEN_AT_ONCE: u32 = 64;
/// The most such rows of a call.
const GIVEN_ROWS: usize = 32;

/// The bins of a tablespace, by class.
type Bins = Box<[Mutex<Bin>]>;

/// The area's blocks.
pub(crate) struct Blocks {
    geometry: Geometry,
    classes: Vec<Class>,
    pages: Pages,
    owners: Box<[AtomicU64]>,
    /// For each tablespace its bins, by class.
    bins: Box<[OnceLock<Bins>]>,
    /// For each tablespace how many spans it has: most numbers have none.
    spans: Box<[AtomicU32]>,
}

impl Blocks {
    pub(crate) fn new(geometry: Geometry) -> Blocks {
        Blocks {
            geometry,
            classes: classes(),
            pages: Pages::new(geometry.pages),
            owners: (0..geometry.pages).map(|_| AtomicU64::new(0)).collect(),
            bins: (0..TABLESPACES_MAX).map(|_| OnceLock::new()).collect(),
            spans: (0..TABLESPACES_MAX).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn bin(&self, space: TablespaceId, class: usize) -> Option<MutexGuard<'_, Bin>> {
        let bins = self.bins.get(usize::from(space.0))?;
        let bins = bins.get_or_init(|| self.classes.iter().map(|_| Mutex::default()).collect());
        Some(bins.get(class)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn page_at(&self, page: u32) -> u64 {
        self.geometry.area_at + u64::from(page) * PAGE
    }

    /// Bytes of the block for so many bytes.
    pub(crate) fn size_for(&self, len: u64) -> u64 {
        let class = class_for(&self.classes, len);
        class.map_or(len.next_multiple_of(PAGE), |class| self.classes[class].size)
    }

    /// Bytes of the pages that are needed at once for a block of so many bytes, if there is none.
    pub(crate) fn span_bytes(&self, len: u64) -> u64 {
        let class = class_for(&self.classes, len);
        let pages = class.map_or(len.div_ceil(PAGE), |class| self.classes[class].pages.into());
        pages * PAGE
    }

    /// A block for so many bytes; `None` if that exceeds the limit.
    pub(crate) fn alloc(&self, usage: &Usage, space: TablespaceId, len: u64) -> Option<Block> {
        let Some(index) = class_for(&self.classes, len) else {
            return self.alloc_long(usage, space, len);
        };
        let class = &self.classes[index];
        let mut bin = self.bin(space, index)?;
        let (first, block) = match bin.take(class) {
            Some(taken) => taken,
            None => {
                let Some(first) = self.take_pages(usage, class.pages, false) else {
                    drop(bin);
                    // A store with a small limit may still have room for this item alone.
                    let alone = class.pages > 1 && len.div_ceil(PAGE) < class.pages.into();
                    return if alone { self.alloc_long(usage, space, len) } else { None };
                };
                let number = bin.add(first, class);
                self.spans[usize::from(space.0)].fetch_add(1, Relaxed);
                for place in 0..class.pages {
                    let owner = Owner::span(space, index, number, place);
                    self.owners[(first + place) as usize].store(owner.0, Release);
                }
                bin.take(class)?
            }
        };
        Some(Block { at: self.page_at(first) + u64::from(block) * class.size, size: class.size })
    }

    fn alloc_long(&self, usage: &Usage, space: TablespaceId, len: u64) -> Option<Block> {
        let pages = u32::try_from(len.div_ceil(PAGE)).ok()?;
        let first = self.take_pages(usage, pages, true)?;
        self.owners[first as usize].store(Owner::long(space, pages).0, Release);
        Some(Block { at: self.page_at(first), size: u64::from(pages) * PAGE })
    }

    fn take_pages(&self, usage: &Usage, pages: u32, high: bool) -> Option<u32> {
        let bytes = u64::from(pages) * PAGE;
        if !usage.take(bytes) {
            return None;
        }
        let first = self.pages.take(pages, high);
        if first.is_none() {
            usage.give(bytes);
        }
        first
    }

    fn give_pages(&self, usage: &Usage, first: u32, pages: u32) {
        let bytes = u64::from(pages) * PAGE;
        (first..first + pages).for_each(|page| self.owners[page as usize].store(0, Release));
        self.pages.give(first, pages);
        usage.give(bytes);
    }

    fn give_span(&self, usage: &Usage, space: TablespaceId, first: u32, class: &Class) {
        self.spans[usize::from(space.0)].fetch_sub(1, Relaxed);
        self.give_pages(usage, first, class.pages);
    }

    /// The classes that a tablespace may have spans of.
    fn classes_of(&self, space: usize) -> &[Class] {
        let any = self.spans.get(space).is_some_and(|spans| spans.load(Relaxed) > 0);
        if any { &self.classes } else { &[] }
    }

    /// Takes a block back that nobody sees any more. Returns whose it was and its size.
    ///
    /// # Errors
    /// There is no such block in use, which only damaged memory can name.
    pub(crate) fn free(&self, usage: &Usage, at: u64) -> Result<(TablespaceId, u64), NoSuchBlock> {
        let offset = at.checked_sub(self.geometry.area_at).ok_or(NoSuchBlock)?;
        let page = u32::try_from(offset / PAGE).map_err(|_| NoSuchBlock)?;
        let word = self.owners.get(page as usize).ok_or(NoSuchBlock)?;
        let owner = Owner(word.load(Acquire));
        if owner.0 == 0 {
            return Err(NoSuchBlock);
        }
        if owner.0 & Owner::LONG != 0 {
            // Two who name the same long item, as only damage can bring about, free it once.
            let own = word.compare_exchange(owner.0, 0, Acquire, Acquire);
            own.ok().filter(|_| offset.is_multiple_of(PAGE)).ok_or(NoSuchBlock)?;
            self.give_pages(usage, page, owner.number());
            return Ok((owner.space(), u64::from(owner.number()) * PAGE));
        }
        let class = &self.classes[owner.class()];
        let mut bin = self.bin(owner.space(), owner.class()).ok_or(NoSuchBlock)?;
        let first = page - owner.place();
        let inside = at - self.page_at(first);
        if word.load(Acquire) != owner.0 || !inside.is_multiple_of(class.size) {
            return Err(NoSuchBlock);
        }
        let block = (inside / class.size) as u32;
        let emptied = bin.give((owner.number(), first), block, class)?;
        drop(bin);
        if let Some(first) = emptied {
            self.give_span(usage, owner.space(), first, class);
        }
        Ok((owner.space(), class.size))
    }

    /// Lets the machine have back pages that are free, all but `kept` bytes of them, a bounded
    /// number at a time. Returns how many bytes. To take pages in use again is quicker than to get
    /// new ones, and to give them back takes long: so it is for a thread that nobody waits for.
    pub(crate) fn give_back(&self, memory: &impl Memory, kept: u64) -> u64 {
        let kept = u32::try_from(kept / PAGE).unwrap_or(u32::MAX);
        let mut bytes = 0;
        for _ in 0..GIVEN_ROWS {
            let Some((first, pages)) = self.pages.take_idle(kept, GIVEN_AT_ONCE) else { break };
            memory.give_back(self.page_at(first), u64::from(pages) * PAGE);
            self.pages.put_back(first, pages);
            bytes += u64::from(pages) * PAGE;
        }
        bytes
    }

    /// Bytes of a tablespace's blocks that are free.
    pub(crate) fn free_bytes(&self, space: TablespaceId) -> u64 {
        self.infos(space).iter().map(|class| (class.blocks - class.used) * class.size).sum()
    }

    /// Chooses a span whose items fit into others of its kind, from the tablespace and class on
    /// that the hint names. The hint names this one afterwards.
    pub(crate) fn drain(&self, hint: &mut (usize, usize), urgent: bool) -> Option<Drained> {
        for _ in 0..=TABLESPACES_MAX {
            let (space, start) = (hint.0 % TABLESPACES_MAX, hint.1);
            for index in start..self.classes_of(space).len() {
                *hint = (space, index);
                let space = TablespaceId(space as u16);
                let class = &self.classes[index];
                let drained = self.bin(space, index).and_then(|mut bin| bin.drain(class, urgent));
                if let Some((number, first, blocks)) = drained {
                    let at = |block: u32| self.page_at(first) + u64::from(block) * class.size;
                    let blocks = blocks.into_iter().map(at).collect();
                    return Some(Drained { space, class: index, number, first, blocks });
                }
            }
            *hint = (space + 1, 0);
        }
        None
    }

    /// The blocks in use of one of a tablespace's spans, chosen by `seed`: none if it has none.
    pub(crate) fn some_in_use(&self, space: TablespaceId, seed: u64) -> Vec<u64> {
        let count = self.classes.len();
        let first = seed as usize % count;
        let mut spans = (first..first + count).map(|index| index % count).filter_map(|index| {
            let class = &self.classes[index];
            let (first, blocks) = self.bin(space, index)?.some_in_use(seed, class)?;
            let at = |block: u32| self.page_at(first) + u64::from(block) * class.size;
            Some(blocks.into_iter().map(at).collect())
        });
        spans.next().unwrap_or_default()
    }

    /// Gives back the spans that are kept although they are empty. Returns whether there were any.
    pub(crate) fn give_up_empty(&self, usage: &Usage) -> bool {
        let mut any = false;
        for space in 0..TABLESPACES_MAX {
            for (index, class) in self.classes_of(space).iter().enumerate() {
                let space = TablespaceId(space as u16);
                let empty = self.bin(space, index).and_then(|mut bin| bin.give_up_empty());
                if let Some(first) = empty {
                    self.give_span(usage, space, first, class);
                    any = true;
                }
            }
        }
        any
    }

    /// Ends the draining of a span: what is left of it may give blocks again.
    pub(crate) fn undrain(&self, drained: &Drained) {
        if let Some(mut bin) = self.bin(drained.space, drained.class) {
            bin.undrain(drained.number, drained.first, &self.classes[drained.class]);
        }
    }

    /// A tablespace's blocks by size, those sizes that it has.
    pub(crate) fn infos(&self, space: TablespaceId) -> Vec<ClassInfo> {
        let info = |(index, class): (usize, &Class)| {
            let (used, blocks) = self.bin(space, index)?.blocks(class);
            Some(ClassInfo { size: class.size, used, blocks }).filter(|info| info.blocks > 0)
        };
        self.classes_of(space.0.into()).iter().enumerate().filter_map(info).collect()
    }
}

#[cfg(test)]
mod tests;
