//! `rdma_getaddrinfo`: names to addresses, with the parameters of an endpoint.

use core::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};

use super::address;
use super::c_address;
use crate::abi::rdma_cma::*;
use crate::abi::*;

/// The resolver's errors for missing memory and for a bad call.
const EAI_MEMORY: c_int = libc::EAI_MEMORY;
const EAI_NONAME: c_int = libc::EAI_NONAME;

/// The type of queue pair and the port space, which belong together; each is found from the other.
fn kinds(hints: Option<&rdma_addrinfo>) -> (c_int, c_int) {
    let (qp_type, space) = hints.map_or((0, 0), |hints| (hints.ai_qp_type, hints.ai_port_space));
    let qp_type = match (qp_type, space as rdma_port_space) {
        (0, RDMA_PS_UDP | RDMA_PS_IPOIB) => IBV_QPT_UD as c_int,
        (0, _) => IBV_QPT_RC as c_int,
        (given, _) => given,
    };
    let space = match (space, qp_type as ibv_qp_type) {
        (0, IBV_QPT_UD) => RDMA_PS_UDP as c_int,
        (0, _) => RDMA_PS_TCP as c_int,
        (given, _) => given,
    };
    (qp_type, space)
}

/// Asks the system's resolver.
///
/// # Safety
/// Both strings are null, or end with a zero byte.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    space: c_int,
) -> Result<Vec<(SocketAddr, Option<std::ffi::CString>)>, c_int> {
    // SAFETY: all fields are integers and pointers, for which zeroes are valid.
    let mut wanted: addrinfo = unsafe { std::mem::zeroed() };
    let flags = hints.map_or(0, |hints| hints.ai_flags) as rdma_addrinfo_flags;
    if flags & RAI_PASSIVE != 0 {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    if flags & RAI_FAMILY != 0 {
        wanted.ai_family = hints.map_or(0, |hints| hints.ai_family);
    }
    wanted.ai_socktype = match space as rdma_port_space {
        RDMA_PS_UDP | RDMA_PS_IPOIB => libc::SOCK_DGRAM,
        _ => libc::SOCK_STREAM,
    };
    let mut list: *mut addrinfo = ptr::null_mut();
    // SAFETY: the strings by promise of the caller; the other pointers are to local values.
    let failed = unsafe { libc::getaddrinfo(node, service, &wanted, &mut list) };
    if failed != 0 {
        return Err(failed);
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: each pointer belongs to the list, which lives until it is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: an address as long as its family says, or null.
        if let Ok(Some(address)) = unsafe { c_address::from_c(entry.ai_addr) } {
            let name = match entry.ai_canonname.is_null() {
                true => None,
                // SAFETY: the resolver ends names with a zero byte.
                false => Some(unsafe { std::ffi::CStr::from_ptr(entry.ai_canonname) }.to_owned()),
            };
            if found.iter().all(|(known, _)| *known != address) {
                found.push((address, name));
            }
        }
        next = entry.ai_next;
    }
    // SAFETY: the list comes from the resolver, is freed once, and nothing borrows from it.
    unsafe { libc::freeaddrinfo(list) };
    Ok(found)
}

/// A copy of an address that `rdma_freeaddrinfo` frees.
fn copy(address: SocketAddr) -> Result<(*mut sockaddr, socklen_t), c_int> {
    let any_address(bytes) = c_address::to_c(address);
    let len = address::c_len(address);
    // SAFETY: the allocation is null or has room for the bytes, and the address has as many.
    unsafe {
        let to = libc::calloc(1, bytes.len()).cast::<u8>();
        if to.is_null() {
            return Err(EAI_MEMORY);
        }
        ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        Ok((to.cast(), len as socklen_t))
    }
}

/// A copy of hints, for a thread that looks up later.
pub(super) fn copy_hints(hints: &rdma_addrinfo) -> Result<*mut rdma_addrinfo, c_int> {
    // SAFETY: without names, the hints alone are described; the reference is valid.
    let copied = unsafe { look_up(ptr::null(), ptr::null(), hints) }?;
    // SAFETY: a list of one, which was just made.
    let one = unsafe { &mut *copied };
    (one.ai_family, one.ai_qp_type, one.ai_port_space) =
        (hints.ai_family, hints.ai_qp_type, hints.ai_port_space);
    Ok(copied)
}

/// # Safety
/// As for `rdma_getaddrinfo`.
pub(super) unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, c_int> {
    // SAFETY: the caller gives hints, or a null pointer.
    let hints = unsafe { hints.as_ref() };
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(EAI_NONAME);
    }
    let (qp_type, space) = kinds(hints);
    let passive = hints.is_some_and(|hints| hints.ai_flags & RAI_PASSIVE as c_int != 0);
    let given = |addr: fn(&rdma_addrinfo) -> *mut sockaddr| match hints.map(addr) {
        // SAFETY: the caller gives addresses as long as their families say.
        Some(addr) => unsafe { c_address::from_c(addr) }.ok().flatten(),
        None => None,
    };
    let (from, to) = (given(|hints| hints.ai_src_addr), given(|hints| hints.ai_dst_addr));
    let found = match node.is_null() && service.is_null() {
        true => Vec::new(),
        // SAFETY: by promise of the caller.
        false => unsafe { resolve(node, service, hints, space) }?,
    };
    let mut pairs: Vec<Pair> = match passive {
        true => found.into_iter().map(|(at, name)| (Some(at), None, name)).collect(),
        false => found.into_iter().map(|(at, name)| (from, Some(at), name)).collect(),
    };
    if pairs.is_empty() {
        pairs.push((from, to, None));
    }
    let mut first = ptr::null_mut();
    for pair in pairs.into_iter().rev() {
        let mut info = described(pair, passive)?;
        info.ai_flags = hints.map_or(0, |hints| hints.ai_flags);
        (info.ai_qp_type, info.ai_port_space) = (qp_type, space);
        info.ai_next = first;
        // SAFETY: the allocation is null or has room for one.
        unsafe {
            let place = libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
            if place.is_null() {
                return Err(EAI_MEMORY);
            }
            place.write(info);
            first = place;
        }
    }
    Ok(first)
}

/// A source and a destination, of which one may be missing, and a name.
type Pair = (Option<SocketAddr>, Option<SocketAddr>, Option<std::ffi::CString>);

/// A result with the fields that follow from its addresses.
fn described((from, to, name): Pair, passive: bool) -> Result<rdma_addrinfo, c_int> {
    let family = match from.or(to) {
        Some(SocketAddr::V6(_)) => libc::AF_INET6,
        _ => libc::AF_INET,
    };
    let mut info = rdma_addrinfo { ai_family: family, ..rdma_addrinfo::zeroed() };
    if let Some(from) = from {
        (info.ai_src_addr, info.ai_src_len) = copy(from)?;
    }
    if let Some(to) = to {
        (info.ai_dst_addr, info.ai_dst_len) = copy(to)?;
    }
    if let Some(name) = name {
        // SAFETY: the string ends with a zero byte.
        let name = unsafe { libc::strdup(name.as_ptr()) };
        if passive { info.ai_src_canonname = name } else { info.ai_dst_canonname = name }
    }
    Ok(info)
}

pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    super::call(libc::EAI_SYSTEM, || {
        if res.is_null() {
            return Err(super::EINVAL);
        }
        // SAFETY: by promise of the caller.
        Ok(match unsafe { look_up(node, service, hints) } {
            Ok(found) => {
                // SAFETY: the caller gives a place for the list.
                unsafe { res.write(found) };
                0
            }
            Err(failed) => failed,
        })
    })
}
