//! Options of rsockets, and their sizes.

use core::ffi::c_int;
use std::fs;

use super::wire;
use crate::rdmacm::Errno;

/// The directory of the administrator's defaults, as in rdma-core.
const DIRECTORY: &str = "/etc/rdma/rsocket";

/// The sizes of a socket's buffers and queues.
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
    /// These sizes, changed to values that work.
    pub(super) fn bounded(self) -> Sizes {
        Sizes {
            send_queue: self.send_queue.clamp(16, 8192),
            recv_queue: self.recv_queue.clamp(16, 8192),
            inline: self.inline.clamp(wire::MAPPING as u32, 256),
            send_buffer: self.send_buffer.clamp(4096, 1 << 28),
            // The peer is given the buffer in two halves.
            recv_buffer: self.recv_buffer.clamp(8192, 1 << 28).next_multiple_of(4096),
            mappings: self.mappings.min(128),
        }
    }
}

/// Options as the program has set them, for reading back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) sizes: Sizes,
    pub(super) nonblocking: bool,
    pub(super) reuse: c_int,
    pub(super) keepalive: c_int,
    pub(super) keepalive_time: c_int,
    pub(super) keepalive_interval: c_int,
    pub(super) keepalive_count: c_int,
    pub(super) oob_inline: c_int,
    pub(super) no_delay: c_int,
    pub(super) max_segment: c_int,
    pub(super) v6_only: c_int,
    pub(super) linger: libc::linger,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sizes: Sizes::default(),
            nonblocking: false,
            reuse: 0,
            keepalive: 0,
            keepalive_time: 7200,
            keepalive_interval: 75,
            keepalive_count: 9,
            oob_inline: 0,
            no_delay: 0,
            max_segment: 2048,
            v6_only: 0,
            linger: libc::linger { l_onoff: 0, l_linger: 0 },
        }
    }
}

/// The option is not known to rsockets.
pub(super) const UNKNOWN: Errno = Errno(libc::ENOPROTOOPT);
