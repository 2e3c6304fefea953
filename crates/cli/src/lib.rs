//! What the command `remora` is made of, where others can use it too: memory nodes.
#![warn(missing_debug_implementations)]

pub mod node;
