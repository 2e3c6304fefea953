//! The limits of a module and of its instances. `instance` charges the instructions that they run;
//! `guest` refuses memory that grows too far.

/// The longest module, in bytes.
pub const MODULE_MAX: usize = 1 << 20;
/// The most memory that a module's limits can allow an instance, in bytes.
pub(super) const MEMORY_MAX: usize = 16 << 20;

/// The most that compiling a module may cost; `compile_cost` says in what unit.
pub(super) const COMPILE_MAX: u64 = 10_000_000;

/// What instances of a module may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModuleLimits {
    /// Bytes of memory and of tables, together; more than 16 MiB count as 16 MiB.
    pub memory: usize,
    /// Elements of all its tables together.
    pub table: usize,
    /// The most instances that are kept: those of the queue pairs that called last.
    pub instances: usize,
}

impl Default for ModuleLimits {
    fn default() -> ModuleLimits {
        ModuleLimits { memory: 4 << 20, table: 4096, instances: 64 }
    }
}
