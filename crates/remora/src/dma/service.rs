//! An engine with a thread of its own, as a daemon has.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{hint, io};

use rustix::event::{PollFd, PollFlags, poll};

use super::channel::{Channel, ChannelOptions};
use super::engine::{Engine, EngineError};
use crate::event::{Event, wake};
use crate::threads::without_signals;

/// How long the thread looks for work before it sleeps. To wake it takes some 30 µs.
const PATIENCE: Duration = Duration::from_micros(50);
/// Looks between two looks at the clock.
const LOOKS: u32 = 256;

/// An engine that a thread drives. Dropping it ends the thread and the engine.
///
/// ```
/// use remora::dma::*;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let card = CardMemory::new(Sizes { near: 1, far: 64 << 20 })?;
/// let service = Service::start(Engine::new(card.clone()))?;
/// let mut channel = service.open(ChannelOptions::new(Direction::HostToCard).interrupt())?;
/// channel.fill(0x0101_0101_0101_0101, Address::Card(0), 4096, Flags::empty())?;
/// channel.submit();
/// channel.wait(Duration::from_secs(10))?;
/// assert_eq!(channel.completed(1).count, 1);
/// assert_eq!(card.bytes().load_u64(4088)?, 0x0101_0101_0101_0101);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    engine: Mutex<Engine>,
    doorbell: Arc<Event>,
    stop: AtomicBool,
}

impl Service {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system starts no more threads, or has no more descriptors.
    pub fn start(engine: Engine) -> io::Result<Service> {
        let doorbell = Arc::new(Event::new()?);
        let engine = Mutex::new(engine);
        let shared = Arc::new(Shared { engine, doorbell, stop: AtomicBool::new(false) });
        let named = thread::Builder::new().name("remora-dma".into());
        let of_thread = shared.clone();
        let thread = without_signals(|| named.spawn(move || of_thread.run()))?;
        Ok(Service { shared, thread: Some(thread) })
    }

    /// Opens a channel, whose posts wake the thread.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn open(&self, options: ChannelOptions) -> Result<Channel, EngineError> {
        let opened = self.engine().open_with(options, Some(self.shared.doorbell.clone()));
        // It may sleep, and the new ring says that it does not.
        wake(&self.shared.doorbell);
        opened
    }

    /// The engine, for its commands. Its thread waits meanwhile.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.shared.lock()
    }

    /// What wakes the thread: a writer to a ring of another process notifies it while the
    /// engine sleeps.
    pub fn doorbell(&self) -> &Arc<Event> {
        &self.shared.doorbell
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        wake(&self.shared.doorbell);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of a DMA engine has panicked");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut idle_since = None;
        while !self.stop.load(Ordering::Acquire) {
            if self.looks() {
                idle_since = None;
                continue;
            }
            if idle_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                continue;
            }
            self.sleep();
            idle_since = None;
        }
    }

    /// Takes steps; returns whether there was work in any of them.
    fn looks(&self) -> bool {
        for _ in 0..LOOKS {
            if self.lock().step() {
                return true;
            }
            hint::spin_loop();
        }
        false
    }

    /// Sleeps until the doorbell rings, unless there is work after all.
    fn sleep(&self) {
        let works = {
            let mut engine = self.lock();
            engine.set_asleep(true);
            engine.step()
        };
        if !works && !self.stop.load(Ordering::Acquire) {
            let mut rung = [PollFd::new(&self.doorbell, PollFlags::IN)];
            // An interrupted wait only ends the sleep early.
            poll(&mut rung, None).ok();
        }
        self.lock().set_asleep(false);
        if let Err(error) = self.doorbell.drain() {
            tracing::error!(%error, "the doorbell of a DMA engine cannot be read");
        }
    }
}

impl AsFd for Service {
    /// The doorbell's descriptor, for another process.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }
}
