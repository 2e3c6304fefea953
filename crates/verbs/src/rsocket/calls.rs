//! The calls of `rdma/rsocket.h`, except those that wait for several sockets (see `poll`).
//!
//! The name and most options of a datagram socket are those of its UDP socket.
//!
//! Calls that wait for data, room or connections may be cancelled: see [`cancel`](crate::cancel).

use core::ffi::{c_int, c_void};
use std::ptr;
use std::sync::MutexGuard;

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::messages::{self, Received};
use super::socket::{self, Inner, Phase, Socket, conn_param};
use super::stream::Stream;
use super::{repoll, sockopt, wire};
use crate::abi::rdma_cma::*;
use crate::rdmacm::{
    EINVAL, Errno, NOT_YET, Result, address, c_address, call, call_that_waits, connect, events,
    status,
};
use crate::sleep::OnSignal;

/// Checks the result of a kernel call; its error is in `errno`.
fn passed_on<T: PartialOrd + Default>(returned: T) -> Result<T> {
    if returned < T::default() { Err(Errno::last()) } else { Ok(returned) }
}

pub(super) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    call(-1, || {
        if !matches!(domain, libc::AF_INET | libc::AF_INET6 | 27) {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        match (kind, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => socket::create_stream(),
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                // SAFETY: no pointers are passed.
                let fd = unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) };
                Ok(socket::create_datagram(passed_on(fd)?))
            }
            (libc::SOCK_STREAM | libc::SOCK_DGRAM, _) => Err(Errno(libc::EPROTONOSUPPORT)),
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
    })
}

pub(super) unsafe extern "C" fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    status(|| {
        let socket = socket::find(fd)?;
        if socket.datagram {
            // SAFETY: the caller gives an address as long as it says.
            return passed_on(unsafe { libc::bind(fd, addr, len) }).map(|_| ());
        }
        let mut inner = socket.lock();
        if inner.phase != Phase::Idle {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives an address.
        Errno::check(unsafe { address::rdma_bind_addr(inner.id, addr.cast_mut()) })?;
        inner.phase = Phase::Bound;
        Ok(())
    })
}

pub(super) extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    status(|| {
        let socket = socket::find(fd)?;
        let mut inner = socket.lock();
        match inner.phase {
            Phase::Listening => return Ok(()),
            Phase::Idle | Phase::Bound if !socket.datagram => {}
            _ => return Err(EINVAL),
        }
        Errno::check(connect::rdma_listen(inner.id, backlog))?;
        inner.phase = Phase::Listening;
        // The channel's descriptor is the socket's, so that any `poll` works on it.
        Ok(())
    })
}

pub(super) unsafe extern "C-unwind" fn raccept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    call_that_waits(-1, || {
        let socket = socket::find(fd)?;
        let mut inner = socket.lock();
        loop {
            let at_once = inner.options.nonblocking;
            inner = socket.wait(inner, at_once, OnSignal::AsRead, |inner| {
                inner.phase != Phase::Listening || inner.has_news()
            })?;
            if inner.phase != Phase::Listening {
                return Err(EINVAL);
            }
            let Some(event) = inner.next_event() else { continue };
            // SAFETY: the event was just fetched.
            if unsafe { (*event).event } != RDMA_CM_EVENT_CONNECT_REQUEST {
                events::rdma_ack_cm_event(event);
                continue;
            }
            let made = match socket::accept(&inner, event) {
                Ok(made) => made,
                // The fault of that client, or the end of it: the next one is served.
                Err(error) => {
                    tracing::warn!(?error, "a connection to an rsocket is refused");
                    continue;
                }
            };
            drop(inner);
            if !addr.is_null() {
                // SAFETY: the caller gives room for an address of the length that it says.
                unsafe { rgetpeername(made, addr, len) };
            }
            return Ok(made);
        }
    })
}

pub(super) unsafe extern "C" fn rconnect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    status(|| {
        let socket = socket::find(fd)?;
        if socket.datagram {
            // SAFETY: the caller gives an address as long as it says.
            passed_on(unsafe { libc::connect(fd, addr, len) })?;
            socket.lock().datagram()?.on_connect();
            return Ok(());
        }
        let mut inner = socket.lock();
        inner.progress();
        match inner.phase {
            Phase::Idle | Phase::Bound => {}
            Phase::Connecting => return Err(Errno(libc::EALREADY)),
            Phase::Open => return Err(Errno(libc::EISCONN)),
            _ => return Err(EINVAL),
        }
        // SAFETY: the caller gives an address.
        unsafe { begin(&mut inner, addr) }?;
        if inner.options.nonblocking {
            return Err(Errno(libc::EINPROGRESS));
        }
        connected(&socket, inner, false).map(drop)
    })
}

/// Waits for the outcome of a connection that was asked for; its failure is the call's.
fn connected<'a>(
    socket: &'a Socket,
    inner: MutexGuard<'a, Inner>,
    at_once: bool,
) -> Result<MutexGuard<'a, Inner>> {
    if inner.phase != Phase::Connecting {
        return Ok(inner);
    }
    let decided = |inner: &mut Inner| inner.phase != Phase::Connecting;
    let mut inner = socket.wait(inner, at_once, OnSignal::GoOn, decided)?;
    match (inner.phase, std::mem::take(&mut inner.error)) {
        (Phase::Open, _) => Ok(inner),
        (_, 0) => Err(Errno(libc::ECONNREFUSED)),
        (_, error) => Err(Errno(error)),
    }
}

/// Locks a stream to send or receive. Returns also whether the call must not wait.
fn lock_stream(socket: &Socket, flags: c_int) -> Result<(MutexGuard<'_, Inner>, bool)> {
    let inner = socket.lock();
    let at_once = inner.options.nonblocking || flags & libc::MSG_DONTWAIT != 0;
    let mut inner = connected(socket, inner, at_once)?;
    inner.stream()?;
    Ok((inner, at_once))
}

/// Resolves an address, and asks for a connection.
///
/// # Safety
/// `addr` is null or points to an address.
unsafe fn begin(inner: &mut Inner, addr: *const sockaddr) -> Result<()> {
    let id = inner.id;
    // SAFETY: by promise of the caller.
    let asked = unsafe { address::rdma_resolve_addr(id, ptr::null_mut(), addr.cast_mut(), 2000) };
    Errno::check(asked)?;
    expect(inner, RDMA_CM_EVENT_ADDR_RESOLVED)?;
    Errno::check(address::rdma_resolve_route(id, 2000))?;
    expect(inner, RDMA_CM_EVENT_ROUTE_RESOLVED)?;
    let stream = Stream::new(id, inner.options.sizes)?;
    let hello = stream.hello().emit();
    let mut param = conn_param(&hello);
    // SAFETY: the parameters live through the call.
    Errno::check(unsafe { connect::rdma_connect(id, &mut param) })?;
    inner.stream = Some(stream);
    inner.phase = Phase::Connecting;
    Ok(())
}

/// Expects an event of this kind. This library resolves addresses and routes at once, so the event
/// is there and holds the outcome.
fn expect(inner: &mut Inner, kind: rdma_cm_event_type) -> Result<()> {
    let event = inner.next_event().ok_or(Errno(libc::EHOSTUNREACH))?;
    // SAFETY: the event was just fetched.
    let (was, status) = unsafe { ((*event).event, (*event).status) };
    events::rdma_ack_cm_event(event);
    match status {
        0 if was == kind => Ok(()),
        0 => Err(Errno(libc::EHOSTUNREACH)),
        status => Err(Errno(status.abs())),
    }
}

/// Shuts down one direction, or both and with them the connection.
fn shut_down(socket: &Socket, how: c_int) -> Result<()> {
    let mut inner = socket.lock();
    inner.progress();
    let stream = inner.stream()?;
    if how == libc::SHUT_RD {
        stream.readable = false;
        inner.bells.ring();
        return Ok(());
    }
    let (was_readable, was_writable) = (stream.readable, stream.writable);
    let whole = how == libc::SHUT_RDWR || !was_readable;
    let control = match whole {
        true => wire::CONTROL_DISCONNECT,
        false => wire::CONTROL_SHUTDOWN,
    };
    let over = |inner: &mut Inner| inner.stream().map_or(true, |stream| stream.failed);
    if was_writable && !stream.failed && stream.up {
        inner = socket.wait(inner, false, OnSignal::GoOn, |inner| {
            over(inner) || inner.stream().is_ok_and(|stream| stream.can_say())
        })?;
        if !over(&mut inner) {
            inner.stream()?.say(control)?;
        }
    }
    let stream = inner.stream()?;
    stream.writable = false;
    stream.readable &= !whole;
    inner.bells.ring();
    // Waits until the sent data has arrived, as TCP delivers it even after a close. A close that
    // ends before would cut the stream off, and to the peer that is its regular end.
    inner = socket.wait(inner, false, OnSignal::GoOn, |inner| {
        over(inner) || inner.stream().is_ok_and(|stream| stream.all_sent())
    })?;
    drop(inner);
    Ok(())
}

pub(super) extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    status(|| {
        let socket = socket::find(fd)?;
        match socket.datagram {
            // SAFETY: no pointers are passed.
            true => passed_on(unsafe { libc::shutdown(fd, how) }).map(|_| ()),
            false => shut_down(&socket, how),
        }
    })
}

pub(super) extern "C" fn rclose(fd: c_int) -> c_int {
    status(|| {
        if repoll::close(fd) {
            return Ok(());
        }
        let socket = socket::find(fd)?;
        if socket.datagram {
            socket::remove(fd)?;
            let mut inner = socket.lock();
            inner.datagram = None;
            inner.bells.ring();
            // SAFETY: the descriptor was the socket's own.
            return passed_on(unsafe { libc::close(fd) }).map(|_| ());
        }
        if let Err(error) = shut_down(&socket, libc::SHUT_RDWR) {
            tracing::debug!(?error, "a socket was not connected when it was closed");
        }
        socket::remove(fd)?;
        let mut inner = socket.lock();
        inner.maps.clear();
        if inner.stream.is_some() {
            // The queue pair still answers here, so what the peer sends meanwhile is acknowledged.
            connect::rdma_disconnect(inner.id);
        }
        inner.stream = None;
        inner.phase = Phase::Failed;
        connect::rdma_destroy_id(inner.id);
        connect::rdma_destroy_event_channel(inner.channel);
        (inner.id, inner.channel) = (ptr::null_mut(), ptr::null_mut());
        inner.bells.ring();
        Ok(())
    })
}

/// Receives into the program's buffers.
fn receive(socket: &Socket, buffers: &[iovec], flags: c_int) -> Result<usize> {
    let wanted: usize = buffers.iter().map(|buffer| buffer.iov_len).sum();
    let peek = flags & libc::MSG_PEEK != 0;
    let mut buffers = buffers.to_vec();
    let mut done = 0;
    loop {
        let (mut inner, at_once) = lock_stream(socket, flags)?;
        // A cheap look that takes no lock of a completion queue: data may be there already.
        if !inner.stream()?.has_data() {
            let waited = socket.wait(inner, at_once, OnSignal::AsRead, |inner| {
                inner.stream().map_or(true, |stream| stream.has_data() || stream.is_at_end())
            });
            inner = match waited {
                Ok(inner) => inner,
                Err(NOT_YET) if done > 0 => continue,
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            };
        }
        let stream = inner.stream()?;
        if !stream.has_data() {
            // The end of the stream; an error if the connection failed before the peer has shut it
            // down.
            let broken = stream.failed && stream.readable;
            return if broken && done == 0 { Err(Errno(libc::ECONNRESET)) } else { Ok(done) };
        }
        let part = stream.read(&buffers, peek);
        done += part;
        if peek || done == wanted || flags & libc::MSG_WAITALL == 0 {
            return Ok(done);
        }
        skip(&mut buffers, part);
    }
}

/// Removes the first `len` bytes from the buffers.
fn skip(buffers: &mut Vec<iovec>, mut len: usize) {
    buffers.retain_mut(|buffer| {
        let part = len.min(buffer.iov_len);
        buffer.iov_base = buffer.iov_base.wrapping_byte_add(part);
        buffer.iov_len -= part;
        len -= part;
        buffer.iov_len > 0
    });
}

/// Sends all of the program's buffers, or as much as fits if the call must not wait.
///
/// # Safety
/// The buffers point to as many bytes as they say.
unsafe fn send(socket: &Socket, buffers: &[iovec], flags: c_int) -> Result<usize> {
    let mut done = 0;
    for buffer in buffers.iter().filter(|buffer| buffer.iov_len > 0) {
        // SAFETY: by promise of the caller.
        let data =
            unsafe { std::slice::from_raw_parts(buffer.iov_base.cast::<u8>(), buffer.iov_len) };
        let mut at = 0;
        while at < data.len() {
            let (mut inner, at_once) = lock_stream(socket, flags)?;
            let ready = |inner: &mut Inner| {
                inner.stream().map_or(true, |s| !s.writable || s.failed || s.can_send())
            };
            if !inner.stream()?.can_send() {
                inner = match socket.wait(inner, at_once, OnSignal::AsRead, ready) {
                    Ok(inner) => inner,
                    Err(NOT_YET) if done > 0 => continue,
                    Err(_) if done > 0 => return Ok(done),
                    Err(error) => return Err(error),
                };
            }
            let stream = inner.stream()?;
            if !stream.writable || stream.failed {
                let error = if stream.writable { libc::ECONNRESET } else { libc::EPIPE };
                return if done > 0 { Ok(done) } else { Err(Errno(error)) };
            }
            let part = stream.write(&data[at..], at)?;
            (at, done) = (at + part, done + part);
        }
    }
    Ok(done)
}

/// Receives a datagram; returns the call's result, and the rest.
fn receive_datagram(socket: &Socket, buffers: &[iovec], flags: c_int) -> Result<(usize, Received)> {
    let received = messages::receive(socket, buffers, flags)?;
    let whole = flags & libc::MSG_TRUNC != 0;
    Ok((if whole { received.whole } else { received.written }, received))
}

/// Sends a datagram; without an address, to the peer of the connected socket.
///
/// # Safety
/// The buffers point to as many bytes as they say; `addr` is null or points to an address.
unsafe fn send_datagram(
    socket: &Socket,
    buffers: &[iovec],
    flags: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<usize> {
    // SAFETY: by promise of the caller.
    let to = if len == 0 { None } else { unsafe { c_address::from_c(addr) }? };
    let mut data = Vec::new();
    for buffer in buffers.iter().filter(|buffer| buffer.iov_len > 0) {
        if buffer.iov_base.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        if buffer.iov_len > wire::SLOT {
            return Err(Errno(libc::EMSGSIZE));
        }
        // SAFETY: by promise of the caller.
        let part =
            unsafe { std::slice::from_raw_parts(buffer.iov_base.cast::<u8>(), buffer.iov_len) };
        data.extend_from_slice(part);
    }
    messages::send(socket, &data, flags, to)
}

/// A length as the calls return it.
fn count(done: usize) -> ssize_t {
    ssize_t::try_from(done).unwrap_or(ssize_t::MAX)
}

fn one(buf: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: buf.cast_mut(), iov_len: len }]
}

pub(super) unsafe extern "C-unwind" fn rrecv(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    call_that_waits(-1, || {
        let socket = socket::find(fd)?;
        Ok(count(match socket.datagram {
            true => receive_datagram(&socket, &one(buf, len), flags)?.0,
            false => receive(&socket, &one(buf, len), flags)?,
        }))
    })
}

pub(super) unsafe extern "C-unwind" fn rrecvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    call_that_waits(-1, || {
        let socket = socket::find(fd)?;
        if socket.datagram {
            let (done, received) = receive_datagram(&socket, &one(buf, len), flags)?;
            if !addr.is_null() {
                // SAFETY: the caller gives room for an address of the length that it says.
                unsafe { give(&c_address::to_c(received.from), addr, addrlen) }?;
            }
            return Ok(count(done));
        }
        let done = receive(&socket, &one(buf, len), flags)?;
        if !addr.is_null() {
            // SAFETY: the caller gives room for an address of the length that it says.
            unsafe { rgetpeername(fd, addr, addrlen) };
        }
        Ok(count(done))
    })
}

pub(super) unsafe extern "C-unwind" fn rrecvmsg(
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    call_that_waits(-1, || {
        let socket = socket::find(fd)?;
        // SAFETY: the caller gives a message with its buffers.
        let buffers = unsafe { buffers_of(msg) }?;
        if socket.datagram {
            let (done, received) = receive_datagram(&socket, buffers, flags)?;
            // SAFETY: as above; `buffers_of` has found it not null.
            let msg = unsafe { &mut *msg };
            msg.msg_flags = if received.written < received.whole { libc::MSG_TRUNC } else { 0 };
            if !msg.msg_name.is_null() {
                let (from, to) = (c_address::to_c(received.from), msg.msg_name.cast());
                // SAFETY: the message has room for an address of the length that it says.
                unsafe { give(&from, to, &mut msg.msg_namelen) }?;
            }
            return Ok(count(done));
        }
        Ok(count(receive(&socket, buffers, flags)?))
    })
}

/// # Safety
/// `msg` is null or points to a message with its buffers.
unsafe fn buffers_of<'a>(msg: *const msghdr) -> Result<&'a [iovec]> {
    // SAFETY: by promise of the caller.
    let msg = unsafe { msg.as_ref() }.ok_or(Errno(libc::EFAULT))?;
    if msg.msg_controllen > 0 {
        return Err(Errno(libc::ENOTSUP));
    }
    // SAFETY: by promise of the caller.
    unsafe { vector(msg.msg_iov, msg.msg_iovlen) }
}

/// # Safety
/// `iov` is null or points to `len` buffers.
unsafe fn vector<'a>(iov: *const iovec, len: usize) -> Result<&'a [iovec]> {
    match (iov.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno(libc::EFAULT)),
        // SAFETY: by promise of the caller.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(iov, len) }),
    }
}

pub(super) unsafe extern "C-unwind" fn rread(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: as for `rrecv`.
    unsafe { rrecv(fd, buf, len, 0) }
}

pub(super) unsafe extern "C-unwind" fn rreadv(fd: c_int, iov: *const iovec, len: c_int) -> ssize_t {
    call_that_waits(-1, || {
        let socket = socket::find(fd)?;
        let len = usize::try_from(len).map_err(|_| EINVAL)?;
        // SAFETY: the caller gives as many buffers as it says.
        let buffers = unsafe { vector(iov, len) }?;
        Ok(count(match socket.datagram {
            true => receive_datagram(&socket, buffers, 0)?.0,
            false => receive(&socket, buffers, 0)?,
        }))
    })
}

pub(super) unsafe extern "C-unwind" fn rsend(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    call_that_waits(-1, || {
        let socket = socket::find(fd)?;
        // SAFETY: the caller gives as many bytes as it says.
        Ok(count(unsafe {
            match socket.datagram {
                true => send_datagram(&socket, &one(buf, len), flags, ptr::null(), 0),
                false => send(&socket, &one(buf, len), flags),
            }
        }?))
    })
}

pub(super) unsafe extern "C-unwind" fn rsendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    call_that_waits(-1, || {
        let socket = socket::find(fd)?;
        if socket.datagram {
            // SAFETY: the caller gives as many bytes as it says.
            let sent = unsafe { send_datagram(&socket, &one(buf, len), flags, addr, addrlen) };
            return Ok(count(sent?));
        }
        if !addr.is_null() || addrlen != 0 {
            return Err(Errno(libc::EISCONN));
        }
        // SAFETY: as above.
        Ok(count(unsafe { send(&socket, &one(buf, len), flags) }?))
    })
}

pub(super) unsafe extern "C-unwind" fn rsendmsg(
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
) -> ssize_t {
    call_that_waits(-1, || {
        let socket = socket::find(fd)?;
        // SAFETY: the caller gives a message with its buffers.
        Ok(count(unsafe {
            let buffers = buffers_of(msg)?;
            match socket.datagram {
                true => {
                    let (to, len) = ((*msg).msg_name.cast(), (*msg).msg_namelen);
                    send_datagram(&socket, buffers, flags, to, len)
                }
                false => send(&socket, buffers, flags),
            }
        }?))
    })
}

pub(super) unsafe extern "C-unwind" fn rwrite(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
) -> ssize_t {
    // SAFETY: as for `rsend`.
    unsafe { rsend(fd, buf, len, 0) }
}

pub(super) unsafe extern "C-unwind" fn rwritev(
    fd: c_int,
    iov: *const iovec,
    len: c_int,
) -> ssize_t {
    call_that_waits(-1, || {
        let socket = socket::find(fd)?;
        let len = usize::try_from(len).map_err(|_| EINVAL)?;
        // SAFETY: the caller gives as many buffers as it says.
        Ok(count(unsafe {
            let buffers = vector(iov, len)?;
            match socket.datagram {
                true => send_datagram(&socket, buffers, 0, ptr::null(), 0),
                false => send(&socket, buffers, 0),
            }
        }?))
    })
}

/// Copies an address to the program, as much as it has room for.
///
/// # Safety
/// `addr` has room for the length that `len` says.
unsafe fn give(from: &any_address, addr: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    // SAFETY: by promise of the caller.
    let room = unsafe { len.as_ref() }.map(|len| *len as usize);
    // Some programs ask for the length only.
    let Some(room) = room.filter(|room| *room == 0 || !addr.is_null()) else {
        return Err(Errno(libc::EFAULT));
    };
    let any_address(bytes) = from;
    let whole = match c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => size_of::<libc::sockaddr_in>(),
    };
    // SAFETY: by promise of the caller.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), addr.cast::<u8>(), whole.min(room));
        len.write(whole as socklen_t);
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rgetpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    status(|| {
        let socket = socket::find(fd)?;
        if socket.datagram {
            // SAFETY: the caller gives room for the length that it says.
            return passed_on(unsafe { libc::getpeername(fd, addr, len) }).map(|_| ());
        }
        let mut inner = socket.lock();
        if inner.phase == Phase::Connecting {
            inner.progress();
        }
        inner.stream()?;
        // SAFETY: the socket's own id; room as above.
        unsafe { give(&(*inner.id).route.addr.dst, addr, len) }
    })
}

pub(super) unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    status(|| {
        let socket = socket::find(fd)?;
        if socket.datagram {
            // SAFETY: the caller gives room for the length that it says.
            return passed_on(unsafe { libc::getsockname(fd, addr, len) }).map(|_| ());
        }
        let inner = socket.lock();
        if inner.id.is_null() {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: the socket's own id; room as above.
        unsafe { give(&(*inner.id).route.addr.src, addr, len) }
    })
}

pub(super) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    status(|| {
        let socket = socket::find(fd)?;
        let mut inner = socket.lock();
        // SAFETY: the caller gives as many bytes as it says.
        unsafe {
            if !socket.datagram {
                return sockopt::set(&mut inner, level, name, value, len);
            }
            let size = matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF);
            if level == SOL_RDMA as c_int || (level == libc::SOL_SOCKET && size) {
                // The queue pair's sizes change with the socket's.
                sockopt::set_size(&mut inner, level, name, value, len)?;
            }
            match level == SOL_RDMA as c_int {
                true => Ok(()),
                false => passed_on(libc::setsockopt(fd, level, name, value, len)).map(|_| ()),
            }
        }
    })
}

pub(super) unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    status(|| {
        let socket = socket::find(fd)?;
        if socket.datagram {
            // SAFETY: the caller gives room for the length that it says.
            let got = unsafe { libc::getsockopt(fd, level, name, value, len) };
            return passed_on(got).map(|_| ());
        }
        let mut inner = socket.lock();
        inner.progress();
        let bytes = sockopt::get(&mut inner, level, name)?;
        if value.is_null() || len.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the caller gives room for the length that it says.
        unsafe {
            let room = bytes.len().min(len.read() as usize);
            ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), room);
            len.write(room as socklen_t);
        }
        Ok(())
    })
}

/// `fcntl` is variadic; its third argument, if there is one, is an integer. On the architectures of
/// this library it is passed just as the third of three fixed arguments.
pub(super) extern "C" fn rfcntl(fd: c_int, command: c_int, value: c_int) -> c_int {
    call(-1, || {
        let socket = socket::find(fd)?;
        if socket.datagram {
            // SAFETY: no pointers are passed.
            let done = passed_on(unsafe { libc::fcntl(fd, command, value) })?;
            if command == libc::F_SETFL {
                socket.lock().options.nonblocking = value & libc::O_NONBLOCK != 0;
            }
            return Ok(done);
        }
        let mut inner = socket.lock();
        match command {
            libc::F_GETFL if inner.options.nonblocking => Ok(libc::O_NONBLOCK | libc::O_RDWR),
            libc::F_GETFL => Ok(libc::O_RDWR),
            libc::F_SETFL => {
                inner.options.nonblocking = value & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            libc::F_GETFD => Ok(libc::FD_CLOEXEC),
            libc::F_SETFD => Ok(0),
            _ => Err(EINVAL),
        }
    })
}
