//! Shared by `remora run`, `remora doctor` and `remora bench verbs`: the verbs library, and the
//! programs that run on it.

pub(crate) mod elf;
pub(crate) mod environment;
pub(crate) mod libraries;
pub(crate) mod program;
