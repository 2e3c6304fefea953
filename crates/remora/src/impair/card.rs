//! A running card on a bad network: what is done on purpose to packets in both directions
//! ([`crate::impair`]), and how that changes.

use remora_nic::Time;

use crate::driver::Own;
use crate::egress::Sent;
use crate::impair::arriving::{Arriving, Taker};
use crate::impair::source::Wish;
use crate::impair::{Direction, ImpairCounters, Impairments};

impl Own {
    /// From now on, this is done to packets. `seed` is for a wish without one.
    pub(crate) fn wish_impairments(&mut self, wish: Wish, seed: u64) {
        if wish.is_nothing() {
            return;
        }
        self.set_impairments(&wish.impairments, seed);
        if let Some(arriving) = &mut self.arriving {
            arriving.watch(wish.watch);
        }
    }

    /// As [`Own::wish_impairments`], for one that does not change by itself.
    pub(crate) fn set_impairments(&mut self, wanted: &Impairments, seed: u64) {
        self.egress.set_impairments(wanted, seed);
        match &mut self.arriving {
            Some(arriving) => arriving.set(wanted, seed),
            None => self.arriving = Some(Box::new(Arriving::new(wanted, seed))),
        }
        self.choose_shortcut();
        self.choose_offers();
        tracing::info!(rules = wanted.rules.len(), "what happens to packets has changed");
    }

    /// Is anything done to packets?
    pub(crate) fn is_impaired(&self) -> bool {
        self.arriving.as_ref().is_some_and(|arriving| arriving.is_on()) || self.egress.is_impaired()
    }

    /// What was done to packets so far: to those that arrived, and to those that left.
    pub(crate) fn impair_counters(&self) -> [(Direction, ImpairCounters); 2] {
        let arriving = self.arriving.as_ref().map(|arriving| arriving.counters());
        let leaving = self.egress.impair_counters();
        [(Direction::In, arriving.unwrap_or_default()), (Direction::Out, leaving)]
    }

    /// When a packet that waits is due, or the file is to be looked at.
    pub(crate) fn impaired_until(&self) -> Time {
        let Some(arriving) = &self.arriving else { return Time::NEVER };
        arriving.next_due().min(self.egress.next_due())
    }

    /// Moves packets that are due, and does what the file says if it has changed. Returns whether
    /// any packet moved.
    #[cold]
    pub(crate) fn tend_impaired(&mut self, now: Time) -> bool {
        let Some(arriving) = &mut self.arriving else { return false };
        if let Some((changed, seed)) = arriving.look(now) {
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
        arriving.release(now, &mut taker);
        arriving.pass(now, received.datagrams(), true, &mut taker);
    }

    /// As [`Own::impair_received`], for what has come by a ring.
    #[cold]
    pub(crate) fn impair_from_ring(&mut self, now: Time, sums: bool) {
        let Own { arriving, nic, memory, recorder, fabric, .. } = self;
        let Some(arriving) = arriving else { return };
        let mut taker = Taker { nic, memory, recorder, port: fabric.udp.port() };
        arriving.release(now, &mut taker);
        arriving.pass(now, fabric.datagrams(), sums, &mut taker);
    }
}
