//! `rpoll` and `rselect`: over rsockets and ordinary descriptors alike.

use core::ffi::{c_int, c_short};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, timeval};

use super::bell::Bell;
use super::socket::{self, Inner, Phase, SLEEP_MS, Socket};
use crate::rdmacm::{EINVAL, Errno, NOT_YET, Result, call_that_waits};
use crate::sleep::{OnSignal, sleep};

/// How long to poll before sleeping.
const SPIN: Duration = Duration::from_micros(20);

/// The events for which a socket is ready.
fn readiness(inner: &mut Inner, wanted: libc::c_short) -> libc::c_short {
    let mut ready = 0;
    if let Some(datagram) = &inner.datagram {
        if datagram.has_data() {
            ready |= wanted & libc::POLLIN;
        }
        if datagram.can_send() {
            ready |= wanted & libc::POLLOUT;
        }
        return ready;
    }
    match inner.phase {
        // The descriptor of its channel tells.
        Phase::Listening => {}
        Phase::Idle | Phase::Bound => ready |= libc::POLLHUP,
        Phase::Connecting => {}
        Phase::Failed => ready |= libc::POLLERR | libc::POLLHUP | wanted & libc::POLLOUT,
        Phase::Open => {
            let Some(stream) = &inner.stream else { return libc::POLLHUP };
            if wanted & libc::POLLIN != 0 && (stream.has_data() || stream.is_at_end()) {
                ready |= libc::POLLIN;
            }
            // A call that sends need not wait for its error either.
            if !stream.writable || stream.failed || stream.can_send() {
                ready |= wanted & libc::POLLOUT;
            }
            // Only after all data is read, because a program may stop reading at a hang-up.
            if !stream.readable && !stream.writable && !stream.has_data() {
                ready |= libc::POLLHUP;
            }
            if stream.failed {
                ready |= libc::POLLERR;
            }
        }
    }
    ready
}

/// Polls every entry once; returns the number that are ready. Before a sleep, it hangs the call's
/// bell at the sockets, and has them wake it.
fn look(fds: &mut [pollfd], sockets: &[Option<Arc<Socket>>], bell: Option<&Bell>) -> Result<c_int> {
    let mut count = 0;
    for (fd, socket) in fds.iter_mut().zip(sockets) {
        fd.revents = 0;
        let plain = |fd: &mut pollfd| {
            // SAFETY: a valid entry.
            unsafe { libc::poll(fd, 1, 0) }
        };
        match socket {
            Some(socket) => {
                let mut inner = socket.lock();
                match bell {
                    Some(bell) => {
                        inner.arm();
                        inner.bells.hang(bell);
                    }
                    None => inner.progress(),
                }
                if inner.phase == Phase::Listening {
                    drop(inner);
                    plain(fd);
                } else {
                    fd.revents = readiness(&mut inner, fd.events);
                }
            }
            None if fd.fd < 0 => {}
            None => {
                if plain(fd) < 0 {
                    return Err(Errno::last());
                }
            }
        }
        count += c_int::from(fd.revents != 0);
    }
    Ok(count)
}

/// The end of a wait of so many milliseconds; a negative number is one without end.
pub(super) fn end_after(timeout_ms: c_int) -> Option<Instant> {
    u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
}

/// Waits until an entry is ready, or to the end. Fails with `NOT_YET` now and then.
pub(super) fn wait(fds: &mut [pollfd], end: Option<Instant>) -> Result<c_int> {
    let sockets: Vec<Option<Arc<Socket>>> = fds.iter().map(|fd| socket::look(fd.fd)).collect();
    let start = Instant::now();
    let mut bell = None;
    loop {
        let ready = look(fds, &sockets, bell.as_ref())?;
        let now = Instant::now();
        if ready > 0 || end.is_some_and(|end| now >= end) {
            return Ok(ready);
        }
        if now < start + SPIN {
            continue;
        }
        let Some(bell) = bell.take() else {
            bell = Some(Bell::new());
            continue;
        };
        let mut below = Vec::from_iter(bell.entry());
        for (fd, socket) in fds.iter().zip(&sockets) {
            match socket {
                Some(socket) => below.extend(socket.lock().descriptors()),
                None => below.push(*fd),
            }
        }
        let left = end.map_or(SLEEP_MS, |end| {
            // Rounded up, so as not to spin at the end.
            (end - now).as_millis().saturating_add(1).min(SLEEP_MS as u128) as c_int
        });
        if !sleep(below, left, OnSignal::AsPoll)? {
            return Err(NOT_YET);
        }
    }
}

pub(super) unsafe extern "C-unwind" fn rpoll(
    fds: *mut pollfd,
    nfds: nfds_t,
    timeout: c_int,
) -> c_int {
    let end = end_after(timeout);
    call_that_waits(-1, || {
        let count = usize::try_from(nfds).map_err(|_| EINVAL)?;
        if count == 0 {
            return wait(&mut [], end);
        }
        if fds.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the caller gives as many entries as it says.
        wait(unsafe { std::slice::from_raw_parts_mut(fds, count) }, end)
    })
}

pub(super) unsafe extern "C-unwind" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller gives a time, or a null pointer.
    let end = unsafe { timeout.as_ref() }.and_then(|time| {
        let ms = time.tv_sec.saturating_mul(1000).saturating_add(time.tv_usec / 1000);
        end_after(c_int::try_from(ms).unwrap_or(c_int::MAX))
    });
    call_that_waits(-1, || {
        let sets = [
            (readfds, libc::POLLIN),
            (writefds, libc::POLLOUT),
            (exceptfds, libc::POLLERR | libc::POLLPRI),
        ];
        // SAFETY: the caller gives sets, or null pointers.
        let mut fds = unsafe { asked_for(nfds, sets) };
        wait(&mut fds, end)?;
        if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
            return Err(Errno(libc::EBADF));
        }
        let mut count = 0;
        for (set, event) in sets {
            if set.is_null() {
                continue;
            }
            // `select` has no set for an end or an error, and either ends the wait: so it is in
            // every set that asks for the descriptor.
            let event = event | libc::POLLHUP | libc::POLLERR;
            // SAFETY: the caller gives a set that no other thread uses.
            unsafe {
                let asked = set.read();
                libc::FD_ZERO(set);
                for fd in fds.iter().filter(|fd| fd.revents & event != 0) {
                    if libc::FD_ISSET(fd.fd, &asked) {
                        libc::FD_SET(fd.fd, set);
                        count += 1;
                    }
                }
            }
        }
        Ok(count)
    })
}

/// The entries for `poll` that the sets ask for.
///
/// # Safety
/// Each set is null, or can be read.
unsafe fn asked_for(nfds: c_int, sets: [(*mut fd_set, c_short); 3]) -> Vec<pollfd> {
    let asked = |fd: c_int| {
        sets.iter().fold(0, |events, (set, event)| {
            // SAFETY: by promise of the caller.
            let is = !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) };
            if is { events | event } else { events }
        })
    };
    let all = (0..nfds.min(libc::FD_SETSIZE as c_int)).map(|fd| (fd, asked(fd)));
    let some = all.filter(|(_, events)| *events != 0);
    some.map(|(fd, events)| pollfd { fd, events, revents: 0 }).collect()
}
