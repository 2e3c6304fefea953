//! What is done when the process ends: peers are told, packets that are ready leave, files go.
//!
//! A program may call `exit` anywhere, even in a signal's handler that has interrupted this library
//! or the allocator. The thread that ends the process may then hold any lock, for ever. So it takes
//! none and allocates nothing: it asks another thread, which sleeps from the first step that is
//! registered on, and waits for it [`PATIENCE`] at most. What that thread cannot do by then is left
//! undone: peers notice by themselves that this process is gone.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;
use std::{io, ptr};

use remora::threads::without_signals;

use crate::process;

/// How long the end of a process waits for the steps to be taken.
const PATIENCE: Duration = Duration::from_secs(1);

/// The steps of this process, and what its two threads tell each other.
#[derive(Debug, Default)]
struct Farewell {
    /// The generation of the process that made it: a forked child has no such thread.
    generation: u32,
    steps: Mutex<Vec<fn()>>,
    thread: OnceLock<Thread>,
    asked: AtomicBool,
    said: AtomicBool,
}

/// The farewell of the process that last registered a step.
static CURRENT: AtomicPtr<Farewell> = AtomicPtr::new(ptr::null_mut());
static AT_EXIT: AtomicBool = AtomicBool::new(false);

/// Has `step` done when the process ends, before the steps that were registered earlier. It runs in
/// a thread of this library, and other threads may still use the library meanwhile.
pub(crate) fn at_exit(step: fn()) {
    let farewell = process::current().shared::<Made>().0.get_or_init(Farewell::make).clone();
    farewell.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
}

/// This process's farewell, once it is made.
#[derive(Debug, Default)]
struct Made(OnceLock<Arc<Farewell>>);

impl Farewell {
    fn make() -> Arc<Farewell> {
        let made = Arc::new(Farewell { generation: process::generation(), ..Farewell::default() });
        if let Err(error) = made.start() {
            tracing::warn!(%error, "cannot start a thread; peers will not be told of the end");
            return made;
        }
        // The static never lets go of it.
        CURRENT.store(Arc::into_raw(made.clone()).cast_mut(), Ordering::Release);
        if !AT_EXIT.swap(true, Ordering::Relaxed) {
            // SAFETY: the handler is a function without captures, and the library stays loaded: it
            // is linked with `-z nodelete`.
            unsafe { libc::atexit(say) };
        }
        made
    }

    fn start(self: &Arc<Farewell>) -> io::Result<()> {
        let farewell = self.clone();
        let named = thread::Builder::new().name("remora-exit".into());
        let thread = without_signals(|| named.spawn(move || farewell.take_steps()))?;
        self.thread.get_or_init(|| thread.thread().clone());
        Ok(())
    }

    /// The thread's life.
    fn take_steps(&self) {
        while !self.asked.load(Ordering::Acquire) {
            thread::park();
        }
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for step in steps.iter().rev() {
            step();
        }
        self.said.store(true, Ordering::Release);
    }
}

/// Runs in the thread that ends the process.
extern "C" fn say() {
    // SAFETY: nothing that the pointer was ever set to is freed.
    let Some(farewell) = (unsafe { CURRENT.load(Ordering::Acquire).as_ref() }) else { return };
    if farewell.generation != process::generation() {
        return;
    }
    farewell.asked.store(true, Ordering::Release);
    if let Some(thread) = farewell.thread.get() {
        thread.unpark();
    }
    let (mut waited, mut nap) = (Duration::ZERO, Duration::from_micros(50));
    while !farewell.said.load(Ordering::Acquire) && waited < PATIENCE {
        thread::sleep(nap);
        waited += nap;
        nap = (nap * 2).min(Duration::from_millis(1));
    }
}
