//! The device at work: what the threads that drive it share, and how it ends.
//!
//! The thread that polls takes steps of [`driver`](crate::driver); when none polls, the thread of
//! [`background`](crate::background) does.

use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use remora_nic::qp::Mtu;

use crate::background::signals::Background;
use crate::driver::{Clock, Own};
use crate::either::Driver;
use crate::event_loop::Look;
use crate::event_queue::EventQueue;
use crate::fabric::Sleep;
use crate::own_memory::OwnMemory;
use crate::scheduling;
use crate::wakes::Wakes;
use crate::yielding::Yielding;

/// How long a thread of real-time priority that polls leaves its core to the card's process at a
/// time: that does a few requests in it.
const NAP: Duration = Duration::from_micros(20);

/// A device's address, port and path MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Its address, from which its GID follows.
    pub address: IpAddr,
    /// Its UDP port.
    pub port: u16,
    /// The largest path MTU of its link.
    pub mtu: Mtu,
    /// Its user has named the address ([`DeviceOptions::bind`](crate::DeviceOptions::bind));
    /// otherwise it is a free one of loopback.
    pub is_named: bool,
}

/// The device and its background thread; every object of the device holds it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Option<thread::JoinHandle<()>>,
}

/// What the threads that drive a device share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) driver: Mutex<Driver>,
    /// Threads that wait for the driver's lock.
    pub(crate) waiting: AtomicU32,
    pub(crate) background: Background,
    /// The driver's clock, to be read without its lock.
    pub(crate) clock: Clock,
    /// News for tasks that wait.
    pub(crate) wakes: Arc<Wakes>,
    /// The card's socket, or the descriptor that wakes the client of another process's card.
    pub(crate) socket: OwnedFd,
    /// Readable when a card of this machine has something to say; see [`crate::fabric`].
    pub(crate) links: Option<OwnedFd>,
    /// For the thread that sleeps on `links`.
    pub(crate) sleep: Arc<Sleep>,
    pub(crate) info: DeviceInfo,
    pub(crate) yielding: Yielding,
    /// Readable when another process has posted to a card that sleeps.
    pub(crate) doorbells: OnceLock<OwnedFd>,
    /// The background thread goes before all others, and so leaves the card to no event loop.
    pub(crate) real_time: bool,
    /// Device memory; the card gives out its parts. Dropped after the driver.
    pub(crate) _own_memory: Option<OwnMemory>,
}

impl Deref for Live {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shared.background.stop();
        if let Some(thread) = self.thread.take() {
            // If the background thread itself drops the last handle, it ends by itself.
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("the card's background thread has panicked");
            }
        }
        self.shared.lock().finish();
    }
}

/// A thread sleeps, and drives no card, until this is dropped.
struct Asleep<'a>(&'a Shared);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.lock().own().event_loop.wakes();
    }
}

impl Shared {
    /// Locks the driver, to drive or command it. A thread that panicked under the lock leaves the
    /// card whole, since the card's own commands do not stop half-way.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Driver> {
        self.try_lock().unwrap_or_else(|| {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            driver
        })
    }

    /// Does a thread wait for the lock?
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// As [`Shared::lock`], for a caller that must not wait.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Driver>> {
        match self.driver.try_lock() {
            Ok(driver) => Some(driver),
            Err(TryLockError::Poisoned(whole)) => Some(whole.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Commands the card, sends what became due, and tells the background thread of timers.
    pub(crate) fn command<R>(&self, act: impl FnOnce(&mut Driver) -> R) -> R {
        let mut driver = self.lock();
        let result = act(&mut driver);
        self.after_command(&mut driver);
        result
    }

    /// As [`Shared::command`], for what only the process's own card does.
    pub(crate) fn command_own<R>(&self, act: impl FnOnce(&mut Own) -> R) -> R {
        self.command(|driver| act(driver.own()))
    }

    /// Drives the card one step in the calling thread; returns whether there was anything to do.
    #[inline(always)]
    pub(crate) fn progress(&self, driver: &mut Driver) -> bool {
        match driver {
            Driver::Own(own) => self.progress_of(own),
            Driver::Attached(attached) => {
                let (found, idle) = attached.look();
                self.yielding.note(idle);
                found
            }
        }
    }

    #[inline(always)]
    fn progress_of(&self, driver: &mut Own) -> bool {
        let before = driver.packets_moved();
        let moved = driver.spin();
        self.yielding.note(driver.idle());
        self.background.note_poll(driver, driver.packets_moved() - before);
        moved
    }

    /// The calling thread's poll has found nothing. It gives its core away, if that pays. It holds
    /// no lock.
    #[inline]
    pub(crate) fn found_nothing(&self) {
        self.yielding.found_nothing(|| {
            if self.yielding.is_attached() && scheduling::is_first() {
                // A yield gives the core to equals only, and the card's process may be none.
                thread::sleep(NAP);
                return Duration::ZERO;
            }
            let before = self.clock.now();
            thread::yield_now();
            self.clock.now().since(before)
        });
    }

    /// Drives the card one step, after a poll that found nothing, in the place of the event loop
    /// that has just done so if one drives the card; returns whether there was anything to do.
    #[inline(always)]
    pub(crate) fn progress_for_poll(&self, driver: &mut Driver) -> bool {
        let Driver::Own(driver) = driver else { return self.progress(driver) };
        driver.unsent.streak = 0;
        if !driver.event_loop.found_nothing() {
            return self.progress_of(driver);
        }
        self.yielding.note(0);
        if !driver.event_loop.expects_more() && (driver.unsent.posts > 0 || driver.has_more()) {
            self.after_command_of(driver);
        }
        false
    }

    /// A poll has taken entries from completion queue `cq`.
    #[inline]
    pub(crate) fn found(&self, driver: &mut Driver, cq: u32) {
        let Driver::Own(driver) = driver else { return };
        if driver.event_loop.drives() {
            driver.event_loop.found(driver.cq_len(cq).is_some_and(|left| left > 0));
            self.flush_for_loop(driver);
        }
    }

    /// Sends what the event loop has posted, unless it is known to come back with more.
    fn flush_for_loop(&self, driver: &mut Own) {
        if driver.unsent.posts > 0 && !driver.event_loop.expects_more() {
            self.after_command_of(driver);
        }
    }

    /// A completion queue was armed. Unless an event loop drives the card, the thread that armed is
    /// about to sleep: what was kept back is sent, and the background thread works at once.
    pub(crate) fn armed(&self, driver: &mut Driver) {
        let Driver::Own(driver) = driver else { return self.after_command(driver) };
        if driver.event_loop.drives() {
            driver.event_loop.armed();
            self.flush_for_loop(driver);
            driver.dispatch_events();
        } else {
            self.after_command_of(driver);
            self.background.take_over();
        }
    }

    /// Waits for an event of `events`: `note` sees it under the queue's lock. The background thread
    /// drives the card meanwhile.
    ///
    /// # Errors
    /// Those of [`EventQueue::wait`].
    pub(crate) fn wait_for<E, R>(
        &self,
        events: &EventQueue<E>,
        note: impl Fn(E) -> R,
    ) -> io::Result<R> {
        let mut driver = self.lock();
        let Some(own) = driver.as_own() else {
            drop(driver);
            return events.wait(note);
        };
        own.sleeps();
        self.leave(own);
        drop(driver);
        // The thread may be cancelled meanwhile, which drops this too.
        let _until_it_wakes = Asleep(self);
        events.wait(note)
    }

    /// The calling thread is about to sleep, and not to poll: what was kept back is sent, and the
    /// background thread works at once.
    fn leave(&self, driver: &mut Own) {
        self.background.set_by_loop(false);
        if driver.unsent.posts > 0 {
            self.after_command_of(driver);
        }
        self.background.take_over();
    }

    /// Takes an event of `events`, which had none at the last look: `note` sees it under the
    /// queue's lock. An event loop drives the card here: see [`event_loop`](crate::event_loop).
    pub(crate) fn look_for<E, R>(
        &self,
        events: &EventQueue<E>,
        note: impl FnOnce(E) -> R,
    ) -> Option<R> {
        let mut guard = self.lock();
        let Some(driver) = guard.as_own() else {
            guard.dispatch_events();
            drop(guard);
            return events.pop(note);
        };
        let look = if self.real_time { Look::Leave } else { driver.look(events.alarm()) };
        match look {
            Look::Drive => self.background.set_by_loop(true),
            Look::GoOn => {
                self.flush_for_loop(driver);
                return None;
            }
            Look::Leave => {
                self.leave(driver);
                return None;
            }
        }
        let looking = events.looking();
        let more = self.turn(driver);
        driver.event_loop.end_turn(!events.is_empty());
        drop(guard);
        let event = events.pop(note);
        drop(looking);
        if more {
            events.alarm().ring();
        }
        event
    }

    /// Takes the card from the event loop that drives it, if one does.
    pub(crate) fn end_loop(&self, driver: &mut Own) {
        driver.end_loop();
        self.background.set_by_loop(false);
    }

    /// A turn of the event loop that drives the card. Returns whether the loop has to come back
    /// without being woken.
    fn turn(&self, driver: &mut Own) -> bool {
        let before = driver.packets_moved();
        driver.event_loop.begin_turn();
        let more = driver.turn();
        self.background.note_turn(driver, driver.packets_moved() - before);
        if driver.is_blocked() {
            // An event loop does not wait until a socket has room.
            self.end_loop(driver);
            self.background.take_over();
            return false;
        }
        if driver.packets_moved() == before || driver.arriving.is_some() {
            // The loop sleeps now, or soon; and what is held on purpose goes on in its time.
            self.background.due(driver.poll_timeout());
        }
        more
    }

    /// Sends what became due, and wakes the background thread for what is left or comes later.
    #[inline]
    pub(crate) fn after_command(&self, driver: &mut Driver) {
        match driver {
            Driver::Own(own) => self.after_command_of(own),
            Driver::Attached(attached) => attached.kick(),
        }
    }

    /// As [`Shared::after_command`], for the process's own card.
    pub(crate) fn after_command_of(&self, driver: &mut Own) {
        let before = driver.packets_moved();
        driver.transmit_answer(self.background.rests());
        driver.publish();
        driver.dispatch_events();
        self.background.note_attention(0, driver.packets_moved() - before);
        if std::mem::take(&mut driver.regrouped) {
            self.background.wake();
        } else if driver.has_more() {
            self.background.more_to_do();
        } else if !driver.event_loop.drives() || driver.arriving.is_some() {
            self.background.due(driver.poll_timeout());
        }
    }

    /// The descriptors that are readable when packets have come, those of multicast groups apart.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.socket.as_fd()).chain(self.links.as_ref().map(|links| links.as_fd()))
    }
}
