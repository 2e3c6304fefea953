//! Shared receive queues. Elements are taken from them in `qp/receive.rs`; `card.rs` raises the
//! event that few are left.

use super::ring::Ring;
use crate::handles::Xrcd;
use crate::memory::key::Pd;

/// A receive queue that several queue pairs take from.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) pd: Pd,
    pub(crate) ring: Ring,
    /// An event is raised, once, when fewer elements than this are left: see
    /// [`falls_below_limit`](Self::falls_below_limit). Zero: none is.
    pub(crate) limit: u32,
    pub(crate) users: u32,
    pub(crate) xrc: Option<XrcSrq>,
    /// Its owner is named it when elements were taken: see [`crate::Nic::poll_taken`].
    pub(crate) exported: bool,
    /// It is to be named.
    pub(crate) listed: bool,
}

impl SharedReceiveQueue {
    pub(crate) fn new(pd: Pd, ring: Ring, xrc: Option<XrcSrq>) -> SharedReceiveQueue {
        let (limit, users, exported, listed) = (0, 0, false, false);
        SharedReceiveQueue { pd, ring, limit, users, xrc, exported, listed }
    }

    /// An element was taken: is the queue to be put on the list of those to be named?
    #[inline]
    pub(crate) fn list(&mut self) -> bool {
        self.exported && !std::mem::replace(&mut self.listed, true)
    }

    /// An element was taken and `waiting` are left: is that the first time that they are below the
    /// limit? The application then has to set a limit anew.
    pub(crate) fn falls_below_limit(&mut self, waiting: u32) -> bool {
        let falls = waiting < self.limit;
        if falls {
            self.limit = 0;
        }
        falls
    }
}

/// The further properties of an XRC shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XrcSrq {
    pub(crate) xrcd: Xrcd,
    /// The completion queue of all its elements, whichever queue pair takes them.
    pub(crate) cq: u32,
    /// The queue's number on the wire.
    pub(crate) srqn: u32,
}
