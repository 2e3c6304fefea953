//! The outer headers, as bytes: IPv4 (RFC 791), IPv6 (RFC 8200) and UDP (RFC 768).
//!
//! A driver over a UDP socket does not send these bytes itself, as the kernel does that. They are
//! made for three other purposes: the ICRC covers them, a UD receive buffer begins with them, and a
//! capture file shows them. None is parsed here: the driver hands in addresses and ports.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;

/// Bytes before the payload in a UD receive buffer: see [`grh`].
pub const GRH_LEN: usize = 40;

/// The addresses and ports of a datagram on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family as the source.
    pub dst: IpAddr,
    /// Source UDP port.
    pub src_port: u16,
    /// Destination UDP port: [`super::ROCE_PORT`].
    pub dst_port: u16,
}

impl Flow {
    /// The addresses as IPv6 addresses, IPv4 ones mapped. So a flow of two families, which no
    /// driver can send, has bytes as well.
    pub(super) fn mapped(&self) -> (Ipv6Addr, Ipv6Addr) {
        (gid(self.src), gid(self.dst))
    }
}

/// The GID of an address: an IPv6 address itself, an IPv4 address mapped into IPv6 (annex A17).
pub fn gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// IPv4 header without options, don't-fragment set, carrying UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Type of service, ECN bits included.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// Time to live, hops.
    pub ttl: u8,
    /// Bytes behind the header: UDP header and payload. With the header at most 65,535.
    pub payload_len: usize,
}

impl Ipv4 {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// The header, its checksum filled in.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = self.emit_with_checksum(0);
        let sum = checksum(&b);
        b[10..12].copy_from_slice(&sum.to_be_bytes());
        b
    }

    /// The header with a given checksum.
    pub(super) fn emit_with_checksum(&self, sum: u16) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = 0x45;
        b[1] = self.tos;
        b[2..4].copy_from_slice(&((Self::LEN + self.payload_len) as u16).to_be_bytes());
        b[4..6].copy_from_slice(&self.id.to_be_bytes());
        b[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
        b[8] = self.ttl;
        b[9] = PROTOCOL_UDP;
        b[10..12].copy_from_slice(&sum.to_be_bytes());
        b[12..16].copy_from_slice(&self.src.octets());
        b[16..20].copy_from_slice(&self.dst.octets());
        b
    }
}

/// IPv6 header without extension headers, carrying UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Traffic class, ECN bits included.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Bytes behind the header: UDP header and payload. At most 65,535.
    pub payload_len: usize,
}

impl Ipv6 {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// The header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xF_FFFF;
        let mut b = [0; Self::LEN];
        b[0..4].copy_from_slice(&word.to_be_bytes());
        b[4..6].copy_from_slice(&(self.payload_len as u16).to_be_bytes());
        b[6] = PROTOCOL_UDP;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src.octets());
        b[24..40].copy_from_slice(&self.dst.octets());
        b
    }
}

/// UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes behind the header. With the header at most 65,535.
    pub payload_len: usize,
    /// Checksum. RoCE v2 sends 0, which means none (RFC 768), as the ICRC covers more.
    pub checksum: u16,
}

impl Udp {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// The header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        b[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        b[4..6].copy_from_slice(&((Self::LEN + self.payload_len) as u16).to_be_bytes());
        b[6..8].copy_from_slice(&self.checksum.to_be_bytes());
        b
    }
}

/// The 40 bytes that a UD receive buffer begins with, in the place of InfiniBand's global route
/// header: the IPv6 header, or 20 zero bytes and the IPv4 header, as soft-RoCE writes them.
///
/// `tos` is the traffic class with its ECN bits, `ip_id` the IPv4 identification (0 if unknown),
/// `udp_payload_len` the bytes from BTH to ICRC. An IPv6 flow label reads as 0.
pub fn grh(
    flow: &Flow,
    tos: u8,
    hop_limit: u8,
    ip_id: u16,
    udp_payload_len: usize,
) -> [u8; GRH_LEN] {
    let payload_len = Udp::LEN + udp_payload_len;
    if let (IpAddr::V4(src), IpAddr::V4(dst)) = (flow.src, flow.dst) {
        let ip = Ipv4 { src, dst, tos, id: ip_id, ttl: hop_limit, payload_len };
        let mut b = [0; GRH_LEN];
        b[GRH_LEN - Ipv4::LEN..].copy_from_slice(&ip.emit());
        return b;
    }
    let (src, dst) = flow.mapped();
    Ipv6 { src, dst, traffic_class: tos, flow_label: 0, hop_limit, payload_len }.emit()
}

/// The Internet checksum of an even number of bytes (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    !((folded + (folded >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The header of the worked example that textbooks use for the Internet checksum.
    #[test]
    fn ipv4_checksum_is_the_known_one() {
        let ip = Ipv4 {
            src: Ipv4Addr::new(192, 168, 0, 1),
            dst: Ipv4Addr::new(192, 168, 0, 199),
            tos: 0,
            id: 0,
            ttl: 64,
            payload_len: 95,
        };
        assert_eq!(ip.emit()[10..12], [0xB8, 0x61]);
    }

    proptest! {
        #[test]
        fn ipv4_header_sums_to_zero(
            src: u32, dst: u32, tos: u8, id: u16, ttl: u8, payload_len in 0usize..65_515
        ) {
            let (src, dst) = (src.into(), dst.into());
            let b = Ipv4 { src, dst, tos, id, ttl, payload_len }.emit();
            prop_assert_eq!(checksum(&b), 0);
            prop_assert_eq!(b[1], tos);
            prop_assert_eq!(usize::from(u16::from_be_bytes([b[2], b[3]])), 20 + payload_len);
            prop_assert_eq!(u16::from_be_bytes([b[4], b[5]]), id);
            prop_assert_eq!(&b[6..10], &[0x40, 0, ttl, 17]);
            prop_assert_eq!(&b[12..16], &src.octets());
            prop_assert_eq!(&b[16..20], &dst.octets());
        }

        #[test]
        fn ipv6_header_holds_its_fields(
            src: u128, dst: u128, traffic_class: u8, flow_label in 0u32..1 << 20, hop_limit: u8,
            payload_len in 0usize..65_536,
        ) {
            let (src, dst) = (Ipv6Addr::from(src), Ipv6Addr::from(dst));
            let b = Ipv6 { src, dst, traffic_class, flow_label, hop_limit, payload_len }.emit();
            let word = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
            prop_assert_eq!(word >> 28, 6);
            prop_assert_eq!(word >> 20 & 0xFF, u32::from(traffic_class));
            prop_assert_eq!(word & 0xF_FFFF, flow_label);
            prop_assert_eq!(usize::from(u16::from_be_bytes([b[4], b[5]])), payload_len);
            prop_assert_eq!(&b[6..8], &[17, hop_limit]);
            prop_assert_eq!(&b[8..24], &src.octets());
            prop_assert_eq!(&b[24..40], &dst.octets());
        }

        #[test]
        fn udp_header_holds_its_fields(
            src_port: u16, dst_port: u16, payload_len in 0usize..65_528, checksum: u16
        ) {
            let b = Udp { src_port, dst_port, payload_len, checksum }.emit();
            let words = [src_port, dst_port, 8 + payload_len as u16, checksum];
            prop_assert_eq!(b.to_vec(), words.map(u16::to_be_bytes).concat());
        }
    }

    #[test]
    fn a_receive_buffer_begins_with_the_ip_header() {
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let ip = Ipv4 { src, dst, tos: 2, id: 7, ttl: 64, payload_len: 108 };
        let flow = Flow { src: src.into(), dst: dst.into(), src_port: 50_000, dst_port: 4791 };
        assert_eq!(grh(&flow, 2, 64, 7, 100), [vec![0; 20], ip.emit().to_vec()].concat()[..]);

        let (src, dst) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        let ip =
            Ipv6 { src, dst, traffic_class: 2, flow_label: 0, hop_limit: 64, payload_len: 108 };
        let flow = Flow { src: src.into(), dst: dst.into(), ..flow };
        assert_eq!(grh(&flow, 2, 64, 7, 100), ip.emit());
    }
}
