//! A module that is ready to be instantiated.

use std::sync::Arc;

use remora_offload::kernel::{MemoryShare, ModuleLimits};
use wasmtime::InstancePre;

use crate::engine::Host;
use crate::guest::Guest;

/// A module, compiled and linked once for each way to run it.
pub(crate) struct Linked {
    pub(crate) host: &'static Host,
    pub(crate) plain: InstancePre<Guest>,
    pub(crate) suspending: InstancePre<Guest>,
    /// For instances that are bound to streams, if the module exports a `tap`.
    pub(crate) tapping: Option<InstancePre<Guest>>,
    pub(crate) limits: ModuleLimits,
    /// What the memory of its instances counts for.
    pub(crate) share: Option<Arc<MemoryShare>>,
    /// Bytes that each begins with.
    pub(crate) first_bytes: usize,
    /// The module as it was loaded.
    pub(crate) bytes: Box<[u8]>,
}
