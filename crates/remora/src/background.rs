//! The background thread: drives the card while no application thread does.
//!
//! Two busy processes on two cores must not fight their own background threads. So the thread only
//! looks in, every few milliseconds, as long as somebody polls; when it finds that nobody has, it
//! sleeps on the socket and handles what comes at once, until somebody polls again.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use remora_nic::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::Shared;
use crate::driver::Driver;
use crate::event::Event;

/// How soon after the last poll the thread takes over, at least and at most.
const LOOK_IN_MIN: Duration = Duration::from_millis(1);
const LOOK_IN_MAX: Duration = Duration::from_millis(4);
/// Steps in a row before the lock is given up for others.
const STEPS: usize = 64;

/// Polls since the thread last looked that count as somebody polling. One or two are what an
/// application does that sleeps on a channel and was woken.
const POLLS: u32 = 8;

/// What the thread is doing.
const RESTING: u32 = 0;
const SLEEPING: u32 = 1;

/// What the background thread and the others tell each other.
#[derive(Debug)]
pub(crate) struct Background {
    /// Empty-handed polls since the thread last looked. Only an estimate: increments may be lost.
    polls: AtomicU32,
    /// Leaving the work to those who poll, or asleep on the socket, ready to work?
    doing: AtomicU32,
    /// When the thread will wake by itself, in the card's time.
    wakes_at: AtomicU64,
    /// Wakes it earlier.
    wake: Event,
    /// The device is closed.
    stop: AtomicBool,
}

impl Background {
    pub(crate) fn new() -> std::io::Result<Background> {
        Ok(Background {
            polls: AtomicU32::new(0),
            doing: AtomicU32::new(RESTING),
            wakes_at: AtomicU64::new(0),
            wake: Event::new()?,
            stop: AtomicBool::new(false),
        })
    }

    /// Somebody has driven the card inline. If the thread sleeps on the socket, it is woken once,
    /// to leave the work to whoever polls and look in later; and at once if something is left over
    /// (an acknowledge to send, say), since one poll does not mean that another comes.
    #[inline(always)]
    pub(crate) fn note_poll(&self, driver: &Driver) {
        if !self.rests() {
            if driver.has_more() || driver.nic.wants_transmit() {
                self.wake();
            } else {
                self.due(driver.nic.poll_timeout());
            }
        }
        let polls = self.polls.load(Ordering::Relaxed);
        if polls < POLLS {
            self.polls.store(polls + 1, Ordering::Relaxed);
            if polls + 1 == POLLS && !self.rests() {
                self.wake();
            }
        }
    }

    /// Whoever polled is about to sleep: the thread is to work at once.
    pub(crate) fn take_over(&self) {
        self.polls.store(0, Ordering::Relaxed);
        if self.doing.load(Ordering::Relaxed) == RESTING {
            self.wake();
        }
    }

    /// Does the thread leave the work to those who poll? It looks in a few milliseconds later.
    pub(crate) fn rests(&self) -> bool {
        self.doing.load(Ordering::Relaxed) == RESTING
    }

    /// Something is due at `at` that the thread may not know of.
    pub(crate) fn due(&self, at: Time) {
        if at.0 < self.wakes_at.load(Ordering::Acquire) {
            // Once is enough: until the thread runs, others need not wake it for the same.
            self.wakes_at.store(at.0, Ordering::Release);
            self.wake();
        }
    }

    /// Wakes the thread, to look at what there is to do.
    pub(crate) fn wake(&self) {
        crate::event::wake(&self.wake);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Has somebody polled since the last call?
    fn others_poll(&self) -> bool {
        self.polls.swap(0, Ordering::Relaxed) >= POLLS
    }
}

/// The thread's life; it ends when the device is closed.
pub(crate) fn run(shared: &Shared) {
    let mut look_in = LOOK_IN_MIN;
    while !shared.background.stop.load(Ordering::Acquire) {
        if shared.background.others_poll() {
            look_in = (look_in * 2).min(LOOK_IN_MAX);
            rest(shared, look_in);
            continue;
        }
        look_in = LOOK_IN_MIN;
        drive(shared);
    }
}

/// Lets whoever polls drive.
fn rest(shared: &Shared, time: Duration) {
    let wakes_at = {
        let driver = shared.lock();
        driver.now() + time
    };
    shared.background.wakes_at.store(wakes_at.0, Ordering::Release);
    shared.background.doing.store(RESTING, Ordering::Relaxed);
    // Nothing to do on failure but to look again.
    let _ = poll(&mut [PollFd::new(&shared.background.wake, PollFlags::IN)], Some(&spec(time)));
    shared.background.wake.drain().ok();
}

/// Drives the card until nothing moves, then sleeps until something does.
fn drive(shared: &Shared) {
    let (socket_wants, timeout) = {
        let mut driver = shared.lock();
        let mut steps = STEPS;
        while driver.progress() && steps > 0 {
            steps -= 1;
        }
        if let Err(error) = driver.flush_capture() {
            tracing::warn!(%error, "cannot write to the capture file");
        }
        if steps == 0 {
            return;
        }
        shared.background.doing.store(SLEEPING, Ordering::Relaxed);
        let due = driver.nic.poll_timeout();
        shared.background.wakes_at.store(due.0, Ordering::Release);
        let timeout = (due != Time::NEVER).then(|| due.since(driver.now()));
        let wants = if driver.is_blocked() { PollFlags::OUT } else { PollFlags::empty() };
        (PollFlags::IN | wants, timeout)
    };
    let mut fds = [
        PollFd::from_borrowed_fd(shared.socket_fd(), socket_wants),
        PollFd::new(&shared.background.wake, PollFlags::IN),
    ];
    let _ = poll(&mut fds, timeout.map(spec).as_ref());
    shared.background.wake.drain().ok();
}

fn spec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}
