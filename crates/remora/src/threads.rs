//! Threads that block signals: those of this project all their lives, an application's while it
//! sleeps in a call that says which handlers end it.
//!
//! The kernel hands a signal of the process to any thread that does not block it. An application
//! that takes its signals by `sigwait` or `signalfd`, or by handlers in certain threads, blocks
//! them in the threads that it knows of. It knows of none that a library starts.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{FromRawFd, OwnedFd};
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
    let _until_the_end = BlockedSignals::new();
    start()
}

/// Signals stay blocked in this thread until this is dropped; then the handlers run of those that
/// have come meanwhile. Signals that the processor raises are not blocked.
#[must_use]
pub struct BlockedSignals {
    before: libc::sigset_t,
    /// Those that were not blocked before.
    held: libc::sigset_t,
    /// It is of one thread.
    _thread: PhantomData<*const ()>,
}

impl BlockedSignals {
    /// Blocks signals in the calling thread.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> BlockedSignals {
        let (mut held, mut before) = (empty(), empty());
        // SAFETY: the calls read and write whole sets, which live through them. None of them can
        // fail, because the arguments are valid.
        unsafe {
            libc::sigfillset(&raw mut held);
            for signal in OF_THE_THREAD {
                libc::sigdelset(&raw mut held, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const held, &raw mut before);
            for signal in signals().filter(|signal| has(&before, *signal)) {
                libc::sigdelset(&raw mut held, signal);
            }
        }
        BlockedSignals { before, held, _thread: PhantomData }
    }

    /// A descriptor that is readable for this thread while a signal waits for it to be unblocked.
    ///
    /// # Errors
    /// The process or the system has too many open files.
    pub fn watch(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set lives through the call.
        let fd = unsafe { libc::signalfd(-1, &raw const self.held, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Would the signals that wait end a `read` with `EINTR`? The handler of one of them would, if
    /// it was installed without `SA_RESTART`.
    pub fn would_end_a_read(&self) -> bool {
        let mut waiting = empty();
        // SAFETY: the set lives through the call.
        unsafe { libc::sigpending(&raw mut waiting) };
        signals()
            .filter(|signal| has(&waiting, *signal) && has(&self.held, *signal))
            .any(ends_a_read)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is that of this thread from before, and lives through the call.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

impl fmt::Debug for BlockedSignals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(signals().filter(|signal| has(&self.held, *signal))).finish()
    }
}

/// Has the signal a handler that was installed without `SA_RESTART`?
fn ends_a_read(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call changes nothing, and writes to a place that lives through it; zeroes, which
    // stay if there is no such signal, are a value of the type.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    is_handled && action.sa_flags & libc::SA_RESTART == 0
}

/// The numbers of all signals.
fn signals() -> RangeInclusive<libc::c_int> {
    1..=libc::SIGRTMAX()
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call writes a whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn has(set: &libc::sigset_t, signal: libc::c_int) -> bool {
    // SAFETY: the set is whole; a number that is no signal's is in none.
    unsafe { libc::sigismember(set, signal) == 1 }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

    extern "C" fn does_nothing(_: libc::c_int) {}

    #[test]
    fn a_signal_ends_a_read_whose_handler_does_not_restart_it() {
        let handler = does_nothing as extern "C" fn(libc::c_int);
        for (flags, ends) in [(libc::SA_RESTART, false), (0, true)] {
            let blocked = BlockedSignals::new();
            let watch = blocked.watch().unwrap();
            let readable = || {
                let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&at_once)).unwrap() == 1
            };
            assert!(!readable() && !blocked.would_end_a_read());
            // SAFETY: the handler does nothing, and the value is whole.
            unsafe {
                let mut action = std::mem::zeroed::<libc::sigaction>();
                (action.sa_sigaction, action.sa_flags) = (handler as usize, flags);
                libc::sigaction(libc::SIGUSR2, &raw const action, ptr::null_mut());
                libc::raise(libc::SIGWINCH);
            }
            assert!(readable() && !blocked.would_end_a_read(), "the default is to ignore it");
            // SAFETY: it has a handler.
            unsafe { libc::raise(libc::SIGUSR2) };
            assert!(readable());
            assert_eq!(blocked.would_end_a_read(), ends);
            drop(blocked);
            assert!(!readable(), "the handlers have run");
        }
    }
}
