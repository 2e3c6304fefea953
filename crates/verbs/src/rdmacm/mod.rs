//! `librdmacm.so.1`: connections by address, on the card's communication manager.
//!
//! Read in this order:
//! - [`objects`] is what stands behind ids and event channels; [`id`] and [`channel`] are what they
//!   do by themselves.
//! - [`manager`] knows the process's ids by their connections; [`sink`] turns the card's news of
//!   these into events of ids, and [`events`] is how a program takes them.
//! - [`address`] binds and resolves; [`directory`] is how processes of one machine find each
//!   other's listeners though each has a card, and so an address, of its own.
//! - [`connect`] is listening, connecting and parting, by [`connection`] and in the terms of
//!   [`agreement`]; [`sidr`] the same for datagrams. [`watch`] sees that peers are gone.
//! - [`queue_pair`] makes queue pairs and moves them through their states.
//! - [`endpoint`], [`addrinfo`], [`options`] and [`multicast`] are what they say.
//!
//! Locks are taken in this order: the card, the manager's tables, an id's state, a channel's
//! queue. A call never holds one of them while it calls a verb, which takes the card's.

pub(crate) mod address;
mod addrinfo;
mod agreement;
pub(crate) mod c_address;
mod channel;
pub(crate) mod connect;
mod connection;
pub(crate) mod directory;
mod endpoint;
pub(crate) mod events;
mod groups;
mod id;
mod manager;
mod multicast;
pub(crate) mod objects;
pub(crate) mod options;
pub(crate) mod queue_pair;
mod sidr;
mod sink;
pub(crate) mod symbols;
mod verbs;
mod watch;

use core::ffi::c_int;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crate::process;

/// An error number of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = core::result::Result<T, Errno>;

pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const EADDRINUSE: Errno = Errno(libc::EADDRINUSE);
pub(crate) const ENODEV: Errno = Errno(libc::ENODEV);

impl Errno {
    /// What the system said last.
    pub(crate) fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// What a call that returns an error number returned.
    pub(crate) fn check(returned: c_int) -> Result<()> {
        match returned {
            0 => Ok(()),
            -1 => Err(Errno::last()),
            code => Err(Errno(code.abs())),
        }
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno(error.raw_os_error())
    }
}

impl From<crate::handles::BadHandle> for Errno {
    fn from(_: crate::handles::BadHandle) -> Errno {
        EINVAL
    }
}

/// The objects of a kind, by their handles. A handle is looked up and its object kept in one step,
/// so that another thread may end it meanwhile: programs do that to threads that wait for events.
#[derive(Debug)]
pub(crate) struct Table<T>(Mutex<HashMap<usize, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(Mutex::default())
    }
}

impl<T: Send + Sync + 'static> Table<T> {
    fn with<R>(act: impl FnOnce(&mut HashMap<usize, Arc<T>>) -> R) -> R {
        let table = process::current().shared::<Table<T>>();
        let mut objects = table.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut objects)
    }

    pub(crate) fn insert(handle: usize, object: Arc<T>) {
        Table::with(|objects| objects.insert(handle, object));
    }

    pub(crate) fn find(handle: usize) -> Result<Arc<T>> {
        Table::with(|objects| objects.get(&handle).cloned()).ok_or(EINVAL)
    }

    /// Whoever calls first gets the object.
    pub(crate) fn remove(handle: usize) -> Result<Arc<T>> {
        Table::with(|objects| objects.remove(&handle)).ok_or(EINVAL)
    }
}

/// Sets `errno`.
pub(crate) fn set_errno(Errno(code): Errno) {
    // SAFETY: the C library's pointer to this thread's own variable.
    unsafe { *libc::__errno_location() = code };
}

/// Does a call of a program: its error goes to `errno`, and no panic goes further.
pub(crate) fn call<T>(on_error: T, act: impl FnOnce() -> Result<T>) -> T {
    let done = catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(Errno(libc::EIO)));
    done.unwrap_or_else(|error| {
        set_errno(error);
        on_error
    })
}

/// As [`call`], for those that return 0 or -1.
pub(crate) fn status(act: impl FnOnce() -> Result<()>) -> c_int {
    call(-1, || act().map(|()| 0))
}
