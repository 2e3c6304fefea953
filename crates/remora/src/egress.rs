//! From a batch of packets to the fabric: gather, checksum, group, send.
//!
//! Packets for a ring are gathered there, one by one. All others leave in groups: packets that
//! leave by one system call (`socket/segmentation.rs`). Their bytes are copied once, from
//! registered memory to a staging buffer that stays in the cache, and checksummed there. The
//! packets of a group that the socket refuses leave one by one. `ahead.rs` reads served files,
//! `pace.rs` holds unreliable packets back, and
//! `leaving.rs` does to packets what a bad network would.

mod ahead;
mod leaving;
mod pace;

use std::fmt;
use std::io;

use remora_nic::wire::ICRC_LEN;
use remora_nic::wire::icrc::{Flow, IcrcMaker};
use remora_nic::{MemoryFault, PayloadRef, Time, Transmit, TransmitBatch};

use self::ahead::Ahead;
use self::leaving::{Leaving, Taken};
use self::pace::Pace;
use crate::fabric::link::Put;
use crate::fabric::{Fabric, Went};
use crate::impair::{ImpairCounters, Impairments};
use crate::memory::{Gather, PageAligned};
use crate::socket::segmentation::{Group, Segmentation};
use crate::socket::{Destination, GROUP_MAX, SEGMENTS_MAX, SendFailure};

/// Bytes of a cache line.
const LINE: usize = 64;
/// How often a group is sent again after the call has reported the error of an earlier packet.
const STALE_MAX: u32 = 3;

/// Sends batches of packets. When the socket is full, it remembers how far it got.
pub struct Egress {
    staging: PageAligned,
    ahead: Ahead,
    /// The first packet of the batch that is neither sent nor staged.
    next: usize,
    segmentation: Segmentation,
    staged: Option<Group>,
    icrc: IcrcMaker,
    /// Packets of the batch whose memory could not be read in the last call.
    faults: Vec<usize>,
    pace: Pace,
    /// The last call stopped because a peer's socket, or a ring, had no room.
    paced: bool,
    /// What is done to packets on purpose, once something has been.
    leaving: Option<Box<Leaving>>,
    counters: EgressCounters,
}

/// What became of packets. All count from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EgressCounters {
    /// Packets handed to the kernel, or put into rings.
    pub packets: u64,
    /// Of these, packets that were put into rings.
    pub by_ring: u64,
    /// The bytes of all, from BTH to ICRC.
    pub bytes: u64,
    /// System calls that sent packets.
    pub groups: u64,
    /// How often the socket had no room. Nothing is lost: the rest of the batch waits.
    pub socket_full: u64,
    /// How often unreliable packets found no room in the socket of a peer on this machine, and had
    /// to wait.
    pub paced: u64,
    /// How often the route refused a group, which then went packet by packet.
    pub ungrouped: u64,
    /// Packets dropped because their payload could not be read.
    pub memory_faults: u64,
    /// Packets dropped because they are longer than the path allows: the path MTU of the queue
    /// pair is larger than that of the network.
    pub too_long: u64,
    /// Packets dropped because no route leads to the peer.
    pub unreachable: u64,
    /// Errors that peers reported of earlier packets (a closed port, say).
    pub icmp_errors: u64,
}

/// How far [`Egress::send`] got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Packets handed to the kernel, or put into rings, by this call.
    pub sent: usize,
    /// Is some of the batch left, because a socket or a ring is full? Call again with the same
    /// batch when the socket is writable; or soon, if [`Egress::is_paced`].
    pub blocked: bool,
}

/// Packets that have just left, to be captured.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// Where they went.
    pub to: Destination,
    /// Their addresses and ports.
    pub flow: Flow,
    bytes: &'a [u8],
    segment: usize,
}

impl<'a> Sent<'a> {
    /// The UDP payload of each packet, BTH to ICRC, with its IPv4 identification.
    pub fn datagrams(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        (0..).zip(self.bytes.chunks(self.segment))
    }
}

impl Default for Egress {
    fn default() -> Egress {
        Egress::new()
    }
}

impl Egress {
    /// An egress with nothing to send.
    pub fn new() -> Egress {
        Egress {
            staging: PageAligned::new(GROUP_MAX + LINE),
            ahead: Ahead::default(),
            next: 0,
            segmentation: Segmentation::new(),
            staged: None,
            icrc: IcrcMaker::new(),
            faults: Vec::new(),
            pace: Pace::default(),
            paced: false,
            leaving: None,
            counters: EgressCounters::default(),
        }
    }

    /// Has this done to packets from now on; `seed` is for impairments without one.
    pub(crate) fn set_impairments(&mut self, wanted: &Impairments, seed: u64) {
        match &mut self.leaving {
            Some(leaving) => leaving.set(wanted, seed),
            None => self.leaving = Some(Box::new(Leaving::new(wanted, seed))),
        }
    }

    /// Is anything done to packets?
    pub(crate) fn is_impaired(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.is_on())
    }

    /// What was done to packets on purpose so far.
    pub(crate) fn impair_counters(&self) -> ImpairCounters {
        self.leaving.as_ref().map(|leaving| leaving.counters()).unwrap_or_default()
    }

    /// When a packet that was held on purpose is due.
    pub(crate) fn next_due(&self) -> Time {
        self.leaving.as_ref().map_or(Time::NEVER, |leaving| leaving.next_due())
    }

    /// Sends packets that were held on purpose and are due now; returns whether there were any.
    /// Packets of later calls of [`Egress::send`] leave now.
    pub(crate) fn release(
        &mut self,
        now: Time,
        fabric: &mut Fabric,
        sent: impl FnMut(Sent<'_>),
    ) -> bool {
        let Some(leaving) = &mut self.leaving else { return false };
        let any = leaving.release(now, fabric, &mut self.counters, sent);
        fabric.flush();
        any
    }

    /// The bytes of the staging buffer.
    pub(crate) fn allocated_bytes(&self) -> usize {
        GROUP_MAX + LINE
    }

    /// What has become of packets so far.
    pub fn counters(&self) -> EgressCounters {
        self.counters
    }

    /// Sends the packets of `batch`, or those that an earlier call with this batch left over, with
    /// payload from `memory`. Shows each group that has left by the socket, and each that the card
    /// captures, to `sent`.
    ///
    /// Packets leave in the order of the batch, from the socket's port. While the result says
    /// `blocked`, `batch` must not change.
    pub(crate) fn send(
        &mut self,
        batch: &TransmitBatch,
        memory: &mut impl Gather,
        fabric: &mut Fabric,
        sent: impl FnMut(Sent<'_>),
    ) -> Progress {
        let progress = self.send_by(Fabric::send, batch, memory, fabric, sent);
        self.paced |= fabric.flush();
        progress
    }

    /// Which packets of the batch the last call dropped because their memory could not be read.
    pub fn faults(&self) -> &[usize] {
        &self.faults
    }

    /// The first packet of the batch whose memory may still be read. (Staged packets are read again
    /// if their group is taken apart.)
    pub fn next(&self) -> usize {
        self.staged.map_or(self.next, |group| group.first)
    }

    /// Did the last call stop because a peer's socket or a ring has no room, and not this card's
    /// socket?
    pub fn is_paced(&self) -> bool {
        self.paced
    }

    /// Forgets the rest of a batch.
    pub fn forget(&mut self) {
        self.staged = None;
        self.next = 0;
        self.segmentation.next_batch();
        if let Some(leaving) = &mut self.leaving {
            leaving.next_batch();
        }
    }

    /// As [`Egress::send`]; tests pass another `call`.
    fn send_by(
        &mut self,
        mut call: impl FnMut(&mut Fabric, Destination, usize, &[u8]) -> io::Result<Went>,
        batch: &TransmitBatch,
        memory: &mut impl Gather,
        fabric: &mut Fabric,
        mut sent: impl FnMut(Sent<'_>),
    ) -> Progress {
        let before = self.counters.packets;
        self.faults.clear();
        self.paced = false;
        let mut blocked = false;
        while !blocked {
            if let Some(full) = self.put_in_ring(batch, memory, fabric) {
                blocked = full;
                continue;
            }
            let Some(group) = self.staged.take().or_else(|| self.stage(batch, memory, fabric))
            else {
                self.forget();
                break;
            };
            if group.packets == 0 {
                continue;
            }
            if !self.is_admitted(&group, fabric) {
                self.staged = Some(group);
                blocked = true;
                continue;
            }
            let bytes = &self.staging[group.start..][..group.len];
            match call(fabric, group.to, group.segment, bytes) {
                Ok(Went::Dropped) => {}
                Ok(went) => {
                    let packets = group.packets as u64;
                    self.counters.packets += packets;
                    self.counters.bytes += group.len as u64;
                    match went {
                        Went::Ring => self.counters.by_ring += packets,
                        _ => self.counters.groups += 1,
                    }
                    sent(Sent { to: group.to, flow: group.flow, bytes, segment: group.segment });
                }
                Err(e) => blocked = self.handle_failure(group, &e),
            }
        }
        Progress { sent: (self.counters.packets - before) as usize, blocked }
    }

    /// Puts the next packets of the batch into a ring, if they go there as they are: without an
    /// ICRC. Returns whether the ring is full; `None` if they go another way.
    #[inline]
    fn put_in_ring(
        &mut self,
        batch: &TransmitBatch,
        memory: &mut impl Gather,
        fabric: &mut Fabric,
    ) -> Option<bool> {
        if self.staged.is_some() || self.leaving.is_some() {
            return None;
        }
        let rest = batch.packets().get(self.next..)?;
        let to = rest.first()?.path.dst;
        let (links, link) = fabric.link_to(to)?;
        let run = &rest[..rest.len().min(SEGMENTS_MAX)];
        self.ahead.read(run, batch, memory);
        for packet in run.iter().take_while(|packet| packet.path.dst == to) {
            match links.put(link, packet, batch, memory, |segment| self.ahead.get(segment)) {
                Put::Sent => {
                    self.counters.packets += 1;
                    self.counters.by_ring += 1;
                    self.counters.bytes += packet.datagram_len() as u64;
                }
                Put::Full => {
                    fabric.note_full();
                    return Some(true);
                }
                Put::Fault => {
                    self.counters.memory_faults += 1;
                    self.faults.push(self.next);
                }
                Put::Dropped => {}
                Put::Broken => return None,
            }
            self.next += 1;
        }
        Some(false)
    }

    /// Does a group not have to wait for room in the socket of a peer on this machine?
    #[inline]
    fn is_admitted(&mut self, group: &Group, fabric: &mut Fabric) -> bool {
        let admitted = group.room == 0
            || fabric.has_ring(group.to.addr)
            || self.pace.admits(&mut fabric.udp, group.to.addr, group.room);
        if !admitted {
            self.counters.paced += 1;
            self.paced = true;
        }
        admitted
    }

    /// Decides what becomes of a group that was not sent. Returns whether the socket must have room
    /// first.
    fn handle_failure(&mut self, mut group: Group, error: &io::Error) -> bool {
        let packets = group.packets as u64;
        match SendFailure::of(error, packets > 1) {
            SendFailure::Full => {
                self.counters.socket_full += 1;
                self.staged = Some(group);
                return true;
            }
            SendFailure::NoSegmentation => {
                self.segmentation.stop();
                self.ungroup(&group);
            }
            SendFailure::GroupRefused => self.ungroup(&group),
            SendFailure::TooLong => self.counters.too_long += packets,
            SendFailure::Stale if group.stale < STALE_MAX => {
                self.counters.icmp_errors += 1;
                group.stale += 1;
                self.staged = Some(group);
            }
            SendFailure::Stale | SendFailure::Unreachable => self.counters.unreachable += packets,
        }
        false
    }

    /// Has the packets of a group staged again one by one: each then has another IPv4
    /// identification, and so another ICRC.
    fn ungroup(&mut self, group: &Group) {
        self.counters.ungrouped += 1;
        self.next = group.first;
        self.segmentation.single_until(group.end);
    }

    /// Where a packet begins in the staging buffer, so that its payload begins with a cache line.
    fn start_for(&self, packet: &Transmit) -> usize {
        let behind = self.staging.as_ptr().addr() + packet.header().len();
        behind.next_multiple_of(LINE) - behind
    }

    /// Stages the next group; `None` at the end of the batch. A group is empty if the memory of
    /// none of its packets could be read.
    fn stage(
        &mut self,
        batch: &TransmitBatch,
        memory: &mut impl Gather,
        fabric: &Fabric,
    ) -> Option<Group> {
        let socket = &fabric.udp;
        let rest = batch.packets().get(self.next..)?;
        let first = rest.first()?;
        let from = (socket.addr(), fabric.port_from(first));
        let start = self.start_for(first);
        let mut group = Group::open(first, self.next, start, from, socket.port());
        let packets_max = self.segmentation.packets_max(self.next, socket.segmentation());
        self.ahead.read(&rest[..packets_max.min(rest.len())], batch, memory);
        for packet in rest {
            let len = packet.datagram_len();
            if group.packets == 0 && len > GROUP_MAX {
                self.counters.too_long += 1;
                group.end += 1;
                continue;
            }
            if !group.accepts(packet, len, packets_max) {
                break;
            }
            if let Some(leaving) = &mut self.leaving {
                let make = |bytes: &mut [u8]| {
                    let alone = Group { packets: 0, ..group };
                    gather(packet, batch, memory, &self.ahead, &mut self.icrc, &alone, bytes)
                };
                match leaving.take(group.end, &group, len, make) {
                    Taken::No => {}
                    taken => {
                        if matches!(taken, Taken::Unreadable) {
                            self.counters.memory_faults += 1;
                            self.faults.push(group.end);
                        }
                        group.end += 1;
                        continue;
                    }
                }
            }
            let room = &mut self.staging[group.start + group.len..][..len];
            match gather(packet, batch, memory, &self.ahead, &mut self.icrc, &group, room) {
                Ok(()) => {
                    group.segment = group.segment.max(len);
                    group.packets += 1;
                    group.room += pace::room_for(packet);
                    group.len += len;
                }
                Err(MemoryFault { .. }) => {
                    self.counters.memory_faults += 1;
                    self.faults.push(group.end);
                }
            }
            group.end += 1;
        }
        self.next = group.end;
        Some(group)
    }
}

/// Writes a whole packet to `out`, which has the packet's length, as the next packet of `group`.
fn gather(
    packet: &Transmit,
    batch: &TransmitBatch,
    memory: &mut impl Gather,
    ahead: &Ahead,
    maker: &mut IcrcMaker,
    group: &Group,
    out: &mut [u8],
) -> Result<(), MemoryFault> {
    let len = out.len();
    let (header, mut rest) = out.split_at_mut(packet.header().len());
    header.copy_from_slice(packet.header());
    match batch.payload(packet) {
        PayloadRef::Segments(segments) => {
            for segment in segments {
                let (to, behind) = rest.split_at_mut(segment.len as usize);
                match ahead.get(segment) {
                    Some(bytes) => to.copy_from_slice(bytes),
                    None => memory.read(segment.addr, to)?,
                }
                rest = behind;
            }
        }
        PayloadRef::Bytes(bytes) => {
            let (to, behind) = rest.split_at_mut(bytes.len());
            to.copy_from_slice(bytes);
            rest = behind;
        }
    }
    rest[..packet.pad()].fill(0);
    let (covered, icrc) = out.split_at_mut(len - ICRC_LEN);
    // The kernel numbers the packets of a group from 0.
    let ip_id = group.packets as u16;
    icrc.copy_from_slice(&maker.make(&group.flow, ip_id, covered));
    Ok(())
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress")
            .field("next", &self.next)
            .field("staged", &self.staged)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
