//! The objects that programs hold pointers to.
//!
//! A handle is a pointer to a [`Slot`]: the C struct of the header, which programs read and write,
//! then a tag, then our own state. Slots come from pools, one for each kind of object, that never
//! give memory back: a handle that was freed still points to a slot, and its tag says so. So a
//! program's mistake is `EINVAL` and not a crash. A pool gives out again what was freed longest
//! ago.
//!
//! Calls off the data path use [`get`], which first makes sure that the pointer is a slot at all.
//! Those on it use [`get_fast`], which believes the pointer and looks at the tag.
//!
//! After a `fork` the child has pools of its own: the parent's handles are foreign there, and a
//! tag holds the generation of processes it was made in, so that the fast way sees it too.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};

pub use crate::pool::Kind;
use crate::pool::Pool;
use crate::process;

/// The state behind a handle. What threads share of it is theirs to synchronise.
pub trait Object: Sized + Send + Sync + 'static {
    /// What the program sees. All bytes zero must be a value of it.
    type C: Copy;
    /// Its pool.
    const KIND: Kind;
}

/// An object: what the program sees, and what it does not.
#[repr(C, align(64))]
pub struct Slot<T: Object> {
    c: UnsafeCell<T::C>,
    /// Vendors' inline functions look behind an `ibv_device` for their own tables.
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

    /// Our state.
    pub fn state(&self) -> &T {
        // SAFETY: only slots whose tag says that they are in use are lent, see `get_fast`.
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

/// Why a handle was not found: the `EINVAL` of whoever passed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadHandle;

/// What the tag of a slot in use is.
fn tag_of(kind: Kind) -> u64 {
    /// Unlikely to stand anywhere by chance.
    const MAGIC: u64 = 0x7265_6d6f_7261_0000;
    MAGIC ^ (u64::from(process::generation()) << 16) ^ u64::from(kind as u8)
}

fn pool(kind: Kind) -> MutexGuard<'static, Pool> {
    let pools = &process::current().pools.pools;
    pools[kind as usize].lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many objects of a kind exist.
pub fn count(kind: Kind) -> usize {
    pool(kind).used
}

/// Makes an object. `None`: no memory.
pub fn create<T: Object>(c: T::C, state: T) -> Option<&'static Slot<T>> {
    let slot = pool(T::KIND).take(Layout::new::<Slot<T>>())? as *mut Slot<T>;
    // SAFETY: the slot is unused, ours alone, of the right layout, and never freed. Its bytes are
    // zero or those of an earlier object of the same kind.
    unsafe {
        ptr::addr_of_mut!((*slot).c).write(UnsafeCell::new(c));
        ptr::addr_of_mut!((*slot).state).write(MaybeUninit::new(state));
        let slot = &*slot;
        slot.tag.store(tag_of(T::KIND), Ordering::Release);
        Some(slot)
    }
}

/// Looks a handle up: it may be any pointer.
///
/// What is returned lives until the object is destroyed, which a program must not do while another
/// of its threads uses it.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "only what is known to be a slot is looked at")]
pub fn get<T: Object>(handle: *const T::C) -> Result<&'static Slot<T>, BadHandle> {
    if !pool(T::KIND).holds(handle as usize, size_of::<Slot<T>>()) {
        return Err(BadHandle);
    }
    // SAFETY: it is a slot of this kind.
    unsafe { get_fast(handle) }
}

/// Looks a handle up on the data path.
///
/// # Safety
/// The handle is null, or was one of this kind once.
#[inline]
pub unsafe fn get_fast<T: Object>(handle: *const T::C) -> Result<&'static Slot<T>, BadHandle> {
    let slot = handle.cast::<Slot<T>>();
    // SAFETY: slots are never freed, so that the tag can be read, by promise of the caller.
    let tag = unsafe { slot.as_ref().map(|slot| slot.tag.load(Ordering::Acquire)) };
    if tag != Some(tag_of(T::KIND)) {
        return Err(BadHandle);
    }
    // SAFETY: the tag says that it is in use.
    unsafe { slot.as_ref() }.ok_or(BadHandle)
}

/// Ends an object; whoever calls first gets its state. Nothing must use it any more.
pub fn destroy<T: Object>(handle: *const T::C) -> Result<T, BadHandle> {
    let slot = get::<T>(handle)?;
    let tag = tag_of(T::KIND);
    if slot.tag.compare_exchange(tag, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return Err(BadHandle);
    }
    // SAFETY: it was in use, and only one caller comes here.
    let state = unsafe { slot.state.assume_init_read() };
    let mut pool = pool(T::KIND);
    pool.used -= 1;
    pool.free.push_back(handle as usize);
    Ok(state)
}

/// Calls `each` with every object of a kind that is in use. `each` must make and end none of them.
pub fn for_each<T: Object>(mut each: impl FnMut(&'static Slot<T>)) {
    let pool = pool(T::KIND);
    for &(start, end) in &pool.slabs {
        for addr in (start..end).step_by(size_of::<Slot<T>>()) {
            // SAFETY: it is a slot of this kind.
            if let Ok(slot) = unsafe { get_fast::<T>(addr as *const T::C) } {
                each(slot);
            }
        }
    }
}

/// Zero is a value of what programs see.
pub fn zeroed<C: Copy>() -> C {
    const { assert!(!mem::needs_drop::<C>()) };
    // SAFETY: only called for C structs: integers, pointers, optional functions.
    unsafe { mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object of the tests' own, in a pool that no other test uses.
    struct Dummy(u32);
    impl Object for Dummy {
        type C = [u32; 5];
        const KIND: Kind = Kind::CmEvent;
    }

    #[test]
    fn freed_and_foreign_handles_are_found_out() {
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
        assert_eq!(count(Kind::CmEvent), 0);
        let others: Vec<_> = (0..100).map(|n| create([0; 5], Dummy(n)).unwrap().c()).collect();
        assert_ne!(others[0], handle, "what was freed last is given last");
        let mut sum = 0;
        for_each::<Dummy>(|slot| sum += slot.0);
        assert_eq!(sum, 4950);
        for other in others {
            destroy::<Dummy>(other).unwrap();
        }
    }
}
