//! The limits of a module, of its instances, and of the instructions that they run. `instance`
//! charges the instructions, and ends an invocation that has spent its budget; `guest` refuses
//! memory that grows too far.

/// The longest module, in bytes.
pub const MODULE_MAX: usize = 1 << 20;
/// The most memory that a module's limits can allow an instance, in bytes.
pub(super) const MEMORY_MAX: usize = 16 << 20;

/// The most that compiling a module may cost; `compile_cost` says in what unit.
pub(super) const COMPILE_MAX: u64 = 10_000_000;

/// Instructions that a guest may run before other invocations get their turn.
pub const TURN_INSTRUCTIONS: u64 = 1 << 16;
/// Instructions for each step of the budget.
pub(super) const STEP_INSTRUCTIONS: u64 = 64;

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
