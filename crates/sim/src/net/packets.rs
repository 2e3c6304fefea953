//! The packets that are in the network: what routing needs of each, and what it carries.

use remora_nic::wire::MAX_HEADER;

use super::time::Ps;
use crate::packet::Wire;

/// No packet.
pub const NONE: u32 = u32::MAX;

/// What a packet is, for the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// A packet from host to host.
    #[default]
    Data,
    /// A port is to stop sending packets of a class (PFC). It goes no further than one link.
    Pause,
    /// The port may go on.
    Resume,
}

/// What routers need of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packet {
    /// When it arrives at the end of the link that it is on.
    pub(super) at: Ps,
    /// The packet behind it: on the link, in a queue, or in the list of free ones.
    pub(super) next: u32,
    /// The link by which it came to the switch that it is in.
    pub(super) via: u32,
    /// The host that sends it.
    pub src: u32,
    /// The host that it goes to.
    pub dst: u32,
    /// Its length on the wire in bytes, with preamble and gap.
    pub bytes: u32,
    /// The same for all packets that are to take one path.
    pub flow: u32,
    /// Its class: the highest goes first.
    pub class: u8,
    /// Its sender and its receiver heed congestion marks.
    pub heeds_marks: bool,
    /// A switch has marked it.
    pub marked: bool,
    /// What it is.
    pub kind: Kind,
}

impl Packet {
    /// A packet of so many bytes to a host, of the lowest class.
    #[inline]
    pub fn new(dst: u32, bytes: u32) -> Packet {
        Packet { dst, bytes, ..Packet::default() }
    }

    /// The packet with this flow.
    #[inline]
    pub fn flow(self, flow: u32) -> Packet {
        Packet { flow, ..self }
    }

    /// The packet with this class, and with or without heed for marks.
    #[inline]
    pub fn class(self, class: u8, heeds_marks: bool) -> Packet {
        Packet { class, heeds_marks, ..self }
    }
}

/// Bytes of a head's array.
const HEAD: usize = 64;
const _: () = assert!(MAX_HEADER <= HEAD, "a head holds the headers of any packet");

/// The headers of a packet whose payload does not exist.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; HEAD],
    len: u8,
    /// Its traffic class, without a mark that the network has made.
    pub tos: u8,
    /// Its source port.
    pub src_port: u16,
    /// The UDP payload in bytes, from BTH to ICRC.
    pub datagram_len: u32,
}

impl Head {
    /// The head of a packet with these headers.
    ///
    /// # Panics
    /// If they are longer than any packet's.
    #[inline]
    pub fn new(header: &[u8], tos: u8, src_port: u16, datagram_len: u32) -> Head {
        let mut bytes = [0; HEAD];
        bytes[..header.len()].copy_from_slice(header);
        Head { bytes, len: header.len() as u8, tos, src_port, datagram_len }
    }

    /// The headers.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for Head {
    fn default() -> Head {
        Head::new(&[], 0, 0, 0)
    }
}

/// What a packet carries.
#[derive(Clone, Debug)]
pub enum Cargo {
    /// Headers; the payload is only a length.
    Head(Head),
    /// All bytes.
    Wire(Box<Wire>),
}

/// All packets in the network, by number. Numbers are used again.
#[derive(Debug)]
pub struct Packets {
    records: Vec<Packet>,
    heads: Vec<Head>,
    /// As many as the others if a packet with all its bytes was ever added, otherwise none.
    wires: Vec<Option<Box<Wire>>>,
    free: u32,
    /// How many packets there are.
    pub(super) live: u64,
}

impl Default for Packets {
    fn default() -> Packets {
        let (records, heads, wires) = (Vec::new(), Vec::new(), Vec::new());
        Packets { records, heads, wires, free: NONE, live: 0 }
    }
}

impl Packets {
    /// Adds a packet; returns its number.
    #[inline]
    pub fn add(&mut self, packet: Packet, cargo: Cargo) -> u32 {
        let head = match cargo {
            Cargo::Head(head) => head,
            Cargo::Wire(wire) => return self.add_wire(packet, wire),
        };
        let number = self.place(packet);
        self.heads[number as usize] = head;
        number
    }

    fn add_wire(&mut self, packet: Packet, wire: Box<Wire>) -> u32 {
        let number = self.place(packet);
        self.wires.resize_with(self.records.len(), || None);
        self.wires[number as usize] = Some(wire);
        number
    }

    /// Adds a packet without cargo.
    #[inline]
    pub(super) fn place(&mut self, packet: Packet) -> u32 {
        self.live += 1;
        if self.free == NONE {
            self.records.push(packet);
            self.heads.push(Head::default());
            return self.records.len() as u32 - 1;
        }
        let number = self.free;
        let record = &mut self.records[number as usize];
        self.free = record.next;
        *record = packet;
        number
    }

    /// Removes a packet.
    #[inline]
    pub fn remove(&mut self, number: u32) -> Packet {
        let record = &mut self.records[number as usize];
        let packet = *record;
        record.next = self.free;
        self.free = number;
        self.live -= 1;
        if let Some(wire) = self.wires.get_mut(number as usize) {
            *wire = None;
        }
        packet
    }

    /// Removes a packet and takes what it carries.
    pub fn take(&mut self, number: u32) -> (Packet, Cargo) {
        let wire = self.wires.get_mut(number as usize).and_then(Option::take);
        let cargo = wire.map_or_else(|| Cargo::Head(self.heads[number as usize]), Cargo::Wire);
        (self.remove(number), cargo)
    }

    /// The headers of a packet whose payload does not exist.
    #[inline]
    pub fn head(&self, number: u32) -> &Head {
        &self.heads[number as usize]
    }

    /// Does the packet have all its bytes?
    #[inline]
    pub fn is_whole(&self, number: u32) -> bool {
        self.wires.get(number as usize).is_some_and(Option::is_some)
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> &Packet {
        &self.records[number as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Packet {
        &mut self.records[number as usize]
    }
}

/// Packets one behind the other, linked by their records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) first: u32,
    last: u32,
}

impl Default for Line {
    fn default() -> Line {
        Line { first: NONE, last: NONE }
    }
}

impl Line {
    /// Adds a packet behind the others; returns whether it is the first.
    #[inline]
    pub(super) fn push(&mut self, packets: &mut Packets, number: u32) -> bool {
        packets.get_mut(number).next = NONE;
        let is_first = self.first == NONE;
        if is_first {
            self.first = number;
        } else {
            packets.get_mut(self.last).next = number;
        }
        self.last = number;
        is_first
    }

    /// Takes the first packet.
    #[inline]
    pub(super) fn pop(&mut self, packets: &Packets) -> Option<u32> {
        let first = self.first;
        if first == NONE {
            return None;
        }
        self.first = packets.get(first).next;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_lines_keep_their_order() {
        let mut packets = Packets::default();
        let mut line = Line::default();
        for round in 0..3 {
            let numbers: Vec<u32> = (0..4u32)
                .map(|i| {
                    let head = Head::new(&[i as u8; 12], 2, 7, 100);
                    packets.add(Packet { dst: i, ..Packet::default() }, Cargo::Head(head))
                })
                .collect();
            assert!(numbers.iter().all(|n| *n < 4), "round {round}");
            let firsts: Vec<bool> = numbers.iter().map(|n| line.push(&mut packets, *n)).collect();
            assert_eq!(firsts, [true, false, false, false]);
            for i in 0..4 {
                let number = line.pop(&packets).unwrap();
                assert_eq!(packets.head(number).header(), &[i as u8; 12]);
                assert_eq!(packets.remove(number).dst, i);
            }
            assert_eq!(line.pop(&packets), None);
            assert_eq!(packets.live, 0);
        }
    }
}
