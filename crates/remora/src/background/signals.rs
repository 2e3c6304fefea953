//! What the background thread and the others tell each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use remora_nic::Time;

use crate::driver::Driver;
use crate::event::Event;

/// Polls since the thread last looked that count as somebody polling. One or two are what an
/// application does that sleeps on a channel and was woken.
const POLLS: u32 = 8;
/// Packets that an application moves itself which count as a poll: who streams long messages sends
/// them as it posts, and finds completions nearly whenever it looks. Eight times as many take less
/// than [`LOOK_IN_MIN`](super), even where packets are long.
const PACKETS_A_POLL: u32 = 16;
/// [`Background::attention`] that leaves the card to the application.
const ENOUGH: u32 = POLLS * PACKETS_A_POLL;

/// How long a post is kept back, unless somebody polls before.
pub(crate) const UNSENT_FOR: Duration = Duration::from_micros(100);

/// What the thread is doing.
pub(super) const RESTING: u32 = 0;
pub(super) const SLEEPING: u32 = 1;

/// What the background thread and the others tell each other.
#[derive(Debug)]
pub(crate) struct Background {
    /// Packets that applications have moved since the thread last looked, and as many as
    /// [`PACKETS_A_POLL`] for each empty-handed poll. Only an estimate: increments may be lost.
    attention: AtomicU32,
    /// Leaving the work to those who poll, or asleep on the socket, ready to work?
    pub(super) doing: AtomicU32,
    /// When the thread will wake by itself, in the card's time.
    pub(super) wakes_at: AtomicU64,
    /// Wakes it earlier.
    pub(super) wake: Arc<Event>,
    /// How often the first of some posts was kept back.
    pub(super) kept_back: AtomicU32,
    /// The device is closed.
    pub(super) stop: AtomicBool,
}

impl Background {
    /// `wake` wakes the thread.
    pub(crate) fn new(wake: Arc<Event>) -> Background {
        Background {
            attention: AtomicU32::new(0),
            doing: AtomicU32::new(RESTING),
            wakes_at: AtomicU64::new(0),
            wake,
            kept_back: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Somebody has driven the card inline. If the thread sleeps on the socket, it is woken once,
    /// to leave the work to whoever polls and look in later; and at once if something is left over
    /// (an acknowledge to send, say), since one poll does not mean that another comes.
    #[inline(always)]
    pub(crate) fn note_poll(&self, driver: &Driver, moved: u64) {
        if !self.rests() {
            if driver.has_more() {
                self.wake();
            } else {
                self.due(driver.nic.poll_timeout());
            }
        }
        self.note_attention(1, moved);
    }

    /// So many empty-handed polls, and packets moved in them or behind posts.
    #[inline(always)]
    pub(crate) fn note_attention(&self, polls: u32, moved: u64) {
        let before = self.attention.load(Ordering::Relaxed);
        if before < ENOUGH {
            // No step moves more than a few thousand.
            let after = before + polls * PACKETS_A_POLL + moved as u32;
            self.attention.store(after, Ordering::Relaxed);
            if after >= ENOUGH && !self.rests() {
                self.wake();
            }
        }
    }

    /// Whoever polled is about to sleep: the thread is to work at once.
    pub(crate) fn take_over(&self) {
        self.attention.store(0, Ordering::Relaxed);
        if self.doing.load(Ordering::Relaxed) == RESTING {
            self.wake();
        }
    }

    /// Does the thread leave the work to those who poll? It looks in within [`LOOK_IN_MAX`](super).
    pub(crate) fn rests(&self) -> bool {
        self.doing.load(Ordering::Relaxed) == RESTING
    }

    /// There is more to do than a command could: wakes the thread, unless it leaves the work to
    /// those who poll, and will be back soon. (To be woken for every message of 1 MiB, which no
    /// command sends in one go, and then to drive as nobody had polled in that moment, took it a
    /// tenth of a program's time where both have one core.)
    pub(crate) fn more_to_do(&self) {
        if !self.rests() {
            self.wake();
        }
    }

    /// A post is kept back, the first of some, and is to be sent at `at`.
    pub(crate) fn keep_back(&self, at: Time) {
        self.kept_back.fetch_add(1, Ordering::Release);
        self.due(at);
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
    pub(super) fn others_poll(&self) -> bool {
        self.attention.swap(0, Ordering::Relaxed) >= ENOUGH
    }
}
