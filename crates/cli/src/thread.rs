//! Starting threads. Containers and users have limits on them, so each start may fail.

use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use anyhow::{Context, Result};

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
    Builder::new().name(name.into()).spawn(work).context(HELP)
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
    Builder::new().name(name.into()).spawn_scoped(scope, work).context(HELP)
}
