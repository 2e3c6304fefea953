//! The messages of two rsockets, as rdma-core documents the protocol.
//!
//! Each side has a receive buffer and a small table, both of which the peer writes. Data goes by
//! RDMA WRITE into the peer's buffer, with immediate data that says how long it is. A side that has
//! emptied half of its buffer writes that half's address into the peer's table, so the sender
//! always knows where to write next. Immediate data is an operation and 29 bits:

use core::mem::size_of;
use std::net::{IpAddr, SocketAddr};

use crate::card::gid_of;

/// This many bytes of data have arrived.
pub(super) const OP_DATA: u32 = 0;
/// Never sent: marks a write into a mapped buffer of the peer in the own send queue.
pub(super) const OP_WRITE: u32 = 2;
/// The peer may send data messages up to this number; the table may have a new half.
pub(super) const OP_CREDITS: u32 = 4;
/// The table of mapped buffers has a new entry.
pub(super) const OP_MAP: u32 = 6;
/// A control message: one of the values below.
pub(super) const OP_CONTROL: u32 = 7;

/// The connection ends.
pub(super) const CONTROL_DISCONNECT: u32 = 0;
/// No more data will come.
pub(super) const CONTROL_SHUTDOWN: u32 = 2;

const DATA_BITS: u32 = 29;

/// A message's immediate data.
pub(super) fn message(operation: u32, data: u32) -> u32 {
    operation << DATA_BITS | data & ((1 << DATA_BITS) - 1)
}

/// The operation of a message, and its data.
pub(super) fn split(message: u32) -> (u32, u32) {
    (message >> DATA_BITS, message & ((1 << DATA_BITS) - 1))
}

/// Entries of the table of receive buffers.
pub(super) const TARGETS: usize = 2;

/// A piece of memory to write to, in the byte order of the side that describes it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Piece {
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) length: u32,
}

/// A mapped buffer, as in the table.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Mapping {
    pub(super) offset: u64,
    pub(super) piece: Piece,
}

/// The size of a piece and of a mapping.
pub(super) const PIECE: usize = size_of::<Piece>();
pub(super) const MAPPING: usize = size_of::<Mapping>();

/// The private data of each side's connect or accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// The tables are in network byte order.
    pub(super) big_endian: bool,
    /// The number of entries for mapped buffers, behind those for receive buffers.
    pub(super) mappings: u8,
    /// Data messages that may be sent before the first credits.
    pub(super) credits: u16,
    /// The table: its `length` is a number of entries.
    pub(super) table: Piece,
    /// The buffer to write first.
    pub(super) buffer: Piece,
}

/// The size of a [`Hello`].
pub(super) const HELLO: usize = 8 + 2 * PIECE;

const VERSION: u8 = 1;
const BIG_ENDIAN: u8 = 1;
const HAS_MAPPINGS: u8 = 2;

impl Hello {
    pub(super) fn emit(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[0] = VERSION;
        bytes[1] = HAS_MAPPINGS | if self.big_endian { BIG_ENDIAN } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = self.mappings;
        for (at, piece) in [(8, &self.table), (8 + PIECE, &self.buffer)] {
            bytes[at..at + 8].copy_from_slice(&piece.addr.to_be_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&piece.key.to_be_bytes());
            bytes[at + 12..at + 16].copy_from_slice(&piece.length.to_be_bytes());
        }
        bytes
    }

    /// `None`: the peer is not an rsocket, or speaks another version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; HELLO] = bytes.first_chunk()?;
        if bytes[0] != VERSION {
            return None;
        }
        let piece = |at: usize| {
            let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
            Piece {
                addr: u64::from(word(at)) << 32 | u64::from(word(at + 4)),
                key: word(at + 8),
                length: word(at + 12),
            }
        };
        let table = piece(8);
        if table.length == 0 {
            return None;
        }
        Some(Hello {
            big_endian: bytes[1] & BIG_ENDIAN != 0,
            mappings: if bytes[1] & HAS_MAPPINGS != 0 { bytes[7] } else { 0 },
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            table,
            buffer: piece(8 + PIECE),
        })
    }
}

/// Is this machine big-endian?
pub(super) const OURS_IS_BIG_ENDIAN: bool = cfg!(target_endian = "big");

/// A piece in the other byte order.
pub(super) fn swapped(piece: Piece) -> Piece {
    Piece {
        addr: piece.addr.swap_bytes(),
        key: piece.key.swap_bytes(),
        length: piece.length.swap_bytes(),
    }
}

/// The most bytes of a datagram with its header.
pub(super) const SLOT: usize = 2048;

/// The header of a datagram that a queue pair carries: the address of its sender.
pub(super) fn datagram_header(source: SocketAddr) -> Vec<u8> {
    let port = source.port().to_be_bytes();
    match source {
        SocketAddr::V4(v4) => [&[4, 8], &port[..], &v4.ip().octets()].concat(),
        // The four zeros are the flow label.
        SocketAddr::V6(v6) => [&[6, 24], &port[..], &[0; 4], &v6.ip().octets()].concat(),
    }
}

/// The address in a header, and the header's length.
pub(super) fn parse_datagram(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
    let (version, length) = (*bytes.first()?, *bytes.get(1)?);
    let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
    let ip: IpAddr = match (version, length) {
        (4, 8) => (*bytes.get(4..)?.first_chunk::<4>()?).into(),
        (6, 24) => (*bytes.get(8..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some((SocketAddr::new(ip, port), length.into()))
}

/// The purpose of a UDP datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// Data follows.
    Data,
    /// It only names a queue pair.
    Control,
}

/// The header of a datagram that goes by UDP: the queue pair of its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UdpHeader {
    pub(super) what: Operation,
    /// The two sockets use IPv6, whatever the card uses.
    pub(super) v6: bool,
    /// Zero if there is none.
    pub(super) qpn: u32,
    pub(super) card: IpAddr,
}

/// The first bytes of a UDP header.
const TAG: [u8; 4] = [0x55; 4];

impl UdpHeader {
    /// The size of the longer form.
    pub(super) const MAX: usize = 28;

    pub(super) fn emit(&self) -> Vec<u8> {
        let what = match self.what {
            Operation::Data => OP_DATA,
            Operation::Control => OP_CONTROL,
        };
        // A header between IPv4 sockets has no room for a card of IPv6.
        let (card, qpn) = match (self.v6, self.card) {
            (false, IpAddr::V4(card)) => (card.octets().to_vec(), self.qpn),
            (false, IpAddr::V6(_)) => (vec![0; 4], 0),
            (true, card) => (gid_of(card).to_vec(), self.qpn),
        };
        let (version, length) = if self.v6 { (6, 28) } else { (4, 16) };
        [&TAG, &[version, what as u8, length, 0][..], &qpn.to_be_bytes(), &card].concat()
    }

    /// Splits a datagram into the header and what follows.
    pub(super) fn parse(bytes: &[u8]) -> Option<(UdpHeader, &[u8])> {
        let (tag, rest) = bytes.split_first_chunk::<4>()?;
        let ([version, what, length, _], rest) = rest.split_first_chunk::<4>()?;
        let (qpn, rest) = rest.split_first_chunk::<4>()?;
        let (card, rest): (IpAddr, &[u8]) = match (version, length) {
            (4, 16) => rest.split_first_chunk::<4>().map(|(ip, rest)| ((*ip).into(), rest))?,
            (6, 28) => rest.split_first_chunk::<16>().map(|(ip, rest)| ((*ip).into(), rest))?,
            _ => return None,
        };
        let what = match u32::from(*what) {
            OP_DATA => Operation::Data,
            OP_CONTROL => Operation::Control,
            _ => return None,
        };
        let qpn = u32::from_be_bytes(*qpn) & 0xff_ffff;
        let header = UdpHeader { what, v6: *version == 6, qpn, card: card.to_canonical() };
        (*tag == TAG).then_some((header, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_by_its_bytes() {
        let hello = Hello {
            big_endian: false,
            mappings: 3,
            credits: 0x0180,
            table: Piece { addr: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 2 },
            buffer: Piece { addr: 0x2122_2324_2526_2728, key: 0x3132_3334, length: 0x1_0000 },
        };
        let bytes = hello.emit();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 3]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[16..24], [0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2]);
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!(Hello::parse(&bytes[..HELLO - 1]), None);
        assert_eq!(Hello::parse(&[0; HELLO]), None);
    }

    #[test]
    fn messages() {
        assert_eq!(message(OP_CREDITS, 5), 0x8000_0005);
        assert_eq!(split(0xe000_0002), (OP_CONTROL, CONTROL_SHUTDOWN));
    }

    #[test]
    fn datagrams_by_their_bytes() {
        let source = "192.0.2.7:4660".parse().unwrap();
        let bytes = datagram_header(source);
        assert_eq!(bytes, [4, 8, 0x12, 0x34, 192, 0, 2, 7]);
        assert_eq!(parse_datagram(&bytes), Some((source, 8)));
        assert_eq!(parse_datagram(&bytes[..7]), None);
        let source = "[2001:db8::7]:4660".parse().unwrap();
        let bytes = datagram_header(source);
        assert_eq!((bytes.len(), &bytes[..4], bytes[8]), (24, &[6, 24, 0x12, 0x34][..], 0x20));
        assert_eq!(parse_datagram(&bytes), Some((source, 24)));
        assert_eq!(parse_datagram(&bytes[..23]), None);
        assert_eq!(parse_datagram(&[]), None);

        let card = "192.0.2.7".parse().unwrap();
        let header = UdpHeader { what: Operation::Control, v6: false, qpn: 0x0001_0203, card };
        let bytes = header.emit();
        let fixed = [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 1, 2, 3, 192, 0, 2, 7];
        assert_eq!(bytes, fixed);
        assert_eq!(UdpHeader::parse(&bytes), Some((header, &[][..])));
        for v6 in [false, true] {
            let header = UdpHeader { what: Operation::Data, v6, ..header };
            let bytes = [header.emit(), vec![9, 8]].concat();
            assert_eq!(UdpHeader::parse(&bytes), Some((header, &[9, 8][..])));
            assert!((0..bytes.len() - 2).all(|len| UdpHeader::parse(&bytes[..len]).is_none()));
        }
    }
}
