//! What a change sees of the item that a key has before it.

use super::Found;
use crate::select::plan::Plan;

/// The item that a key has before a change.
pub struct Old<'a> {
    /// What is known of it besides its value.
    pub found: Found,
    pub(super) reader: &'a dyn Fn(&mut Vec<u8>, bool) -> bool,
    pub(super) passes: &'a dyn Fn(&Plan) -> bool,
    pub(super) stored: usize,
}

impl Old<'_> {
    /// Appends its value to `out`; false, with `out` as it was, if the memory is damaged and the
    /// value cannot be decoded.
    pub fn append_value(&self, out: &mut Vec<u8>) -> bool {
        (self.reader)(out, true)
    }

    /// Appends its value as it is stored.
    pub fn append_stored(&self, out: &mut Vec<u8>) {
        (self.reader)(out, false);
    }

    /// Whether a plan may select the value, by what can be judged before it is decompressed.
    pub fn passes(&self, plan: &Plan) -> bool {
        (self.passes)(plan)
    }

    /// Bytes of the value as it is stored.
    pub fn stored_len(&self) -> usize {
        self.stored
    }
}
