//! Receive queues that several queue pairs take from.

use super::ring::Ring;
use crate::handles::Xrcd;
use crate::memory::key::Pd;

/// A receive queue that several queue pairs take from.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) pd: Pd,
    pub(crate) ring: Ring,
    /// Raise an event when fewer than this many are posted; zero: do not.
    pub(crate) limit: u32,
    pub(crate) users: u32,
    pub(crate) xrc: Option<XrcSrq>,
}

/// What an XRC shared receive queue has besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XrcSrq {
    pub(crate) xrcd: Xrcd,
    /// Where its completions go, whichever queue pair takes an element.
    pub(crate) cq: u32,
    /// Its number on the wire.
    pub(crate) srqn: u32,
}
