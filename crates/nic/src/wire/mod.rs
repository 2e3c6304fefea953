//! The bytes on the wire: RoCE v2 packets inside UDP.
//!
//! [`opcode`] is the one table from which parsing, building and the legality of sequences follow;
//! [`headers`] are the transport headers; [`packet`] puts them together; [`icrc`] is the
//! invariant checksum; [`ip`] makes the IP and UDP headers that the checksum covers and that a
//! UD receive buffer begins with; [`multicast`] are the addresses of groups.
//!
//! No function here panics on bytes that arrived: parsing returns `Err` with a reason, and every
//! length is checked before it is used.

pub mod headers;
pub mod icrc;
pub mod ip;
pub mod multicast;
pub mod opcode;
pub mod packet;

pub use headers::{Aeth, AtomicEth, Bth, Deth, Feth, Nak, Reth, Syndrome, Xrceth};
pub use opcode::{Dialect, Op, Operation, Position, Transport};
pub use packet::{Extensions, MAX_HEADER, Malformed, Packet};

/// The UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

/// Bytes of the invariant CRC that ends each packet.
pub const ICRC_LEN: usize = 4;

/// The longest RoCE v2 UDP payload at the largest path MTU: headers, 4096 bytes, pad and ICRC.
pub const MAX_DATAGRAM: usize = MAX_HEADER + 4096 + 3 + ICRC_LEN;
