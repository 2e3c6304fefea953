//! What `remora run`, `remora doctor` and `remora bench verbs` have in common: the verbs library,
//! and the programs that are to run on it.

pub(crate) mod elf;
pub(crate) mod environment;
pub(crate) mod libraries;
pub(crate) mod program;
