//! Commands on protection domains and their objects: regions, windows, device memory, address
//! handles.

use super::{CreateError, DestroyError, Nic};
use crate::handles::{AddressHandle, Domain};
use crate::memory::key::{Key, Pd};
use crate::memory::region::{MrChange, MrInit, RegMrError};
use crate::memory::window::MwType;
use crate::transmit::Path;

/// Protection domains, memory and address handles.
impl Nic {
    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`CreateError::Full`] if the card has as many domains as its limit.
    pub fn alloc_pd(&mut self) -> Result<Pd, CreateError> {
        let limit = self.card.config.max_pds;
        let made = self.card.pds.insert_with(|_| Domain { users: 0 });
        made.map(Pd).ok_or(CreateError::Full { limit })
    }

    /// Destroys a protection domain.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if there is no such domain, [`DestroyError::Busy`] if it still has
    /// objects.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), DestroyError> {
        let domain = self.card.pds.get(pd.0).ok_or(DestroyError::Unknown)?;
        if domain.users > 0 {
            return Err(DestroyError::Busy { users: domain.users });
        }
        self.card.pds.remove(pd.0);
        Ok(())
    }

    /// Registers memory. The key is both lkey and rkey.
    ///
    /// # Errors
    /// [`RegMrError::UnknownPd`] if there is no such domain; [`RegMrError::Pages`] if the pages do
    /// not cover the length, or the addresses wrap; [`RegMrError::Access`] for remote write or
    /// atomic access without local write; [`RegMrError::Full`] and [`RegMrError::TranslationFull`]
    /// if the card has no room for another region or for its page table.
    pub fn reg_mr(&mut self, pd: Pd, init: MrInit) -> Result<Key, RegMrError> {
        let domain = self.card.pds.get_mut(pd.0).ok_or(RegMrError::UnknownPd)?;
        let key = self.card.regions.register(pd, init, &mut self.card.rng)?;
        domain.users += 1;
        Ok(key)
    }

    /// Makes a region without bytes: writes to it are discarded, reads from it give zeroes. Its key
    /// is an lkey only.
    ///
    /// # Errors
    /// [`RegMrError::UnknownPd`] if there is no such domain, [`RegMrError::Full`] if the card has
    /// as many regions as its limit.
    pub fn alloc_null_mr(&mut self, pd: Pd) -> Result<Key, RegMrError> {
        let domain = self.card.pds.get_mut(pd.0).ok_or(RegMrError::UnknownPd)?;
        let key = self.card.regions.register_null(pd, &mut self.card.rng)?;
        domain.users += 1;
        Ok(key)
    }

    /// Changes a region in place. Returns its key, which stays the same.
    ///
    /// # Errors
    /// [`RegMrError::UnknownPd`] if there is no such domain; [`RegMrError::UnknownKey`] if there is
    /// no such region, or it is a null region; [`RegMrError::Bound`] if windows are bound to it;
    /// [`RegMrError::Pages`], [`RegMrError::Access`] and [`RegMrError::TranslationFull`] as of
    /// [`Nic::reg_mr`].
    pub fn rereg_mr(&mut self, key: Key, change: MrChange) -> Result<Key, RegMrError> {
        let to = change.pd;
        if to.is_some_and(|pd| self.card.pds.get(pd.0).is_none()) {
            return Err(RegMrError::UnknownPd);
        }
        let from = self.card.regions.change(key, change)?;
        if let Some(domain) = to.and_then(|pd| self.card.pds.get_mut(pd.0)) {
            domain.users += 1;
            self.leave(from);
        }
        Ok(key)
    }

    /// Deregisters a region. From now on its key opens nothing, not even to elements and packets
    /// that are under way.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if there is no such region, [`DestroyError::Busy`] if windows are
    /// bound to it.
    pub fn dereg_mr(&mut self, key: Key) -> Result<(), DestroyError> {
        let users = self.card.regions.bound_windows(key);
        if users > 0 {
            return Err(DestroyError::Busy { users });
        }
        let bound = self.card.regions.tap(key) != 0;
        let pd = self.card.regions.deregister(key).ok_or(DestroyError::Unknown)?;
        self.card.kernel.taps -= u32::from(bound);
        self.leave(pd);
        Ok(())
    }

    /// Makes a memory window, which opens nothing before it is bound
    /// ([`crate::queue::SendOp::BindMw`]). Only the low 8 bits of its key ever change.
    ///
    /// # Errors
    /// [`RegMrError::UnknownPd`] if there is no such domain, [`RegMrError::Full`] if the card has
    /// as many windows as its limit.
    pub fn alloc_mw(&mut self, pd: Pd, kind: MwType) -> Result<Key, RegMrError> {
        let domain = self.card.pds.get_mut(pd.0).ok_or(RegMrError::UnknownPd)?;
        let key = self.card.regions.make_window(pd, kind, &mut self.card.rng)?;
        domain.users += 1;
        Ok(key)
    }

    /// Destroys a memory window, bound or not, by any key that it has had.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if there is no such window.
    pub fn dealloc_mw(&mut self, key: Key) -> Result<(), DestroyError> {
        let pd = self.card.regions.end_window(key).ok_or(DestroyError::Unknown)?;
        self.leave(pd);
        Ok(())
    }

    /// Is there such a protection domain?
    pub fn has_pd(&self, pd: Pd) -> bool {
        self.card.pds.get(pd.0).is_some()
    }

    /// The first address and the length of a region of the domain; `None` if it has no such region.
    pub fn mr_range(&self, pd: Pd, key: Key) -> Option<(u64, u64)> {
        self.card.regions.range(key, pd)
    }

    /// Allocates `len` bytes of the card's own memory. Returns their bus address, to be registered
    /// like any other memory.
    ///
    /// # Errors
    /// [`CreateError::Full`] if no free piece of the card's memory is long enough.
    pub fn alloc_dm(&mut self, len: u64) -> Result<u64, CreateError> {
        let range = &self.card.config.device_memory;
        let limit = (range.end - range.start) as usize;
        self.device_memory.alloc(len).ok_or(CreateError::Full { limit })
    }

    /// Frees device memory. Regions in it must have been deregistered.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if no piece that was allocated begins at `addr`.
    pub fn free_dm(&mut self, addr: u64) -> Result<(), DestroyError> {
        if self.device_memory.free(addr) { Ok(()) } else { Err(DestroyError::Unknown) }
    }

    /// Is the whole range device memory that was allocated in one piece?
    pub fn is_dm(&self, addr: u64, len: u64) -> bool {
        self.device_memory.holds(addr, len)
    }

    /// Where the piece of device memory begins that holds this address, and its length.
    pub fn dm_piece(&self, addr: u64) -> Option<(u64, u64)> {
        self.device_memory.piece(addr)
    }

    /// Makes an address handle: a destination of datagrams.
    ///
    /// # Errors
    /// [`CreateError::UnknownPd`] if there is no such domain, [`CreateError::Full`] if the card has
    /// as many address handles as its limit.
    pub fn create_ah(&mut self, pd: Pd, path: Path) -> Result<u32, CreateError> {
        let domain = self.card.pds.get_mut(pd.0).ok_or(CreateError::UnknownPd)?;
        let limit = self.card.config.max_ahs;
        let made = self.card.ahs.insert_with(|_| AddressHandle { pd, path });
        let made = made.ok_or(CreateError::Full { limit })?;
        domain.users += 1;
        Ok(made)
    }

    /// Destroys an address handle.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if there is no such address handle.
    pub fn destroy_ah(&mut self, ah: u32) -> Result<(), DestroyError> {
        let pd = self.card.ahs.remove(ah).ok_or(DestroyError::Unknown)?.pd;
        self.leave(pd);
        Ok(())
    }
}
