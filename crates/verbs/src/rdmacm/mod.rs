//! `librdmacm.so.1`: connections by address, on the card's communication manager.
//!
//! Read in this order:
//! - [`objects`] is the state behind ids and event channels; [`id`] and [`channel`] are their own
//!   operations.
//! - [`manager`] finds the process's ids by their connections; [`sink`] turns the card's events of
//!   connections into events of ids, and [`events`] hands these to the program.
//! - [`address`] binds and resolves; [`c_address`] has addresses in their C form. [`directory`]
//!   lets processes of one machine find each other's listeners, although each process has a card,
//!   and so an address, of its own; [`found`] keeps what it finds for the connections that follow.
//! - [`connect`] creates and destroys ids, listens, connects and disconnects, with the help of
//!   [`connection`] and [`agreement`]; [`sidr`] does the same for datagrams. [`watch`] notices that
//!   a peer's process has ended.
//! - [`queue_pair`] makes queue pairs and moves them through their states.
//! - [`endpoint`], [`addrinfo`], [`options`] and [`multicast`] are the calls of those names;
//!   [`lookup`] is `addrinfo` without waiting, [`address_list`] the lists that both make;
//!   [`groups`] attaches an id's queue pair to its multicast groups.
//! - [`verbs`] are the verbs that all these call, [`symbols`] the names that programs are linked
//!   to.
//!
//! Locks are taken in this order: the card, the manager's tables, an id's state (a listener's
//! before those of its requests), a channel's queue.
//! A call holds none of them while it calls a verb, because verbs lock the card.

pub(crate) mod address;
mod address_list;
mod addrinfo;
mod agreement;
pub(crate) mod c_address;
mod channel;
pub(crate) mod connect;
mod connection;
pub(crate) mod directory;
mod endpoint;
pub(crate) mod events;
mod found;
mod groups;
mod id;
mod lookup;
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
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cancel::{self, Uncancelled};
use crate::process;

/// An error number of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = core::result::Result<T, Errno>;

pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const EADDRINUSE: Errno = Errno(libc::EADDRINUSE);
pub(crate) const EIO: Errno = Errno(libc::EIO);
pub(crate) const ENODEV: Errno = Errno(libc::ENODEV);

impl Errno {
    /// The number of the system's last error in this thread.
    pub(crate) fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// Checks the result of a call that returns an error number.
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

/// The objects of a kind, by their handles. A handle is looked up and its object kept alive in one
/// step, because programs destroy objects while other threads wait for their events.
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

    /// Removes an object; of several callers, the first gets it.
    pub(crate) fn remove(handle: usize) -> Result<Arc<T>> {
        Table::with(|objects| objects.remove(&handle)).ok_or(EINVAL)
    }
}

/// Sets `errno`.
pub(crate) fn set_errno(Errno(code): Errno) {
    // SAFETY: it is the C library's variable of this thread.
    unsafe { *libc::__errno_location() = code };
}

/// Runs a call of a program: an error goes to `errno`, and no panic reaches the program. The thread
/// is not cancelled meanwhile: see [`cancel`](crate::cancel).
pub(crate) fn call<T>(on_error: T, act: impl FnOnce() -> Result<T>) -> T {
    let _until_the_end = Uncancelled::new();
    let done = catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(Errno(libc::EIO)));
    done.unwrap_or_else(|error| {
        set_errno(error);
        on_error
    })
}

/// A call that waits has done nothing yet, and looks whether its thread is cancelled: it is made
/// again.
pub(crate) const NOT_YET: Errno = Errno(-1);

/// As [`call`], for one that may wait for long: it ends with [`NOT_YET`] now and then. Neither
/// `act` nor the frames that call this may own anything: see [`cancel`].
pub(crate) fn call_that_waits<T: Copy>(on_error: T, mut act: impl FnMut() -> Result<T>) -> T {
    loop {
        // SAFETY: no frame up to the program owns anything.
        unsafe { cancel::end_if_cancelled() };
        let done = call(Some(on_error), || match act() {
            Err(NOT_YET) => Ok(None),
            done => done.map(Some),
        });
        if let Some(done) = done {
            return done;
        }
    }
}

/// How a call goes on.
#[derive(Clone, Copy, Debug)]
enum Step<T> {
    Done(T),
    /// It is made again once the counter behind this descriptor is not zero.
    Sleep(RawFd),
}

/// As [`call_that_waits`], for one that sleeps on a counter: `act` is told how the sleep has ended
/// after which it goes on.
fn call_that_sleeps<T: Copy>(
    on_error: T,
    mut act: impl FnMut(Option<Result<()>>) -> Result<Step<T>>,
) -> T {
    let mut slept = None;
    loop {
        match call(Step::Done(on_error), || act(slept)) {
            Step::Done(done) => return done,
            // SAFETY: no frame up to the program owns anything.
            Step::Sleep(fd) => match unsafe { cancel::read_counter(fd) } {
                true => slept = Some(Ok(())),
                false => slept = Some(Err(Errno::last())),
            },
        }
    }
}

/// As [`call`], for calls that return 0 or -1.
pub(crate) fn status(act: impl FnOnce() -> Result<()>) -> c_int {
    call(-1, || act().map(|()| 0))
}
