//! The memory behind handles: slabs of slots, one pool for each kind of object.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Slots in a pool's first slab; each later slab doubles the number.
const FIRST_SLAB: usize = 16;
/// The most slabs of a pool: more than fit an address space.
const SLABS_MAX: usize = 40;

/// The kinds of objects; each has a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// `ibv_device`.
    Device = 1,
    /// `verbs_context`.
    Context,
    /// `ibv_pd`, parent domains among them.
    Pd,
    /// `ibv_mr`.
    Mr,
    /// `ibv_mw`.
    Mw,
    /// `ibv_dm`.
    Dm,
    /// `ibv_buf`.
    Buf,
    /// `ibv_ah`.
    Ah,
    /// `ibv_td`.
    Td,
    /// `ibv_xrcd`.
    Xrcd,
    /// `ibv_comp_channel`.
    Channel,
    /// `ibv_cq_ex`.
    Cq,
    /// `ibv_srq`.
    Srq,
    /// `ibv_qp_ex`.
    Qp,
    /// `rdma_cm_id`.
    CmId,
    /// `rdma_event_channel`.
    CmChannel,
    /// `rdma_cm_event`.
    CmEvent,
}

/// The number of kinds, plus one because they count from 1.
const KINDS: usize = Kind::CmEvent as usize + 1;

/// All pools of a process.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pub(crate) pools: [Pool; KINDS],
}

impl Kind {
    /// May a forked child use its parent's objects of this kind? Not those that are about events:
    /// they are the parent's.
    pub(crate) fn is_inherited(self) -> bool {
        !matches!(self, Kind::Channel | Kind::CmId | Kind::CmChannel | Kind::CmEvent)
    }
}

impl Pools {
    /// Locks the slots of a kind.
    pub(crate) fn lock(&self, kind: Kind) -> MutexGuard<'_, Slots> {
        self.pools[kind as usize].slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the slots of all kinds.
    pub(crate) fn lock_all(&self) -> Vec<MutexGuard<'_, Slots>> {
        let all = self.pools.iter();
        all.map(|pool| pool.slots.lock().unwrap_or_else(PoisonError::into_inner)).collect()
    }
}

/// The slots of one kind.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    pub(crate) slabs: Slabs,
    pub(crate) slots: Mutex<Slots>,
}

/// Which slots are free.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    pub(crate) free: VecDeque<usize>,
    pub(crate) used: usize,
}

/// Where the slabs lie, for readers that take no lock: slabs are added, and never change.
#[derive(Debug)]
pub(crate) struct Slabs {
    count: AtomicUsize,
    /// Start and end address of each.
    places: [(AtomicUsize, AtomicUsize); SLABS_MAX],
}

impl Default for Slabs {
    fn default() -> Slabs {
        Slabs { count: AtomicUsize::new(0), places: std::array::from_fn(|_| Default::default()) }
    }
}

impl Slabs {
    /// Start and end address of each slab. The last ones come first, as they have most slots.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        let places = self.places.iter().take(self.count.load(Ordering::Acquire));
        let read = |place: &AtomicUsize| place.load(Ordering::Relaxed);
        places.rev().map(move |(start, end)| (read(start), read(end)))
    }

    /// Is `addr` the start of a slot of `size` bytes?
    #[inline]
    pub(crate) fn holds(&self, addr: usize, size: usize) -> bool {
        self.iter()
            .any(|(start, end)| start <= addr && addr < end && (addr - start).is_multiple_of(size))
    }

    /// Allocates a slab that has as many slots as all the others. The caller holds the pool's lock.
    fn add(&self, layout: Layout) -> Option<(usize, usize)> {
        let slots: usize = self.iter().map(|(start, end)| (end - start) / layout.size()).sum();
        let slab = Layout::from_size_align(layout.size().checked_mul(slots.max(FIRST_SLAB))?, 64);
        let slab = slab.ok()?;
        let at = self.count.load(Ordering::Relaxed);
        let place = self.places.get(at)?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(slab) } as usize;
        if start == 0 {
            return None;
        }
        place.0.store(start, Ordering::Relaxed);
        place.1.store(start + slab.size(), Ordering::Relaxed);
        self.count.store(at + 1, Ordering::Release);
        Some((start, start + slab.size()))
    }
}

impl Slots {
    /// An unused slot of `layout`; `slabs` are those of the same pool.
    pub(crate) fn take(&mut self, slabs: &Slabs, layout: Layout) -> Option<usize> {
        if self.free.is_empty() {
            let (start, end) = slabs.add(layout)?;
            self.free.extend((start..end).step_by(layout.size()));
        }
        self.used += 1;
        self.free.pop_front()
    }
}
