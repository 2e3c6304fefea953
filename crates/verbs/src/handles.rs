//! The objects that programs hold pointers to.
//!
//! A handle is a pointer to a [`Slot`]: the C struct of the header, which programs read and write,
//! then a tag, then this library's own state. Slots come from pools, one for each kind of object,
//! and pools never give memory back: a handle that was freed still points to a slot, whose tag says
//! that it is free. So a program's mistake is `EINVAL` and not a crash. A pool reuses the slot that
//! has been free for longest.
//!
//! Most calls use [`get`], which first checks that the pointer is a slot at all. Calls on the data
//! path use [`get_fast`] for the object that they are made on: it trusts the pointer, which has led
//! the program into the call, and checks only the tag.
//!
//! After a `fork` the child has pools of its own, to which the parent's handles do not belong. A
//! tag includes the process generation (see [`process`]), so that [`get_fast`] rejects those
//! handles too.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::pool::Kind;
use crate::pool::{Pool, Slots};
use crate::process;

/// The state behind a handle. It synchronises by itself what threads share of it.
pub trait Object: Sized + Send + Sync + 'static {
    /// The struct that the program sees. All bytes zero must be a valid value of it.
    type C: Copy;
    /// The kind, which names its pool.
    const KIND: Kind;
}

/// An object: the C struct that the program sees, and this library's state behind it.
#[repr(C, align(64))]
pub struct Slot<T: Object> {
    c: UnsafeCell<T::C>,
    /// Zeros, because vendors' inline functions look for their own tables behind an `ibv_device`.
    _zero: [usize; 2],
    tag: AtomicU64,
    state: MaybeUninit<T>,
}

// SAFETY: `c` is reached by raw pointers only, as C does; the state is `Send` and `Sync`.
unsafe impl<T: Object> Sync for Slot<T> {}

impl<T: Object> Slot<T> {
    /// The handle.
    pub fn c(&self) -> *mut T::C {
        self.c.get()
    }

    /// This library's state.
    pub fn state(&self) -> &T {
        // SAFETY: only slots whose tag says that they are in use are lent out; see `get_fast`.
        unsafe { self.state.assume_init_ref() }
    }
}

impl<T: Object> std::fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {:p}", T::KIND, self)
    }
}

impl<T: Object> std::ops::Deref for Slot<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.state()
    }
}

/// The pointer is not a handle of a live object; the program gets `EINVAL`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadHandle;

/// The tag of a slot in use.
#[inline]
fn tag_of(kind: Kind) -> u64 {
    tag_in(kind, process::generation())
}

/// As [`tag_of`], in another generation of processes.
#[inline]
fn tag_in(kind: Kind, generation: u32) -> u64 {
    /// A value that is unlikely to occur in memory by chance.
    const MAGIC: u64 = 0x7265_6d6f_7261_0000;
    MAGIC ^ (u64::from(generation) << 16) ^ u64::from(kind as u8)
}

#[inline]
fn pool(kind: Kind) -> &'static Pool {
    &process::current().pools.pools[kind as usize]
}

fn slots(kind: Kind) -> MutexGuard<'static, Slots> {
    process::current().pools.lock(kind)
}

/// How many objects of a kind exist.
pub fn count(kind: Kind) -> usize {
    slots(kind).used
}

/// Makes an object. `None`: no memory.
pub fn create<T: Object>(c: T::C, state: T) -> Option<&'static Slot<T>> {
    create_or_back(c, state).ok()
}

/// Makes an object.
///
/// # Errors
/// There is no memory: the state comes back.
pub fn create_or_back<T: Object>(c: T::C, state: T) -> Result<&'static Slot<T>, T> {
    let slabs = &pool(T::KIND).slabs;
    let Some(slot) = slots(T::KIND).take(slabs, Layout::new::<Slot<T>>()) else {
        return Err(state);
    };
    let slot = slot as *mut Slot<T>;
    // SAFETY: the slot is unused, owned by this call alone, of the right layout, and never freed.
    // Its bytes are zero or those of an earlier object of the same kind.
    unsafe {
        ptr::addr_of_mut!((*slot).c).write(UnsafeCell::new(c));
        ptr::addr_of_mut!((*slot).state).write(MaybeUninit::new(state));
        let slot = &*slot;
        slot.tag.store(tag_of(T::KIND), Ordering::Release);
        Ok(slot)
    }
}

/// Looks up a handle, which may be any pointer. This takes no lock.
///
/// The result lives until the object is destroyed, which a program must not do while another of its
/// threads uses the object.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "only a pointer known to be a slot is read")]
#[inline]
pub fn get<T: Object>(handle: *const T::C) -> Result<&'static Slot<T>, BadHandle> {
    if !pool(T::KIND).slabs.holds(handle as usize, size_of::<Slot<T>>()) {
        return inherited(handle);
    }
    // SAFETY: the pool holds it, so it is a slot of this kind.
    unsafe { get_fast(handle) }
}

/// The process among those that have forked this one whose pool holds the handle.
fn home_of<T: Object>(handle: *const T::C) -> Option<process::Ancestor> {
    process::ancestors().find(|ancestor| {
        let pool = &ancestor.state.pools.pools[T::KIND as usize];
        pool.slabs.holds(handle as usize, size_of::<Slot<T>>())
    })
}

/// Looks up a handle of a process that has forked this one.
#[cold]
fn inherited<T: Object>(handle: *const T::C) -> Result<&'static Slot<T>, BadHandle> {
    let home = home_of::<T>(handle).ok_or(BadHandle)?;
    // SAFETY: the pool holds it, so it is a slot of this kind.
    let slot = unsafe { &*handle.cast::<Slot<T>>() };
    let is_in_use = slot.tag.load(Ordering::Acquire) == tag_in(T::KIND, home.generation);
    if is_in_use && T::KIND.is_inherited() && (T::KIND == Kind::Device || process::use_inherited())
    {
        Ok(slot)
    } else {
        Err(BadHandle)
    }
}

/// Is it an object of a process that has forked this one?
pub fn is_inherited<T: Object>(slot: &Slot<T>) -> bool {
    slot.tag.load(Ordering::Relaxed) != tag_of(T::KIND)
}

/// Looks up a handle on the data path.
///
/// # Safety
/// The handle is null, or was once a handle of this kind.
#[inline]
pub unsafe fn get_fast<T: Object>(handle: *const T::C) -> Result<&'static Slot<T>, BadHandle> {
    let slot = handle.cast::<Slot<T>>();
    // SAFETY: by promise of the caller it is a slot, and slots are never freed, so the tag can be
    // read.
    let tag = unsafe { slot.as_ref().map(|slot| slot.tag.load(Ordering::Acquire)) };
    if tag != Some(tag_of(T::KIND)) {
        return inherited(handle);
    }
    // SAFETY: the tag says that the slot is in use.
    unsafe { slot.as_ref() }.ok_or(BadHandle)
}

/// Destroys an object; of several callers, the first gets its state. No thread may use the object
/// any more.
pub fn destroy<T: Object>(handle: *const T::C) -> Result<T, BadHandle> {
    let slot = get::<T>(handle)?;
    let home = if is_inherited(slot) { home_of::<T>(handle) } else { None };
    let tag = home.map_or(tag_of(T::KIND), |home| tag_in(T::KIND, home.generation));
    if slot.tag.compare_exchange(tag, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return Err(BadHandle);
    }
    // SAFETY: the slot was in use, and the exchange above lets only one caller through.
    let state = unsafe { slot.state.assume_init_read() };
    let home = home.map_or_else(process::current, |home| home.state);
    let mut slots = home.pools.lock(T::KIND);
    slots.used -= 1;
    slots.free.push_back(handle as usize);
    Ok(state)
}

/// Calls `each` with every live object of a kind. `each` must neither create nor destroy any of
/// them.
pub fn for_each<T: Object>(mut each: impl FnMut(&'static Slot<T>)) {
    let _no_slot_comes_or_goes = slots(T::KIND);
    for (start, end) in pool(T::KIND).slabs.iter() {
        for addr in (start..end).step_by(size_of::<Slot<T>>()) {
            // SAFETY: a slab holds nothing but slots of this kind.
            if let Ok(slot) = unsafe { get_fast::<T>(addr as *const T::C) } {
                each(slot);
            }
        }
    }
}

/// A C struct with all bytes zero.
pub fn zeroed<C: Copy>() -> C {
    const { assert!(!mem::needs_drop::<C>()) };
    // SAFETY: callers use C structs only: integers, pointers, optional functions.
    unsafe { mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object for tests, in a pool that no other test uses.
    struct Dummy(u32);
    impl Object for Dummy {
        type C = [u32; 5];
        const KIND: Kind = Kind::Xrcd;
    }

    #[test]
    fn freed_and_foreign_handles_are_refused() {
        let slot = create([7; 5], Dummy(1)).unwrap();
        let handle = slot.c();
        assert_eq!(get::<Dummy>(handle).unwrap().0, 1);
        assert!(get::<Dummy>(handle.wrapping_byte_add(4)).is_err());
        assert!(get::<Dummy>(ptr::null()).is_err());
        assert!(get::<Dummy>(&[0; 5]).is_err());
        assert_eq!(destroy::<Dummy>(handle).unwrap().0, 1);
        assert!(destroy::<Dummy>(handle).is_err());
        assert!(get::<Dummy>(handle).is_err());
        // SAFETY: it was a handle of this kind.
        assert!(unsafe { get_fast::<Dummy>(handle) }.is_err());
        assert_eq!(count(Kind::Xrcd), 0);
        let others: Vec<_> = (0..100).map(|n| create([0; 5], Dummy(n)).unwrap().c()).collect();
        assert_ne!(others[0], handle, "the slot that was freed last is reused last");
        let mut sum = 0;
        for_each::<Dummy>(|slot| sum += slot.0);
        assert_eq!(sum, 4950);
        for other in others {
            destroy::<Dummy>(other).unwrap();
        }
    }
}
