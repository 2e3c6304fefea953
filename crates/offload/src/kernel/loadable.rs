//! Kernels that are loaded at run time: what a card needs of one, by whatever compiler.
//!
//! The crate `remora-wasm` compiles WebAssembly. A card of its own names no compiler, so that a
//! program without loaded kernels builds none. A program that serves a card hands its [`Loader`]
//! in.

use core::fmt::Debug;
use std::error::Error;
use std::sync::Arc;

use super::{MemoryShare, Program, Tap};

/// Why code cannot be loaded, in words.
pub type LoadRefusal = Box<dyn Error + Send + Sync>;

/// Checks and compiles a module, whose instances have memory of a share, if there is one. It takes
/// milliseconds, or seconds for a long module: it is not to be called on the thread that drives a
/// card.
///
/// # Errors
/// The bytes are refused.
pub type Loader =
    fn(&[u8], ModuleLimits, Option<Arc<MemoryShare>>) -> Result<Arc<dyn Loadable>, LoadRefusal>;

/// The [`Loader`] of a program that takes no modules.
///
/// # Errors
/// Always.
pub fn no_loader(
    _: &[u8],
    _: ModuleLimits,
    _: Option<Arc<MemoryShare>>,
) -> Result<Arc<dyn Loadable>, LoadRefusal> {
    Err("kernels that are loaded at run time are not taken here".into())
}

/// What instances of a module may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModuleLimits {
    /// Bytes of memory and of tables, together; more than [`ModuleLimits::MEMORY_MAX`] count as
    /// that.
    pub memory: usize,
    /// Elements of all its tables together.
    pub table: usize,
    /// The most instances that are kept: those of the queue pairs that called last.
    pub instances: usize,
}

impl ModuleLimits {
    /// The most memory that the limits can allow an instance, in bytes.
    pub const MEMORY_MAX: usize = 16 << 20;
    /// The most memory that all instances of a process have together, in bytes.
    pub const TOTAL_MEMORY: usize = 4 << 30;
    /// The longest module, in bytes.
    pub const LENGTH_MAX: usize = 1 << 20;
}

impl Default for ModuleLimits {
    fn default() -> ModuleLimits {
        ModuleLimits { memory: 4 << 20, table: 4096, instances: 64 }
    }
}

/// Loaded code: checked, compiled, and ready to be deployed any number of times.
pub trait Loadable: Debug + Send + Sync {
    /// The module as it was loaded, for a card that is another process's.
    fn bytes(&self) -> &[u8];

    /// The limits of the module's instances.
    fn limits(&self) -> ModuleLimits;

    /// The code of a kernel that runs this module.
    fn program(&self) -> Box<dyn Program>;

    /// An instance of the module to be bound to a stream of WRITEs, with at most `budget` steps for
    /// each payload. This creates the instance: it is not to be called on the thread that drives a
    /// card.
    ///
    /// # Errors
    /// The module cannot be bound, or its instance cannot be created.
    fn tap(&self, budget: u64) -> Result<Box<dyn Tap>, LoadRefusal>;
}
