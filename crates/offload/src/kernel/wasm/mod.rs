//! Kernels loaded at run time: WebAssembly modules behind the interface of all others.
//!
//! A module exports `kernel: () -> i32`, which is called once an invocation and returns a status
//! ([`CallStatus`](super::CallStatus)), and its `memory`. What it may import stands in `imports`:
//! the methods of [`Context`](super::Context), under their names, of the module `remora`. A guest
//! that awaits (payload, memory in a simulated world, room to send) is suspended where it stands,
//! on a stack of its own, so that its source is straight-line code and runs live and in the
//! simulator alike.
//!
//! **Streams.** A module that exports `tap: () -> i32`, too, can be bound to a stream of WRITEs:
//! see `tap`.
//!
//! **Speed.** A module is compiled to machine code when it is loaded. An invocation begins as a
//! plain call, and is begun anew on a stack of its own only if it has to wait, has an effect that
//! could not be undone, or takes long: see `instance`.
//!
//! **Isolation.** An instance serves one queue pair. It may find its globals and its memory as an
//! earlier invocation of the *same* queue pair left them, or fresh from the module; what other
//! requesters did, it never sees. What is to outlive an invocation belongs into granted memory.
//! After anything but a regular end, an instance is thrown away.
//!
//! **Bounds.** Host calls pay steps as in any kernel, and instructions are counted besides: 64 for
//! each step of the budget, and [`TURN_INSTRUCTIONS`] before others get their turn. Instructions
//! whose work is not bounded by their number (bulk memory) are not offered. Memory and tables have
//! limits per module, and memory one for all ([`TOTAL_MEMORY`]). Traps are explicit checks in the
//! code: no signal handler is installed in the process.
//!
//! Nothing of it depends on the machine's speed: the same calls end the same way, everywhere.

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
pub use limits::{MODULE_MAX, ModuleLimits};
pub use module::Module;
pub use program::ModuleProgram;
pub use tap::{ModuleTap, PAYLOAD_STEPS};
