//! The check of an access to memory: is it allowed, and where on the bus are its bytes?
//!
//! Every access through a key, by a peer, by an element or by a kernel, comes through here. What a
//! queue pair permits its peer, whatever the key permits, is `Qp::check_remote` in
//! `qp/responder.rs`.

use std::sync::atomic::AtomicU64;

use super::Memory;
use super::key::{Access, AccessError, Key, Pd, Scope};
use super::region::{Named, Region, Regions};
use super::window::MemoryWindow;
use crate::transmit::Segment;

impl Regions {
    /// May `len` bytes at `addr` be used through `key` in the way `need` says?
    pub(crate) fn check(
        &self,
        key: Key,
        scope: Scope,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError> {
        self.find(key, scope, addr, len, need).map(|_| ())
    }

    /// As [`Regions::check`]. Returns the bus address of the range, if its region is in one piece
    /// and the range has any bytes.
    #[inline]
    pub(crate) fn locate(
        &self,
        key: Key,
        scope: Scope,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Option<u64>, AccessError> {
        let (region, from) = self.find(key, scope, addr, len, need)?;
        // A null region has no pages, and so no start.
        Ok(region.pages.start().filter(|_| len > 0).map(|start| start + from))
    }

    /// As [`Regions::check`], and calls `each` with the pieces of memory in order.
    #[inline]
    pub(crate) fn translate(
        &self,
        key: Key,
        scope: Scope,
        addr: u64,
        len: u32,
        need: Access,
        each: impl FnMut(Segment),
    ) -> Result<(), AccessError> {
        let (region, from) = self.find(key, scope, addr, u64::from(len), need)?;
        if region.null {
            let mut each = each;
            each(Segment { addr: Segment::NOWHERE, len });
            return Ok(());
        }
        region.pages.split(from, len, each);
        Ok(())
    }

    /// Opens a whole region for many accesses in a row, if it lies in one piece, is of this
    /// protection domain, and permits the card itself this kind of access.
    pub(crate) fn open(&self, key: Key, pd: Pd, need: Access) -> Option<Opened> {
        let region = self.region(key).filter(|region| region.valid && region.pd == pd)?;
        let start = region.pages.start().filter(|_| region.access.contains(need))?;
        Some(Opened { iova: region.iova, len: region.len, start })
    }

    /// The region that a key opens, and where in it the range begins.
    ///
    /// The key must exist and be valid, be of the user's protection domain, hold the whole range,
    /// and permit the kind of access (soft-RoCE's `lookup_mr` and `mr_check_range`).
    #[inline(always)]
    fn find(
        &self,
        key: Key,
        scope: Scope,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(&Region, u64), AccessError> {
        let region = match self.named(key) {
            Some(Named::Region(region)) if region.valid => region,
            Some(Named::Window(window)) => {
                return self.find_through(window, scope, addr, len, need);
            }
            Some(Named::Region(_)) | None => return Err(AccessError::Key),
        };
        // The key must be of the user's protection domain.
        if region.pd != scope.pd {
            return Err(AccessError::Domain);
        }
        // The whole range must lie within the region.
        let from = addr.checked_sub(region.iova).ok_or(AccessError::Bounds)?;
        if from.checked_add(len).is_none_or(|end| end > region.len) {
            return Err(AccessError::Bounds);
        }
        // The region must permit this kind of access.
        if !region.access.contains(need) {
            return Err(AccessError::Permission);
        }
        Ok((region, from))
    }

    /// As `find`, through a window: checks the window's rules, then where the bytes are in its
    /// region.
    #[inline(never)]
    fn find_through(
        &self,
        window: &MemoryWindow,
        scope: Scope,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(&Region, u64), AccessError> {
        // A window opens only while it is bound, and only to peers: its key is no local key.
        let bound = window.bound.filter(|_| need.intersects(Access::REMOTE));
        let bound = bound.ok_or(AccessError::Key)?;
        // It opens in its protection domain; a window of type 2, to the queue pair that bound it.
        if !window.is_open_to(&bound, scope) {
            return Err(AccessError::Domain);
        }
        // The range must lie within the bytes that the window opens, and the binding must permit
        // this kind of access.
        let start = if bound.to.zero_based { 0 } else { bound.to.addr };
        let within = addr.checked_sub(start).ok_or(AccessError::Bounds)?;
        if within.checked_add(len).is_none_or(|end| end > bound.to.len) {
            return Err(AccessError::Bounds);
        }
        if !bound.to.access.contains(need) {
            return Err(AccessError::Permission);
        }
        // The region behind the window must still be valid.
        let region = self.region(bound.to.lkey).filter(|r| r.valid).ok_or(AccessError::Key)?;
        let from = (bound.to.addr - region.iova) + within;
        Ok((region, from))
    }
}

/// A region that lies on the bus in one piece, as it is at this moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opened {
    iova: u64,
    len: u64,
    start: u64,
}

impl Opened {
    /// The bus address of `len` bytes at `addr`, if they lie within.
    #[inline]
    pub(crate) fn bus(&self, addr: u64, len: usize) -> Option<u64> {
        let from = addr.checked_sub(self.iova)?;
        (from <= self.len && self.len - from >= len as u64).then(|| self.start + from)
    }

    /// The address of the first aligned word, and all aligned words, if the memory lends them.
    pub(crate) fn words<'m>(&self, mem: &'m dyn Memory) -> (u64, &'m [AtomicU64]) {
        let skip = self.start.wrapping_neg() % 8;
        let count = self.len.saturating_sub(skip) / 8;
        let first = self.start.wrapping_add(skip);
        let words = (count > 0).then(|| mem.words(first, count)).flatten();
        (self.iova.wrapping_add(skip), words.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_core::SeedableRng;

    use super::*;
    use crate::memory::page_table::PageTable;
    use crate::memory::region::MrInit;

    #[test]
    fn bounds_domain_and_permission_are_checked() {
        let (mut regions, mut rng) = (Regions::new(4, 100, 100), ChaCha8Rng::seed_from_u64(1));
        let pages = PageTable::contiguous(21, 0, 100);
        let init = MrInit { iova: 0x1000, len: 100, access: Access::REMOTE_READ, pages };
        let key = regions.register(Pd(1), init, &mut rng).unwrap();
        let check =
            |pd, addr, len, need| regions.check(key, Scope { pd: Pd(pd), qpn: 1 }, addr, len, need);
        let read = Access::REMOTE_READ;
        assert_eq!(check(1, 0x1000, 100, read), Ok(()));
        assert_eq!(check(1, 0x1064, 0, read), Ok(()));
        assert_eq!(check(1, 0x1000, 101, read), Err(AccessError::Bounds));
        assert_eq!(check(1, 0xfff, 1, read), Err(AccessError::Bounds));
        assert_eq!(check(1, 0x1001, u64::MAX, read), Err(AccessError::Bounds));
        assert_eq!(check(2, 0x1000, 1, read), Err(AccessError::Domain));
        assert_eq!(check(1, 0x1000, 1, Access::REMOTE_WRITE), Err(AccessError::Permission));
    }
}
