//! What the background thread and the application's threads tell each other.
//!
//! The module above says why no wake-up is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use remora_nic::Time;

use crate::driver::Own;
use crate::event::Event;

/// This many polls between two looks of the background thread mean that the application polls. One
/// or two come from an application that sleeps on a channel and was woken.
const POLLS: u32 = 8;
/// How many packets that an application moves itself count as one poll. An application that streams
/// long messages sends packets as it posts, and nearly each of its polls finds completions without
/// driving the card. Eight times as many packets take less than [`LOOK_IN_MIN`](super), even where
/// packets are long.
const PACKETS_A_POLL: u32 = 16;
/// The value of [`Background::attention`] that leaves the card to the application.
const ENOUGH: u32 = POLLS * PACKETS_A_POLL;

/// How long a post is kept back, unless the application polls before.
pub(crate) const UNSENT_FOR: Duration = Duration::from_micros(100);

/// Values of [`Background::doing`].
pub(super) const RESTING: u32 = 0;
pub(super) const SLEEPING: u32 = 1;

/// What the background thread and the application's threads tell each other.
#[derive(Debug)]
pub(crate) struct Background {
    /// Packets that applications have moved since the thread last looked, and as many as
    /// [`PACKETS_A_POLL`] for each empty-handed poll. Only an estimate: increments may be lost.
    attention: AtomicU32,
    /// Does the thread leave the work to the threads that poll, or is it ready to work, perhaps
    /// asleep on the socket?
    pub(super) doing: AtomicU32,
    /// When the thread wakes without being woken, in the card's time.
    pub(super) wakes_at: AtomicU64,
    /// Wakes it earlier.
    pub(crate) wake: Arc<Event>,
    /// An event loop drives the card. Written under the driver's lock.
    by_loop: AtomicBool,
    /// A thread has said that it sleeps: see [`Background::take_over`].
    asked: AtomicBool,
    /// Turns of event loops so far. Only an estimate: increments may be lost.
    turns: AtomicU32,
    /// How often posts began to be kept back.
    pub(super) kept_back: AtomicU32,
    /// The device is closed.
    pub(crate) stop: AtomicBool,
}

impl Background {
    /// `wake` wakes the thread.
    pub(crate) fn new(wake: Arc<Event>) -> Background {
        Background {
            attention: AtomicU32::new(0),
            doing: AtomicU32::new(RESTING),
            wakes_at: AtomicU64::new(0),
            wake,
            by_loop: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            turns: AtomicU32::new(0),
            kept_back: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Notes that an application thread has driven the card inline, by a poll that found nothing
    /// and moved `moved` packets. If the background thread sleeps on the socket, it is woken at
    /// once for what is left over (an acknowledge to send, say), since another poll may not come.
    /// After enough polls it is woken to leave the work to the application and look in later.
    #[inline(always)]
    pub(crate) fn note_poll(&self, driver: &Own, moved: u64) {
        self.tell(driver);
        self.note_attention(1, moved);
    }

    /// As [`Background::note_poll`], for a turn of an event loop, which counts as many polls: the
    /// loop sleeps where others poll.
    pub(crate) fn note_turn(&self, driver: &Own, moved: u64) {
        self.tell(driver);
        let turns = self.turns.load(Ordering::Relaxed);
        self.turns.store(turns.wrapping_add(1), Ordering::Relaxed);
        self.note_attention(POLLS, moved);
    }

    /// Wakes the thread, if it sleeps on the socket, for what is left over or comes earlier than it
    /// knows.
    #[inline(always)]
    fn tell(&self, driver: &Own) {
        if !self.rests() {
            if driver.has_more() {
                self.wake();
            } else {
                self.due(driver.poll_timeout());
            }
        }
    }

    /// Does an event loop drive the card?
    pub(crate) fn by_loop(&self) -> bool {
        self.by_loop.load(Ordering::Relaxed)
    }

    /// Whether an event loop drives the card from now on.
    pub(crate) fn set_by_loop(&self, by_loop: bool) {
        if by_loop && !self.by_loop() {
            // By the loop itself, before it was given the card.
            self.asked.store(false, Ordering::Relaxed);
        }
        self.by_loop.store(by_loop, Ordering::Relaxed);
    }

    /// Has a thread asked since the last call that the card be driven while it sleeps?
    pub(super) fn was_asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }

    /// How many turns event loops have taken so far.
    pub(super) fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Notes `polls` empty-handed polls, and `moved` packets that an application thread has moved
    /// in polls or after posts.
    #[inline(always)]
    pub(crate) fn note_attention(&self, polls: u32, moved: u64) {
        let before = self.attention.load(Ordering::Relaxed);
        if before < ENOUGH {
            // No step moves more than a few thousand packets, so this does not overflow.
            let after = before + polls * PACKETS_A_POLL + moved as u32;
            self.attention.store(after, Ordering::Relaxed);
            if after >= ENOUGH && !self.rests() {
                self.wake();
            }
        }
    }

    /// A thread that polled is about to sleep: the background thread is to work at once.
    pub(crate) fn take_over(&self) {
        self.attention.store(0, Ordering::Relaxed);
        self.asked.store(true, Ordering::Relaxed);
        if self.doing.load(Ordering::Relaxed) == RESTING {
            self.wake();
        }
    }

    /// Does the thread leave the work to the threads that poll? It looks in within
    /// [`LOOK_IN_MAX`](super).
    pub(crate) fn rests(&self) -> bool {
        self.doing.load(Ordering::Relaxed) == RESTING
    }

    /// There is more to do than a command has done: wakes the thread, unless it leaves the work to
    /// the threads that poll and will be back soon. (No command sends a message of 1 MiB in one
    /// go. If each such message woke the thread to drive, that would take a tenth of a program's
    /// time where both have one core.)
    pub(crate) fn more_to_do(&self) {
        if !self.rests() {
            self.wake();
        }
    }

    /// The first of some posts is kept back, and is to be sent at `at`.
    pub(crate) fn keep_back(&self, at: Time) {
        self.kept_back.fetch_add(1, Ordering::Release);
        self.due(at);
    }

    /// Work is due at `at`, of which the thread may not know.
    pub(crate) fn due(&self, at: Time) {
        if at.0 < self.wakes_at.load(Ordering::Acquire) {
            // One wake-up is enough: until the thread runs, no other is needed for the same time.
            self.wakes_at.store(at.0, Ordering::Release);
            self.wake();
        }
    }

    /// Wakes the thread, to look for work.
    pub(crate) fn wake(&self) {
        crate::event::wake(&self.wake);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Have application threads polled since the last call, often enough to be left the work?
    pub(super) fn others_poll(&self) -> bool {
        self.attention.swap(0, Ordering::Relaxed) >= ENOUGH
    }
}
