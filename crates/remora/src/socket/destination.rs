//! Where datagrams go: address, traffic class and time to live. Routes and MAC addresses are the
//! system's, below the UDP socket.

use std::net::IpAddr;

use remora_nic::Transmit;
use remora_nic::transmit::PATH_PORTS;

/// The time to live of packets that ask for none.
pub(super) const DEFAULT_HOP_LIMIT: u8 = 64;

/// What a group of datagrams of one size needs beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Destination {
    /// The peer's address.
    pub addr: IpAddr,
    /// Traffic class, ECN bits included.
    pub tos: u8,
    /// Time to live; 0 stands for 64, the usual one.
    pub hop_limit: u8,
    /// The source port, if the card spreads packets over several; 0 for the card's own.
    pub from_port: u16,
}

impl Destination {
    /// Where a packet goes.
    #[inline]
    pub(crate) fn of(packet: &Transmit) -> Destination {
        Destination {
            addr: packet.path.dst.to_canonical(),
            tos: packet.path.traffic_class | packet.ecn as u8,
            hop_limit: packet.path.hop_limit,
            from_port: Some(packet.path.src_port).filter(|p| PATH_PORTS.contains(p)).unwrap_or(0),
        }
    }
}
