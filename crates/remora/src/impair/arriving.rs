//! The receiving side, between the fabric and the card; and how a running card's impairments
//! change.

use std::iter::once;
use std::net::IpAddr;

use remora_nic::{Datagram, Nic, Time};

use super::source::{Watch, Wish};
use super::{Direction, Fate, Hold, ImpairCounters, Impairer, Impairments};
use crate::driver::Own;
use crate::egress::Sent;
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
struct Taker<'a> {
    nic: &'a mut Nic,
    memory: &'a mut HostMemory,
    recorder: &'a mut Recorder,
    port: u16,
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
    /// Hands on packets that have come, or keeps or loses them.
    fn pass<'a>(
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
                Fate::Held(held) if held.flip.is_some() && !sums => {}
                Fate::Held(held) => {
                    let Datagram { src, src_port, dst, tos, .. } = packet;
                    let origin = Origin { src, src_port, dst, tos, sums };
                    if !self.hold.keep(held, origin, packet.bytes) {
                        self.impairer.counters.queue_full += 1;
                    }
                }
            }
        }
    }

    /// Hands on packets that are due; returns whether there were any.
    fn release(&mut self, now: Time, taker: &mut Taker<'_>) -> bool {
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

/// What is done to packets on purpose, in both directions.
impl Own {
    /// From now on, this is done to packets. `seed` is for a wish without one.
    pub(crate) fn wish_impairments(&mut self, wish: Wish, seed: u64) {
        if wish.is_nothing() {
            return;
        }
        self.set_impairments(&wish.impairments, seed);
        if let Some(arriving) = &mut self.arriving {
            arriving.watch = wish.watch;
        }
    }

    /// As [`Own::wish_impairments`], for one that does not change by itself.
    pub(crate) fn set_impairments(&mut self, wanted: &Impairments, seed: u64) {
        self.egress.set_impairments(wanted, seed);
        match &mut self.arriving {
            Some(arriving) => arriving.impairer.set(wanted, seed),
            None => {
                let impairer = Impairer::new(Direction::In, wanted, seed);
                let (hold, watch) = (Hold::default(), None);
                self.arriving = Some(Box::new(Arriving { impairer, hold, watch, seed }));
            }
        }
        self.choose_shortcut();
        tracing::info!(rules = wanted.rules.len(), "what happens to packets has changed");
    }

    /// Is anything done to packets?
    pub(crate) fn is_impaired(&self) -> bool {
        self.arriving.as_ref().is_some_and(|arriving| arriving.impairer.is_on())
            || self.egress.is_impaired()
    }

    /// What was done to packets so far: to those that arrived, and to those that left.
    pub(crate) fn impair_counters(&self) -> [(Direction, ImpairCounters); 2] {
        let arriving = self.arriving.as_ref().map(|arriving| arriving.impairer.counters);
        let leaving = self.egress.impair_counters();
        [(Direction::In, arriving.unwrap_or_default()), (Direction::Out, leaving)]
    }

    /// When a packet that waits is due, or the file is to be looked at.
    pub(crate) fn impaired_until(&self) -> Time {
        let Some(arriving) = &self.arriving else { return Time::NEVER };
        let look_at = arriving.watch.as_ref().map_or(Time::NEVER, Watch::look_at);
        arriving.hold.next_due().min(self.egress.next_due()).min(look_at)
    }

    /// Moves packets that are due, and does what the file says if it has changed. Returns whether
    /// any packet moved.
    #[cold]
    pub(crate) fn tend_impaired(&mut self, now: Time) -> bool {
        let Some(arriving) = &mut self.arriving else { return false };
        let changed = arriving.watch.as_mut().and_then(|watch| watch.look(now));
        let seed = arriving.seed;
        if let Some(changed) = changed {
            self.set_impairments(&changed, seed);
        }
        let sent = self.release_leaving(now);
        let Own { arriving, nic, memory, recorder, fabric, .. } = self;
        let Some(arriving) = arriving else { return sent };
        let mut taker = Taker { nic, memory, recorder, port: fabric.udp.port() };
        arriving.release(now, &mut taker) || sent
    }

    /// Sends packets that are due; returns whether there were any. Those that leave next leave now.
    #[cold]
    pub(crate) fn release_leaving(&mut self, now: Time) -> bool {
        let recorder = &mut self.recorder;
        let note = |group: Sent<'_>| recorder.sent(&group);
        self.egress.release(now, &mut self.fabric, note)
    }

    /// Hands on what has come by the socket, or keeps or loses it.
    #[cold]
    pub(crate) fn impair_received(&mut self, now: Time) {
        let Own { arriving, nic, memory, recorder, fabric, received, .. } = self;
        let Some(arriving) = arriving else { return };
        let mut taker = Taker { nic, memory, recorder, port: fabric.udp.port() };
        arriving.pass(now, received.datagrams(), true, &mut taker);
    }

    /// As [`Own::impair_received`], for what has come by a ring.
    #[cold]
    pub(crate) fn impair_from_ring(&mut self, now: Time, sums: bool) {
        let Own { arriving, nic, memory, recorder, fabric, .. } = self;
        let Some(arriving) = arriving else { return };
        let mut taker = Taker { nic, memory, recorder, port: fabric.udp.port() };
        arriving.pass(now, fabric.datagrams(), sums, &mut taker);
    }
}
