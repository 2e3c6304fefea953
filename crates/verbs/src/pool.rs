//! The memory behind handles: slabs of slots, one pool for each kind of object.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::VecDeque;
use std::sync::Mutex;

/// Slots in a pool's first slab; each later slab doubles the number.
const FIRST_SLAB: usize = 16;

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
    pub(crate) pools: [Mutex<Pool>; KINDS],
}

/// The slots of one kind.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Start and end address of each slab.
    pub(crate) slabs: Vec<(usize, usize)>,
    pub(crate) free: VecDeque<usize>,
    pub(crate) used: usize,
}

impl Pool {
    /// An unused slot of `layout`.
    pub(crate) fn take(&mut self, layout: Layout) -> Option<usize> {
        if self.free.is_empty() {
            let count = self.slabs.iter().map(|(start, end)| (end - start) / layout.size()).sum();
            let count = Ord::max(count, FIRST_SLAB);
            let slab = Layout::from_size_align(layout.size().checked_mul(count)?, 64).ok()?;
            // SAFETY: the layout's size is not zero.
            let start = unsafe { alloc_zeroed(slab) } as usize;
            if start == 0 {
                return None;
            }
            let end = start + slab.size();
            self.slabs.push((start, end));
            self.free.extend((start..end).step_by(layout.size()));
        }
        self.used += 1;
        self.free.pop_front()
    }

    /// Is `addr` the start of a slot of `size` bytes?
    pub(crate) fn holds(&self, addr: usize, size: usize) -> bool {
        self.slabs
            .iter()
            .any(|&(start, end)| start <= addr && addr < end && (addr - start).is_multiple_of(size))
    }
}
