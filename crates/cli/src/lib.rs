//! What the command `remora` is made of, where others can use it too: memory nodes, and what
//! all commands share.
#![warn(missing_debug_implementations)]

pub mod device;
pub mod node;
pub mod output;
pub mod stop;
