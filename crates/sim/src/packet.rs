//! Packets as bytes on the wire, and the parts of them that a trace shows.

use core::fmt;
use core::net::IpAddr;

use remora_nic::wire::icrc::{Flow, Icrc};
use remora_nic::wire::{
    Aeth, Bth, Dialect, Extensions, MAX_HEADER, Nak, Op, Operation, Packet, ROCE_PORT, Syndrome,
};
use remora_nic::{Datagram, Memory, PayloadRef, Time, Transmit, TransmitBatch};

/// A datagram on the wire.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Wire {
    /// Source address.
    pub src: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination address.
    pub dst: IpAddr,
    /// The IPv4 identification.
    pub id: u16,
    /// Whether the receiver's driver sees the identification.
    pub shows_id: bool,
    /// The traffic class, ECN bits included.
    pub tos: u8,
    /// UDP payload.
    pub bytes: Vec<u8>,
    /// Whether bits of it have flipped.
    pub damaged: bool,
    /// Whether it takes its time of the links and is then lost.
    pub lost: bool,
}

impl Wire {
    fn new((src, src_port): (IpAddr, u16), dst: IpAddr, id: u16, tos: u8, bytes: Vec<u8>) -> Wire {
        let (shows_id, damaged, lost) = (true, false, false);
        Wire { src, src_port, dst, id, shows_id, tos, bytes, damaged, lost }
    }

    /// The datagram, as the card receives it.
    #[inline]
    pub fn datagram(&self) -> Datagram<'_> {
        Datagram {
            src: self.src,
            src_port: self.src_port,
            dst: self.dst,
            ip_id: self.shows_id.then_some(self.id),
            tos: self.tos,
            bytes: &self.bytes,
        }
    }

    /// A packet that no card made, for tests that act as a peer.
    pub fn craft(
        (src, dst): (IpAddr, IpAddr),
        bth: &Bth,
        op: &Op,
        ext: &Extensions,
        payload: &[u8],
    ) -> Wire {
        let mut header = [0; MAX_HEADER];
        let pad = payload.len().next_multiple_of(4) - payload.len();
        let bth = Bth { pad: pad as u8, ..*bth };
        let len = Packet::emit_headers(&bth, op, ext, &mut header);
        let mut bytes = header[..len].to_vec();
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + pad, 0);
        let (src_port, id, tos) = (0xC123, 0, 0);
        let mut wire = Wire::new((src, src_port), dst, id, tos, bytes);
        wire.seal();
        wire
    }

    /// A packet whose payload does not exist, with zeros in its place. `len` is that of the UDP
    /// payload with its ICRC.
    pub fn hollow(
        (src, dst): (IpAddr, IpAddr),
        (src_port, tos): (u16, u8),
        header: &[u8],
        len: usize,
    ) -> Wire {
        let mut bytes = header.to_vec();
        bytes.resize(len.saturating_sub(4).max(header.len()), 0);
        let mut wire = Wire::new((src, src_port), dst, 0, tos, bytes);
        wire.seal();
        wire
    }

    /// Appends the ICRC.
    fn seal(&mut self) {
        let flow =
            Flow { src: self.src, dst: self.dst, src_port: self.src_port, dst_port: ROCE_PORT };
        let icrc = Icrc::start(&flow, self.id, self.bytes.len() + 4, &self.bytes);
        self.bytes.extend_from_slice(&icrc.finish());
    }
}

/// Acts as a driver does with a packet to send: gathers its payload and appends the ICRC. `None`
/// if the payload cannot be read.
pub fn seal(
    packet: &Transmit,
    batch: &TransmitBatch,
    memory: &mut dyn Memory,
    src: IpAddr,
    id: u16,
) -> Option<Wire> {
    let mut bytes = Vec::with_capacity(packet.datagram_len());
    bytes.extend_from_slice(packet.header());
    match batch.payload(packet) {
        PayloadRef::Segments(segments) => {
            for segment in segments {
                let at = bytes.len();
                bytes.resize(at + segment.len as usize, 0);
                memory.read(segment.addr, &mut bytes[at..]).ok()?;
            }
        }
        PayloadRef::Bytes(payload) => bytes.extend_from_slice(payload),
    }
    bytes.resize(bytes.len() + packet.pad(), 0);
    let tos = packet.path.traffic_class & !3 | packet.ecn as u8;
    let (src_port, dst) = (packet.path.src_port, packet.path.dst);
    let mut wire = Wire::new((src, src_port), dst, id, tos, bytes);
    wire.seal();
    assert_eq!(
        wire.bytes.len(),
        packet.datagram_len(),
        "the card computes another length for this packet"
    );
    Some(wire)
}

/// A packet when it was sent: what rules match on and what a trace keeps.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The time at which it was sent.
    pub at: Time,
    /// The sending host.
    pub from: usize,
    /// The receiving host.
    pub to: usize,
    /// Its base transport header.
    pub bth: Bth,
    /// Its op-code, if the op-code exists.
    pub op: Option<&'static Op>,
    /// Its further headers.
    pub ext: Extensions,
    /// Its payload in bytes.
    pub payload: usize,
}

impl Seen {
    /// Reads a packet from the wire. The header is empty if the bytes are no packet.
    pub fn new(at: Time, from: usize, to: usize, bytes: &[u8]) -> Seen {
        let bth = Packet::bth(bytes).unwrap_or_default();
        // A trace does not know what the ends agreed on: it reads non-standard packets as StRoM's,
        // and others as the lossy dialect's.
        let read = |dialect| {
            let op = Op::lookup(bth.opcode, dialect);
            (op, op.and_then(|op| Packet::parse(bth, op, bytes).ok()))
        };
        let (op, parsed) = match read(Dialect::STANDARD) {
            (_, None) => match read(Dialect::KERNELS) {
                (_, None) => read(Dialect::all()),
                strom => strom,
            },
            standard => standard,
        };
        let ext = parsed.map_or_else(Extensions::default, |p| p.ext);
        Seen { at, from, to, bth, op, ext, payload: parsed.map_or(0, |p| p.payload.len()) }
    }

    /// Whether the packet belongs to this operation.
    pub fn is(&self, operation: Operation) -> bool {
        self.op.is_some_and(|op| op.operation == operation)
    }

    /// Whether the packet is a positive acknowledge.
    pub fn is_ack(&self) -> bool {
        matches!(self.syndrome(), Some(Syndrome::Ack { .. }))
    }

    /// Whether the packet is a NAK of this kind.
    pub fn is_nak(&self, nak: Nak) -> bool {
        self.syndrome() == Some(Syndrome::Nak(nak))
    }

    /// Whether the packet is an RNR NAK.
    pub fn is_rnr(&self) -> bool {
        matches!(self.syndrome(), Some(Syndrome::Rnr { .. }))
    }

    /// The syndrome of its acknowledge, if it has one.
    pub fn syndrome(&self) -> Option<Syndrome> {
        let Aeth { syndrome, .. } = self.ext.aeth;
        self.is(Operation::Acknowledge).then(|| Syndrome::parse(syndrome))
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.op.map_or("unknown op-code", |op| op.name);
        let Seen { from, to, payload, .. } = self;
        let us = self.at.0 as f64 / 1000.0;
        write!(f, "{us:12.3} us  {from} -> {to}  {name}  psn {}", self.bth.psn)?;
        if let Some(syndrome) = self.syndrome() {
            write!(f, "  {syndrome:?}")?;
        }
        if *payload > 0 {
            write!(f, "  {payload} bytes")?;
        }
        Ok(())
    }
}
