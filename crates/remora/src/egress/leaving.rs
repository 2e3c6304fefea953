//! What a bad network would do to packets that leave, done on purpose.

use std::time::Duration;

use remora_nic::wire::icrc::Flow;
use remora_nic::{MemoryFault, Time};

use super::{EgressCounters, STALE_MAX, Sent};
use crate::fabric::{Fabric, Went};
use crate::impair::{Direction, Fate, Hold, ImpairCounters, Impairer, Impairments};
use crate::socket::segmentation::Group;
use crate::socket::{Destination, SendFailure};

/// How long a packet that found no room waits until it is tried again.
const AGAIN: Duration = Duration::from_micros(50);

/// The packets of one card that do not simply leave.
#[derive(Debug)]
pub(super) struct Leaving {
    impairer: Impairer,
    hold: Hold<(Destination, Flow)>,
    /// No packet that was held leaves before, since the socket had no room.
    blocked_until: Time,
    now: Time,
    /// Which packets of the batch were taken, as far as that is decided: a group that the socket
    /// refuses is staged again.
    decided: Vec<bool>,
    scratch: Vec<u8>,
}

/// What became of a packet.
pub(super) enum Taken {
    /// It leaves as it would anyway.
    No,
    /// It is lost, or leaves later.
    Yes,
    /// It would leave later, but its memory cannot be read.
    Unreadable,
}

impl Leaving {
    pub(super) fn new(wanted: &Impairments, seed: u64) -> Leaving {
        Leaving {
            impairer: Impairer::new(Direction::Out, wanted, seed),
            hold: Hold::default(),
            blocked_until: Time::ZERO,
            now: Time::ZERO,
            decided: Vec::new(),
            scratch: Vec::new(),
        }
    }

    pub(super) fn set(&mut self, wanted: &Impairments, seed: u64) {
        self.impairer.set(wanted, seed);
    }

    pub(super) fn is_on(&self) -> bool {
        self.impairer.is_on()
    }

    pub(super) fn counters(&self) -> ImpairCounters {
        self.impairer.counters
    }

    pub(super) fn next_due(&self) -> Time {
        self.hold.next_due().max(self.blocked_until)
    }

    /// Another batch begins.
    pub(super) fn next_batch(&mut self) {
        self.decided.clear();
    }

    /// Takes packet `index` of the batch, of `len` bytes, if it does not simply leave. `group` is
    /// the one that it would leave with, and `make` writes its bytes as those of a packet alone.
    pub(super) fn take(
        &mut self,
        index: usize,
        group: &Group,
        len: usize,
        make: impl FnOnce(&mut [u8]) -> Result<(), MemoryFault>,
    ) -> Taken {
        if let Some(taken) = self.decided.get(index) {
            return if *taken { Taken::Yes } else { Taken::No };
        }
        // Packets too long for any group come before this one undecided, and stay so.
        self.decided.resize(index, false);
        let fate = self.impairer.judge(self.now, group.to.addr, len);
        self.decided.push(fate != Fate::Passes);
        match fate {
            Fate::Passes => Taken::No,
            Fate::Lost => Taken::Yes,
            Fate::Delayed(held) => {
                self.scratch.resize(len, 0);
                if make(&mut self.scratch).is_err() {
                    return Taken::Unreadable;
                }
                let packet = ((group.to, group.flow), &*self.scratch);
                self.hold.keep(self.now, held, packet, &mut self.impairer.counters);
                Taken::Yes
            }
        }
    }

    /// Sends packets that are due; returns whether any left.
    pub(super) fn release(
        &mut self,
        now: Time,
        fabric: &mut Fabric,
        counters: &mut EgressCounters,
        mut sent: impl FnMut(Sent<'_>),
    ) -> bool {
        self.now = now;
        if now < self.blocked_until {
            return false;
        }
        let (mut any, mut stale) = (false, 0);
        while let Some(waiting) = self.hold.take_due(now) {
            let (to, flow) = waiting.about;
            let bytes = &*waiting.bytes;
            // By a ring without ICRCs nobody would see the damage. Where there are ICRCs, the
            // peer drops the packet.
            if waiting.corrupt && fabric.link_to(to.addr).is_some() {
                self.hold.reuse(waiting.bytes);
                continue;
            }
            match fabric.send(to, bytes.len(), bytes) {
                Ok(Went::Dropped) => {}
                Ok(went) => {
                    counters.packets += 1;
                    counters.bytes += bytes.len() as u64;
                    match went {
                        Went::Ring => counters.by_ring += 1,
                        _ => counters.groups += 1,
                    }
                    sent(Sent { to, flow, bytes, segment: bytes.len() });
                    any = true;
                }
                Err(error) => match SendFailure::of(&error, false) {
                    SendFailure::Full => {
                        counters.socket_full += 1;
                        self.hold.put_back(waiting);
                        self.blocked_until = now + AGAIN;
                        break;
                    }
                    SendFailure::Stale if stale < STALE_MAX => {
                        counters.icmp_errors += 1;
                        stale += 1;
                        self.hold.put_back(waiting);
                        continue;
                    }
                    SendFailure::TooLong => counters.too_long += 1,
                    _ => counters.unreachable += 1,
                },
            }
            stale = 0;
            self.hold.reuse(waiting.bytes);
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn group() -> Group {
        let addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let to = Destination { addr, tos: 0, hop_limit: 0, from_port: 0 };
        let flow = Flow { src: addr, dst: addr, src_port: 1, dst_port: 2 };
        let (segment, packets, start, len, first, end) = (0, 0, 0, 0, 0, 0);
        Group { to, flow, segment, packets, start, len, first, end, stale: 0, room: 0 }
    }

    /// What `rules` did to packets of `len` bytes, of which the last ones find no room.
    fn counted(rules: &str, packets: usize, len: usize) -> ImpairCounters {
        let mut leaving = Leaving::new(&rules.parse().unwrap(), 1);
        for index in 0..packets {
            leaving.take(index, &group(), len, |_| Ok(()));
        }
        leaving.counters()
    }

    #[test]
    fn a_packet_counts_for_what_became_of_it_only() {
        const QUARTER: usize = 16 << 20;
        let all = "delay=1ms,reorder=100%,duplicate=100%,corrupt=100%";
        // Two packets of two copies fit, and nothing of the other three.
        let ImpairCounters { lost, delayed, reordered, duplicated, corrupted, queue_full } =
            counted(all, 5, QUARTER);
        assert_eq!((lost, queue_full), (0, 3));
        assert_eq!([delayed, reordered, duplicated, corrupted], [2; 4]);
        // Three copies fit: two of the first packet, and one of the second.
        let counts = counted("delay=1ms,duplicate=100%", 3, QUARTER + QUARTER / 3);
        assert_eq!((counts.delayed, counts.duplicated, counts.queue_full), (2, 1, 1));
    }

    #[test]
    fn a_packet_without_memory_counts_for_nothing() {
        let mut leaving = Leaving::new(&"delay=1ms,duplicate=100%".parse().unwrap(), 1);
        leaving.take(0, &group(), 100, |_| Err(MemoryFault { addr: 0 }));
        assert_eq!(leaving.counters(), ImpairCounters::default());
    }
}
