//! Keys: which queue pairs may use which bytes, for what, and why an access is refused.

use bitflags::bitflags;
use thiserror::Error;

use crate::counters::Counters;

bitflags! {
    /// What a region, or a queue pair, permits. "It" is the region's memory, or all memory that is
    /// used on the queue pair.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Access: u8 {
        /// The card may write it for its own host (receives, READ results).
        const LOCAL_WRITE = 1 << 0;
        /// A peer may WRITE it.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may READ it.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomics on it.
        const REMOTE_ATOMIC = 1 << 3;
        /// A peer may end the use of the key by SEND with invalidate.
        const REMOTE_INVALIDATE = 1 << 4;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 5;
        /// A peer may FLUSH it to global visibility.
        const FLUSH_GLOBAL = 1 << 6;
        /// A peer may FLUSH it to persistence. This is only for memory in which every write
        /// survives a loss of power: the card does nothing further to make it survive.
        const FLUSH_PERSISTENT = 1 << 7;
    }
}

/// A protection domain's handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Pd(pub(crate) u32);

impl Pd {
    /// The handle as a number, by which processes tell each other of it.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The handle of this number. Commands refuse one that names no domain.
    pub fn numbered(number: u32) -> Pd {
        Pd(number)
    }
}

impl Access {
    /// The kinds of access that only peers make.
    pub(super) const REMOTE: Access = Access::REMOTE_WRITE
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::FLUSH_GLOBAL)
        .union(Access::FLUSH_PERSISTENT);
}

/// The user of a key: a queue pair, in its protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scope {
    pub(crate) pd: Pd,
    pub(crate) qpn: u32,
}

impl Scope {
    /// The card itself, for a protection domain. Windows do not open to it.
    pub(crate) const fn card(pd: Pd) -> Scope {
        Scope { pd, qpn: 0 }
    }
}

/// A key of a memory region or window. A region's local key (`lkey`) and remote key (`rkey`) are
/// the same number. The owner of a window chooses the low 8 bits of its key at each binding.
pub type Key = u32;

/// How many low bits of a window's key its owner chooses.
pub(super) const OWNER_BITS: u32 = 8;

/// Why an access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AccessError {
    /// The key opens nothing: it never existed, or is deregistered or invalidated.
    #[error("the key opens no region")]
    Key,
    /// The key belongs to another protection domain.
    #[error("the key belongs to another protection domain")]
    Domain,
    /// The range is not inside the region.
    #[error("the access lies outside its region")]
    Bounds,
    /// The region does not permit this kind of access.
    #[error("the access is not permitted")]
    Permission,
    /// The driver could not reach the memory.
    #[error("the memory cannot be reached")]
    Memory,
}

impl AccessError {
    /// Counts an access that was refused to a peer.
    pub(crate) fn count(self, counters: &mut Counters) {
        match self {
            AccessError::Key => counters.refused_key += 1,
            AccessError::Domain => counters.refused_domain += 1,
            AccessError::Bounds => counters.refused_bounds += 1,
            AccessError::Permission => counters.refused_permission += 1,
            AccessError::Memory => counters.refused_memory += 1,
        }
    }
}
