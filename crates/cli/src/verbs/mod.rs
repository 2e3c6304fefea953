//! Shared by `remora run`, `remora doctor` and `remora bench verbs`: the verbs library, and the
//! programs that run on it.
//!
//! - [`libraries`]: finds the library. [`environment`]: in which a program finds it.
//! - [`program`]: the program to run. [`elf`]: what its file says of how it is loaded.

pub(crate) mod elf;
pub(crate) mod environment;
pub(crate) mod libraries;
pub(crate) mod program;
