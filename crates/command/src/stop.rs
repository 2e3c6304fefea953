//! The ways to tell a command to stop: Ctrl-C, `kill`, the end of its parent.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use thiserror::Error;

use crate::thread;

/// How often an [`Input`] without bytes looks whether to stop.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A flag that becomes true at SIGINT or SIGTERM, or when the terminal closes. A second signal of
/// the first two ends the process at once.
pub fn on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order, because the first signal must find the flag false.
        signal_hook::flag::register_conditional_shutdown(signal, BY_SIGNAL.into(), stop.clone())
            .context(FAILED)?;
    }
    for signal in wanted() {
        signal_hook::flag::register(signal, stop.clone()).context(FAILED)?;
    }
    Ok(stop)
}

/// What can be read after a signal of [`on_signals`]; a second one ends the process as there.
pub fn signals() -> Result<UnixStream> {
    on_signals()?;
    let (read, write) = UnixStream::pair().context(FAILED)?;
    for signal in wanted() {
        let told = write.try_clone().context(FAILED)?;
        signal_hook::low_level::pipe::register(signal, told).context(FAILED)?;
    }
    Ok(read)
}

/// The exit status of a command that Ctrl-C has ended before its work was done.
pub const BY_SIGNAL: u8 = 130;

/// A command was told to stop before its work was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("stopped before its end")]
pub struct Interrupted;

const FAILED: &str = "cannot listen for signals";

/// The signals to listen for. A terminal that closes may send more than one SIGHUP, and is not
/// meant where SIGHUP is ignored, as by `nohup`.
fn wanted() -> impl Iterator<Item = i32> {
    [SIGINT, SIGTERM].into_iter().chain((!is_ignored(SIGHUP)).then_some(SIGHUP))
}

/// Has this process been started with a signal ignored?
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// A file or stream to read, such as standard input, until this process is told to stop.
#[derive(Debug)]
pub struct Input {
    file: File,
    stop: Arc<AtomicBool>,
}

impl Input {
    /// What `file` has, until `stop` is true.
    pub fn new(file: impl Into<File>, stop: Arc<AtomicBool>) -> Input {
        Input { file: file.into(), stop }
    }
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::other(Interrupted));
            }
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => {}
                _ => return self.file.read(bytes),
            }
        }
    }
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
