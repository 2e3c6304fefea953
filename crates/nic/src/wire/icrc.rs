//! The invariant CRC: the last four bytes of every packet. (Packets with a wrong one are dropped in
//! `nic/receive.rs`.)
//!
//! It is the CRC-32 of Ethernet over everything that routers leave unchanged: eight bytes of ones
//! (in place of InfiniBand's local route header), the IP and UDP headers, the transport headers,
//! payload and pad. Fields that may change on the way count as ones: of IPv4 the type of service,
//! the time to live and the header checksum, of IPv6 the traffic class, the flow label and the hop
//! limit, the UDP checksum, and the byte of the BTH with the congestion bits. InfiniBand annex A17
//! (RoCEv2) defines it, and soft-RoCE's `rxe_icrc.c` computes it in the same way.
//!
//! # When the IPv4 identification is unknown
//! The checksum covers the IPv4 identification (RFC 791), and a plain UDP socket does not show it.
//! But a CRC is affine in every bit that it covers: the checksum with identification *i* differs
//! from that with 0 by the polynomial *i*·x^(8n) mod P, where *n* counts the bytes from the
//! identification to the end. Multiplied by x^(-8n), the difference gives *i* back: below 2^16 if
//! the packet is intact, and anything below 2^32 if it is not. So 16 of the 32 bits still check the
//! packet. One multiplication is enough, and only the constant x^(-8n) depends on the length. (On a
//! server core of 2025 the multiplication takes 10 to 20 ns, and a length that is not in the cache
//! about 250 ns.)
//!
//! # What is remembered
//! Much of a short packet's checksum is that of headers that all packets of a flow have in common.
//! So [`IcrcMaker`] keeps, for a flow and a length, the checksum before the BTH for each small
//! identification, and the difference that the masked byte of the BTH makes; a packet then takes
//! one pass over its own bytes.
//!
//! A checker guesses the identification, and solves for it only if the guess is wrong. Where a
//! sender cuts a group of packets of one length, each has the identification of the one before plus
//! one. Where packets come one by one, it stays the same. Where the length changes, it is probably
//! the one that came last with that length: an acknowledge behind a packet of data always has 1.

use core::net::{IpAddr, Ipv4Addr};

use super::headers::Bth;
use super::ip::{Ipv4, Ipv6, Udp};

pub use super::ip::Flow;

/// Bytes of ones in front, for InfiniBand's local route header.
const LRH_LEN: usize = 8;

/// The longest run of bytes before the BTH.
const MAX_PREFIX: usize = LRH_LEN + Ipv6::LEN + Udp::LEN;

/// The byte of the BTH with the congestion bits, which switches and receivers may set.
const BTH_CONGESTION: usize = 4;

/// The ICRC of a packet, computed piece by piece.
#[derive(Clone, Debug)]
pub struct Icrc(crc32fast::Hasher);

impl Icrc {
    /// Starts with the outer headers and `headers`: the BTH, and as much of what follows it as the
    /// caller likes.
    ///
    /// `ip_id` is the IPv4 identification, ignored for IPv6; `udp_payload_len` counts the bytes
    /// from BTH to ICRC, both included.
    pub fn start(flow: &Flow, ip_id: u16, udp_payload_len: usize, headers: &[u8]) -> Icrc {
        // One buffer for all short pieces: a call for each would cost more than the copy.
        let mut buf = [0xFF; MAX_PREFIX + Bth::LEN];
        let prefix = emit_prefix(flow, ip_id, udp_payload_len, &mut buf);
        let (bth, rest) = headers.split_at(headers.len().min(Bth::LEN));
        let end = prefix + bth.len();
        buf[prefix..end].copy_from_slice(bth);
        buf[prefix + BTH_CONGESTION] = 0xFF;

        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&buf[..end]);
        hasher.update(rest);
        Icrc(hasher)
    }

    /// Adds payload, or pad (zero bytes), in the order on the wire.
    pub fn update(&mut self, payload: &[u8]) {
        self.0.update(payload);
    }

    /// The four bytes that end the packet.
    pub fn finish(self) -> [u8; 4] {
        self.value().to_le_bytes()
    }

    fn value(self) -> u32 {
        self.0.finalize()
    }
}

/// Writes the part that the checksum covers before the BTH, with ones for all that may change on
/// the way. `buf` begins with the ones that stand for the local route header. Returns the length of
/// the part.
fn emit_prefix(
    flow: &Flow,
    ip_id: u16,
    udp_payload_len: usize,
    buf: &mut [u8; MAX_PREFIX + Bth::LEN],
) -> usize {
    let Flow { src_port, dst_port, .. } = *flow;
    let udp = Udp { src_port, dst_port, payload_len: udp_payload_len, checksum: 0xFFFF };
    let payload_len = Udp::LEN + udp_payload_len;
    let ip_end = if let (IpAddr::V4(src), IpAddr::V4(dst)) = (flow.src, flow.dst) {
        let ip = Ipv4 { src, dst, tos: 0xFF, id: ip_id, ttl: 0xFF, payload_len };
        let end = LRH_LEN + Ipv4::LEN;
        buf[LRH_LEN..end].copy_from_slice(&ip.emit_with_checksum(0xFFFF));
        end
    } else {
        let (src, dst) = flow.mapped();
        let (flow_label, hop_limit) = (0xF_FFFF, 0xFF);
        let ip = Ipv6 { src, dst, traffic_class: 0xFF, flow_label, hop_limit, payload_len };
        let end = LRH_LEN + Ipv6::LEN;
        buf[LRH_LEN..end].copy_from_slice(&ip.emit());
        end
    };
    let end = ip_end + Udp::LEN;
    buf[ip_end..end].copy_from_slice(&udp.emit());
    end
}

/// How many pairs of flow and length a maker remembers.
const KNOWN_LEN: usize = 16;
/// Identifications below this one are remembered. A group's packets count up from 0.
const KNOWN_IDS: u16 = 64;

/// Makes the ICRC of many packets, and remembers what they have in common.
#[derive(Clone, Debug)]
pub struct IcrcMaker {
    known: Box<[Known]>,
    /// The entry of `known` that the last packet belonged to; only a checker uses it.
    current: usize,
}

/// What packets of one flow and one length have in common.
#[derive(Clone, Debug)]
struct Known {
    flow: Flow,
    /// Bytes from BTH to pad.
    covered: usize,
    /// Are the fields below filled in? That takes as long as a few packets, so the second packet
    /// does it: if every packet has another length, remembering is not worth it.
    ready: bool,
    /// The difference in the checksum between a congestion byte of 0 and one of all ones.
    congestion: u32,
    /// Which `prefixes` are known: a bit for each identification.
    have: u64,
    /// For an identification, the checksum of all before the BTH.
    prefixes: [u32; KNOWN_IDS as usize],
    /// For a checker: the identification of the last packet.
    last: u16,
    /// The last packet had the same identification as the one before it: the packets come one by
    /// one, not in groups.
    alone: bool,
    /// For a checker: the identification of the last packet that followed one of another entry.
    first: u16,
}

impl Known {
    const NONE: Known = Known {
        flow: Flow {
            src: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            dst: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            src_port: 0,
            dst_port: 0,
        },
        covered: usize::MAX,
        ready: false,
        congestion: 0,
        have: 0,
        prefixes: [0; KNOWN_IDS as usize],
        last: 0,
        alone: false,
        first: 0,
    };

    /// Notes a packet. If it is of another flow or length, the entry starts anew with it.
    fn touch(&mut self, flow: &Flow, covered: usize) {
        if self.covered != covered || self.flow != *flow {
            (self.flow, self.covered, self.ready) = (*flow, covered, false);
            (self.last, self.alone, self.first) = (0, false, 0);
        } else if !self.ready {
            let behind = covered.saturating_sub(BTH_CONGESTION);
            self.congestion = multiply(0xFF, power(BYTE_FORTH, behind));
            (self.have, self.ready) = (0, true);
        }
    }

    /// The ICRC of a packet of this flow and length.
    fn value(&mut self, ip_id: u16, covered: &[u8]) -> u32 {
        let usual = ip_id < KNOWN_IDS && covered.get(BTH_CONGESTION) == Some(&0);
        if !self.ready || !usual {
            return Icrc::start(&self.flow, ip_id, covered.len() + 4, covered).value();
        }
        let mut hasher = crc32fast::Hasher::new_with_initial(self.prefix(ip_id));
        hasher.update(covered);
        hasher.finalize() ^ self.congestion
    }

    /// The checksum of all before the BTH. `ip_id` must be below [`KNOWN_IDS`].
    fn prefix(&mut self, ip_id: u16) -> u32 {
        let prefix = &mut self.prefixes[usize::from(ip_id)];
        if self.have & 1 << ip_id == 0 {
            *prefix = Icrc::start(&self.flow, ip_id, self.covered + 4, &[]).value();
            self.have |= 1 << ip_id;
        }
        *prefix
    }

    /// The identification that the next packet probably has. Only small ones are guessed, as only
    /// those are remembered. `continues` says that the packet before was of this entry, too.
    fn guess(&self, continues: bool) -> u16 {
        match continues {
            true => self.last.wrapping_add(u16::from(!self.alone)) % KNOWN_IDS,
            false => self.first,
        }
    }

    /// Notes the identification that a packet had.
    fn learn(&mut self, ip_id: u16, continues: bool) {
        if continues {
            self.alone = ip_id == self.last;
        } else {
            self.first = ip_id % KNOWN_IDS;
        }
        self.last = ip_id;
    }
}

impl Default for IcrcMaker {
    fn default() -> IcrcMaker {
        IcrcMaker { known: vec![Known::NONE; KNOWN_LEN].into(), current: 0 }
    }
}

impl IcrcMaker {
    /// A maker that has seen nothing.
    pub fn new() -> IcrcMaker {
        IcrcMaker::default()
    }

    /// The four bytes that end a packet whose bytes from BTH to pad are `covered`.
    #[inline]
    pub fn make(&mut self, flow: &Flow, ip_id: u16, covered: &[u8]) -> [u8; 4] {
        let at = self.touch(flow, covered.len());
        self.known[at].value(ip_id, covered).to_le_bytes()
    }

    /// The index of the entry for packets of this flow and length.
    #[inline]
    fn touch(&mut self, flow: &Flow, covered: usize) -> usize {
        // Lengths are multiples of 4.
        let at = covered / 4 % KNOWN_LEN;
        self.known[at].touch(flow, covered);
        at
    }
}

/// How many lengths a checker remembers. Traffic has few at a time.
const CACHE_LEN: usize = 64;

/// Checks the ICRC of packets that arrived.
#[derive(Clone, Debug)]
pub struct IcrcChecker {
    maker: IcrcMaker,
    /// For a distance in bytes to the end, in the slot of its low bits, x^(-8·distance) mod P.
    /// Distance 0 does not occur.
    inverses: [(usize, u32); CACHE_LEN],
}

impl Default for IcrcChecker {
    fn default() -> IcrcChecker {
        IcrcChecker { maker: IcrcMaker::new(), inverses: [(0, ONE); CACHE_LEN] }
    }
}

impl IcrcChecker {
    /// A checker that has seen nothing.
    pub fn new() -> IcrcChecker {
        IcrcChecker::default()
    }

    /// Is the ICRC that ends `datagram`, a UDP payload, the right one?
    ///
    /// `ip_id` is the IPv4 identification, where the driver sees it. Where it does not, a damaged
    /// packet passes with probability 2^-16 instead of 2^-32. IPv6 has no identification, and its
    /// check is always full.
    #[inline]
    pub fn check(&mut self, flow: &Flow, ip_id: Option<u16>, datagram: &[u8]) -> bool {
        // A datagram without room for an ICRC has none that is right.
        let Some((covered, trailer)) = datagram.split_last_chunk() else { return false };
        let expected = u32::from_le_bytes(*trailer);
        let at = self.maker.touch(flow, covered.len());
        let has_id = flow.src.is_ipv4() && flow.dst.is_ipv4();
        // All that is covered is known: the two checksums must be equal.
        if let Some(ip_id) = if has_id { ip_id } else { Some(0) } {
            return self.maker.known[at].value(ip_id, covered) == expected;
        }
        let continues = core::mem::replace(&mut self.maker.current, at) == at;
        let known = &mut self.maker.known[at];
        let tried = known.guess(continues);
        let difference = known.value(tried, covered) ^ expected;
        // Otherwise an identification must exist that makes them equal.
        let change =
            if difference == 0 { Some(0) } else { self.id_change_for(difference, covered.len()) };
        let Some(change) = change else { return false };
        self.maker.known[at].learn(tried ^ change, continues);
        true
    }

    /// The bits of the identification that must change for the checksum to change by `difference`.
    /// `None` if no identification does that: the packet is damaged.
    fn id_change_for(&mut self, difference: u32, covered: usize) -> Option<u16> {
        const ID_OFFSET: usize = 4;
        let distance = Ipv4::LEN - ID_OFFSET + Udp::LEN + covered;
        // The identification's two bytes are in the low half of the register, the first one lowest.
        let change = multiply(difference, self.inverse(distance));
        u16::try_from(change).ok().map(u16::swap_bytes)
    }

    /// x^(-8·`distance`) mod P.
    fn inverse(&mut self, distance: usize) -> u32 {
        // Lengths are multiples of 4, so their low two bits would waste three slots of four.
        let slot = &mut self.inverses[distance / 4 % CACHE_LEN];
        if slot.0 != distance {
            *slot = (distance, power(BYTE_BACK, distance));
        }
        slot.1
    }
}

/// The CRC's polynomial P. As everywhere in a reflected CRC the highest bit is the coefficient of
/// x^0, the lowest that of x^31, and x^32 is left out.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// x^8: moves the register forward by a byte.
const BYTE_FORTH: u32 = ONE >> 8;

/// x^-8: moves the register back by a byte.
const BYTE_BACK: u32 = {
    let mut v = ONE;
    let mut i = 0;
    while i < 8 {
        // Division by x; P makes the constant term 0 first.
        v = if v & ONE != 0 { (v ^ POLYNOMIAL) << 1 | 1 } else { v << 1 };
        i += 1;
    }
    v
};

/// The product of two polynomials mod P. It has no branches, since random bits would be
/// mispredicted.
fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for i in (0..32).rev() {
        product ^= b & (a >> i & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

/// `base` to the power `n`, mod P.
fn power(mut base: u32, mut n: usize) -> u32 {
    let mut result = ONE;
    while n > 0 {
        if n & 1 == 1 {
            result = multiply(result, base);
        }
        base = multiply(base, base);
        n >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::MAX_DATAGRAM;

    /// "hello" as RC SEND Only to queue pair 0x123456 with PSN 0xABCDEF; IPv4 10.0.0.1 to 10.0.0.2
    /// with identification 0x1234, IPv6 fe80::1 to fe80::2. Bytes of scapy 2.6.1:
    /// `raw(ip/UDP(sport=49152, dport=4791, chksum=0)/BTH(opcode=4, migreq=1, padcount=3,
    /// dqpn=0x123456, ackreq=1, psn=0xABCDEF)/Raw(b"hello\0\0\0"))` without `ip` and UDP.
    const HELLO: [u8; 20] = *b"\x04\x70\xff\xff\x00\x12\x34\x56\x80\xab\xcd\xefhello\0\0\0";
    const HELLO_V4_ID: u16 = 0x1234;
    const HELLO_V4_ICRC: [u8; 4] = [0x1A, 0x84, 0xC8, 0x66];
    const HELLO_V6_ICRC: [u8; 4] = [0x1F, 0xBE, 0x28, 0xC6];

    fn flow_v4() -> Flow {
        flow("10.0.0.1", "10.0.0.2")
    }

    fn flow_v6() -> Flow {
        flow("fe80::1", "fe80::2")
    }

    fn flow(src: &str, dst: &str) -> Flow {
        let addr = |s: &str| s.parse().unwrap();
        Flow { src: addr(src), dst: addr(dst), src_port: 49152, dst_port: 4791 }
    }

    /// A datagram of `len` bytes that differ, with its ICRC.
    fn datagram(flow: &Flow, ip_id: u16, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len - 4).map(|i| (i * 37 + i / 256) as u8).collect();
        let icrc = Icrc::start(flow, ip_id, len, &bytes).finish();
        bytes.extend(icrc);
        bytes
    }

    #[test]
    fn known_vectors() {
        for (flow, icrc) in [(flow_v4(), HELLO_V4_ICRC), (flow_v6(), HELLO_V6_ICRC)] {
            assert_eq!(Icrc::start(&flow, HELLO_V4_ID, 24, &HELLO).finish(), icrc);
            let datagram = [&HELLO[..], &icrc].concat();
            let mut checker = IcrcChecker::new();
            assert!(checker.check(&flow, Some(HELLO_V4_ID), &datagram));
            assert!(checker.check(&flow, None, &datagram));
            assert_eq!(checker.check(&flow, Some(1), &datagram), flow == flow_v6());
        }
    }

    #[test]
    fn every_unknown_id_is_found() {
        let flow = flow_v4();
        let mut checker = IcrcChecker::new();
        for len in [16, 20, 60, 1044, MAX_DATAGRAM / 4 * 4] {
            let at_zero = datagram(&flow, 0, len);
            let mut maker = IcrcMaker::new();
            for id in 0..=u16::MAX {
                let icrc = Icrc::start(&flow, id, len, &at_zero[..len - 4]).finish();
                assert_eq!(maker.make(&flow, id, &at_zero[..len - 4]), icrc);
                let mut bytes = at_zero.clone();
                bytes[len - 4..].copy_from_slice(&icrc);
                assert!(checker.check(&flow, None, &bytes), "length {len}, id {id}");
            }
        }
    }

    /// Of 2^20 arbitrary wrong checksums, about 2^4 pass.
    #[test]
    fn an_unknown_id_leaves_sixteen_bits_of_check() {
        let mut checker = IcrcChecker::new();
        let passed = (1..=1u32 << 20)
            .filter(|i| checker.id_change_for(i.wrapping_mul(0x9E37_79B1), 56).is_some())
            .count();
        assert!((2..=50).contains(&passed), "{passed} of 2^20 passed");
    }

    /// The identifications within a group are guessed, so that all 32 bits check its packets; where
    /// a group begins, they are found again.
    #[test]
    fn groups_are_followed() {
        let flow = flow_v4();
        let mut checker = IcrcChecker::new();
        for id in [0, 1, 2, 0, 1, 63, 64, 65, 0, 40_000, 40_001, 0] {
            assert!(checker.check(&flow, None, &datagram(&flow, id, 100)));
            let guess = checker.maker.known[96 / 4 % KNOWN_LEN].guess(true);
            assert_eq!(guess, (id + 1) % KNOWN_IDS);
        }
    }

    #[test]
    fn an_acknowledge_behind_data_is_guessed_after_the_first_time() {
        let flow = flow_v4();
        let mut checker = IcrcChecker::new();
        for round in 0..3 {
            for (id, len) in [(0, 40), (1, 20)] {
                let first = checker.maker.known[(len - 4) / 4].first;
                assert!(round == 0 || first == id, "round {round}: {first}");
                assert!(checker.check(&flow, None, &datagram(&flow, id, len)));
            }
        }
    }

    #[test]
    fn the_next_identification_is_guessed() {
        let flow = flow_v4();
        let mut checker = IcrcChecker::new();
        let mut wrong = |ids: &[u16]| {
            let wrong = ids.iter().filter(|&&id| {
                let bytes = datagram(&flow, id, 40);
                let known = &checker.maker.known[36 / 4 % KNOWN_LEN];
                let guess = known.guess(true);
                assert!(checker.check(&flow, None, &bytes));
                guess != id
            });
            wrong.count()
        };
        wrong(&[0, 1]);
        assert_eq!(wrong(&[2, 3, 4, 0, 1, 2, 3]), 1, "in groups: only where one begins");
        wrong(&[0, 0]);
        assert_eq!(wrong(&[0; 9]), 0, "one by one: never");
    }

    #[test]
    fn too_short_is_refused() {
        let mut checker = IcrcChecker::new();
        for len in 0..4 {
            assert!(!checker.check(&flow_v4(), None, &[0; 4][..len]));
        }
    }

    proptest! {
        #[test]
        fn what_is_remembered_changes_nothing(packets: Vec<(u8, u8, bool, u8)>) {
            let flows = [flow_v4(), flow_v6()];
            let mut maker = IcrcMaker::new();
            for (id, len, v6, congestion) in packets {
                let mut bytes = vec![id ^ 0x5A; usize::from(len)];
                // Mostly zero, as in practice.
                if let Some(byte) = bytes.get_mut(BTH_CONGESTION) {
                    *byte = congestion.saturating_sub(0xE0);
                }
                let flow = &flows[usize::from(v6)];
                let icrc = Icrc::start(flow, id.into(), bytes.len() + 4, &bytes).finish();
                prop_assert_eq!(maker.make(flow, id.into(), &bytes), icrc);
            }
        }

        #[test]
        fn pieces_make_the_whole(bytes: Vec<u8>, cut: prop::sample::Index, ip_id: u16) {
            let flow = flow_v4();
            let whole = Icrc::start(&flow, ip_id, bytes.len() + 4, &bytes).finish();
            // The BTH comes in one piece.
            let cut = cut.index(bytes.len() + 1).max(Bth::LEN.min(bytes.len()));
            let (headers, payload) = bytes.split_at(cut);
            let mut icrc = Icrc::start(&flow, ip_id, bytes.len() + 4, headers);
            icrc.update(payload);
            prop_assert_eq!(icrc.finish(), whole);
        }

        #[test]
        fn a_flipped_bit_is_seen(len in 16usize..600, bit: prop::sample::Index, ip_id: u16) {
            for flow in [flow_v4(), flow_v6()] {
                let mut bytes = datagram(&flow, ip_id, len);
                let bit = bit.index(len * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                let covered = bit / 8 != BTH_CONGESTION;
                let mut checker = IcrcChecker::new();
                prop_assert_eq!(checker.check(&flow, Some(ip_id), &bytes), !covered);
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, ip_id: Option<u16>) {
            for flow in [flow_v4(), flow_v6(), flow("10.0.0.1", "fe80::2")] {
                IcrcChecker::new().check(&flow, ip_id, &bytes);
            }
        }

        #[test]
        fn powers_of_a_byte_back_undo_bytes(distance in 0usize..70_000) {
            let forward = power(ONE >> 8, distance);
            prop_assert_eq!(multiply(forward, power(BYTE_BACK, distance)), ONE);
        }
    }
}
