//! Why a module cannot be loaded, and how the host ends a guest's call early.

use thiserror::Error;

use crate::limits::{MODULE_MAX, PARTS_MAX};
use remora_offload::kernel::CallStatus;

/// Why a module cannot be loaded.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LoadError {
    /// The module is too long.
    #[error("the module has {0} bytes; a kernel may have {MODULE_MAX}")]
    TooBig(usize),
    /// The bytes are something else: what they begin with.
    #[error("this is not a WebAssembly module: it begins with \"{}\"", .0.escape_ascii())]
    NoModule(Vec<u8>),
    /// The bytes are no module, or use a feature that is not offered, such as threads.
    #[error("this is not a WebAssembly module that can run here: {0}")]
    Invalid(String),
    /// The module has an instruction that is not offered.
    #[error(
        "its function {function} has the instruction `{name}`, which is not offered, since it may \
         do any amount of work"
    )]
    Instruction {
        /// The instruction.
        name: &'static str,
        /// The function's index.
        function: u32,
    },
    /// The module would take too long to compile, and what makes it so.
    #[error("the module would take too long to compile: {0}")]
    Compile(String),
    /// The module is valid, and the compiler refuses it: what the compiler says.
    #[error("the module cannot be compiled: {0}")]
    Compiler(String),
    /// The module imports something that the card does not offer.
    #[error("the module imports `{0}`, which the card does not offer")]
    Import(String),
    /// The module imports a function with another type than the function has.
    #[error("the module imports a function with a wrong type: {0}")]
    ImportType(String),
    /// The module has no entry.
    #[error("the module exports no function `kernel` without parameters that returns an i32")]
    NoKernel,
    /// The module exports something else than a function as `tap`.
    #[error(
        "the module exports `tap`, but not as a function without parameters that returns an i32"
    )]
    BadTap,
    /// The module cannot be bound to a stream, since it exports no `tap`.
    #[error(
        "the module exports no function `tap`: it can be called, and not bound to a stream of \
         WRITEs"
    )]
    NoTap,
    /// The module cannot be bound to a stream, since its instance cannot be created.
    #[error("the module cannot be started: {0}")]
    Start(CallStatus),
    /// The module needs more memory than its limits allow.
    #[error("the module begins with {wanted} bytes of memory; this kernel may have {limit}")]
    Memory {
        /// The bytes that the module begins with.
        wanted: u64,
        /// The bytes that its limits allow.
        limit: usize,
    },
    /// The module needs a larger table than its limits allow.
    #[error("the module begins with a table of {wanted} elements; this kernel may have {limit}")]
    Table {
        /// The elements that the module begins with.
        wanted: u64,
        /// The elements that its limits allow.
        limit: usize,
    },
    /// Each instance of the module would take too long to set up.
    #[error("the module has more globals and active segments than {PARTS_MAX}, all that it may")]
    Parts,
    /// This machine cannot run WebAssembly.
    #[error("WebAssembly cannot be run on this machine: {0}")]
    Engine(String),
}

/// The host ends the invocation with this status.
#[derive(Clone, Copy, Debug, Error)]
#[error("{0}")]
pub(crate) struct Ended(pub(crate) CallStatus);

/// A trial would have to wait, or to do something that cannot be undone.
#[derive(Clone, Copy, Debug, Error)]
#[error("the trial was undone: the invocation begins again")]
pub(crate) struct Again;
