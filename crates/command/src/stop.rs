//! The ways to tell a command to stop: Ctrl-C, `kill`, the end of its parent.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::thread;

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

/// What can be read after a SIGINT or SIGTERM. A second signal ends the process at once.
pub fn signals() -> Result<UnixStream> {
    let failed = "cannot listen for signals";
    let (read, write) = UnixStream::pair().context(failed)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let told = write.try_clone().context(failed)?;
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .and_then(|_| signal_hook::low_level::pipe::register(signal, told))
            .context(failed)?;
    }
    Ok(read)
}

/// Sets `stop` when standard input closes: the parent, which holds the other end, has died or no
/// longer needs this process.
pub fn on_end_of_input(stop: Arc<AtomicBool>) -> Result<()> {
    let watch = move || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|n| n > 0) {}
        stop.store(true, Ordering::Relaxed);
    };
    thread::spawn("parent", watch)?;
    Ok(())
}
