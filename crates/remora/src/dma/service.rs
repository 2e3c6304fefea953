//! An engine with a thread of its own, as a daemon has.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{hint, io};

use rustix::event::epoll;

use super::channel::{Channel, ChannelOptions};
use super::engine::{Engine, EngineError};
use crate::event::{Event, wake};
use crate::threads::without_signals;

/// How long the thread looks for work before it sleeps. To wake it takes some 30 µs.
const PATIENCE: Duration = Duration::from_micros(50);
/// Looks between two looks at the clock.
const LOOKS: u32 = 256;
/// How long the end of a service waits for the engine, which is not in a call if it comes so soon.
const FAREWELL: Duration = Duration::from_millis(100);

/// An engine that a thread drives. Dropping it ends the thread and the engine; but if that is in a
/// call for an application's memory, which may last for ever, they end behind the call.
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
    /// Callers that want the engine for a command. Its thread lets them go first: a lock that is
    /// taken again at once would keep them waiting.
    wanted: AtomicU32,
    /// That of the channels of this process.
    doorbell: Arc<Event>,
    /// All doorbells, to sleep on: by edges, so that nobody needs to take what was rung, and what
    /// another process does to its doorbell harms only itself.
    doorbells: OwnedFd,
    stop: AtomicBool,
}

impl Service {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system starts no more threads, or has no more descriptors.
    pub fn start(engine: Engine) -> io::Result<Service> {
        let doorbell = Arc::new(Event::new()?);
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            wanted: AtomicU32::new(0),
            doorbell,
            doorbells: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            stop: AtomicBool::new(false),
        });
        shared.watch(&shared.doorbell)?;
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
        self.wake();
        opened
    }

    /// The engine, for its commands. Its thread waits meanwhile. A caller that has the engine serve
    /// a ring [wakes](Service::wake) the thread behind that.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.shared.wanted.fetch_add(1, Ordering::SeqCst);
        let engine = self.shared.lock();
        self.shared.wanted.fetch_sub(1, Ordering::SeqCst);
        engine
    }

    /// The engine, if its thread lets it go soon: in so long at the latest, or at once if it does
    /// nothing. It does not while a call for an application's memory lasts, which may be for ever.
    pub fn engine_within(&self, patience: Duration) -> Option<MutexGuard<'_, Engine>> {
        let (start, shared) = (Instant::now(), &self.shared);
        shared.wanted.fetch_add(1, Ordering::SeqCst);
        let engine = loop {
            match shared.engine.try_lock() {
                Ok(engine) => break Some(engine),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if start.elapsed() >= patience => break None,
                Err(TryLockError::WouldBlock) => thread::yield_now(),
            }
        };
        shared.wanted.fetch_sub(1, Ordering::SeqCst);
        engine
    }

    /// Wakes the thread: it may sleep, and a new ring says that it does not.
    pub fn wake(&self) {
        wake(&self.shared.doorbell);
    }

    /// A doorbell for another process, whose channels notify it while the engine sleeps. It is
    /// watched until nobody has it open.
    ///
    /// # Errors
    /// The process or the system has too many open files.
    pub fn new_doorbell(&self) -> io::Result<Event> {
        let doorbell = Event::new()?;
        self.shared.watch(&doorbell)?;
        Ok(doorbell)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        wake(&self.shared.doorbell);
        // The engine's thread takes no step any more once the caller has had the engine.
        if self.engine_within(FAREWELL).is_none() {
            return tracing::warn!("a DMA engine in a call for memory ends behind that");
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of a DMA engine has panicked");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, doorbell: &Event) -> io::Result<()> {
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        Ok(epoll::add(&self.doorbells, doorbell, data, flags | epoll::EventFlags::ET)?)
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
            while self.wanted.load(Ordering::SeqCst) > 0 {
                thread::yield_now();
            }
            let mut engine = self.lock();
            if self.stop.load(Ordering::Acquire) {
                return false;
            }
            if engine.step_while(|| self.wanted.load(Ordering::Relaxed) == 0) {
                return true;
            }
            drop(engine);
            hint::spin_loop();
        }
        false
    }

    /// Sleeps until the doorbell rings, unless there is work after all.
    fn sleep(&self) {
        let works = {
            let mut engine = self.lock();
            engine.set_asleep(true);
            !self.stop.load(Ordering::Acquire) && engine.step()
        };
        if !works && !self.stop.load(Ordering::Acquire) {
            let mut rung = Vec::with_capacity(16);
            // An interrupted wait only ends the sleep early.
            epoll::wait(&self.doorbells, rustix::buffer::spare_capacity(&mut rung), None).ok();
        }
        self.lock().set_asleep(false);
    }
}
