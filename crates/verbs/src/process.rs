//! The state of this process: its cards, and everything that handles point to.
//!
//! A card is opened when the program first asks for devices, and stays to the end of the process.
//! `REMORA_ADDR` says which cards: addresses or interfaces, separated by commas, or `auto` for a
//! free loopback address. An empty or missing variable means `auto`.
//!
//! # fork
//! A forked child has one thread, and may inherit locks that no thread will ever release. So the
//! child starts with an empty state: the handler below only sets a pointer to null and counts the
//! generation. The parent's state stays in memory, unreachable; the parent's handles are invalid in
//! the child. The child opens a card of its own, at another address, when it first asks for
//! devices.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::card::Card;
use crate::log;
use crate::pool::Pools;

/// The state of a process.
#[derive(Default)]
pub struct Process {
    pub(crate) cards: OnceLock<Vec<Card>>,
    pub(crate) pools: Pools,
    shared: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("cards", &self.cards).finish_non_exhaustive()
    }
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// The number of forks between the process that loaded this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static AT_FORK: AtomicBool = AtomicBool::new(false);

/// The generation of this process: see `GENERATION`.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The state of this process, if there is any yet.
#[inline]
pub(crate) fn existing() -> Option<&'static Process> {
    // SAFETY: no state that the pointer was ever set to is freed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// The state of this process, made if need be.
#[inline]
pub fn current() -> &'static Process {
    existing().unwrap_or_else(make)
}

#[cold]
fn make() -> &'static Process {
    if !AT_FORK.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function without captures, and the library stays loaded: it is
        // linked with `-z nodelete`.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
    log::start();
    let made = Box::into_raw(Box::<Process>::default());
    let set = CURRENT.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    match set {
        // SAFETY: the state is never freed, see above.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: no other thread has seen the state that was just made; the other one is never
            // freed.
            unsafe {
                drop(Box::from_raw(made));
                &*other
            }
        }
    }
}

/// Runs in the child of a fork, where only operations without locks and allocation are safe.
extern "C" fn in_child() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

impl Process {
    /// State that another part of the library keeps for the whole process; made at the first call.
    pub fn shared<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let any = shared.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // The key of an entry is its type, so the downcast succeeds.
        any.clone().downcast().unwrap_or_default()
    }
}
