//! The packets that are in the network: what routing needs of each, and what it carries.

use remora_nic::wire::MAX_HEADER;

use super::time::Ps;
use crate::packet::Wire;

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

/// What routers need of a packet. It moves from link to link by value, so that a hop reads one
/// place in memory and writes one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packet {
    /// When it arrives at the end of the link that it is on.
    pub(super) at: Ps,
    /// The number of its cargo.
    pub(super) cargo: u32,
    /// The link by which it came to the switch that it is in.
    pub(super) via: u32,
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

const _: () = assert!(size_of::<Packet>() == 32, "two packets fit a cache line");

impl Packet {
    /// A packet of so many bytes to a host, of the lowest class.
    #[inline]
    pub fn new(dst: u32, bytes: u32) -> Packet {
        Packet { dst, bytes, ..Packet::default() }
    }

    /// The number of its cargo in [`Packets`].
    #[inline]
    pub fn cargo(&self) -> u32 {
        self.cargo
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
    /// The host that sends it.
    pub src: u32,
    /// The UDP payload in bytes, from BTH to ICRC.
    pub datagram_len: u32,
}

impl Head {
    /// The head of a packet with these headers, traffic class and source port, from host `src`,
    /// with a UDP payload of `datagram_len` bytes.
    ///
    /// # Panics
    /// If they are longer than any packet's.
    #[inline]
    pub fn new(header: &[u8], (tos, src_port): (u8, u16), src: u32, datagram_len: u32) -> Head {
        let mut bytes = [0; HEAD];
        bytes[..header.len()].copy_from_slice(header);
        Head { bytes, len: header.len() as u8, tos, src_port, src, datagram_len }
    }

    fn start(&self) -> (u8, u64) {
        (self.bytes[0], self.datagram_len.into())
    }

    /// The headers.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for Head {
    fn default() -> Head {
        Head::new(&[], (0, 0), 0, 0)
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

impl Cargo {
    /// The first byte of the datagram, which is its op-code, and the datagram's length.
    pub fn start(&self) -> (u8, u64) {
        match self {
            Cargo::Head(head) => head.start(),
            Cargo::Wire(wire) => wire_start(wire),
        }
    }
}

fn wire_start(wire: &Wire) -> (u8, u64) {
    (wire.bytes.first().copied().unwrap_or(0), wire.bytes.len() as u64)
}

/// What the packets in the network carry, by number. Numbers are used again.
#[derive(Debug, Default)]
pub struct Packets {
    heads: Vec<Head>,
    /// As many as the others if a packet with all its bytes was ever added, otherwise none.
    wires: Vec<Option<Box<Wire>>>,
    free: Vec<u32>,
}

impl Packets {
    /// Adds what a packet carries; returns its number.
    #[inline]
    pub fn add(&mut self, cargo: Cargo) -> u32 {
        let (head, wire) = match cargo {
            Cargo::Head(head) => (head, None),
            Cargo::Wire(wire) => (Head::default(), Some(wire)),
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.heads[number as usize] = head;
                number
            }
            None => {
                self.heads.push(head);
                self.heads.len() as u32 - 1
            }
        };
        if wire.is_some() {
            self.wires.resize_with(self.heads.len(), || None);
            self.wires[number as usize] = wire;
        }
        number
    }

    /// Removes what a packet carries.
    #[inline]
    pub fn take(&mut self, number: u32) -> Cargo {
        self.free.push(number);
        let wire = self.wires.get_mut(number as usize).and_then(Option::take);
        wire.map_or_else(|| Cargo::Head(self.heads[number as usize]), Cargo::Wire)
    }

    /// The [start](Cargo::start) of what a packet carries.
    pub fn start(&self, number: u32) -> (u8, u64) {
        match self.wires.get(number as usize) {
            Some(Some(wire)) => wire_start(wire),
            _ => self.heads[number as usize].start(),
        }
    }

    /// Forgets what a packet carries.
    #[inline]
    pub fn remove(&mut self, number: u32) {
        self.free.push(number);
        if let Some(wire) = self.wires.get_mut(number as usize) {
            *wire = None;
        }
    }

    /// The headers of a packet whose payload does not exist.
    #[inline]
    pub fn head(&self, number: u32) -> &Head {
        &self.heads[number as usize]
    }

    /// What a packet carries, which stays.
    pub fn look(&self, number: u32) -> Cargo {
        let wire = self.wires.get(number as usize).and_then(Option::clone);
        wire.map_or_else(|| Cargo::Head(self.heads[number as usize]), Cargo::Wire)
    }

    /// Does the packet have all its bytes?
    #[inline]
    pub fn is_whole(&self, number: u32) -> bool {
        self.wires.get(number as usize).is_some_and(Option::is_some)
    }

    /// How many packets carry something.
    pub fn len(&self) -> usize {
        self.heads.len() - self.free.len()
    }

    /// Does no packet carry anything?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again() {
        let mut packets = Packets::default();
        for round in 0..3 {
            let heads = (0..4u8).map(|i| Head::new(&[i; 12], (2, 7), i.into(), 100));
            let numbers: Vec<u32> = heads.map(|head| packets.add(Cargo::Head(head))).collect();
            assert!(numbers.iter().all(|n| *n < 4), "round {round}");
            for (i, number) in (0u8..).zip(numbers) {
                assert_eq!(packets.head(number).header(), &[i; 12]);
                assert!(!packets.is_whole(number));
                packets.remove(number);
            }
            assert!(packets.is_empty());
        }
    }
}
