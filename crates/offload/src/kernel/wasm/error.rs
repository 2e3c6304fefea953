//! Why a module is not loaded, and how a guest's call ends before its time.

use thiserror::Error;

use super::limits::MODULE_MAX;
use crate::kernel::CallStatus;

/// Why a module was not loaded.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LoadError {
    /// Too long.
    #[error("the module has {0} bytes; a kernel may have {MODULE_MAX}")]
    TooBig(usize),
    /// No module, or one that uses what is not offered (bulk memory, say).
    #[error("this is no WebAssembly module that can be run here: {0}")]
    Invalid(String),
    /// An import that the card does not offer.
    #[error("the module imports `{0}`, which is not offered")]
    Import(String),
    /// An import of another type than it has.
    #[error("the module imports something with another type than it has: {0}")]
    ImportType(String),
    /// No entry.
    #[error("the module exports no function `kernel` without parameters that returns an i32")]
    NoKernel,
    /// Something else than a function as `tap`.
    #[error(
        "the module exports a `tap` that is no function without parameters that returns an i32"
    )]
    BadTap,
    /// It is to be bound to a stream, and is no tap.
    #[error(
        "the module exports no function `tap`: it can be called, and not bound to a stream of \
         WRITEs"
    )]
    NoTap,
    /// It is to be bound to a stream, and cannot begin.
    #[error("the module cannot be started: {0}")]
    Start(CallStatus),
    /// More memory than it may have.
    #[error("the module begins with {wanted} bytes of memory; this kernel may have {limit}")]
    Memory {
        /// What it wants.
        wanted: u64,
        /// What it may have.
        limit: usize,
    },
    /// A larger table than it may have.
    #[error("the module begins with a table of {wanted} elements; this kernel may have {limit}")]
    Table {
        /// What it wants.
        wanted: u64,
        /// What it may have.
        limit: usize,
    },
    /// This machine cannot run WebAssembly.
    #[error("WebAssembly cannot be run on this machine: {0}")]
    Engine(String),
}

/// The end of an invocation that is not the guest's to decide.
#[derive(Clone, Copy, Debug, Error)]
#[error("{0}")]
pub(super) struct Ended(pub(super) CallStatus);

/// A trial has come to something that has to wait, or that could not be undone.
#[derive(Clone, Copy, Debug, Error)]
#[error("to be begun again")]
pub(super) struct Again;
