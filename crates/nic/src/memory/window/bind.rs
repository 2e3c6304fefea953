//! Making memory windows, binding them to regions, and ending a binding.

use rand_chacha::ChaCha8Rng;

use super::{Binding, MemoryWindow, MwBinding, MwType};
use crate::memory::key::{Access, AccessError, Key, Pd, Scope};
use crate::memory::key_table::KeySlot;
use crate::memory::region::{Named, RegMrError, Regions};

impl Regions {
    /// Makes a window that is not bound, and so opens nothing.
    pub(crate) fn make_window(
        &mut self,
        pd: Pd,
        kind: MwType,
        rng: &mut ChaCha8Rng,
    ) -> Result<Key, RegMrError> {
        if self.windows >= self.windows_limit {
            return Err(RegMrError::Full { limit: self.windows_limit });
        }
        self.windows += 1;
        Ok(self.insert_named(Named::Window(MemoryWindow { pd, kind, bound: None }), rng))
    }

    /// Removes a window, bound or not, by any key that it has had. Returns its protection domain.
    pub(crate) fn end_window(&mut self, key: Key) -> Option<Pd> {
        let slot = self.slot_mut(key)?;
        let Named::Window(window) = &mut slot.named else { return None };
        let (pd, bound) = (window.pd, window.bound.take());
        self.release(bound);
        self.remove_slot(key);
        self.windows -= 1;
        Some(pd)
    }

    /// Binds a window and gives it the key `key`, which names the window by all bits but the
    /// owner's.
    pub(crate) fn bind(
        &mut self,
        key: Key,
        scope: Scope,
        to: MwBinding,
    ) -> Result<(), AccessError> {
        let (kind, old_key, old) = match self.slot_mut(key) {
            Some(KeySlot { key, named: Named::Window(w) }) if w.pd == scope.pd => {
                (w.kind, *key, w.bound)
            }
            Some(KeySlot { named: Named::Window(_), .. }) => return Err(AccessError::Domain),
            _ => return Err(AccessError::Key),
        };
        let ends = to.len == 0;
        if kind == MwType::Type2 {
            // A window of type 2 must be unbound, and get a new key: a peer that knows the old key
            // must not reach the new binding with it.
            if old.is_some() || key == old_key {
                return Err(AccessError::Permission);
            }
            if ends {
                return Err(AccessError::Bounds);
            }
        }
        if !ends {
            self.judge_binding(scope, &to)?;
            if let Some(region) = self.region_mut(to.lkey) {
                region.windows += 1;
            }
        }
        self.release(old);
        if let Some(KeySlot { key: whole, named: Named::Window(window) }) = self.slot_mut(key) {
            *whole = key;
            window.bound = (!ends).then_some(Binding { to, qpn: scope.qpn });
        }
        Ok(())
    }

    /// May a window be bound so? The region must be of the same protection domain, hold the range
    /// and permit windows; a peer may write only where the card may write for its own host.
    fn judge_binding(&self, scope: Scope, to: &MwBinding) -> Result<(), AccessError> {
        let region = self.region(to.lkey).filter(|r| r.valid && !r.null);
        let region = region.ok_or(AccessError::Key)?;
        if region.pd != scope.pd {
            return Err(AccessError::Domain);
        }
        let from = to.addr.checked_sub(region.iova).ok_or(AccessError::Bounds)?;
        if from.checked_add(to.len).is_none_or(|end| end > region.len) {
            return Err(AccessError::Bounds);
        }
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let permitted = region.access.contains(Access::MW_BIND)
            && Access::REMOTE.contains(to.access)
            && (!to.access.intersects(writes) || region.access.contains(Access::LOCAL_WRITE));
        if permitted { Ok(()) } else { Err(AccessError::Permission) }
    }

    /// Ends the binding of a window of type 2, for the queue pair that has bound it.
    pub(crate) fn unbind(&mut self, key: Key, scope: Scope) -> Result<(), AccessError> {
        // The key must be the window's present one, and the window must be bound.
        let slot = self.slot_mut(key).filter(|slot| slot.key == key).ok_or(AccessError::Key)?;
        let Named::Window(window) = &mut slot.named else { return Err(AccessError::Permission) };
        let bound = window.bound.ok_or(AccessError::Key)?;
        // Only the queue pair that it is bound to may end the binding.
        if !window.is_open_to(&bound, scope) {
            return Err(AccessError::Domain);
        }
        // A window of type 1 is unbound by binding it to no bytes, and never by its key.
        if window.kind == MwType::Type1 {
            return Err(AccessError::Permission);
        }
        window.bound = None;
        self.release(Some(bound));
        Ok(())
    }

    /// Notes at the region that a binding has ended.
    fn release(&mut self, bound: Option<Binding>) {
        if let Some(region) = bound.and_then(|b| self.region_mut(b.to.lkey)) {
            region.windows -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_core::SeedableRng;

    use super::*;
    use crate::memory::page_table::PageTable;
    use crate::memory::region::MrInit;
    use crate::memory::window::next_key;

    const OURS: Scope = Scope { pd: Pd(1), qpn: 10 };
    const READ: Access = Access::REMOTE_READ;

    struct World {
        regions: Regions,
        rng: ChaCha8Rng,
        mr: Key,
    }

    impl World {
        fn new(access: Access) -> World {
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            let mut regions = Regions::new(16, 16, 2);
            let pages = PageTable::contiguous(12, 0x8000, 0x1000);
            let init = MrInit { iova: 0x1000, len: 0x1000, access, pages };
            let mr = regions.register(Pd(1), init, &mut rng).unwrap();
            World { regions, rng, mr }
        }

        fn window(&mut self, kind: MwType) -> Key {
            self.regions.make_window(Pd(1), kind, &mut self.rng).unwrap()
        }

        fn to(&self, addr: u64, len: u64, access: Access) -> MwBinding {
            MwBinding { lkey: self.mr, addr, len, access, zero_based: false }
        }
    }

    fn open() -> World {
        World::new(Access::MW_BIND | Access::LOCAL_WRITE)
    }

    #[test]
    fn only_the_owners_bits_count_up() {
        assert_eq!(next_key(0x1234_56FF), 0x1234_5600);
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
    }

    #[test]
    fn a_window_opens_its_part_of_a_region_and_nothing_else() {
        let mut w = open();
        let key = w.window(MwType::Type1);
        let check = |w: &World, key, addr, len, need| w.regions.check(key, OURS, addr, len, need);
        assert_eq!(check(&w, key, 0x1100, 1, READ), Err(AccessError::Key), "not bound");
        let key = next_key(key);
        w.regions.bind(key, OURS, w.to(0x1100, 0x100, READ)).unwrap();
        assert_eq!(check(&w, key, 0x1100, 0x100, READ), Ok(()));
        assert_eq!(check(&w, key, 0x1100, 0x101, READ), Err(AccessError::Bounds));
        assert_eq!(check(&w, key, 0x10FF, 1, READ), Err(AccessError::Bounds));
        assert_eq!(check(&w, key, u64::MAX, 2, READ), Err(AccessError::Bounds));
        let write = Access::REMOTE_WRITE;
        assert_eq!(check(&w, key, 0x1100, 1, write), Err(AccessError::Permission));
        assert_eq!(check(&w, key, 0x1100, 1, Access::empty()), Err(AccessError::Key), "no lkey");
        assert_eq!(check(&w, next_key(key), 0x1100, 1, READ), Err(AccessError::Key));
        let mut piece = None;
        w.regions.translate(key, OURS, 0x1110, 16, READ, |s| piece = Some(s.addr)).unwrap();
        assert_eq!(piece, Some(0x8110));
        assert_eq!(w.regions.bound_windows(w.mr), 1);
        w.regions.bind(key, OURS, w.to(0, 0, READ)).unwrap();
        assert_eq!(check(&w, key, 0x1100, 1, READ), Err(AccessError::Key));
        assert_eq!(w.regions.bound_windows(w.mr), 0);
    }

    #[test]
    fn a_window_of_type_2_is_its_queue_pairs_until_invalidated() {
        let mut w = open();
        let first = w.window(MwType::Type2);
        let to = MwBinding { zero_based: true, ..w.to(0x1800, 0x10, READ) };
        assert_eq!(w.regions.bind(first, OURS, to), Err(AccessError::Permission), "same key");
        let key = next_key(first);
        let none = MwBinding { len: 0, ..to };
        assert_eq!(w.regions.bind(key, OURS, none), Err(AccessError::Bounds));
        w.regions.bind(key, OURS, to).unwrap();
        let again = w.regions.bind(next_key(key), OURS, to);
        assert_eq!(again, Err(AccessError::Permission), "it is bound");
        assert_eq!(w.regions.check(key, OURS, 0, 0x10, READ), Ok(()));
        let other = Scope { qpn: 11, ..OURS };
        assert_eq!(w.regions.check(key, other, 0, 0x10, READ), Err(AccessError::Domain));
        assert_eq!(w.regions.invalidate(key, other), Err(AccessError::Domain));
        assert_eq!(w.regions.invalidate(key, OURS), Ok(()));
        assert_eq!(w.regions.invalidate(key, OURS), Err(AccessError::Key));
        assert_eq!(w.regions.check(key, OURS, 0, 1, READ), Err(AccessError::Key));
        w.regions.bind(next_key(key), OURS, to).unwrap();
        // Any key that it has had removes it.
        assert_eq!(w.regions.end_window(first), Some(Pd(1)));
        assert_eq!((w.regions.windows(), w.regions.bound_windows(w.mr)), (0, 0));
        assert_eq!(w.regions.end_window(first), None);
    }

    #[test]
    fn a_window_opens_no_more_than_its_region_may() {
        let write = Access::REMOTE_WRITE;
        for (access, to, refused) in [
            (Access::LOCAL_WRITE, READ, true),
            (Access::MW_BIND, READ, false),
            (Access::MW_BIND, write, true),
            (Access::MW_BIND | Access::LOCAL_WRITE, write, false),
            (Access::MW_BIND | Access::LOCAL_WRITE, Access::LOCAL_WRITE, true),
        ] {
            let mut w = World::new(access);
            let key = w.window(MwType::Type1);
            let bound = w.regions.bind(key, OURS, w.to(0x1000, 1, to));
            assert_eq!(bound.is_err(), refused, "{access:?} {to:?}");
        }
        let mut w = open();
        let key = w.window(MwType::Type1);
        let far = w.to(0x1FFF, 2, READ);
        assert_eq!(w.regions.bind(key, OURS, far), Err(AccessError::Bounds));
        let to = w.to(0x1000, 1, READ);
        let foreign = Scope { pd: Pd(2), ..OURS };
        assert_eq!(w.regions.bind(key, foreign, to), Err(AccessError::Domain));
        assert_eq!(w.regions.bind(w.mr, OURS, to), Err(AccessError::Key), "no window");
        assert_eq!(w.regions.unbind(w.mr, OURS), Err(AccessError::Permission));
        w.window(MwType::Type1);
        let full = w.regions.make_window(Pd(1), MwType::Type1, &mut w.rng);
        assert_eq!(full, Err(RegMrError::Full { limit: 2 }));
    }
}
