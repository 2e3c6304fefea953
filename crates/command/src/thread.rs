//! Starting threads, which leave signals to the main thread. Containers and users have limits on
//! them, so each start may fail.

use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use anyhow::{Context, Result};
use remora::threads::without_signals;

const HELP: &str = "cannot start a thread; if there is a limit on processes (ulimit -u, or the \
                    container's), raise it";

/// Starts a thread.
///
/// # Errors
/// The system starts no more threads.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let named = Builder::new().name(name.into());
    without_signals(|| named.spawn(work)).context(HELP)
}

/// Starts a thread that ends within `scope`.
///
/// # Errors
/// The system starts no more threads.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let named = Builder::new().name(name.into());
    without_signals(|| named.spawn_scoped(scope, work)).context(HELP)
}
