//! Packets between a card and its port, where the card's hardware takes time.

use std::collections::VecDeque;

use remora_nic::wire::{Dialect, Op};

use crate::hardware::{CardTime, Profile, SharedPort};
use crate::net::{Cargo, Packet, Ps};

/// A card's hardware, and the packets in it.
#[derive(Debug)]
pub(crate) struct Stage {
    time: CardTime,
    /// Packets to send, by when they are at the port.
    out: VecDeque<(Ps, Packet, Cargo)>,
    /// The bytes of these.
    out_bytes: u64,
    /// When the last request of these is at the port.
    last: Ps,
    /// Packets that have arrived, by when the card knows of them.
    into: VecDeque<(Ps, Packet)>,
}

impl Stage {
    /// Hardware that is idle.
    pub(crate) fn new(profile: Profile) -> Stage {
        let (out, into) = (VecDeque::new(), VecDeque::new());
        Stage { time: CardTime::new(profile), out, out_bytes: 0, last: 0, into }
    }

    /// The card's way to its host's memory.
    pub(crate) fn way(&self) -> SharedPort {
        self.time.way()
    }

    /// May the card fetch another packet, where so many bytes are at its port?
    pub(crate) fn has_room(&self, at_port: u64) -> bool {
        self.out_bytes + at_port < self.time.profile().ahead_bytes
    }

    /// Takes a packet from the card, whose datagram begins with `header`, at `now`; returns when it
    /// will be at the port.
    pub(crate) fn send(
        &mut self,
        now: Ps,
        packet: Packet,
        cargo: Cargo,
        (header, len): (u8, u64),
    ) -> Ps {
        let Work { is_response, begins, payload } = Work::of(header, len);
        let mut at = self.time.sends(now, begins.then_some(packet.flow), payload);
        // Requests keep their order, though the first packet of a message waits longer. Responses
        // may pass them: an acknowledge waits for no data.
        if !is_response {
            at = at.max(self.last);
            self.last = at;
        }
        let place = self.out.partition_point(|(other, ..)| *other <= at);
        self.out_bytes += u64::from(packet.bytes);
        self.out.insert(place, (at, packet, cargo));
        at
    }

    /// Takes a packet that has arrived at `now`; returns when the card knows of it.
    pub(crate) fn arrive(&mut self, now: Ps, packet: Packet, (header, len): (u8, u64)) -> Ps {
        let Work { begins, payload, .. } = Work::of(header, len);
        let at = self.time.receives(now, begins.then_some(packet.flow), payload);
        // What comes behind may not pass what came before: the card takes packets in their order.
        let at = self.into.back().map_or(at, |(last, _)| at.max(*last));
        self.into.push_back((at, packet));
        at
    }

    /// The next packet that is at the port by `now`.
    pub(crate) fn sent(&mut self, now: Ps) -> Option<(Packet, Cargo)> {
        self.out.front().filter(|(at, ..)| *at <= now)?;
        let (_, packet, cargo) = self.out.pop_front()?;
        self.out_bytes -= u64::from(packet.bytes);
        Some((packet, cargo))
    }

    /// The next packet that the card knows of by `now`.
    pub(crate) fn arrived(&mut self, now: Ps) -> Option<Packet> {
        self.into.front().filter(|(at, _)| *at <= now)?;
        Some(self.into.pop_front()?.1)
    }
}

/// What a packet means for the hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Work {
    is_response: bool,
    /// A message begins with it.
    begins: bool,
    /// Bytes of payload.
    payload: u64,
}

impl Work {
    /// That of a datagram of `len` bytes that begins with `code`.
    fn of(code: u8, len: u64) -> Work {
        /// Bytes of the ICRC.
        const ICRC: u64 = 4;
        let op = Op::lookup(code, Dialect::STANDARD);
        let Some(op) = op.or_else(|| Op::lookup(code, Dialect::all())) else {
            return Work::default();
        };
        let is_response = op.is_response();
        let payload = len.saturating_sub(op.header_len() as u64 + ICRC);
        Work { is_response, begins: op.position.begins() && !is_response, payload }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_that_of_the_op_code() {
        let of = |code, len| {
            let Work { is_response, begins, payload } = Work::of(code, len);
            (is_response, begins, payload)
        };
        // RC: WRITE First and Middle, SEND Only, an acknowledge; no op-code.
        assert_eq!(of(0x06, 12 + 16 + 1024 + 4), (false, true, 1024));
        assert_eq!(of(0x07, 12 + 1024 + 4), (false, false, 1024));
        assert_eq!(of(0x04, 12 + 8 + 4), (false, true, 8));
        assert_eq!(of(0x11, 12 + 4 + 4), (true, false, 0));
        assert_eq!(of(0x1F, 100), (false, false, 0));
    }
}
