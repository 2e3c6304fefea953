//! Options of rsockets.

use core::ffi::{c_int, c_void};
use std::fs;

use libc::socklen_t;

use super::socket::{Inner, Phase};
use super::wire;
use crate::abi::rdma_cma::*;
use crate::rdmacm::{EINVAL, Errno, Result};

/// Where an administrator's defaults are.
const DIRECTORY: &str = "/etc/rdma/rsocket";

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) send_queue: u32,
    pub(super) recv_queue: u32,
    pub(super) inline: u32,
    pub(super) send_buffer: usize,
    pub(super) recv_buffer: usize,
    pub(super) mappings: usize,
}

fn from_file(name: &str, default: u32) -> u32 {
    let text = fs::read_to_string(format!("{DIRECTORY}/{name}"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(default)
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            send_queue: from_file("sqsize_default", 384),
            recv_queue: from_file("rqsize_default", 384),
            inline: from_file("inline_default", 64),
            send_buffer: from_file("wmem_default", 1 << 17) as usize,
            recv_buffer: from_file("mem_default", 1 << 17) as usize,
            mappings: from_file("iomap_size", 0) as usize,
        }
        .bounded()
    }
}

impl Sizes {
    /// Sizes that work.
    fn bounded(self) -> Sizes {
        Sizes {
            send_queue: self.send_queue.clamp(16, 8192),
            recv_queue: self.recv_queue.clamp(16, 8192),
            inline: self.inline.clamp(wire::MAPPING as u32, 256),
            send_buffer: self.send_buffer.clamp(4096, 1 << 28),
            // Two halves.
            recv_buffer: self.recv_buffer.clamp(8192, 1 << 28).next_multiple_of(4096),
            mappings: self.mappings.min(128),
        }
    }
}

/// Options that are kept, as the program set them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) sizes: Sizes,
    pub(super) nonblocking: bool,
    reuse: c_int,
    keepalive: c_int,
    keepalive_time: c_int,
    oob_inline: c_int,
    no_delay: c_int,
    max_segment: c_int,
    v6_only: c_int,
    linger: libc::linger,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sizes: Sizes::default(),
            nonblocking: false,
            reuse: 0,
            keepalive: 0,
            keepalive_time: 7200,
            oob_inline: 0,
            no_delay: 0,
            max_segment: 2048,
            v6_only: 0,
            linger: libc::linger { l_onoff: 0, l_linger: 0 },
        }
    }
}

/// Not an option of rsockets.
const UNKNOWN: Errno = Errno(libc::ENOPROTOOPT);

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
    let int = || {
        if value.is_null() || (len as usize) < size_of::<c_int>() {
            return Err(EINVAL);
        }
        // SAFETY: by promise of the caller.
        Ok(unsafe { value.cast::<c_int>().read_unaligned() })
    };
    let id = inner.id;
    let pass_on = |option: rdma_options| -> Result<c_int> {
        let mut on = int()?;
        let (at, len) = ((&raw mut on).cast(), size_of::<c_int>());
        // SAFETY: an id of ours, and a value that lives through the call.
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
        // After the connection, as for TCP, nothing shrinks.
        (libc::SOL_SOCKET, libc::SO_RCVBUF) if !before => {}
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if !before => {}
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            // As for TCP, twice what is asked; and the peer is given halves.
            options.sizes.recv_buffer = 2 * sized()? as usize;
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => options.sizes.send_buffer = 2 * sized()? as usize,
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            if value.is_null() || (len as usize) < size_of::<libc::linger>() {
                return Err(EINVAL);
            }
            // SAFETY: by promise of the caller.
            options.linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keepalive = int()?,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline = int()?,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => options.keepalive_time = int()?,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay = int()?,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => options.max_segment = int()?,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            options.v6_only = pass_on(RDMA_OPTION_ID_AFONLY)?;
        }
        (level, name) if level == SOL_RDMA as c_int => {
            let sizes = &mut options.sizes;
            match name as rsocket_options {
                RDMA_SQSIZE => sizes.send_queue = sized()?,
                RDMA_RQSIZE => sizes.recv_queue = sized()?,
                RDMA_INLINE => sizes.inline = sized()?,
                RDMA_IOMAPSIZE => sizes.mappings = sized()? as usize,
                // A path says nothing that the addresses do not.
                RDMA_ROUTE => {}
                _ => return Err(UNKNOWN),
            }
        }
        _ => return Err(UNKNOWN),
    }
    options.sizes = options.sizes.bounded();
    Ok(())
}

/// Sets an option of a datagram socket that its queue pair has a part in: as for a stream that is
/// not connected, until the queue pair is there.
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
