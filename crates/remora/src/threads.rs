//! How threads of this project are started: with signals blocked.
//!
//! The kernel hands a signal of the process to any thread that does not block it. An application
//! that takes its signals by `sigwait` or `signalfd`, or by handlers in certain threads, blocks
//! them in the threads that it knows of. It knows of none that a library starts.

use std::mem::MaybeUninit;
use std::ptr;

/// Signals that the processor raises in the thread that has made a mistake. A thread that blocks
/// them would end the process without the application's handler having run.
const OF_THE_THREAD: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Calls `start`, which starts threads: they block all signals of the process for as long as they
/// live. The calling thread blocks them during the call.
///
/// ```
/// use remora::threads::without_signals;
///
/// let thread = without_signals(|| std::thread::Builder::new().spawn(|| 7))?;
/// assert_eq!(thread.join().unwrap(), 7);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    let _until_the_end = Blocked::new();
    start()
}

/// Signals stay blocked in this thread until this is dropped.
struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn new() -> Blocked {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the calls write whole sets into the places that they are given, which live
        // through them. None of them can fail, because the arguments are valid.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in OF_THE_THREAD {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Blocked { before: before.assume_init() }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is that of this thread from before, and lives through the call.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that the calling thread blocks, as the kernel shows them: bit 0 is signal 1.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn a_thread_blocks_what_is_sent_to_the_process_and_its_parent_blocks_nothing_new() {
        let bit = |signal: libc::c_int| 1_u64 << (signal - 1);
        let before = blocked();
        let there = without_signals(|| std::thread::spawn(blocked)).join().unwrap();
        for signal in [libc::SIGUSR2, libc::SIGTERM, libc::SIGINT, libc::SIGALRM, libc::SIGCHLD] {
            assert_ne!(there & bit(signal), 0, "{signal}");
        }
        for signal in OF_THE_THREAD {
            assert_eq!(there & bit(signal), 0, "{signal}");
        }
        assert_eq!(blocked(), before);
    }
}
