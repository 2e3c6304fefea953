//! The bytes on the wire: RoCE v2 packets inside UDP.
//!
//! - [`opcode`] is the table that parsing, building and the legality of sequences follow.
//! - [`headers`] are the transport headers, [`lossy`] those of the lossy dialect, and [`packet`]
//!   puts them together.
//! - [`icrc`] is the invariant checksum.
//! - [`ip`] makes the IP and UDP headers that the checksum covers and that a UD receive buffer
//!   begins with.
//! - [`multicast`] holds the addresses of multicast groups.
//!
//! The formats are those of InfiniBand volume 1, chapter 9 (Transport Layer), and annex A17
//! (RoCEv2). No function here panics on bytes that have arrived: parsing returns `Err` with a
//! reason, and every length is checked before it is used. Whether a well-formed packet may come at
//! this time is not asked here but in `qp`.

pub mod headers;
pub mod icrc;
pub mod ip;
pub mod lossy;
pub mod multicast;
pub mod opcode;
pub mod packet;

pub use headers::{Aeth, AtomicEth, Bth, Deth, Feth, Nak, Reth, Syndrome, Xrceth};
pub use lossy::{Leth, Sack};
pub use opcode::{Dialect, Op, Operation, Position, Transport};
pub use packet::{Extensions, MAX_DATA_HEADER, MAX_HEADER, Malformed, Packet};

/// The UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

/// Length in bytes of the invariant CRC that ends each packet.
pub const ICRC_LEN: usize = 4;

/// The longest RoCE v2 UDP payload in bytes, at the largest path MTU: headers, 4096 bytes of
/// payload, pad and ICRC.
pub const MAX_DATAGRAM: usize = MAX_HEADER + 4096 + 3 + ICRC_LEN;
