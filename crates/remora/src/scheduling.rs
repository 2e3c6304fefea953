//! What the background thread asks the system's scheduler for.

use std::io;
use std::time::Duration;

/// The shortest turn that Linux grants.
const TURN: Duration = Duration::from_micros(100);

/// Asks for precise timers and short turns of the calling thread, the background thread; or, with
/// `real_time`, for real-time priority.
///
/// # Errors
/// The thread may not have real-time priority. Without `real_time` there are no errors.
pub(crate) fn ask(real_time: bool) -> io::Result<()> {
    make_naps_short();
    if real_time {
        return go_before_all_others();
    }
    ask_for_short_turns();
    Ok(())
}

/// Lets the calling thread wake up when its timer is due, and not up to 50 µs later.
fn make_naps_short() {
    // SAFETY: the call takes numbers only, and concerns this thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
}

/// Lets the calling thread run soon after it wakes, even if a program's threads keep all processors
/// busy (by watching memory, say): the scheduler prefers threads that ask for short turns. Linux
/// before 6.12 ignores this.
fn ask_for_short_turns() {
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    // SAFETY: the call takes numbers only, and concerns this thread.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime: TURN.as_nanos() as u64,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the structure is as long as it says and lives through the call, which only reads it.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), "turns stay long");
    }
}

/// Does the calling thread have real-time priority, so that no ordinary thread runs on a core while
/// it wants it?
pub(crate) fn is_first() -> bool {
    // SAFETY: the call takes a number only, and concerns this thread.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE)
}

/// Puts the calling thread before every ordinary thread of the machine: it runs as soon as it has
/// work. (A larger share of the processor is not enough: even with a niceness of -15, a thread
/// waits for milliseconds until the turn of another thread ends.)
///
/// # Errors
/// The process has neither `CAP_SYS_NICE` nor a limit of real-time priority above zero.
fn go_before_all_others() -> io::Result<()> {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure lives through the call, which only reads it, and concerns this thread.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
