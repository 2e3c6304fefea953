//! Buffers of a program to which the peer may write directly.

use crate::abi::*;
use crate::ibverbs::mr;

/// A mapped buffer.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) mr: *mut ibv_mr,
    /// Its entry in the peer's table, if the peer may write to it.
    pub(super) entry: Option<usize>,
}

impl Drop for Map {
    fn drop(&mut self) {
        mr::dereg_mr(self.mr);
    }
}
