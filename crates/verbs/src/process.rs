//! The state of this process: its cards, and everything that handles point to.
//!
//! A card is opened when the program first asks for devices, and stays to the end of the process.
//! `REMORA_ADDR` says which cards: addresses or interfaces, separated by commas, or `auto` for a
//! free loopback address. An empty or missing variable means `auto`.
//!
//! # fork
//! A forked child has one thread, and may inherit locks that no thread will ever release. So the
//! child starts with an empty state, and opens a device of its own when it first asks for devices.
//!
//! If the parent's cards are those of other processes (`remora nic`), the child may use the
//! parent's objects, too: the forking thread holds the locks that they need, so that the child has
//! them whole; with its first use of one, the child becomes a guest of the parent's sessions
//! ([`Device::after_fork`](remora::Device::after_fork)). A card in the parent stays there: its
//! handles are invalid in the child.

use std::any::{Any, TypeId};
use std::cell::Cell;
use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use remora::raw;

use crate::card::Card;
use crate::log;
use crate::pool::{Pools, Slots};

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
        // SAFETY: the handlers are functions without captures, and the library stays loaded: it is
        // linked with `-z nodelete`.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
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

/// The process that has forked this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent {
    pub(crate) state: &'static Process,
    pub(crate) generation: u32,
}

static PARENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
static PARENT_GENERATION: AtomicU32 = AtomicU32::new(0);
/// What becomes of the parent's objects: see below.
static PARENTS: AtomicU32 = AtomicU32::new(UNUSABLE);
/// The child cannot use them; nobody was told so yet.
const UNUSABLE: u32 = 0;
/// As `UNUSABLE`, and it was told.
const REFUSED: u32 = 1;
/// The child can use them, once it is a guest of the sessions.
const USABLE: u32 = 2;
/// The child uses them.
const USED: u32 = 3;

/// The process that has forked this one, if it had any state.
pub(crate) fn parent() -> Option<Parent> {
    // SAFETY: no state that the pointer was ever set to is freed.
    let state = unsafe { PARENT.load(Ordering::Acquire).as_ref() };
    state.map(|state| Parent { state, generation: PARENT_GENERATION.load(Ordering::Relaxed) })
}

/// Makes this process a user of its parent's objects; returns whether it may be one.
pub(crate) fn use_parent() -> bool {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if PARENTS.load(Ordering::Acquire) == USED {
        return true;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match PARENTS.load(Ordering::Acquire) {
        USED => return true,
        REFUSED => return false,
        UNUSABLE => {
            tracing::error!(
                "a forked child cannot use objects of its parent, whose process has the card: \
                 open the device in the child, or have `remora nic` serve a card for both"
            );
            PARENTS.store(REFUSED, Ordering::Release);
            return false;
        }
        _ => {}
    }
    let cards = parent().and_then(|parent| parent.state.cards.get());
    for card in cards.into_iter().flatten().filter(|card| card.is_attached) {
        if let Err(error) = card.device.after_fork() {
            tracing::error!(%error, "a forked child cannot use its parent’s objects");
            PARENTS.store(REFUSED, Ordering::Release);
            return false;
        }
    }
    PARENTS.store(USED, Ordering::Release);
    true
}

/// The locks that a forking thread holds, so that the child finds whole what they guard.
struct HeldLocks {
    _cards: Vec<raw::Card<'static>>,
    _slots: Vec<MutexGuard<'static, Slots>>,
}

thread_local! {
    static HELD: Cell<Option<HeldLocks>> = const { Cell::new(None) };
}

/// Runs in the thread that forks, before it does.
extern "C" fn before_fork() {
    let held = existing().and_then(hold);
    // A thread that is ending has no such variable any more. Its child then uses none of these.
    HELD.try_with(|of_this_thread| of_this_thread.set(held)).ok();
}

/// Locks what a child needs to use a process's objects; `None` if it could not use them anyway.
fn hold(process: &'static Process) -> Option<HeldLocks> {
    let cards = process.cards.get()?;
    if cards.is_empty() || !cards.iter().all(|card| card.is_attached) {
        return None;
    }
    // SAFETY: as in `Card::lock`.
    let locked = cards.iter().map(|card| unsafe { card.device.before_fork() });
    let cards = locked.collect::<Option<Vec<_>>>()?;
    Some(HeldLocks { _cards: cards, _slots: process.pools.lock_all() })
}

/// Runs in the thread that has forked.
extern "C" fn in_parent() {
    HELD.try_with(|held| held.set(None)).ok();
}

/// Runs in the child of a fork.
extern "C" fn in_child() {
    let held = HELD.try_with(Cell::take).ok().flatten();
    let before = CURRENT.swap(ptr::null_mut(), Ordering::AcqRel);
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
    if !before.is_null() {
        PARENT.store(before, Ordering::Release);
        PARENT_GENERATION.store(generation, Ordering::Relaxed);
        PARENTS.store(if held.is_some() { USABLE } else { UNUSABLE }, Ordering::Release);
    } else if PARENTS.load(Ordering::Acquire) == USED {
        // The grandparent's session, with a connection of its own.
        PARENTS.store(USABLE, Ordering::Release);
    }
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
