//! Panics of kernels, which must not end the thread that drives the card: everything on the device
//! would stand still.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a kernel's code; `None` if it panics, of which the process's panic hook has told. What the
/// kernel shares between invocations stays as the panic has left it.
#[inline]
pub(super) fn caught<R>(act: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(act)).ok()
}
