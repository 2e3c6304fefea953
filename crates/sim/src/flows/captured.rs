//! Packets that were captured, as they were on the wire.

use super::cluster::Cluster;
use crate::net::{Cargo, PacketNote};
use crate::packet::Wire;

impl PacketNote {
    /// The packet as it was on the wire, between cards of a [`Cluster`]. Payload that does not
    /// exist is zeros there.
    pub fn wire(&self) -> Wire {
        let mark = if self.marked { 3 } else { 0 };
        match &self.cargo {
            Cargo::Wire(wire) => Wire { tos: wire.tos | mark, ..(**wire).clone() },
            Cargo::Head(head) => {
                let ends = (Cluster::address(head.src), Cluster::address(self.dst));
                let len = head.datagram_len as usize;
                Wire::hollow(ends, (head.src_port, head.tos | mark), head.header(), len)
            }
        }
    }
}
