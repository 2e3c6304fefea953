//! Buffers that a thread uses again and again.

use std::cell::RefCell;

/// A thread keeps buffers of at most so many bytes for its next operations.
const KEPT: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Lends an empty buffer that this thread has used before.
pub(super) fn with_scratch<T>(body: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut buffer = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or_default();
    buffer.clear();
    let result = body(&mut buffer);
    if buffer.capacity() <= KEPT {
        SCRATCH.with_borrow_mut(|kept| kept.push(buffer));
    }
    result
}
