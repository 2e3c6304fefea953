//! What this process has: its cards, and everything that handles point to.
//!
//! A card is opened when a program first asks which devices there are, and stays to the end of the
//! process. `REMORA_ADDR` says which: addresses or interfaces, separated by commas, or `auto` for a
//! free address of loopback, which is also what an empty or missing variable means.
//!
//! # fork
//! A child has no threads but one, and locks may be taken that nobody will give back. So the child
//! starts with nothing: the handler below does no more than set a pointer to null and count. What
//! the parent had stays as it was, unreachable; handles of the parent are foreign to the child. The
//! child opens a card of its own, at another address, when it first asks for devices.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::card::Card;
use crate::log;
use crate::pool::Pools;

/// What a process has.
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
/// How many forks lie between the process that loaded this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static AT_FORK: AtomicBool = AtomicBool::new(false);

/// Which process of a line of forks this is.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// This process, if it has anything yet.
pub(crate) fn existing() -> Option<&'static Process> {
    // SAFETY: what the pointer was ever set to is never freed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// This process.
pub fn current() -> &'static Process {
    if let Some(process) = existing() {
        return process;
    }
    if !AT_FORK.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function without captures, and the library stays loaded: it is
        // linked with `-z nodelete`.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
    log::start();
    let made = Box::into_raw(Box::<Process>::default());
    let set = CURRENT.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    match set {
        // SAFETY: never freed, see above.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: nobody else has seen what was just made; the other is never freed.
            unsafe {
                drop(Box::from_raw(made));
                &*other
            }
        }
    }
}

/// In the child of a fork, where only what needs no lock and no memory is safe.
extern "C" fn in_child() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

impl Process {
    /// What another part of the library keeps for the whole process; made when first asked for.
    pub fn shared<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let any = shared.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // The entry's key says its type.
        any.clone().downcast().unwrap_or_default()
    }
}
