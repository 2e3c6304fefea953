//! `rsetsockopt` and `rgetsockopt`.

use core::ffi::{c_int, c_void};

use libc::socklen_t;

use super::options::{Sizes, UNKNOWN};
use super::socket::{Inner, Phase};
use crate::abi::rdma_cma::*;
use crate::rdmacm::{EINVAL, Errno, Result};

/// Sets an option of a stream.
///
/// # Safety
/// `value` points to `len` bytes.
pub(super) unsafe fn set(
    inner: &mut Inner,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<()> {
    // SAFETY: by promise of the caller.
    let int = || unsafe { given::<c_int>(value, len) };
    let up_to =
        |most| int().and_then(|n| if (1..=most).contains(&n) { Ok(n) } else { Err(EINVAL) });
    let id = inner.id;
    let pass_on = |option: rdma_options| -> Result<c_int> {
        let mut on = int()?;
        let (at, len) = ((&raw mut on).cast(), size_of::<c_int>());
        // SAFETY: the socket's own id, and a value that lives through the call.
        let set = unsafe {
            let level = RDMA_OPTION_ID as c_int;
            crate::rdmacm::options::rdma_set_option(id, level, option as c_int, at, len)
        };
        Errno::check(set)?;
        Ok(on)
    };
    let before = matches!(inner.phase, Phase::Idle | Phase::Bound | Phase::Listening);
    let sized = || if before { int().map(|n| n.max(0) as u32) } else { Err(EINVAL) };
    let options = &mut inner.options;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
            options.reuse = pass_on(RDMA_OPTION_ID_REUSEADDR)?;
        }
        // As with TCP, a connected socket's buffers do not shrink.
        (libc::SOL_SOCKET, libc::SO_RCVBUF) if !before => {}
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if !before => {}
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            // As with TCP, twice the size asked for; the peer is given it in halves.
            options.sizes.recv_buffer = 2 * sized()? as usize;
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => options.sizes.send_buffer = 2 * sized()? as usize,
        // SAFETY: by promise of the caller.
        (libc::SOL_SOCKET, libc::SO_LINGER) => options.linger = unsafe { given(value, len) }?,
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keepalive = int()?,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline = int()?,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => options.keepalive_time = up_to(32767)?,
        // The card repeats by itself what its peer does not answer, in its own time.
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => options.keepalive_interval = up_to(32767)?,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => options.keepalive_count = up_to(127)?,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay = int()?,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => options.max_segment = int()?,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            options.v6_only = pass_on(RDMA_OPTION_ID_AFONLY)?;
        }
        (level, name) if level == SOL_RDMA as c_int => {
            set_of_rdma(&mut options.sizes, name as rsocket_options, sized)?;
        }
        _ => return Err(UNKNOWN),
    }
    options.sizes = options.sizes.bounded();
    Ok(())
}

/// Sets an option that only rsockets have.
fn set_of_rdma(
    sizes: &mut Sizes,
    name: rsocket_options,
    value: impl FnOnce() -> Result<u32>,
) -> Result<()> {
    match name {
        RDMA_SQSIZE => sizes.send_queue = value()?,
        RDMA_RQSIZE => sizes.recv_queue = value()?,
        RDMA_INLINE => sizes.inline = value()?,
        RDMA_IOMAPSIZE => sizes.mappings = value()? as usize,
        // A path record adds nothing to the addresses.
        RDMA_ROUTE => {}
        _ => return Err(UNKNOWN),
    }
    Ok(())
}

/// Reads the value that a program gives for an option.
///
/// # Safety
/// `value` points to `len` bytes; any bytes are a valid `T`.
unsafe fn given<T>(value: *const c_void, len: socklen_t) -> Result<T> {
    if value.is_null() || (len as usize) < size_of::<T>() {
        return Err(EINVAL);
    }
    // SAFETY: by promise of the caller.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Sets a size of a datagram socket that its queue pair shares. As for a stream before it is
/// connected, that is possible until the queue pair is made.
///
/// # Safety
/// As for [`set`].
pub(super) unsafe fn set_size(
    inner: &mut Inner,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<()> {
    let phase = std::mem::replace(&mut inner.phase, Phase::Idle);
    // SAFETY: by promise of the caller.
    let set = unsafe { set(inner, level, name, value, len) };
    inner.phase = phase;
    set
}

/// The value of an option of a stream.
pub(super) fn get(inner: &mut Inner, level: c_int, name: c_int) -> Result<Vec<u8>> {
    let options = &inner.options;
    let sizes = &options.sizes;
    let value = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse,
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizes.recv_buffer as c_int,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes.send_buffer as c_int,
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let linger = options.linger;
            return Ok([linger.l_onoff.to_ne_bytes(), linger.l_linger.to_ne_bytes()].concat());
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keepalive,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline,
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_ERROR) => std::mem::take(&mut inner.error),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => options.keepalive_time,
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => options.keepalive_interval,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => options.keepalive_count,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => options.max_segment,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.v6_only,
        (level, name) if level == SOL_RDMA as c_int => match name as rsocket_options {
            RDMA_SQSIZE => sizes.send_queue as c_int,
            RDMA_RQSIZE => sizes.recv_queue as c_int,
            RDMA_INLINE => sizes.inline as c_int,
            RDMA_IOMAPSIZE => sizes.mappings as c_int,
            _ => return Err(UNKNOWN),
        },
        _ => return Err(UNKNOWN),
    };
    Ok(value.to_ne_bytes().to_vec())
}
