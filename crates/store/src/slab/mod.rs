//! Blocks of memory, by size class.
