//! The limits of a module and of its instances, which `ModuleLimits` names (`kernel/loadable.rs` of
//! the offload crate). `module` refuses a module that begins with too much, `guest` memory that
//! grows too far; `instance` charges the instructions that they run, and says which
//! status a trap gives. A kernel's budget is set in `kernel/deploy.rs` of the offload crate, whose
//! `executor.rs` ends the call and ignores the rest of its payload.

use remora_offload::kernel::ModuleLimits;

/// The longest module, in bytes.
pub const MODULE_MAX: usize = ModuleLimits::LENGTH_MAX;
/// The most that compiling a module may cost; `compile_cost` says in what unit.
pub(crate) const COMPILE_MAX: u64 = 10_000_000;
/// Instructions for each step of the budget.
pub(crate) const STEP_INSTRUCTIONS: u64 = 64;
/// The most globals and active segments of a module. Each instance sets them up, which counts
/// neither as its instructions nor as its memory.
pub(crate) const PARTS_MAX: u32 = 4096;
