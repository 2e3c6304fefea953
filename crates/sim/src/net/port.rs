//! Ports: the sending ends of links.

use std::collections::VecDeque;

use super::packets::Packet;
use super::pfc::CLASSES;
use super::time::{LineRate, Ps};

/// No link, no switch.
pub(super) const NONE: u32 = u32::MAX;

/// A link, as far as every packet needs it: the port that sends, and what is on its way.
#[derive(Clone, Debug)]
pub(super) struct Port {
    /// The moment at which all that it has begun to send has left. Without [`Queues`], all that it
    /// was given.
    pub(super) free_at: Ps,
    pub(super) rate: LineRate,
    pub(super) delay: Ps,
    /// The backlog that is counted in the buffer of its switch, in bytes.
    pub(super) counted: u64,
    /// The node at the other end of the link: a host, or the number of hosts plus a switch.
    pub(super) to: u32,
    /// The switch that it belongs to; [`NONE`] if it is a host's.
    pub(super) switch: u32,
    pub(super) flags: Flags,
    /// The packets on the link. The first is the next to arrive.
    pub(super) flight: VecDeque<Packet>,
    pub(super) usage: Usage,
}

/// What a link has been used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes that its port has begun to send, with preamble and gap; without classes, flow control
    /// and rates that change, those that it was given.
    pub bytes: u64,
    /// The packets that these are.
    pub packets: u64,
    /// How long they have waited for the port, in picoseconds.
    pub waited: Ps,
    /// Packets that were lost at the port or on the link.
    pub dropped: u64,
}

impl core::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.bytes += other.bytes;
        self.packets += other.packets;
        self.waited += other.waited;
        self.dropped += other.dropped;
    }
}

/// What seldom holds for a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Flags {
    /// The link carries nothing: the cable or one of its ends has failed.
    pub(super) down: bool,
    /// The link loses packets at random.
    pub(super) lossy: bool,
    /// An event says when the port is free.
    pub(super) waking: bool,
    /// The host wants to know when the port is free.
    pub(super) wanted: bool,
    /// What arrives by the link is noted.
    pub(super) captured: bool,
}

impl Port {
    /// The bytes that have not left at `now`, of all that the port has begun to send.
    #[inline]
    pub(super) fn backlog(&self, now: Ps) -> u64 {
        self.rate.bytes_in(self.free_at.saturating_sub(now))
    }

    /// Sends `bytes` behind all else; returns when their last arrives.
    #[inline]
    pub(super) fn send(&mut self, now: Ps, bytes: u32) -> Ps {
        let begin = self.free_at.max(now);
        self.usage.bytes += u64::from(bytes);
        self.usage.packets += 1;
        self.usage.waited += begin - now;
        self.free_at = begin + self.rate.time(u64::from(bytes));
        self.free_at + self.delay
    }
}

/// A packet that is being sent, for the account of the switch that it leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    pub(super) via: u32,
    pub(super) class: u8,
    pub(super) bytes: u32,
}

/// The queues of a port where there are classes, neighbours that may pause them, or rates that
/// change.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    lines: [VecDeque<Packet>; CLASSES],
    /// A bit for each class that has packets.
    filled: u8,
    /// A bit for each class that the neighbour has paused.
    pub(super) paused: u8,
    /// Bytes by line.
    bytes: [u64; CLASSES],
    pub(super) leaving: Option<Leaving>,
}

impl Queues {
    /// Adds a packet at the end of its class's line.
    pub(super) fn push(&mut self, packet: Packet) {
        self.lines[usize::from(packet.class)].push_back(packet);
        self.filled |= 1 << packet.class;
        self.bytes[usize::from(packet.class)] += u64::from(packet.bytes);
    }

    /// Takes the first packet of the highest class that may send.
    pub(super) fn pop(&mut self) -> Option<Packet> {
        let ready = self.filled & !self.paused;
        let class = ready.checked_ilog2()?;
        let line = &mut self.lines[class as usize];
        let packet = line.pop_front()?;
        if line.is_empty() {
            self.filled &= !(1 << class);
        }
        self.bytes[class as usize] -= u64::from(packet.bytes);
        Some(packet)
    }

    /// The packets that wait.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.lines.iter().flatten()
    }

    /// Bytes in all lines.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Bytes in the line of a class.
    pub(super) fn bytes_of(&self, class: u8) -> u64 {
        self.bytes[usize::from(class)]
    }

    /// The packets of a class, in order.
    pub(super) fn of_class(&self, class: u8) -> impl Iterator<Item = &Packet> {
        self.lines[usize::from(class)].iter()
    }

    /// Is there neither a packet in line nor one that is being sent?
    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0 && self.leaving.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_class_that_may_send_goes_first() {
        let mut queues = Queues::default();
        for class in [0, 3, 0, 7] {
            queues.push(Packet { class, bytes: 100, ..Packet::default() });
        }
        queues.paused = 1 << 7;
        let classes: Vec<u8> =
            core::iter::from_fn(|| queues.pop()).map(|packet| packet.class).collect();
        assert_eq!((classes, queues.bytes(), queues.bytes_of(7)), (vec![3, 0, 0], 100, 100));
        queues.paused = 0;
        assert_eq!(queues.of_class(7).count(), 1);
        assert!(queues.pop().is_some() && queues.is_empty());
    }
}
