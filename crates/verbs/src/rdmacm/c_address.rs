//! Addresses in their C form.

use core::ffi::c_int;
use core::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6};

use super::{EINVAL, Result};
use crate::abi::rdma_cma::*;

/// The address family of InfiniBand, and its address: a GID and a service.
const AF_IB: c_int = 27;

#[repr(C)]
#[derive(Clone, Copy)]
struct SockaddrIb {
    family: u16,
    pkey: u16,
    flowinfo: u32,
    gid: [u8; 16],
    sid: u64,
    sid_mask: u64,
    scope_id: u64,
}

/// An address that a program gives; `None` for a null pointer.
///
/// # Safety
/// `addr` is null, or points to an address as long as its family says.
pub(crate) unsafe fn from_c(addr: *const sockaddr) -> Result<Option<SocketAddr>> {
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: by promise of the caller, an address, which begins with its family.
    let family = c_int::from(unsafe { addr.cast::<u16>().read_unaligned() });
    Ok(Some(match family {
        libc::AF_INET => {
            // SAFETY: the family says what it is.
            let v4 = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            SocketAddr::new(ip.into(), u16::from_be(v4.sin_port))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what it is.
            let v6 = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into()
        }
        AF_IB => {
            // SAFETY: the family says what it is.
            let ib = unsafe { addr.cast::<SockaddrIb>().read_unaligned() };
            let port = (u64::from_be(ib.sid) & 0xffff) as u16;
            SocketAddr::new(IpAddr::from(ib.gid).to_canonical(), port)
        }
        _ => return Err(EINVAL),
    }))
}

/// The bytes of an address in C.
pub(crate) fn to_c(address: SocketAddr) -> any_address {
    let mut bytes = [0; size_of::<any_address>()];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    match address {
        SocketAddr::V4(v4) => {
            put(0, &(libc::AF_INET as u16).to_ne_bytes());
            put(2, &v4.port().to_be_bytes());
            put(4, &v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
            put(2, &v6.port().to_be_bytes());
            put(8, &v6.ip().octets());
            put(24, &v6.scope_id().to_ne_bytes());
        }
    }
    any_address(bytes)
}
