//! How host functions find the context with which a guest's plain call was polled.

use core::future::Future;
use core::pin::pin;
use core::ptr;
use core::task::{Context, Poll};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::error::Again;

/// The context with which a plain call was polled, while the call runs.
#[derive(Debug, Default)]
pub(crate) struct Loan(AtomicPtr<Context<'static>>);

/// Ends a loan when it is dropped.
struct Returned<'a>(&'a Loan);

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        self.0.0.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

impl Loan {
    /// Lends `cx` to [`Loan::poll_once`] while `act` runs.
    pub(crate) fn lend<R>(&self, cx: &mut Context<'_>, act: impl FnOnce() -> R) -> R {
        self.0.store(ptr::from_mut(cx).cast(), Ordering::Relaxed);
        let _returned = Returned(self);
        act()
    }

    /// The context that is lent now.
    pub(crate) fn current(&self) -> Lent {
        Lent(self.0.load(Ordering::Relaxed))
    }
}

/// A context that is lent, or null. It is used only inside the host function that asked for it.
pub(crate) struct Lent(*mut Context<'static>);

impl Lent {
    /// The result of a future that is ready at once.
    ///
    /// # Errors
    /// The future is not ready, or no context is lent.
    pub(crate) fn poll_once<R>(
        self,
        future: impl Future<Output = wasmtime::Result<R>>,
    ) -> wasmtime::Result<R> {
        // SAFETY: the pointer is null, or leads to the context that `lend` holds exclusively on
        // this thread's stack until the guest has returned, and so until this host function has.
        // Host functions do not call guests, so only one such reference exists at a time. The
        // longer lifetime does not escape: `poll` accepts any lifetime.
        let cx = unsafe { self.0.as_mut() }.ok_or(Again)?;
        match pin!(future).poll(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(Again.into()),
        }
    }
}
