//! The ways to tell a command to stop: Ctrl-C, `kill`, the end of its parent.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

/// A flag that becomes true at SIGINT or SIGTERM. A second signal ends the process at once.
pub fn on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order, because the first signal must find the flag false.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .context("cannot listen for signals")?;
    }
    Ok(stop)
}

/// Sets `stop` when standard input closes: the parent, which holds the other end, has died or no
/// longer needs this process.
pub fn on_end_of_input(stop: Arc<AtomicBool>) -> Result<()> {
    let watch = move || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|n| n > 0) {}
        stop.store(true, Ordering::Relaxed);
    };
    thread::Builder::new().name("parent".into()).spawn(watch).context("cannot start a thread")?;
    Ok(())
}
