//! A look ahead: where a card has more queue pairs than caches hold, what the next packets and
//! turns need is fetched from memory side by side, and not one after the other when its time comes.
//!
//! None of this has an effect that can be seen, but for time: with 10,000 queue pairs the card
//! sends and takes 6 to 13 % more messages of 512 bytes. (To fetch the messages themselves in the
//! same way gains 1 % more.)

use super::Nic;
use crate::memory::Memory;
use crate::qp::Qp;
use crate::transmit::Datagram;
use crate::wire::Packet;

/// So many queue pairs are in the caches anyway.
const CACHED: usize = 512;
/// A queue pair is fetched so many turns ahead.
const TURNS_OF_STATE: usize = 6;
/// Its next element, whose place its state tells, is fetched so many turns ahead.
const TURNS_OF_ELEMENT: usize = 3;

impl Nic {
    /// Fetches the queue pairs that packets are for, and then their next receive elements.
    #[inline]
    pub(super) fn look_at_packets<'a>(
        &self,
        mem: &mut dyn Memory,
        datagrams: impl Iterator<Item = Datagram<'a>> + Clone,
    ) {
        if self.qps.len() > CACHED {
            let headers = datagrams.filter_map(|datagram| Packet::bth(datagram.bytes).ok());
            let qps = headers.filter_map(|bth| self.qps.get(bth.dest_qp));
            qps.clone().for_each(Qp::prefetch);
            qps.for_each(|qp| qp.rq.prefetch(mem));
        }
    }

    /// Fetches a queue pair whose turn is near, and the next element of one whose turn is nearer.
    #[inline]
    pub(super) fn look_at_turns(&self, mem: &mut dyn Memory) {
        if self.qps.len() > CACHED {
            let ready = |turns| self.card.scheduler.ready_at(turns);
            let qp = |turns| ready(turns).and_then(|qpn| self.qps.get(qpn));
            if let Some(qp) = qp(TURNS_OF_STATE) {
                qp.prefetch();
            }
            if let Some(qp) = qp(TURNS_OF_ELEMENT) {
                qp.sq.prefetch(mem);
            }
        }
    }
}
