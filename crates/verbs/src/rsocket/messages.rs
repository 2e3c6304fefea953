//! Sending and receiving on datagram sockets.

use core::ffi::c_int;
use std::net::SocketAddr;
use std::ptr;

use libc::iovec;

use super::socket::{Inner, Socket};
use super::wire::{self, Operation, SLOT};
use crate::rdmacm::{Errno, Result, directory};
use crate::sleep::OnSignal;

fn at_once(inner: &Inner, flags: c_int) -> bool {
    inner.options.nonblocking || flags & libc::MSG_DONTWAIT != 0
}

/// Sends a datagram.
pub(super) fn send(
    socket: &Socket,
    data: &[u8],
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<usize> {
    let mut inner = socket.lock();
    let (at_once, sizes) = (at_once(&inner, flags), inner.options.sizes);
    let datagram = inner.datagram()?;
    datagram.take_error()?;
    let mut to = to.or(datagram.connected).ok_or(Errno(libc::EDESTADDRREQ))?;
    to.set_ip(directory::loopback_if_unspecified(to.ip()));
    // The limit of rdma-core's sockets, whether it goes by queue pair or by UDP.
    if data.len() + wire::datagram_header(to).len() > SLOT {
        return Err(Errno(libc::EMSGSIZE));
    }
    datagram.start(to, sizes);
    if !datagram.peers.contains_key(&to) {
        // The answer that names the peer's queue pair may be waiting.
        if datagram.take_udp(sizes) {
            inner.bells.ring();
        }
    }
    let datagram = inner.datagram()?;
    if datagram.peers.contains_key(&to) && !datagram.can_send() {
        inner = socket.wait(inner, at_once, OnSignal::AsRead, |inner| {
            inner.datagram().map_or(true, |datagram| datagram.can_send())
        })?;
    }
    let datagram = inner.datagram()?;
    match datagram.send_ud(to, data) {
        Some(sent) => sent?,
        None => datagram.send_udp(to, Operation::Data, data, at_once)?,
    }
    Ok(data.len())
}

/// A received datagram: its sender, its length, and the number of bytes written to the buffers.
pub(super) struct Received {
    pub(super) from: SocketAddr,
    pub(super) whole: usize,
    pub(super) written: usize,
}

/// Receives a datagram into the program's buffers; what does not fit is lost, as with UDP.
pub(super) fn receive(socket: &Socket, buffers: &[iovec], flags: c_int) -> Result<Received> {
    let inner = socket.lock();
    let at_once = at_once(&inner, flags);
    let mut inner = socket.wait(inner, at_once, OnSignal::AsRead, |inner| {
        inner
            .datagram()
            .map_or(true, |datagram| datagram.has_data() || (!at_once && datagram.error != 0))
    })?;
    let datagram = inner.datagram()?;
    let Some((from, data)) = datagram.arrived.front() else {
        datagram.take_error()?;
        return Err(Errno(libc::EAGAIN));
    };
    let mut written = 0;
    for buffer in buffers {
        let part = buffer.iov_len.min(data.len() - written);
        let to = buffer.iov_base.cast::<u8>();
        // SAFETY: the program's buffer has room for it.
        unsafe { ptr::copy_nonoverlapping(data[written..].as_ptr(), to, part) };
        written += part;
    }
    let received = Received { from: *from, whole: data.len(), written };
    if flags & libc::MSG_PEEK == 0 {
        datagram.arrived.pop_front();
    }
    Ok(received)
}
