//! Shared receive queues.

use super::ring::Ring;
use crate::handles::Xrcd;
use crate::memory::key::Pd;

/// A receive queue that several queue pairs take from.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) pd: Pd,
    pub(crate) ring: Ring,
    /// An event is raised when fewer elements than this are posted. Zero: none is.
    pub(crate) limit: u32,
    pub(crate) users: u32,
    pub(crate) xrc: Option<XrcSrq>,
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
