//! The way from a plain call of a guest to what that call was polled with.

use core::future::Future;
use core::pin::pin;
use core::ptr;
use core::task::{Context, Poll};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::error::Again;

/// What a plain call was polled with, for as long as it lasts.
#[derive(Debug, Default)]
pub(super) struct Loan(AtomicPtr<Context<'static>>);

/// Ends a loan, however the call ends.
struct Returned<'a>(&'a Loan);

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        self.0.0.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

impl Loan {
    /// Lends `cx` to [`Loan::poll_once`] while `act` runs.
    pub(super) fn lend<R>(&self, cx: &mut Context<'_>, act: impl FnOnce() -> R) -> R {
        self.0.store(ptr::from_mut(cx).cast(), Ordering::Relaxed);
        let _returned = Returned(self);
        act()
    }

    /// What is lent now.
    pub(super) fn current(&self) -> Lent {
        Lent(self.0.load(Ordering::Relaxed))
    }
}

/// A context that is lent, or null. It does not leave the host function that asked for it.
pub(super) struct Lent(*mut Context<'static>);

impl Lent {
    /// What a future is ready with at once.
    ///
    /// # Errors
    /// It is not ready, or nothing is lent.
    pub(super) fn poll_once<R>(
        self,
        future: impl Future<Output = wasmtime::Result<R>>,
    ) -> wasmtime::Result<R> {
        // SAFETY: the pointer is null, or leads to the context that `lend` holds exclusively on
        // this thread's stack until the guest, and so this function of the host that it calls, has
        // returned. Functions of the host do not call guests, so there is one such reference at a
        // time. The longer lifetime is given to nobody: `poll` takes any.
        let cx = unsafe { self.0.as_mut() }.ok_or(Again)?;
        match pin!(future).poll(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(Again.into()),
        }
    }
}
