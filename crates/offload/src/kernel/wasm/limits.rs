//! How much a module may be, and an instance of it have.

/// The longest module, in bytes.
pub const MODULE_MAX: usize = 1 << 20;
/// The most memory that an instance may be allowed, in bytes.
pub(super) const MEMORY_MAX: usize = 16 << 20;

/// How much an instance of a module may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModuleLimits {
    /// Bytes of memory; more than 16 MiB count as 16 MiB.
    pub memory: usize,
    /// Elements of its table (of functions that are called by number).
    pub table: usize,
    /// Instances that are kept for the queue pairs that have called last.
    pub instances: usize,
}

impl Default for ModuleLimits {
    fn default() -> ModuleLimits {
        ModuleLimits { memory: 4 << 20, table: 4096, instances: 64 }
    }
}
