//! Passes: a driver that shares its queues with their owners lets the owner of a send queue carry
//! out WRITEs and READs itself, in the memory of a peer on this card.
//!
//! The card says whether a request with a certain key could be carried out so ([`Nic::pass`]), and
//! from when on no longer ([`Nic::poll_pass_end`]). The owner uses a pass only while the queue has
//! nothing under way on the card. So the card takes no part in such a request: no PSN moves, no
//! completion is counted, and each end of the connection is where it was.

use super::Nic;
use crate::card::Card;
use crate::memory::key::{Access, Key};
use crate::qp::Qp;

/// What the owner of a send queue may reach in its peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    /// The peer's queue pair.
    pub dest_qp: u32,
    /// The address by which requests name the region's first byte.
    pub iova: u64,
    /// Bytes of the region.
    pub len: u64,
    /// Where the region lies on the bus, in one piece.
    pub bus: u64,
    /// What is permitted: [`Access::REMOTE_WRITE`], [`Access::REMOTE_READ`] or both.
    pub access: Access,
}

/// What has changed, so that passes are over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PassEnd {
    /// A queue pair, at either end: its state, an attribute or a limit, or it has gone.
    QueuePair(u32),
    /// A region: its key was ended, or opens something else.
    Region(Key),
}

impl Nic {
    /// May the owner of queue pair `qpn` carry out WRITEs or READs with this key of its peer's
    /// itself? Only where nothing but the request itself would take part in it: no packet, no rate,
    /// no kernel, no window. What is permitted stays so until [`Nic::poll_pass_end`] names one of
    /// the two queue pairs, or the key.
    pub fn pass(&mut self, qpn: u32, key: Key) -> Option<Pass> {
        let sees_packets = self.card.kernel.taps > 0 || self.card.chains.traces();
        let qp = self.qps.get(qpn).filter(|_| !sees_packets)?;
        let dest_qp = qp.dest_qp;
        let peer = self.qps.get(dest_qp).filter(|peer| qp.may_pass_to(peer))?;
        let permitted = qp.permitted_by(peer);
        let (iova, len, bus, access) = self.card.regions.pass(key, peer.pd)?;
        let access = access & permitted;
        if access.is_empty() {
            return None;
        }
        self.card.regions.set_passed(key);
        for qpn in [qpn, dest_qp] {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.cold.passes = true;
            }
        }
        Some(Pass { dest_qp, iova, len, bus, access })
    }

    /// What has changed since the last call, so that passes are over. The driver sees to it that
    /// they are not used any more before it tells anybody what else has happened.
    #[inline]
    pub fn poll_pass_end(&mut self) -> Option<PassEnd> {
        if let Some(key) = self.card.regions.passes_ended.pop() {
            return Some(PassEnd::Region(key));
        }
        self.card.passes_ended.pop().map(PassEnd::QueuePair)
    }

    /// Notes successful completions of requests that the owner of a queue has carried out itself,
    /// so that WAITs count them.
    pub fn count_completions(&mut self, cq: u32, count: u64) {
        self.card.count_completions(cq, count);
    }

    /// Something begins to see all requests: no pass is good any more.
    pub(super) fn end_all_passes(&mut self) {
        for qp in self.qps.iter_mut() {
            qp.end_passes(&mut self.card);
        }
    }
}

impl Qp {
    /// What the attributes of both ends permit this end to do.
    fn permitted_by(&self, peer: &Qp) -> Access {
        let mut permitted = peer.access & (Access::REMOTE_WRITE | Access::REMOTE_READ);
        if self.cold.max_rd_atomic == 0 || peer.cold.max_dest_rd_atomic == 0 {
            permitted -= Access::REMOTE_READ;
        }
        permitted
    }

    /// Something about the queue pair changes: passes of both directions are over.
    #[inline]
    pub(crate) fn end_passes(&mut self, card: &mut Card) {
        if core::mem::take(&mut self.cold.passes) {
            card.passes_ended.push(self.qpn);
        }
    }
}
