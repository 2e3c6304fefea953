//! Kernels that are loaded at run time, as WebAssembly modules.
//!
//! A module exports `kernel: () -> i32`, which is called once for each invocation and returns a
//! status ([`CallStatus`]), and its `memory`. It may import the functions that `imports` lists from
//! the module `remora`: methods of [`Context`], under the same names, and two that say what the
//! call is (`call`) and what passes (`passing`). A guest that has to wait (for payload, for memory
//! in a simulation, or for room to send) is suspended on a stack of its own. So its source is
//! straight-line code, and runs live and in the simulator.
//!
//! **Streams.** A module that also exports `tap: () -> i32` can be bound to a stream of WRITEs:
//! see `tap`.
//!
//! **Speed.** Loading compiles a module to machine code, and `compile_cost` bounds how long that
//! takes. An invocation begins as a plain call. It begins again on a stack of its own only if it
//! has to wait, has an effect that could not be undone, or takes long: see `instance`.
//!
//! **Isolation.** An instance serves one queue pair. A guest finds its globals and its memory
//! either as an earlier invocation of the *same* queue pair left them, or fresh from the module.
//! It never sees what other requesters did. State that must outlive an invocation belongs into
//! granted memory. An instance is kept only if its invocation ended regularly.
//!
//! **Bounds.** Host calls cost steps as in any kernel. Instructions are counted as well: 64 for
//! each step of the budget, and [`TURN_INSTRUCTIONS`] before other invocations get their turn;
//! `instance` ends an invocation that has spent them.
//! Those of bulk memory become loops, whose instructions are counted: see `bulk`. Memory and tables
//! have limits for each module, and memory has one for all of them ([`TOTAL_MEMORY`]). Traps are
//! explicit checks in the code: no signal handler is installed in the process.
//!
//! No limit depends on the machine's speed: the same calls end in the same way on every machine.
//!
//! [`CallStatus`]: remora_offload::kernel::CallStatus
//! [`Context`]: remora_offload::kernel::Context
#![warn(missing_debug_implementations)]

mod admission;
mod bulk;
mod compile_cost;
mod engine;
mod error;
mod guest;
mod imports;
mod instance;
mod limits;
mod linked;
mod loan;
mod module;
mod program;
mod tap;

pub use error::LoadError;
pub use guest::TOTAL_MEMORY;
pub use instance::TURN_INSTRUCTIONS;
pub use limits::MODULE_MAX;
pub use module::{Module, load};
pub use program::ModuleProgram;
pub use remora_offload::kernel::ModuleLimits;
pub use tap::{ModuleTap, PAYLOAD_STEPS};
