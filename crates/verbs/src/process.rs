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
//! ([`Device::after_fork`](remora::Device::after_fork)). So may the child's own children. A card in
//! the parent stays there: its handles are invalid in the child. Memory of the program that was
//! converted for another process's card is the child's own ([`Forking`]).

use std::any::{Any, TypeId};
use std::cell::Cell;
use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use remora::device_sharing::Forking;
use remora::raw;

use crate::card::ListedCard;
use crate::log;
use crate::pool::{Pools, Slots};

/// The state of a process.
#[derive(Default)]
pub struct Process {
    pub(crate) cards: OnceLock<Vec<ListedCard>>,
    /// The cards that were imported, as guests of other processes' sessions.
    guests: Mutex<Vec<&'static ListedCard>>,
    pub(crate) pools: Pools,
    /// The process with state before this one, if its objects may be used.
    parent: Option<Ancestor>,
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
    let parent = ancestors().next().filter(|_| may_inherit());
    let made = Box::into_raw(Box::new(Process { parent, ..Process::default() }));
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

/// A process that has forked this one, or has forked the one that did, and so on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ancestor {
    pub(crate) state: &'static Process,
    pub(crate) generation: u32,
}

static PARENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
static PARENT_GENERATION: AtomicU32 = AtomicU32::new(0);
/// What becomes of the ancestors' objects: see below.
static INHERITED: AtomicU32 = AtomicU32::new(UNUSABLE);
/// The child cannot use them; nobody was told so yet.
const UNUSABLE: u32 = 0;
/// As `UNUSABLE`, and it was told.
const REFUSED: u32 = 1;
/// The child can use them, once it is a guest of the sessions.
const USABLE: u32 = 2;
/// The child uses them.
const USED: u32 = 3;

/// The processes before this one that had any state, the youngest first. (One whose child could not
/// use its objects has no descendants that could.)
pub(crate) fn ancestors() -> impl Iterator<Item = Ancestor> {
    // SAFETY: no state that the pointer was ever set to is freed.
    let state = unsafe { PARENT.load(Ordering::Acquire).as_ref() };
    let generation = PARENT_GENERATION.load(Ordering::Relaxed);
    let parent = state.map(|state| Ancestor { state, generation });
    std::iter::successors(parent, |ancestor| ancestor.state.parent)
}

/// Makes this process a user of its ancestors' objects; returns whether it may be one.
pub(crate) fn use_inherited() -> bool {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if INHERITED.load(Ordering::Acquire) == USED {
        return true;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match INHERITED.load(Ordering::Acquire) {
        USED => return true,
        REFUSED => return false,
        UNUSABLE => {
            tracing::error!(
                "a forked child cannot use objects of its parent, whose process has the card: \
                 open the device in the child, or have `remora nic` serve a card for both"
            );
            INHERITED.store(REFUSED, Ordering::Release);
            return false;
        }
        _ => {}
    }
    for ancestor in ancestors() {
        for card in ancestor.state.cards_and(&ancestor.state.lock_guests()) {
            if let Err(error) = card.device.after_fork() {
                tracing::error!(%error, "a forked child cannot use its parent’s objects");
                INHERITED.store(REFUSED, Ordering::Release);
                return false;
            }
        }
    }
    INHERITED.store(USED, Ordering::Release);
    true
}

/// May the objects of the ancestors be used?
fn may_inherit() -> bool {
    INHERITED.load(Ordering::Acquire) >= USABLE
}

/// What a forking thread holds.
struct HeldLocks {
    /// The locks that the child needs to use this process's objects; `None` if it could not anyway.
    objects: Option<Locks>,
    converted: Forking,
}

/// The locks that a forking thread holds, so that the child finds whole what they guard.
struct Locks {
    _cards: Vec<raw::LockedCard<'static>>,
    _guests: Vec<MutexGuard<'static, Vec<&'static ListedCard>>>,
    _slots: Vec<MutexGuard<'static, Slots>>,
}

thread_local! {
    static HELD: Cell<Option<HeldLocks>> = const { Cell::new(None) };
}

/// Runs in the thread that forks, before it does.
extern "C" fn before_fork() {
    // A thread that is ending has no such variable any more. Its child uses none of these objects.
    if HELD.try_with(|_| ()).is_err() {
        return;
    }
    let objects = lock_objects();
    let held = Some(HeldLocks { objects, converted: Forking::begin() });
    HELD.try_with(|of_this_thread| of_this_thread.set(held)).ok();
}

/// Locks what a child needs to use the objects of this process and its ancestors; `None` if it
/// could not use them anyway.
fn lock_objects() -> Option<Locks> {
    let inherits = may_inherit();
    let states = || {
        existing()
            .into_iter()
            .chain(ancestors().filter(move |_| inherits).map(|ancestor| ancestor.state))
    };
    let guests: Vec<_> = states().map(Process::lock_guests).collect();
    let cards: Vec<&'static ListedCard> =
        states().zip(&guests).flat_map(|(state, guests)| state.cards_and(guests)).collect();
    if cards.is_empty() || !cards.iter().all(|card| card.is_attached) {
        return None;
    }
    // SAFETY: as in `ListedCard::lock`.
    let locked = cards.iter().map(|card| unsafe { card.device.before_fork() });
    let cards = locked.collect::<Option<Vec<_>>>()?;
    let slots = states().flat_map(|state| state.pools.lock_all()).collect();
    Some(Locks { _cards: cards, _guests: guests, _slots: slots })
}

/// Runs in the thread that has forked.
extern "C" fn in_parent() {
    if let Ok(Some(held)) = HELD.try_with(Cell::take) {
        held.converted.in_parent();
    }
}

/// Runs in the child of a fork.
extern "C" fn in_child() {
    let held = HELD.try_with(Cell::take).ok().flatten();
    let usable = held.as_ref().is_some_and(|held| held.objects.is_some());
    let before = CURRENT.swap(ptr::null_mut(), Ordering::AcqRel);
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
    if !before.is_null() {
        PARENT.store(before, Ordering::Release);
        PARENT_GENERATION.store(generation, Ordering::Relaxed);
    }
    // If another process used the sessions before, this one needs connections of its own to them.
    INHERITED.store(if usable { USABLE } else { UNUSABLE }, Ordering::Release);
    if let Some(held) = held {
        held.converted.in_child();
    }
}

impl Process {
    /// The guests' cards of this process, locked.
    fn lock_guests(&self) -> MutexGuard<'_, Vec<&'static ListedCard>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cards of this process, and these.
    fn cards_and(&'static self, guests: &[&'static ListedCard]) -> Vec<&'static ListedCard> {
        self.cards.get().into_iter().flatten().chain(guests.iter().copied()).collect()
    }

    /// Keeps the card of another process's session, until [`Process::end_guest`].
    pub(crate) fn keep_guest(&self, card: ListedCard) -> &'static ListedCard {
        let card: &'static ListedCard = Box::leak(Box::new(card));
        self.lock_guests().push(card);
        card
    }

    /// Ends what [`Process::keep_guest`] began, if it was called for this card, to which nothing
    /// refers any more. (A forked child leaves its parent's alone.)
    pub(crate) fn end_guest(&self, card: &'static ListedCard) {
        let mut guests = self.lock_guests();
        let Some(at) = guests.iter().position(|guest| ptr::eq(*guest, card)) else { return };
        let gone = ptr::from_ref(guests.swap_remove(at)).cast_mut();
        drop(guests);
        // SAFETY: the card was leaked when it was added to the list, from which only one caller
        // takes it; by promise of the callers nothing else refers to it.
        drop(unsafe { Box::from_raw(gone) });
    }

    /// State that another part of the library keeps for the whole process; made at the first call.
    pub fn shared<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let any = shared.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // The key of an entry is its type, so the downcast succeeds.
        any.clone().downcast().unwrap_or_default()
    }
}
