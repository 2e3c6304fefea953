//! Control messages: the notes that travel beside a datagram through `sendmsg` and `recvmmsg`.
//!
//! The layout is Linux's `struct cmsghdr`: a length (one machine word, header included), a level
//! and a type (4 bytes each), then the value, padded to whole words. Read and written as plain
//! bytes, so that no pointer is needed.

use libc::{
    IP_RECVERR, IP_TOS, IP_TTL, IPPROTO_IP, IPPROTO_IPV6, IPV6_HOPLIMIT, IPV6_RECVERR, IPV6_TCLASS,
    SO_RXQ_OVFL, SOL_SOCKET, SOL_UDP, UDP_GRO, UDP_SEGMENT,
};

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 8;

/// Room for the control messages of one datagram, aligned as the kernel wants it.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; 96],
    len: usize,
}

/// What the kernel said about a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Received {
    /// Traffic class, ECN bits included.
    pub(super) tos: u8,
    /// Length of each datagram but the last, if several came as one piece; 0 if only one came.
    pub(super) segment: usize,
    /// Datagrams that have found the socket's buffer full since it was opened, if the kernel said
    /// so.
    pub(super) overflow: Option<u32>,
}

/// What the kernel said about an earlier packet (`struct sock_extended_err`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct News {
    pub(super) errno: i32,
    /// Another machine has said so.
    pub(super) by_icmp: bool,
}

impl Control {
    pub(super) const fn new() -> Control {
        Control { bytes: [0; 96], len: 0 }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Room for the kernel to write to. [`Control::set_len`] takes how much it wrote.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(self.bytes.len());
    }

    /// Asks for a traffic class, ECN bits included.
    pub(super) fn push_tos(&mut self, v6: bool, tos: u8) {
        let (level, kind) = if v6 { (IPPROTO_IPV6, IPV6_TCLASS) } else { (IPPROTO_IP, IP_TOS) };
        self.push(level, kind, &i32::from(tos).to_ne_bytes());
    }

    /// Asks for a time to live.
    pub(super) fn push_hop_limit(&mut self, v6: bool, hops: u8) {
        let (level, kind) = if v6 { (IPPROTO_IPV6, IPV6_HOPLIMIT) } else { (IPPROTO_IP, IP_TTL) };
        self.push(level, kind, &i32::from(hops).to_ne_bytes());
    }

    /// Asks the kernel to cut the bytes into datagrams of `segment` bytes.
    pub(super) fn push_segment(&mut self, segment: u16) {
        self.push(SOL_UDP, UDP_SEGMENT, &segment.to_ne_bytes());
    }

    fn push(&mut self, level: i32, kind: i32, value: &[u8]) {
        let at = self.len;
        let len = HEADER + value.len();
        self.bytes[at..at + WORD].copy_from_slice(&len.to_ne_bytes());
        self.bytes[at + WORD..at + WORD + 4].copy_from_slice(&level.to_ne_bytes());
        self.bytes[at + WORD + 4..at + HEADER].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[at + HEADER..at + len].copy_from_slice(value);
        self.len = at + len.next_multiple_of(WORD);
    }

    /// Reads what the kernel wrote. Messages of other kinds are passed over.
    pub(super) fn parse(&self) -> Received {
        let mut received = Received::default();
        let mut rest = self.as_slice();
        while let Some((level, kind, value, next)) = next_message(rest) {
            match (level, kind) {
                (IPPROTO_IP, IP_TOS) | (IPPROTO_IPV6, IPV6_TCLASS) => {
                    received.tos = value.first().copied().unwrap_or(0);
                }
                (SOL_UDP, UDP_GRO) => {
                    received.segment = value
                        .first_chunk()
                        .map_or(0, |b| i32::from_ne_bytes(*b))
                        .try_into()
                        .unwrap_or(0);
                }
                (SOL_SOCKET, SO_RXQ_OVFL) => {
                    received.overflow = value.first_chunk().map(|b| u32::from_ne_bytes(*b));
                }
                _ => {}
            }
            rest = next;
        }
        received
    }

    /// Reads what the kernel wrote about an earlier packet.
    pub(super) fn news(&self) -> Option<News> {
        let mut rest = self.as_slice();
        while let Some((level, kind, value, next)) = next_message(rest) {
            if matches!((level, kind), (IPPROTO_IP, IP_RECVERR) | (IPPROTO_IPV6, IPV6_RECVERR)) {
                return News::parse(value);
            }
            rest = next;
        }
        None
    }
}

impl News {
    fn parse(value: &[u8]) -> Option<News> {
        let errno = i32::from_ne_bytes(*value.first_chunk()?);
        let origin = *value.get(4)?;
        let by_icmp = origin == libc::SO_EE_ORIGIN_ICMP || origin == libc::SO_EE_ORIGIN_ICMP6;
        Some(News { errno, by_icmp })
    }
}

/// Level, type and value of the first message, and what follows it.
fn next_message(bytes: &[u8]) -> Option<(i32, i32, &[u8], &[u8])> {
    let len = usize::from_ne_bytes(*bytes.first_chunk()?);
    let level = i32::from_ne_bytes(*bytes.get(WORD..)?.first_chunk()?);
    let kind = i32::from_ne_bytes(*bytes.get(WORD + 4..)?.first_chunk()?);
    let value = bytes.get(HEADER..len)?;
    let next = bytes.get(len.next_multiple_of(WORD)..).unwrap_or(&[]);
    Some((level, kind, value, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut control = Control::new();
        control.push_tos(false, 0x6a);
        control.push(SOL_UDP, UDP_GRO, &4148i32.to_ne_bytes());
        control.push(SOL_SOCKET, SO_RXQ_OVFL, &7u32.to_ne_bytes());
        let expected = Received { tos: 0x6a, segment: 4148, overflow: Some(7) };
        assert_eq!(control.parse(), expected);
    }

    #[test]
    fn news_of_an_earlier_packet_are_read() {
        let mut control = Control::new();
        control.push_tos(false, 0);
        assert_eq!(control.news(), None);
        // An error, its origin, and what else the structure has.
        let mut value = [0; 16];
        value[..4].copy_from_slice(&libc::ECONNREFUSED.to_ne_bytes());
        value[4] = libc::SO_EE_ORIGIN_ICMP;
        control.push(IPPROTO_IP, IP_RECVERR, &value);
        let refused = News { errno: libc::ECONNREFUSED, by_icmp: true };
        assert_eq!(control.news(), Some(refused));
        let mut control = Control::new();
        value[4] = libc::SO_EE_ORIGIN_LOCAL;
        control.push(IPPROTO_IPV6, IPV6_RECVERR, &value);
        assert_eq!(control.news(), Some(News { by_icmp: false, ..refused }));
        control.set_len(HEADER + 4);
        assert_eq!(control.news(), None);
    }

    #[test]
    fn a_cut_message_is_passed_over() {
        let mut control = Control::new();
        control.push_tos(true, 1);
        control.set_len(HEADER + 2);
        assert_eq!(control.parse(), Received::default());
        control.set_len(3);
        assert_eq!(control.parse(), Received::default());
    }
}
