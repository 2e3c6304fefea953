//! Memory regions: which bytes a key opens, to which queue pairs, and for which kinds of access.
//!
//! `memory/check.rs` holds each access against them.

use rand_chacha::ChaCha8Rng;
use rand_core::Rng;
use thiserror::Error;

use super::key::{Access, AccessError, Key, OWNER_BITS, Pd, Scope};
use super::key_table::{KeySlot, KeyTable};
use super::page_table::PageTable;
use super::window::MemoryWindow;

/// What to register.
#[derive(Clone, Debug)]
pub struct MrInit {
    /// The address that work requests and peers will use for the first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// What the card and its peers may do.
    pub access: Access,
    /// Where the bytes lie on the bus.
    pub pages: PageTable,
}

/// Where a region's bytes are, and by which addresses they are used.
#[derive(Clone, Debug)]
pub struct Translation {
    /// The address that work requests and peers will use for the first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Where the bytes lie on the bus.
    pub pages: PageTable,
}

/// The changes to a region (`ibv_rereg_mr`). `None` leaves a property unchanged.
#[derive(Clone, Debug, Default)]
pub struct MrChange {
    /// Another protection domain.
    pub pd: Option<Pd>,
    /// What the card and its peers may do.
    pub access: Option<Access>,
    /// Other bytes, or other addresses for them.
    pub translation: Option<Translation>,
}

/// Why a region could not be registered or changed. Everything is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RegMrError {
    /// No such protection domain.
    #[error("no such protection domain")]
    UnknownPd,
    /// No such region, or the null region, which cannot be changed.
    #[error("no such region, or one that cannot be changed")]
    UnknownKey,
    /// Memory windows are bound to the region.
    #[error("{windows} memory windows are bound to the region")]
    Bound {
        /// How many windows are bound.
        windows: u32,
    },
    /// The pages do not cover the length, or the addresses wrap.
    #[error("the page table does not cover the region")]
    Pages,
    /// Remote write or atomic access without local write.
    #[error("remote write and atomic access need local write access too")]
    Access,
    /// The card has as many regions as its limit allows.
    #[error("the card has no more room: its limit is {limit} regions")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// The translation memory is used up.
    #[error("no room for {needed} more page-table entries: {used} of {limit} are used")]
    TranslationFull {
        /// Entries that the region needs.
        needed: usize,
        /// Entries in use.
        used: usize,
        /// Entries in all.
        limit: usize,
    },
    /// The card cannot reach memory of this kind.
    #[error("the card cannot reach memory of this kind")]
    Place,
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// What a key names.
#[derive(Debug)]
pub(super) enum Named {
    Region(Region),
    Window(MemoryWindow),
}

#[derive(Debug)]
pub(super) struct Region {
    pub(super) pd: Pd,
    pub(super) iova: u64,
    pub(super) len: u64,
    pub(super) access: Access,
    /// How many memory windows are bound to it.
    pub(super) windows: u32,
    /// Cleared by a SEND with invalidate. The key still names the region for `dereg_mr`.
    pub(super) valid: bool,
    /// The region has no bytes: writes are discarded, reads give zeroes.
    pub(super) null: bool,
    /// The kernel that WRITEs into the region pass; zero for none.
    tap: u32,
    /// There may be passes for it (`nic/passes.rs`).
    passed: bool,
    pub(super) pages: PageTable,
}

impl Region {
    fn new(pd: Pd, init: MrInit) -> Region {
        let MrInit { iova, len, access, pages } = init;
        let (windows, valid, null, tap, passed) = (0, true, false, 0, false);
        Region { pd, iova, len, access, windows, valid, null, tap, passed, pages }
    }

    /// The region of `ibv_alloc_null_mr`: it has the greatest length, and is for local use only.
    fn null(pd: Pd) -> Region {
        let pages = PageTable::new(0, 0, []);
        let init = MrInit { iova: 0, len: u64::MAX, access: Access::LOCAL_WRITE, pages };
        Region { null: true, ..Region::new(pd, init) }
    }
}

/// Checks the rules that registration and change have in common.
fn judge(iova: u64, len: u64, access: Access, pages: &PageTable) -> Result<(), RegMrError> {
    if pages.reach() < len || iova.checked_add(len).is_none() {
        return Err(RegMrError::Pages);
    }
    let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
        return Err(RegMrError::Access);
    }
    Ok(())
}

/// All regions and windows of the card.
#[derive(Debug)]
pub(crate) struct Regions {
    slots: KeyTable<Named>,
    entries: usize,
    entries_limit: usize,
    limit: usize,
    pub(super) windows: usize,
    pub(super) windows_limit: usize,
    /// The keys of regions whose passes are over.
    pub(crate) passes_ended: Vec<Key>,
}

/// The most regions, and the most windows: few enough that a random key is usually free.
const MOST: usize = 1 << 21;

impl Regions {
    pub(crate) fn new(entries_limit: usize, limit: usize, windows_limit: usize) -> Regions {
        let (limit, windows_limit) = (limit.min(MOST), windows_limit.min(MOST));
        let (slots, entries, windows) = (KeyTable::EMPTY, 0, 0);
        let passes_ended = Vec::new();
        Regions { slots, entries, entries_limit, limit, windows, windows_limit, passes_ended }
    }

    /// Registers a region under a random key, which peers cannot guess, and which is not soon used
    /// again.
    pub(crate) fn register(
        &mut self,
        pd: Pd,
        init: MrInit,
        rng: &mut ChaCha8Rng,
    ) -> Result<Key, RegMrError> {
        let MrInit { iova, len, access, pages } = init;
        judge(iova, len, access, &pages)?;
        self.insert(Region::new(pd, MrInit { iova, len, access, pages }), rng)
    }

    /// Registers a region under a key that it had before.
    ///
    /// # Errors
    /// As [`Regions::register`]; [`RegMrError::UnknownKey`] if the key is taken, or is none.
    pub(crate) fn register_as(&mut self, key: Key, pd: Pd, init: MrInit) -> Result<(), RegMrError> {
        if key >> OWNER_BITS == 0 || self.slots.holds(key) {
            return Err(RegMrError::UnknownKey);
        }
        let MrInit { iova, len, access, pages } = init;
        judge(iova, len, access, &pages)?;
        self.room(&pages)?;
        let region = Region::new(pd, MrInit { iova, len, access, pages });
        self.slots.insert(KeySlot { key, named: Named::Region(region) });
        Ok(())
    }

    /// Makes a null region.
    pub(crate) fn register_null(
        &mut self,
        pd: Pd,
        rng: &mut ChaCha8Rng,
    ) -> Result<Key, RegMrError> {
        self.insert(Region::null(pd), rng)
    }

    fn insert(&mut self, region: Region, rng: &mut ChaCha8Rng) -> Result<Key, RegMrError> {
        self.room(&region.pages)?;
        Ok(self.insert_named(Named::Region(region), rng))
    }

    /// Takes the room of one more region.
    fn room(&mut self, pages: &PageTable) -> Result<(), RegMrError> {
        if self.len() >= self.limit {
            return Err(RegMrError::Full { limit: self.limit });
        }
        let needed = pages.entries();
        self.room_for(needed, 0)?;
        self.entries += needed;
        Ok(())
    }

    /// Gives a region or window a new key.
    pub(super) fn insert_named(&mut self, named: Named, rng: &mut ChaCha8Rng) -> Key {
        self.slots.make_room();
        let key = loop {
            let key = rng.next_u32();
            if key >> OWNER_BITS != 0 && self.slots.is_vacant(key) {
                break key;
            }
        };
        self.slots.insert(KeySlot { key, named });
        key
    }

    /// The entry of a key; its owner's bits do not matter.
    pub(super) fn slot_mut(&mut self, key: Key) -> Option<&mut KeySlot<Named>> {
        self.slots.slot_mut(key)
    }

    /// Removes the entry of a key, so that the key is free.
    pub(super) fn remove_slot(&mut self, key: Key) -> Option<KeySlot<Named>> {
        self.slots.remove(key)
    }

    /// What a key names. All its bits count: a window's old key differs from its new one in the
    /// owner's.
    #[inline(always)]
    pub(super) fn named(&self, key: Key) -> Option<&Named> {
        self.slots.get(key).map(|slot| &slot.named)
    }

    pub(super) fn region(&self, key: Key) -> Option<&Region> {
        match self.named(key)? {
            Named::Region(region) => Some(region),
            Named::Window(_) => None,
        }
    }

    pub(super) fn region_mut(&mut self, key: Key) -> Option<&mut Region> {
        match self.slots.slot_mut(key) {
            Some(KeySlot { key: whole, named: Named::Region(region) }) if *whole == key => {
                Some(region)
            }
            _ => None,
        }
    }

    /// The first address and the length of the range that a key opens to peers.
    pub(crate) fn extent(&self, key: Key, scope: Scope) -> Option<(u64, u64)> {
        match self.named(key)? {
            Named::Region(region) => Some((region.iova, region.len)),
            Named::Window(window) => window.extent(scope),
        }
    }

    /// How many windows are bound to a region.
    pub(crate) fn bound_windows(&self, key: Key) -> u32 {
        self.region(key).map_or(0, |region| region.windows)
    }

    /// Is there room for `needed` page-table entries once `freed` others are gone?
    fn room_for(&self, needed: usize, freed: usize) -> Result<(), RegMrError> {
        let (used, limit) = (self.entries - freed, self.entries_limit);
        if needed > limit.saturating_sub(used) {
            return Err(RegMrError::TranslationFull { needed, used, limit });
        }
        Ok(())
    }

    /// Changes a region in place, under its old key. Returns the protection domain that it was in.
    /// A key that was invalidated is valid again.
    pub(crate) fn change(&mut self, key: Key, change: MrChange) -> Result<Pd, RegMrError> {
        let old = self.region(key).filter(|r| !r.null).ok_or(RegMrError::UnknownKey)?;
        if old.windows > 0 {
            return Err(RegMrError::Bound { windows: old.windows });
        }
        let access = change.access.unwrap_or(old.access);
        let (freed, from) = (old.pages.entries(), old.pd);
        let (iova, len, pages) = match &change.translation {
            Some(new) => (new.iova, new.len, &new.pages),
            None => (old.iova, old.len, &old.pages),
        };
        judge(iova, len, access, pages)?;
        let needed = pages.entries();
        self.room_for(needed, freed)?;
        self.entries = self.entries - freed + needed;
        self.end_passes(key);
        let region = self.region_mut(key).ok_or(RegMrError::UnknownKey)?;
        (region.access, region.valid) = (access, true);
        region.pd = change.pd.unwrap_or(from);
        if let Some(Translation { iova, len, pages }) = change.translation {
            (region.iova, region.len, region.pages) = (iova, len, pages);
        }
        Ok(from)
    }

    /// Removes a region. From now on its key opens nothing.
    pub(crate) fn deregister(&mut self, key: Key) -> Option<Pd> {
        let region = self.region(key)?;
        let (pd, entries) = (region.pd, region.pages.entries());
        self.entries -= entries;
        self.end_passes(key);
        self.remove_slot(key);
        Some(pd)
    }

    /// Ends the use of a key for a peer (SEND with invalidate). The key must be that of a region of
    /// the same protection domain that permits it, or of a window of type 2.
    pub(crate) fn invalidate(&mut self, key: Key, scope: Scope) -> Result<(), AccessError> {
        let Some(region) = self.region_mut(key) else { return self.unbind(key, scope) };
        // A key that was invalidated cannot be invalidated again.
        if !region.valid {
            return Err(AccessError::Key);
        }
        // The key of another protection domain is not this peer's.
        if region.pd != scope.pd {
            return Err(AccessError::Domain);
        }
        // The owner must have permitted it.
        if !region.access.contains(Access::REMOTE_INVALIDATE) {
            return Err(AccessError::Permission);
        }
        region.valid = false;
        self.end_passes(key);
        Ok(())
    }

    /// What a pass for a region opens: its first address, its length, its bus address, and what it
    /// permits. Only for a whole region in one piece, whose WRITEs no kernel sees.
    pub(crate) fn pass(&self, key: Key, pd: Pd) -> Option<(u64, u64, u64, Access)> {
        let region = self.region(key).filter(|r| r.valid && r.pd == pd && r.tap == 0)?;
        Some((region.iova, region.len, region.pages.start()?, region.access))
    }

    /// Notes that there is a pass for a region.
    pub(crate) fn set_passed(&mut self, key: Key) {
        if let Some(region) = self.region_mut(key) {
            region.passed = true;
        }
    }

    /// A region changes, or its key ends: passes for it are over.
    fn end_passes(&mut self, key: Key) {
        if let Some(region) = self.region_mut(key)
            && core::mem::take(&mut region.passed)
        {
            self.passes_ended.push(key);
        }
    }

    /// The first address that a key opens, and how many bytes it opens.
    pub(crate) fn range(&self, key: Key, pd: Pd) -> Option<(u64, u64)> {
        let region = self.region(key).filter(|r| r.valid && r.pd == pd)?;
        Some((region.iova, region.len))
    }

    /// The kernel that WRITEs through a key, which may be a window's, pass; zero for none.
    pub(crate) fn tap_through(&self, key: Key) -> u32 {
        match self.named(key) {
            Some(Named::Window(window)) => window.bound.map_or(0, |bound| self.tap(bound.to.lkey)),
            _ => self.tap(key),
        }
    }

    /// The kernel that is bound to a region; zero for none.
    pub(crate) fn tap(&self, key: Key) -> u32 {
        self.region(key).map_or(0, |r| r.tap)
    }

    /// As [`Regions::tap`], for a change.
    pub(crate) fn tap_mut(&mut self, key: Key) -> Option<&mut u32> {
        self.region_mut(key).map(|r| &mut r.tap)
    }

    /// The page-table entries of all regions.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// The bytes of the keys and of the page tables.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.slots.allocated_bytes() + self.entries * size_of::<u64>()
    }

    /// How many regions there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.windows
    }

    /// How many windows there are.
    pub(crate) fn windows(&self) -> usize {
        self.windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    fn regions() -> (Regions, ChaCha8Rng) {
        (Regions::new(4, 100, 100), ChaCha8Rng::seed_from_u64(1))
    }

    fn of(pd: u32) -> Scope {
        Scope { pd: Pd(pd), qpn: 1 }
    }

    fn init(access: Access) -> MrInit {
        MrInit { iova: 0x1000, len: 100, access, pages: PageTable::contiguous(21, 0, 100) }
    }

    #[test]
    fn keys_go_stale_and_are_not_given_again() {
        let (mut regions, mut rng) = regions();
        let a = regions.register(Pd(1), init(Access::empty()), &mut rng).unwrap();
        assert_eq!(regions.deregister(a), Some(Pd(1)));
        let b = regions.register(Pd(1), init(Access::empty()), &mut rng).unwrap();
        assert_ne!(a, b);
        assert_eq!(regions.check(a, of(1), 0x1000, 1, Access::empty()), Err(AccessError::Key));
        assert_eq!(regions.deregister(a), None);
    }

    #[test]
    fn invalidation_needs_permission_and_ends_the_key() {
        let (mut regions, mut rng) = regions();
        let plain = regions.register(Pd(1), init(Access::REMOTE_READ), &mut rng).unwrap();
        assert_eq!(regions.invalidate(plain, of(1)), Err(AccessError::Permission));
        let open = init(Access::REMOTE_READ | Access::REMOTE_INVALIDATE);
        let key = regions.register(Pd(1), open, &mut rng).unwrap();
        assert_eq!(regions.invalidate(key, of(2)), Err(AccessError::Domain));
        assert_eq!(regions.invalidate(key, of(1)), Ok(()));
        assert_eq!(regions.invalidate(key, of(1)), Err(AccessError::Key));
        assert_eq!(regions.deregister(key), Some(Pd(1)), "the host can still deregister it");
    }

    #[test]
    fn translation_memory_is_bounded() {
        let (mut regions, mut rng) = regions();
        let big = |pages: u64| MrInit {
            iova: 0,
            len: pages << 21,
            access: Access::empty(),
            pages: PageTable::contiguous(21, 0, pages << 21),
        };
        let a = regions.register(Pd(1), big(3), &mut rng).unwrap();
        assert_eq!(
            regions.register(Pd(1), big(2), &mut rng),
            Err(RegMrError::TranslationFull { needed: 2, used: 3, limit: 4 })
        );
        regions.deregister(a);
        assert!(regions.register(Pd(1), big(4), &mut rng).is_ok());
    }
}
