//! A module that is ready to be instantiated.

use wasmtime::InstancePre;

use super::engine::Host;
use super::guest::Guest;
use super::limits::ModuleLimits;

/// A module, compiled and linked once for each way to run it.
pub(super) struct Linked {
    pub(super) host: &'static Host,
    pub(super) plain: InstancePre<Guest>,
    pub(super) suspending: InstancePre<Guest>,
    /// For instances that are bound to streams, if the module exports a `tap`.
    pub(super) tapping: Option<InstancePre<Guest>>,
    pub(super) limits: ModuleLimits,
    /// The module as it was loaded.
    pub(super) bytes: Box<[u8]>,
}
