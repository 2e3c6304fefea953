//! The system calls of a UDP socket that the standard library lacks.
//!
//! The calls on the path of every packet bypass the C library's wrappers: a thread can be cancelled
//! in a wrapper, and to prepare for that takes some 15 ns each time.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_void, iovec, mmsghdr, msghdr, sockaddr_in, sockaddr_in6, socklen_t};

use super::control::Control;

/// The most datagrams one [`receive_batch`] fetches.
pub(super) const SLOTS_MAX: usize = 16;

/// Sets an integer option.
pub(super) fn set_option(
    fd: BorrowedFd,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    let len = size_of::<c_int>() as socklen_t;
    // SAFETY: the value lives through the call, and `len` is its size.
    let rc = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast::<c_void>(), len)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an integer option.
pub(super) fn option(fd: BorrowedFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `value`; both live
    // through the call.
    let rc = unsafe {
        let value = (&raw mut value).cast::<c_void>();
        libc::getsockopt(fd.as_raw_fd(), level, name, value, &mut len)
    };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union RawAddr {
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

impl RawAddr {
    /// No address.
    pub(super) const EMPTY: RawAddr = RawAddr {
        // SAFETY: all fields are integers, for which zeroes are valid.
        v6: unsafe { std::mem::zeroed() },
    };

    fn family(&self) -> c_int {
        // SAFETY: every byte of the union is always initialised (each value starts as EMPTY), and
        // the family lies at the same place in both forms.
        c_int::from(unsafe { self.v4.sin_family })
    }

    fn len(&self) -> socklen_t {
        let len = if self.family() == libc::AF_INET {
            size_of::<sockaddr_in>()
        } else {
            size_of::<sockaddr_in6>()
        };
        len as socklen_t
    }

    /// The address, if it is one of IPv4 or IPv6.
    pub(super) fn get(&self) -> Option<SocketAddr> {
        match self.family() {
            libc::AF_INET => {
                // SAFETY: the family says so, and every byte is initialised.
                let a = unsafe { self.v4 };
                let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
                Some(SocketAddr::from((ip, u16::from_be(a.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says so, and every byte is initialised.
                let a = unsafe { self.v6 };
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                let port = u16::from_be(a.sin6_port);
                Some(SocketAddrV6::new(ip, port, a.sin6_flowinfo, a.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for RawAddr {
    fn from(addr: SocketAddr) -> RawAddr {
        let mut raw = RawAddr::EMPTY;
        match addr {
            SocketAddr::V4(a) => {
                raw.v4 = sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*a.ip()).to_be() },
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(a) => {
                raw.v6 = sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
            }
        }
        raw
    }
}

impl std::fmt::Debug for RawAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

/// Sends `bytes` to `to` with `control` beside them.
pub(super) fn send(
    fd: BorrowedFd,
    to: SocketAddr,
    control: &Control,
    bytes: &[u8],
) -> io::Result<()> {
    let mut name = RawAddr::from(to);
    let control = control.as_slice();
    if control.is_empty() {
        // The shorter system call.
        let (fd, len) = (fd.as_raw_fd(), name.len());
        // SAFETY: the bytes and the address live through the call, with their lengths beside them;
        // `sendto` only reads them.
        let sent = unsafe {
            let (name, flags) = (&raw const name, libc::MSG_NOSIGNAL);
            libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, name, len)
        };
        return if sent >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    }
    let mut iov = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut msg = empty_message();
    msg.msg_name = (&raw mut name).cast();
    msg.msg_namelen = name.len();
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_ptr().cast_mut().cast();
    msg.msg_controllen = control.len() as _;
    // SAFETY: each pointer in `msg` points to a value that lives through the call, with its length
    // beside it; `sendmsg` only reads them.
    let sent = unsafe {
        libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const msg, libc::MSG_NOSIGNAL)
    };
    if sent >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// One place for a datagram to arrive in.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) from: RawAddr,
    pub(super) control: Control,
    /// Bytes that arrived.
    pub(super) len: usize,
    /// Did the datagram not fit?
    pub(super) truncated: bool,
}

impl Slot {
    pub(super) const EMPTY: Slot =
        Slot { from: RawAddr::EMPTY, control: Control::new(), len: 0, truncated: false };
}

/// Fetches the datagrams that wait, one for each slot at most. Those of slot `i` go to piece `i` of
/// `bytes`; pieces are `slot_len` long. Never blocks. Returns how many slots were filled.
pub(super) fn receive_batch(
    fd: BorrowedFd,
    slots: &mut [Slot],
    bytes: &mut [u8],
    slot_len: usize,
) -> io::Result<usize> {
    let mut iovs = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; SLOTS_MAX];
    let mut messages = [mmsghdr { msg_hdr: empty_message(), msg_len: 0 }; SLOTS_MAX];
    let places = slots.iter_mut().zip(bytes.chunks_exact_mut(slot_len));
    let mut wanted = 0;
    for ((slot, bytes), (iov, message)) in places.zip(iovs.iter_mut().zip(&mut messages)) {
        *iov = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let room = slot.control.room();
        let hdr = &mut message.msg_hdr;
        hdr.msg_control = room.as_mut_ptr().cast();
        hdr.msg_controllen = room.len() as _;
        hdr.msg_name = (&raw mut slot.from).cast();
        hdr.msg_namelen = size_of::<RawAddr>() as socklen_t;
        hdr.msg_iov = iov;
        hdr.msg_iovlen = 1;
        wanted += 1;
    }
    // SAFETY: each of the `wanted` messages points to one slot and its own piece of `bytes`, with
    // their lengths; all are borrowed mutably through the call.
    let got = unsafe {
        let flags = libc::MSG_DONTWAIT as _;
        libc::recvmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), wanted, flags, ptr::null_mut())
    };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    for (slot, message) in slots.iter_mut().zip(&messages[..got]) {
        slot.len = message.msg_len as usize;
        slot.truncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        slot.control.set_len(message.msg_hdr.msg_controllen as _);
    }
    Ok(got)
}

/// As [`receive_batch`], for one datagram, by a shorter system call. Returns whether there was one.
#[inline(always)]
pub(super) fn receive_one(fd: BorrowedFd, slot: &mut Slot, bytes: &mut [u8]) -> io::Result<bool> {
    let mut iov = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = empty_message();
    let room = slot.control.room();
    message.msg_control = room.as_mut_ptr().cast();
    message.msg_controllen = room.len() as _;
    message.msg_name = (&raw mut slot.from).cast();
    message.msg_namelen = size_of::<RawAddr>() as socklen_t;
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    // SAFETY: the message points to one slot and its bytes, with their lengths; all are borrowed
    // mutably through the call.
    let got = unsafe {
        let fd = fd.as_raw_fd();
        libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, libc::MSG_DONTWAIT)
    };
    let Ok(len) = usize::try_from(got) else {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::EAGAIN) { Ok(false) } else { Err(error) };
    };
    slot.len = len;
    slot.truncated = message.msg_flags & libc::MSG_TRUNC != 0;
    slot.control.set_len(message.msg_controllen as _);
    Ok(true)
}

/// Fetches what the kernel has to tell of an earlier packet, whose destination goes to
/// `slot.from`. Never blocks. Returns whether there was anything.
pub(super) fn receive_news(fd: BorrowedFd, slot: &mut Slot) -> io::Result<bool> {
    let mut message = empty_message();
    let room = slot.control.room();
    message.msg_control = room.as_mut_ptr().cast();
    message.msg_controllen = room.len() as _;
    message.msg_name = (&raw mut slot.from).cast();
    message.msg_namelen = size_of::<RawAddr>() as socklen_t;
    // SAFETY: the message points to one slot, with its lengths, and has no place for bytes; the
    // slot is borrowed mutably through the call.
    let got = unsafe {
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags)
    };
    if got < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::EAGAIN) { Ok(false) } else { Err(error) };
    }
    slot.control.set_len(message.msg_controllen as _);
    Ok(true)
}

fn empty_message() -> msghdr {
    // SAFETY: a `msghdr` of null pointers and zero lengths is valid: it names nothing.
    unsafe { std::mem::zeroed() }
}
