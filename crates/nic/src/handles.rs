//! Handles, and the two kinds of objects that have hardly any state: domains and address handles.

use crate::memory::key::Pd;
use crate::table::Table;
use crate::transmit::Path;

/// A table of objects with handles, for all kinds but queue pairs: 20 bits of index, 12 of
/// generation.
pub(crate) type Handles<T> = Table<T, 20, 32>;

/// An XRC domain's handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Xrcd(pub(crate) u32);

/// A protection domain, or an XRC domain.
#[derive(Debug)]
pub(crate) struct Domain {
    /// How many objects belong to the domain.
    pub(crate) users: u32,
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(crate) pd: Pd,
    pub(crate) path: Path,
}
