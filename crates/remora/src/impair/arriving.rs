//! The receiving side, between the fabric and the card.

use std::iter::once;
use std::net::IpAddr;

use remora_nic::{Datagram, Nic, Time};

use super::source::Watch;
use super::{Direction, Fate, Hold, ImpairCounters, Impairer, Impairments};
use crate::memory::HostMemory;
use crate::pcap::Recorder;

/// What is done on purpose to packets that arrive, and the file that says what is done to all.
#[derive(Debug)]
pub(crate) struct Arriving {
    impairer: Impairer,
    hold: Hold<Origin>,
    watch: Option<Watch>,
    /// Which packets are concerned where nobody says.
    seed: u64,
}

/// Where a packet that waits came from.
#[derive(Clone, Copy, Debug)]
struct Origin {
    src: IpAddr,
    src_port: u16,
    dst: IpAddr,
    tos: u8,
    /// It has an ICRC.
    sums: bool,
}

/// Who takes packets that have arrived.
pub(crate) struct Taker<'a> {
    pub(crate) nic: &'a mut Nic,
    pub(crate) memory: &'a mut HostMemory,
    pub(crate) recorder: &'a mut Recorder,
    pub(crate) port: u16,
}

impl Taker<'_> {
    fn take(&mut self, now: Time, datagram: Datagram<'_>, sums: bool) {
        if sums {
            self.recorder.received(once(datagram), self.port);
            self.nic.handle_packets(now, self.memory, once(datagram));
        } else {
            self.nic.handle_packets_from_memory(now, self.memory, once(datagram));
        }
    }
}

impl Arriving {
    /// What `wanted` says is done from now on. `seed` is for impairments without one.
    pub(crate) fn new(wanted: &Impairments, seed: u64) -> Arriving {
        let impairer = Impairer::new(Direction::In, wanted, seed);
        Arriving { impairer, hold: Hold::default(), watch: None, seed }
    }

    /// As [`Arriving::new`]; packets that wait already come when they are due.
    pub(crate) fn set(&mut self, wanted: &Impairments, seed: u64) {
        self.impairer.set(wanted, seed);
    }

    /// The file to be looked at for changes.
    pub(crate) fn watch(&mut self, watch: Option<Watch>) {
        self.watch = watch;
    }

    /// What the file says now, with the seed to use, if it has changed.
    pub(crate) fn look(&mut self, now: Time) -> Option<(Impairments, u64)> {
        let changed = self.watch.as_mut()?.look(now)?;
        Some((changed, self.seed))
    }

    /// Is anything done to packets that arrive?
    pub(crate) fn is_on(&self) -> bool {
        self.impairer.is_on()
    }

    /// What was done to packets that have arrived so far.
    pub(crate) fn counters(&self) -> ImpairCounters {
        self.impairer.counters
    }

    /// When a packet that waits is due, or the file is to be looked at.
    pub(crate) fn next_due(&self) -> Time {
        let look_at = self.watch.as_ref().map_or(Time::NEVER, Watch::look_at);
        self.hold.next_due().min(look_at)
    }

    /// Hands on packets that have come, or keeps or loses them.
    pub(crate) fn pass<'a>(
        &mut self,
        now: Time,
        packets: impl Iterator<Item = Datagram<'a>>,
        sums: bool,
        taker: &mut Taker<'_>,
    ) {
        for packet in packets {
            match self.impairer.judge(now, packet.src, packet.bytes.len()) {
                Fate::Passes => taker.take(now, packet, sums),
                Fate::Lost => {}
                // Without an ICRC nobody would see the damage. Where there is one, the damaged
                // packet is dropped.
                Fate::Delayed(held) if held.flip.is_some() && !sums => {
                    self.impairer.counters.corrupted += 1;
                }
                Fate::Delayed(held) => {
                    let Datagram { src, src_port, dst, tos, .. } = packet;
                    let origin = Origin { src, src_port, dst, tos, sums };
                    let counters = &mut self.impairer.counters;
                    self.hold.keep(now, held, (origin, packet.bytes), counters);
                }
            }
        }
    }

    /// Hands on packets that are due; returns whether there were any.
    pub(crate) fn release(&mut self, now: Time, taker: &mut Taker<'_>) -> bool {
        let mut any = false;
        while let Some(waiting) = self.hold.take_due(now) {
            let Origin { src, src_port, dst, tos, sums } = waiting.about;
            let bytes = &*waiting.bytes;
            taker.take(now, Datagram { src, src_port, dst, ip_id: None, tos, bytes }, sums);
            self.hold.reuse(waiting.bytes);
            any = true;
        }
        any
    }
}
