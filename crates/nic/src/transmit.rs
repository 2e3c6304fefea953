//! Packets to send, whose payload is referred to, and datagrams that have arrived, as slices.

use core::net::IpAddr;
use core::ops::Range;

use crate::buffer::Buffer;
use crate::memory::{Memory, MemoryFault};
use crate::wire::MAX_HEADER;

/// Explicit congestion notification bits of an IP header (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Ecn {
    /// The packet is not ECN-capable.
    #[default]
    NotCapable = 0,
    /// ECN-capable, code point 1.
    Capable1 = 1,
    /// ECN-capable, code point 0.
    Capable0 = 2,
    /// A router has met congestion.
    Congested = 3,
}

impl Ecn {
    /// The low two bits of a traffic class byte.
    pub const fn from_tos(tos: u8) -> Ecn {
        match tos & 3 {
            0 => Ecn::NotCapable,
            1 => Ecn::Capable1,
            2 => Ecn::Capable0,
            _ => Ecn::Congested,
        }
    }
}

/// A datagram that has arrived: the UDP payload, and what the driver knows of its outer headers.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Source address.
    pub src: IpAddr,
    /// Source UDP port.
    pub src_port: u16,
    /// Destination address: this card's own, or a multicast group's.
    pub dst: IpAddr,
    /// The IPv4 identification, if the driver sees it. A plain UDP socket does not show it.
    pub ip_id: Option<u16>,
    /// Traffic class, ECN bits included.
    pub tos: u8,
    /// UDP payload: BTH to ICRC.
    pub bytes: &'a [u8],
}

/// The source ports of all paths but the first, on which lossy queue pairs spread their packets
/// ([`crate::Config::paths`]): path *n* has port 0xC000 + *n*. No other packets have them. A driver
/// that spreads packets has a socket for each; another one may send all from one port.
pub const PATH_PORTS: Range<u16> = 0xC001..0xC040;

/// The path of a queue pair's packets, as their outer headers have it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Path {
    /// Destination address.
    pub dst: IpAddr,
    /// Source UDP port, 0xC000..=0xFFFF (the dynamic ports of RFC 6335) but not of [`PATH_PORTS`],
    /// the same for all packets of a queue pair. A driver with one bound socket sends from that
    /// socket's port instead. The ICRC covers the port that is used.
    pub src_port: u16,
    /// Traffic class without ECN bits.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// The service level of the queue pair that has this path: four bits, verbs' `sl`. It says how
    /// the card schedules the queue pair ([`crate::Config::service_levels`]); no header has it. A
    /// queue pair for datagrams has level 0, wherever they go.
    pub service_level: u8,
}

impl Path {
    /// The usual path to `dst`, with a source port that depends on `entropy` (a queue pair's
    /// number). For the GID of a multicast group, `dst` becomes the group's address: see
    /// [`crate::wire::multicast::group_address`].
    pub fn new(dst: IpAddr, entropy: u32) -> Path {
        let spread = entropy.wrapping_mul(0x9E37_79B1) >> 18;
        let port = 0xC000 | spread as u16;
        let src_port = if PATH_PORTS.contains(&port) { port + 64 } else { port };
        Path {
            dst: crate::wire::multicast::group_address(dst).unwrap_or(dst.to_canonical()),
            src_port,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
        }
    }
}

/// A run of bytes in memory, by bus address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Bus address, for [`crate::Memory`].
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

impl Segment {
    /// The address of a null region's bytes, which do not exist. Such a segment is never handed to
    /// the driver.
    pub(crate) const NOWHERE: u64 = u64::MAX;
}

/// A packet to send: headers by value, payload by reference. It belongs to a [`TransmitBatch`].
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Outer headers.
    pub path: Path,
    /// ECN bits to send with.
    pub ecn: Ecn,
    /// The queue pair of this card that sends it; 1 for the communication manager.
    qpn: u32,
    header: [u8; MAX_HEADER],
    header_len: u8,
    pad: u8,
    payload_len: u32,
    payload: Body,
}

#[derive(Clone, Debug)]
enum Body {
    /// Indices into the batch's segments.
    Segments(Range<u32>),
    /// Indices into the batch's own bytes.
    Owned(Range<u32>),
    /// A kernel's bytes, and the index of the first of them.
    Shared(Buffer, u32),
}

impl Transmit {
    /// BTH and the headers that follow it.
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_len)]
    }

    /// The queue pair of this card that sends it.
    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Bytes of payload, without pad.
    pub fn payload_len(&self) -> usize {
        self.payload_len as usize
    }

    /// Zero bytes to send behind the payload, 0..=3.
    pub fn pad(&self) -> usize {
        usize::from(self.pad)
    }

    /// Length of the UDP payload: headers, payload, pad and ICRC.
    #[inline]
    pub fn datagram_len(&self) -> usize {
        usize::from(self.header_len) + self.payload_len() + self.pad() + crate::wire::ICRC_LEN
    }
}

/// Where a packet's payload is.
#[derive(Clone, Copy, Debug)]
pub enum PayloadRef<'a> {
    /// In registered memory.
    Segments(&'a [Segment]),
    /// On the card: management datagrams, congestion notifications, kernels' results.
    Bytes(&'a [u8]),
}

/// A reusable batch of packets that [`crate::Nic::poll_transmit`] fills.
#[derive(Debug, Default)]
pub struct TransmitBatch {
    packets: Vec<Transmit>,
    /// Short packets that leave behind the others: see `push_last`.
    last: Vec<Transmit>,
    segments: Vec<Segment>,
    bytes: Vec<u8>,
    /// The queue pair that has its turn.
    sender: u32,
    /// See [`TransmitBatch::set_answering`].
    answering: bool,
    /// See [`TransmitBatch::set_serving`].
    serving: bool,
}

/// A place in a batch, behind all that it held at some time.
#[derive(Debug)]
pub(crate) struct BatchMark {
    packets: usize,
    last: usize,
    segments: usize,
    bytes: usize,
}

impl TransmitBatch {
    /// An empty batch.
    pub fn new() -> TransmitBatch {
        TransmitBatch::default()
    }

    /// Removes the packets, and keeps the allocation.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.last.clear();
        self.segments.clear();
        self.bytes.clear();
    }

    /// The packets, in the order in which they must leave.
    pub fn packets(&self) -> &[Transmit] {
        &self.packets
    }

    /// How many packets there are.
    pub fn len(&self) -> usize {
        self.packets.len() + self.last.len()
    }

    /// Is there nothing to send?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the payload of `packet`, one of [`TransmitBatch::packets`], is.
    #[inline]
    pub fn payload<'a>(&'a self, packet: &'a Transmit) -> PayloadRef<'a> {
        match &packet.payload {
            Body::Segments(r) => {
                PayloadRef::Segments(&self.segments[r.start as usize..r.end as usize])
            }
            Body::Owned(r) => PayloadRef::Bytes(&self.bytes[r.start as usize..r.end as usize]),
            Body::Shared(buffer, start) => {
                let start = *start as usize;
                let bytes = buffer.get(start..start + packet.payload_len());
                PayloadRef::Bytes(bytes.unwrap_or_default())
            }
        }
    }

    /// Allows acknowledges to be held back on queue pairs that send data. A driver sets this while
    /// its application answers messages: the peer waits for the answer, and one acknowledge is
    /// enough for several messages. The driver must call [`crate::Nic::release_acknowledges`] soon.
    pub fn set_answering(&mut self, answering: bool) {
        self.answering = answering;
    }

    /// As [`TransmitBatch::set_answering`], for queue pairs on which a kernel of the card answers.
    /// It is for drivers that poll the card again at once, even if no application posts anything.
    pub fn set_serving(&mut self, serving: bool) {
        self.serving = serving;
    }

    /// May acknowledges be held back? `kernel_answers` says that a kernel answers on the queue
    /// pair.
    pub(crate) fn is_answering(&self, kernel_answers: bool) -> bool {
        self.answering || self.serving && kernel_answers
    }

    /// Sets the queue pair of the packets that are added next.
    pub(crate) fn set_sender(&mut self, qpn: u32) {
        self.sender = qpn;
    }

    /// The present end of the batch.
    pub(crate) fn place(&self) -> BatchMark {
        let (segments, bytes) = (self.segments.len(), self.bytes.len());
        BatchMark { packets: self.packets.len(), last: self.last.len(), segments, bytes }
    }

    /// Moves the packets behind `from` that go to `address` to `out`, in the order in which they
    /// would leave. Their payload stays in the batch.
    pub(crate) fn take_to(&mut self, address: IpAddr, from: &BatchMark, out: &mut Vec<Transmit>) {
        let goes_there = |packet: &mut Transmit| packet.path.dst == address;
        out.extend(self.packets.extract_if(from.packets.., goes_there));
        out.extend(self.last.extract_if(from.last.., goes_there));
    }

    /// Removes the payload behind `from` if no packet is left there that may refer to it.
    pub(crate) fn rewind_to(&mut self, from: &BatchMark) {
        if self.packets.len() == from.packets {
            self.segments.truncate(from.segments);
            self.bytes.truncate(from.bytes);
        }
    }

    /// Copies the payload of the packets from `from` on into the batch, for a driver that cannot
    /// send them now: after this the memory may change or go away. Packets whose memory cannot be
    /// read are removed and returned, for [`crate::Nic::handle_fault`].
    pub fn detach(&mut self, from: usize, memory: &mut dyn Memory) -> Vec<Transmit> {
        let (bytes, segments) = (&mut self.bytes, &self.segments);
        let mut copy = |packet: &mut Transmit| {
            let Body::Segments(range) = &packet.payload else { return true };
            let start = bytes.len();
            for segment in &segments[range.start as usize..range.end as usize] {
                let at = bytes.len();
                bytes.resize(at + segment.len as usize, 0);
                if memory.read(segment.addr, &mut bytes[at..]).is_err() {
                    bytes.truncate(start);
                    return false;
                }
            }
            packet.payload = Body::Owned(start as u32..bytes.len() as u32);
            true
        };
        let rest = self.packets.split_off(from.min(self.packets.len()));
        let mut faulted = Vec::new();
        for mut packet in rest {
            let kept = if copy(&mut packet) { &mut self.packets } else { &mut faulted };
            kept.push(packet);
        }
        faulted
    }

    /// Where the segments of the packet go that [`TransmitBatch::push`] adds next.
    pub fn segments_mut(&mut self) -> &mut Vec<Segment> {
        &mut self.segments
    }

    /// The index of the next packet's first segment.
    pub fn mark(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Removes the segments added since `mark`, for a packet that is not sent after all.
    pub fn rewind(&mut self, mark: u32) {
        self.segments.truncate(mark as usize);
    }

    /// Adds a packet whose payload is the segments added since `mark`.
    pub fn push(
        &mut self,
        path: Path,
        ecn: Ecn,
        mark: u32,
        pad: u8,
        header: impl FnOnce(&mut [u8; MAX_HEADER]) -> usize,
    ) {
        let payload_len = self.segments[mark as usize..].iter().map(|s| s.len).sum();
        let payload = Body::Segments(mark..self.mark());
        self.add(path, ecn, pad, payload_len, payload, header);
    }

    /// Is one of the segments added since `mark` a null region's?
    #[inline]
    pub(crate) fn has_gaps(&self, mark: u32) -> bool {
        self.segments[mark as usize..].iter().any(|s| s.addr == Segment::NOWHERE)
    }

    /// As [`TransmitBatch::push`], for a payload with bytes of a null region: it is copied at once,
    /// with zeroes in their place.
    #[inline(never)]
    pub(crate) fn push_copied(
        &mut self,
        (path, ecn): (Path, Ecn),
        mark: u32,
        pad: u8,
        memory: &mut dyn Memory,
        header: impl FnOnce(&mut [u8; MAX_HEADER]) -> usize,
    ) -> Result<(), MemoryFault> {
        let start = self.bytes.len();
        for segment in &self.segments[mark as usize..] {
            let at = self.bytes.len();
            self.bytes.resize(at + segment.len as usize, 0);
            if segment.addr != Segment::NOWHERE {
                memory.read(segment.addr, &mut self.bytes[at..])?;
            }
        }
        self.rewind(mark);
        let payload = Body::Owned(start as u32..self.bytes.len() as u32);
        self.add(path, ecn, pad, (self.bytes.len() - start) as u32, payload, header);
        Ok(())
    }

    /// Adds a packet whose payload is `len` bytes of a kernel's buffer, from `start` on.
    #[inline(never)]
    pub(crate) fn push_shared(
        &mut self,
        (path, ecn): (Path, Ecn),
        buffer: &Buffer,
        (start, len): (u32, u32),
        pad: u8,
        header: impl FnOnce(&mut [u8; MAX_HEADER]) -> usize,
    ) {
        self.add(path, ecn, pad, len, Body::Shared(buffer.clone(), start), header);
    }

    /// As [`TransmitBatch::push`], but the payload is copied at once, and `change` may change it.
    #[inline(never)]
    pub(crate) fn push_changed(
        &mut self,
        (path, ecn): (Path, Ecn),
        mark: u32,
        pad: u8,
        memory: &mut dyn Memory,
        header: impl FnOnce(&mut [u8; MAX_HEADER]) -> usize,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<(), MemoryFault> {
        let start = self.bytes.len();
        self.push_copied((path, ecn), mark, pad, memory, header)?;
        change(&mut self.bytes[start..]);
        Ok(())
    }

    /// Adds a packet with a copy of its payload, which must need no pad.
    pub fn push_owned(
        &mut self,
        path: Path,
        bytes: &[u8],
        header: impl FnOnce(&mut [u8; MAX_HEADER]) -> usize,
    ) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        let payload = Body::Owned(start..self.bytes.len() as u32);
        self.add(path, Ecn::NotCapable, 0, bytes.len() as u32, payload, header);
    }

    /// Adds a packet of headers only that leaves behind all others of the batch. An acknowledge
    /// between data packets would end a group of packets that leaves by one system call.
    pub(crate) fn push_last(
        &mut self,
        path: Path,
        ecn: Ecn,
        header: impl FnOnce(&mut [u8; MAX_HEADER]) -> usize,
    ) {
        let nothing = Body::Segments(self.mark()..self.mark());
        let packet = self.packet((path, ecn), 0, 0, nothing, header);
        self.last.push(packet);
    }

    /// Completes the batch: puts the packets of `push_last` behind the others.
    pub(crate) fn finish(&mut self) {
        if !self.last.is_empty() {
            self.packets.append(&mut self.last);
        }
    }

    #[inline(always)]
    fn add(
        &mut self,
        path: Path,
        ecn: Ecn,
        pad: u8,
        payload_len: u32,
        payload: Body,
        header: impl FnOnce(&mut [u8; MAX_HEADER]) -> usize,
    ) {
        let packet = self.packet((path, ecn), pad, payload_len, payload, header);
        self.packets.push(packet);
    }

    #[inline]
    fn packet(
        &self,
        (path, ecn): (Path, Ecn),
        pad: u8,
        payload_len: u32,
        payload: Body,
        write: impl FnOnce(&mut [u8; MAX_HEADER]) -> usize,
    ) -> Transmit {
        let mut header = [0; MAX_HEADER];
        let header_len = write(&mut header) as u8;
        let qpn = self.sender;
        Transmit { path, ecn, qpn, header, header_len, pad, payload_len, payload }
    }
}
