//! Memory windows: a part of a region, opened to peers under a key of its own, for a while.
//!
//! A window is bound to a region, and unbound, by work requests, so that both happen in the order
//! of a send queue. A window of type 1 opens to all queue pairs of a protection domain, and can be
//! bound again at any time. A window of type 2 opens to the queue pair that bound it, and must be
//! invalidated before it is bound again (type 2B of the InfiniBand specification).
//!
//! The types are here; `window/bind.rs` makes, binds and unbinds windows, and `memory/check.rs`
//! checks accesses through them. A SEND that invalidates a key, and a local INVALIDATE, come in at
//! `Regions::invalidate` ([`super::region`]).

mod bind;

use super::key::{Access, Key, OWNER_BITS, Pd, Scope};

/// The kinds of memory window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum MwType {
    /// For all queue pairs of the protection domain.
    Type1,
    /// For the queue pair that binds it.
    Type2,
}

/// The bytes that a window opens when it is bound, and for which kinds of access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MwBinding {
    /// The region's key; the region must have [`Access::MW_BIND`].
    pub lkey: Key,
    /// The first byte, by the region's addresses.
    pub addr: u64,
    /// Bytes. Zero ends the binding of a window of type 1, and is refused for one of type 2.
    pub len: u64,
    /// What peers may do. For them to write, the region needs [`Access::LOCAL_WRITE`].
    pub access: Access,
    /// Peers count addresses from the window's first byte, instead of using the region's addresses.
    pub zero_based: bool,
}

#[derive(Debug)]
pub(super) struct MemoryWindow {
    pub(super) pd: Pd,
    pub(super) kind: MwType,
    pub(super) bound: Option<Binding>,
}

/// A window's binding, and the queue pair that made it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) to: MwBinding,
    pub(super) qpn: u32,
}

impl MemoryWindow {
    /// May this queue pair use the window?
    pub(super) fn is_open_to(&self, bound: &Binding, scope: Scope) -> bool {
        self.pd == scope.pd && (self.kind == MwType::Type1 || bound.qpn == scope.qpn)
    }

    /// The first address and the length of the range that the window opens.
    pub(super) fn extent(&self, scope: Scope) -> Option<(u64, u64)> {
        let bound = self.bound.filter(|bound| self.is_open_to(bound, scope))?;
        let start = if bound.to.zero_based { 0 } else { bound.to.addr };
        Some((start, bound.to.len))
    }
}

/// The next key for a window: only the owner's bits change (`ibv_inc_rkey`).
pub const fn next_key(key: Key) -> Key {
    const OWNERS: u32 = (1 << OWNER_BITS) - 1;
    key & !OWNERS | (key.wrapping_add(1) & OWNERS)
}
