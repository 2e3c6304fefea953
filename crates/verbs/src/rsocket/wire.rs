//! What two rsockets tell each other, as rdma-core's documentation of the protocol has it.
//!
//! Each side has a receive buffer and a small table, both of which the peer writes to. Data goes
//! by RDMA WRITE into the peer's buffer, with immediate data that says how much it was. A side
//! that has emptied half of its buffer writes that half's address into the peer's table, so the
//! sender always knows where to write next. Immediate data is an operation and 29 bits:

use core::mem::size_of;

/// So many bytes of data have arrived.
pub(super) const OP_DATA: u32 = 0;
/// Not sent: a write into a mapped buffer of the peer, on our own send queue.
pub(super) const OP_WRITE: u32 = 2;
/// More data messages may be sent, up to this number; perhaps the table has a new half.
pub(super) const OP_CREDITS: u32 = 4;
/// The table of mapped buffers has a new entry.
pub(super) const OP_MAP: u32 = 6;
/// One of the values below.
pub(super) const OP_CONTROL: u32 = 7;

/// The connection is at its end.
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

/// A piece of the writer's peer's memory, in the byte order of who wrote it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Piece {
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) length: u32,
}

/// A mapped buffer, as the table has it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Mapping {
    pub(super) offset: u64,
    pub(super) piece: Piece,
}

/// Bytes of a piece and of a mapping.
pub(super) const PIECE: usize = size_of::<Piece>();
pub(super) const MAPPING: usize = size_of::<Mapping>();

/// What each side says when it connects or accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// The tables are in network byte order.
    pub(super) big_endian: bool,
    /// There is a table for mapped buffers, behind that for receive buffers.
    pub(super) mappings: u8,
    /// Data messages that may be sent before the first credits.
    pub(super) credits: u16,
    /// The table: `length` counts entries.
    pub(super) table: Piece,
    /// Where to write first.
    pub(super) buffer: Piece,
}

/// Bytes of a [`Hello`].
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

    /// `None`: that is no rsocket, or one that speaks another version.
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

/// Is this machine's byte order that of the network?
pub(super) const OURS_IS_BIG_ENDIAN: bool = cfg!(target_endian = "big");

/// A piece in the other byte order.
pub(super) fn swapped(piece: Piece) -> Piece {
    Piece {
        addr: piece.addr.swap_bytes(),
        key: piece.key.swap_bytes(),
        length: piece.length.swap_bytes(),
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
}
