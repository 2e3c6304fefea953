//! Ports: the sending ends of links.

use super::packets::{Line, NONE, Packets};
use super::pfc::CLASSES;
use super::time::{LineRate, Ps};

/// The sending end of a link, as far as every packet needs it.
#[derive(Clone, Copy, Debug)]
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
        self.free_at = self.free_at.max(now) + self.rate.time(u64::from(bytes));
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

/// The queues of a port where there are classes, and neighbours that may pause them.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    lines: [Line; CLASSES],
    /// A bit for each class that has packets.
    filled: u8,
    /// A bit for each class that the neighbour has paused.
    pub(super) paused: u8,
    /// Bytes in all lines.
    pub(super) bytes: u64,
    pub(super) leaving: Option<Leaving>,
}

impl Queues {
    /// Adds a packet at the end of its class's line.
    pub(super) fn push(&mut self, packets: &mut Packets, number: u32) {
        let (class, bytes) = (packets.get(number).class, packets.get(number).bytes);
        self.lines[usize::from(class)].push(packets, number);
        self.filled |= 1 << class;
        self.bytes += u64::from(bytes);
    }

    /// Takes the first packet of the highest class that may send.
    pub(super) fn pop(&mut self, packets: &Packets) -> Option<u32> {
        let ready = self.filled & !self.paused;
        let class = ready.checked_ilog2()?;
        let line = &mut self.lines[class as usize];
        let number = line.pop(packets)?;
        if line.first == NONE {
            self.filled &= !(1 << class);
        }
        self.bytes -= u64::from(packets.get(number).bytes);
        Some(number)
    }

    /// The packets of a class, in order.
    pub(super) fn of_class<'a>(
        &self,
        packets: &'a Packets,
        class: u8,
    ) -> impl Iterator<Item = u32> + use<'a> {
        let mut at = self.lines[usize::from(class)].first;
        core::iter::from_fn(move || {
            let number = at;
            at = (number != NONE).then(|| packets.get(number).next)?;
            Some(number)
        })
    }

    /// Is there neither a packet in line nor one that is being sent?
    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0 && self.leaving.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::packets::Packet;

    #[test]
    fn the_highest_class_that_may_send_goes_first() {
        let (mut packets, mut queues) = (Packets::default(), Queues::default());
        for class in [0, 3, 0, 7] {
            let number = packets.place(Packet { class, bytes: 100, ..Packet::default() });
            queues.push(&mut packets, number);
        }
        queues.paused = 1 << 7;
        let mut classes = Vec::new();
        while let Some(number) = queues.pop(&packets) {
            classes.push(packets.get(number).class);
        }
        assert_eq!((classes, queues.bytes), (vec![3, 0, 0], 100));
        queues.paused = 0;
        assert_eq!(queues.of_class(&packets, 7).count(), 1);
        assert!(queues.pop(&packets).is_some() && queues.is_empty());
    }
}
