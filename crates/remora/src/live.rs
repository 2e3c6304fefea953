//! The device at work: what the threads that drive it share, and how it ends.
//!
//! The thread that polls takes steps of [`driver`](crate::driver); when none polls, the thread of
//! [`background`](crate::background) does.

use std::net::IpAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;

use remora_nic::qp::Mtu;

use crate::background::signals::Background;
use crate::driver::{Clock, Driver};
use crate::memory::Buffer;
use crate::wakes::Wakes;

/// A device's address, port and path MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Its address, from which its GID follows.
    pub address: IpAddr,
    /// Its UDP port.
    pub port: u16,
    /// The largest path MTU of its link.
    pub mtu: Mtu,
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
    pub(crate) socket: OwnedFd,
    pub(crate) info: DeviceInfo,
    /// Device memory; the card gives out its parts. Dropped after the driver.
    pub(crate) _own_memory: Buffer,
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
        // Packets that are ready still leave: a last acknowledge, a disconnect.
        let mut driver = self.shared.lock();
        driver.settle();
        driver.recorder.flush();
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

    /// Drives the card one step in the calling thread; returns whether there was anything to do.
    #[inline(always)]
    pub(crate) fn progress(&self, driver: &mut Driver) -> bool {
        let before = driver.packets_moved();
        let moved = driver.spin();
        self.background.note_poll(driver, driver.packets_moved() - before);
        moved
    }

    /// Sends what became due, and wakes the background thread for what is left or comes later.
    pub(crate) fn after_command(&self, driver: &mut Driver) {
        let before = driver.packets_moved();
        driver.transmit_answer(self.background.rests());
        driver.dispatch_events();
        self.background.note_attention(0, driver.packets_moved() - before);
        if driver.has_more() {
            self.background.more_to_do();
        } else {
            self.background.due(driver.nic.poll_timeout());
        }
    }

    pub(crate) fn socket_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
