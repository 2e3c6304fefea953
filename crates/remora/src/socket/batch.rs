//! Datagrams that arrived together.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use remora_nic::Datagram;

use super::control::Received;
use super::failure::is_icmp_error;
use super::refusal::{self, Refusal};
use super::sys::{self, SLOTS_MAX, Slot};
use crate::memory::PageAligned;

/// Bytes that one slot receives at most: the longest UDP payload, or many datagrams of one sender
/// that the kernel has put into one piece (`UDP_GRO`).
const SLOT_LEN: usize = 65_536;

/// A reusable set of buffers that [`super::Socket::recv`] fills with datagrams.
pub struct RecvBatch {
    bytes: PageAligned,
    slots: Box<[Slot]>,
    heads: Box<[Head]>,
    used: usize,
    /// Slots to offer in the next call.
    wanted: usize,
    /// Were all slots filled in the last call?
    full: bool,
    dst: IpAddr,
    counters: RecvCounters,
    refusals: Vec<Refusal>,
}

/// What went wrong, or was lost, on the way in. All count from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecvCounters {
    /// Datagrams that the kernel dropped because a socket's buffer was full. The kernel tells each
    /// socket's count beside the next datagram that arrives there.
    pub overflowed: u64,
    /// Pieces dropped because they were longer than a slot.
    pub truncated: u64,
    /// Errors of earlier sends that the kernel reported here (a peer's port is closed, say).
    pub icmp_errors: u64,
}

/// What the kernel said of the bytes in a slot.
#[derive(Clone, Copy, Debug)]
struct Head {
    from: SocketAddr,
    len: usize,
    /// Length of each datagram but the last; never 0.
    segment: usize,
    tos: u8,
}

const NO_HEAD: Head = Head {
    from: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    len: 0,
    segment: 1,
    tos: 0,
};

impl RecvBatch {
    /// Buffers for `slots` pieces of 64 KB, at least 1 and at most 16. With four, a busy receiver
    /// stays within a second-level cache.
    pub fn new(slots: usize) -> RecvBatch {
        let slots = slots.clamp(1, SLOTS_MAX);
        RecvBatch {
            bytes: PageAligned::new(slots * SLOT_LEN),
            slots: vec![Slot::EMPTY; slots].into(),
            heads: vec![NO_HEAD; slots].into(),
            used: 0,
            wanted: 1,
            full: false,
            dst: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            counters: RecvCounters::default(),
            refusals: Vec::new(),
        }
    }

    /// The datagrams, in the order they arrived.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> + Clone {
        let filled = self.heads[..self.used].iter().zip(self.bytes.chunks_exact(SLOT_LEN));
        filled.flat_map(|(head, bytes)| {
            bytes[..head.len].chunks(head.segment).map(|bytes| Datagram {
                src: head.from.ip(),
                src_port: head.from.port(),
                dst: self.dst,
                ip_id: None,
                tos: head.tos,
                bytes,
            })
        })
    }

    /// How many datagrams there are.
    pub fn len(&self) -> usize {
        // Most pieces are one datagram, and a division takes time.
        let datagrams = |h: &Head| if h.len <= h.segment { 1 } else { h.len.div_ceil(h.segment) };
        self.heads[..self.used].iter().filter(|h| h.len > 0).map(datagrams).sum()
    }

    /// How many slots there are, and the bytes of all.
    pub(crate) fn allocated(&self) -> (usize, usize) {
        (self.slots.len(), self.slots.len() * SLOT_LEN)
    }

    /// Did nothing arrive?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What went wrong on the way in, since this batch was made.
    pub fn counters(&self) -> RecvCounters {
        self.counters
    }

    /// Have calls that receive learnt of refusals?
    #[inline]
    pub(crate) fn has_refusals(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// What other machines have refused.
    pub(crate) fn take_refusals(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.refusals)
    }

    /// Forgets the old datagrams and fetches new ones, sent to `dst`. `told` is what the kernel has
    /// last told of the socket's dropped datagrams.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        fd: BorrowedFd,
        dst: IpAddr,
        told: &AtomicU32,
    ) -> io::Result<usize> {
        self.used = 0;
        self.dst = dst;
        let filled = self.fetch(fd)?;
        for i in 0..filled {
            let slot = &self.slots[i];
            self.heads[i] = head(slot, slot.control.parse(), told, &mut self.counters);
        }
        self.used = filled;
        Ok(self.len())
    }

    /// Doubles the slots to offer each time that all were filled twice in a row. A quiet socket is
    /// offered one: a second slot makes the kernel look into the socket a second time, which wastes
    /// 0.3 µs if only one datagram waits.
    fn want_next(&mut self, filled: usize) {
        let full = filled == self.wanted;
        let more = full && self.full;
        self.full = full;
        self.wanted = if more { (2 * filled).min(self.slots.len()) } else { filled.max(1) };
    }

    /// Fills slots. An error that an earlier send left on the socket comes before the datagrams
    /// that wait, so it is counted, and the call is repeated.
    #[inline(always)]
    fn fetch(&mut self, fd: BorrowedFd) -> io::Result<usize> {
        const TRIES: usize = 16;
        for _ in 0..TRIES {
            let slots = &mut self.slots[..self.wanted];
            let received = if let [slot] = slots {
                sys::receive_one(fd, slot, &mut self.bytes[..SLOT_LEN]).map(usize::from)
            } else {
                sys::receive_batch(fd, slots, &mut self.bytes, SLOT_LEN)
            };
            match received {
                Ok(0) => {
                    self.full = false;
                    return Ok(0);
                }
                Ok(filled) => {
                    self.want_next(filled);
                    return Ok(filled);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    (self.wanted, self.full) = (1, false);
                    return Ok(0);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if is_icmp_error(&e) => {
                    self.counters.icmp_errors += 1;
                    refusal::take(fd, &mut self.refusals);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(0)
    }
}

fn head(slot: &Slot, received: Received, told: &AtomicU32, counters: &mut RecvCounters) -> Head {
    // (Modulo 2^32.)
    if let Some(overflow) = received.overflow {
        counters.overflowed += u64::from(overflow.wrapping_sub(told.swap(overflow, Relaxed)));
    }
    if slot.truncated {
        counters.truncated += 1;
        return NO_HEAD;
    }
    let Some(from) = slot.from.get() else { return NO_HEAD };
    let segment = if received.segment == 0 { slot.len } else { received.segment };
    Head { from, len: slot.len, segment: segment.max(1), tos: received.tos }
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = &self.heads[..self.used];
        f.debug_struct("RecvBatch")
            .field("heads", &heads)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
