//! Sleeping on descriptors, and what a program's signals do to a call that sleeps.

use core::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};

use libc::pollfd;
use remora::threads::BlockedSignals;

use crate::process;
use crate::rdmacm::{Errno, Result};

const EINTR: Errno = Errno(libc::EINTR);

/// What the handler of a signal does to a call that sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnSignal {
    /// It goes on, since it cannot be made again.
    GoOn,
    /// It ends with `EINTR` if the handler was installed without `SA_RESTART`, as `read` does. The
    /// thread may be cancelled, and so may that of the next.
    AsRead,
    /// It ends with `EINTR`, as `poll` does.
    AsPoll,
}

/// The entry of a descriptor that is waited for until it is readable.
pub(crate) fn readable(fd: RawFd) -> pollfd {
    pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Sleeps until a descriptor is ready, the time is over (`-1`: never), or a handler has run; the
/// caller looks again. Returns `false` if only the time is over.
pub(crate) fn sleep(fds: Vec<pollfd>, timeout_ms: c_int, on_signal: OnSignal) -> Result<bool> {
    take_over_cards();
    match on_signal {
        OnSignal::GoOn => poll(fds, timeout_ms).or_else(go_on),
        OnSignal::AsRead => poll_as_read(fds, timeout_ms),
        OnSignal::AsPoll => poll(fds, timeout_ms),
    }
}

/// While a thread sleeps, perhaps no other polls the cards.
pub(crate) fn take_over_cards() {
    for card in process::current().cards() {
        card.lock().take_over();
    }
}

/// The kernel restarts a `read` after a handler that asks for it, but no call that waits for
/// several descriptors, nor does it tell which handler has ended one. So signals are blocked while
/// this thread sleeps, and wake it; it looks how their handlers were installed, and lets them run.
fn poll_as_read(mut fds: Vec<pollfd>, timeout_ms: c_int) -> Result<bool> {
    let signals = BlockedSignals::new();
    let Ok(watch) = signals.watch() else {
        // Without a descriptor for it, it is not known whose handler has run.
        drop(signals);
        return poll(fds, timeout_ms);
    };
    fds.push(readable(watch.as_raw_fd()));
    // Some signals of the C library's own cannot be blocked.
    let slept = poll(fds, timeout_ms).or_else(go_on);
    let is_ended = signals.would_end_a_read();
    drop(signals);
    if is_ended { Err(EINTR) } else { slept }
}

fn poll(mut fds: Vec<pollfd>, timeout_ms: c_int) -> Result<bool> {
    // SAFETY: as many entries as there are.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    if ready < 0 { Err(Errno::last()) } else { Ok(ready > 0) }
}

fn go_on(error: Errno) -> Result<bool> {
    if error == EINTR { Ok(true) } else { Err(error) }
}
