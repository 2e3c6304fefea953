//! `repoll_create`, `repoll_ctl` and `repoll_wait`, of what follows v64: epoll over rsockets and
//! ordinary descriptors alike.
//!
//! As in rdma-core, events are reported for as long as they last: `EPOLLET` changes nothing.

use core::ffi::c_int;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use libc::{c_short, epoll_event, pollfd};
use remora::event::Event;

use super::poll;
use super::socket::{self, Socket};
use crate::process;
use crate::rdmacm::{EINVAL, Errno, Result, call, call_that_waits, status};

/// What a program wants to know of a descriptor.
#[derive(Debug)]
struct Interest {
    events: u32,
    data: u64,
    /// The rsocket that had the descriptor when the program gave it, if one had.
    socket: Option<Weak<Socket>>,
}

impl Interest {
    fn new(fd: c_int, event: &epoll_event) -> Interest {
        let socket = socket::look(fd).map(|socket| Arc::downgrade(&socket));
        Interest { events: event.events, data: event.u64, socket }
    }

    /// Was what the program gave closed? Another socket may have the descriptor by now. (Of an
    /// ordinary descriptor that is closed, `poll` tells.)
    fn is_gone(&self, fd: c_int) -> bool {
        match (&self.socket, socket::look(fd)) {
            (None, None) => false,
            (Some(was), Some(is)) => !ptr::eq(was.as_ptr(), Arc::as_ptr(&is)),
            _ => true,
        }
    }
}

/// The descriptors that a program watches together.
#[derive(Debug)]
struct Watched {
    interests: Mutex<Interests>,
    /// Wakes the threads that wait, since what they wait for has changed. Its descriptor is the one
    /// that the program has.
    changed: Event,
}

#[derive(Debug, Default)]
struct Interests {
    by_fd: BTreeMap<c_int, Interest>,
    /// The descriptor to begin with, so that the first ones do not hide the others where a program
    /// takes few events at a time.
    first: c_int,
}

/// Those of a process, by the program's descriptor.
#[derive(Debug, Default)]
struct All(Mutex<HashMap<c_int, Arc<Watched>>>);

impl All {
    fn with<R>(act: impl FnOnce(&mut HashMap<c_int, Arc<Watched>>) -> R) -> R {
        let all = process::current().shared::<All>();
        let mut all = all.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut all)
    }
}

/// The bits that `poll` and `epoll` have in common, with the same values.
const IN_COMMON: u32 =
    (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP) as u32;

impl Watched {
    fn find(epfd: c_int) -> Result<Arc<Watched>> {
        All::with(|all| all.get(&epfd).cloned()).ok_or(EINVAL)
    }

    fn interests(&self) -> MutexGuard<'_, Interests> {
        self.interests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries for `poll`; the last one is the descriptor that tells of changes. A descriptor
    /// that was closed is forgotten, as epoll does.
    fn entries(&self) -> Vec<pollfd> {
        let mut interests = self.interests();
        interests.by_fd.retain(|fd, interest| !interest.is_gone(*fd));
        let (before, from): (Vec<_>, Vec<_>) = interests
            .by_fd
            .iter()
            .map(|(fd, interest)| pollfd {
                fd: *fd,
                events: (interest.events & IN_COMMON) as c_short,
                revents: 0,
            })
            .partition(|entry| entry.fd < interests.first);
        let changes =
            pollfd { fd: self.changed.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        from.into_iter().chain(before).chain([changes]).collect()
    }

    /// The events of entries that are ready, `most` of them.
    fn report(&self, entries: &[pollfd], most: usize) -> Vec<epoll_event> {
        let mut interests = self.interests();
        let mut told = Vec::new();
        for entry in entries.iter().filter(|entry| entry.revents != 0) {
            if entry.revents & libc::POLLNVAL != 0 {
                interests.by_fd.remove(&entry.fd);
                continue;
            }
            let Some(interest) = interests.by_fd.get_mut(&entry.fd) else { continue };
            if interest.is_gone(entry.fd) {
                continue;
            }
            let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            let events = entry.revents as u32 & (interest.events | always);
            if events == 0 {
                continue;
            }
            told.push(epoll_event { events, u64: interest.data });
            if interest.events & libc::EPOLLONESHOT as u32 != 0 {
                interest.events = 0;
            }
            if told.len() == most {
                interests.first = entry.fd.saturating_add(1);
                break;
            }
        }
        told
    }

    /// Waits until there are events, or to the end. Fails with `NOT_YET` now and then.
    fn wait(&self, most: usize, end: Option<Instant>) -> Result<Vec<epoll_event>> {
        loop {
            let mut entries = self.entries();
            let ready = poll::wait(&mut entries, end)?;
            if entries.pop().is_some_and(|entry| entry.revents != 0) {
                // A descriptor may mean another socket now than when it was looked at.
                self.changed.drain()?;
                continue;
            }
            let told = self.report(&entries, most);
            if !told.is_empty() || ready == 0 {
                return Ok(told);
            }
        }
    }

    fn control(&self, op: c_int, fd: c_int, event: Option<&epoll_event>) -> Result<()> {
        let mut interests = self.interests();
        let known = interests.by_fd.get(&fd).is_some_and(|interest| !interest.is_gone(fd));
        match op {
            libc::EPOLL_CTL_ADD if known => return Err(Errno(libc::EEXIST)),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !known => {
                return Err(Errno(libc::ENOENT));
            }
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                let event = event.ok_or(Errno(libc::EFAULT))?;
                interests.by_fd.insert(fd, Interest::new(fd, event));
            }
            libc::EPOLL_CTL_DEL => {
                interests.by_fd.remove(&fd);
            }
            _ => return Err(EINVAL),
        }
        drop(interests);
        Ok(self.changed.notify()?)
    }
}

/// Closes the descriptor, if it is one of these.
pub(super) fn close(epfd: c_int) -> bool {
    // Threads that wait keep it to the end of their call.
    All::with(|all| all.remove(&epfd)).is_some()
}

pub(super) extern "C" fn repoll_create(flags: c_int) -> c_int {
    call(-1, || {
        if flags & !(libc::EPOLL_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return Err(EINVAL);
        }
        let changed = Event::new()?;
        let epfd = changed.as_fd().as_raw_fd();
        let watched = Watched { interests: Mutex::default(), changed };
        All::with(|all| all.insert(epfd, Arc::new(watched)));
        Ok(epfd)
    })
}

pub(super) unsafe extern "C" fn repoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    status(|| {
        if fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        let watched = Watched::find(epfd)?;
        if epfd == fd {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives an event, or a null pointer.
        watched.control(op, fd, unsafe { event.as_ref() })
    })
}

pub(super) unsafe extern "C-unwind" fn repoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    let end = poll::end_after(timeout);
    call_that_waits(-1, || {
        let most = usize::try_from(maxevents).ok().filter(|most| *most > 0).ok_or(EINVAL)?;
        if events.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let told = Watched::find(epfd)?.wait(most, end)?;
        for (at, event) in told.iter().enumerate() {
            // SAFETY: the caller gives room for as many events as it says.
            unsafe { events.add(at).write(*event) };
        }
        Ok(told.len() as c_int)
    })
}
