//! What the driver knows of peers that do not answer.

use core::net::IpAddr;
use std::collections::BTreeSet;

use super::Nic;
use crate::env::Env;
use crate::incident::Cause;
use crate::memory::Memory;
use crate::qp::State;
use crate::queue::Status;
use crate::silence::Silence;
use crate::time::Time;

/// Peers that do not answer.
impl Nic {
    /// Does [`Nic::poll_silent`] have a peer?
    #[inline]
    pub fn has_silent(&self) -> bool {
        self.card.silent.has_asked() || self.cm.has_signs_of_life()
    }

    /// The address of a peer to which packets are sent again, or that has answered a question of
    /// [`Nic::ask_for_life`]. A driver that can find out why the peer does not answer says so by
    /// [`Nic::handle_silence`]; a driver need not ask.
    pub fn poll_silent(&mut self) -> Option<IpAddr> {
        self.card.silent.next().or_else(|| self.cm.next_sign_of_life())
    }

    /// Is there a connection to a card at `peer` that is one of this kind? (RDMA connection
    /// management tells: such cards have a mark in their GUIDs.) It answers
    /// [questions](Nic::ask_for_life).
    pub fn has_kin_at(&self, peer: IpAddr) -> bool {
        self.cm.has_kin_at(peer)
    }

    /// Asks the card at `peer` for a sign of life. Whatever has become of a single queue pair, a
    /// card that is at work [answers](Nic::has_answered).
    pub fn ask_for_life(&mut self, peer: IpAddr) {
        self.cm.ask_for_life(peer);
    }

    /// Has the card at `peer` answered the last question of [`Nic::ask_for_life`]?
    pub fn has_answered(&self, peer: IpAddr) -> bool {
        self.cm.has_answered(peer)
    }

    /// Takes what the driver has found out about the card at `peer`. While it is
    /// [`Silence::Held`], requests to it go on after their last retry, for a minute at most. If it
    /// is [`Silence::Gone`], requests to it that wait for an answer end now.
    pub fn handle_silence(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        peer: IpAddr,
        silence: Silence,
    ) {
        if silence == Silence::Gone {
            return self.handle_gone(now, mem, &[peer]);
        }
        self.card.silent.note(peer, silence);
    }

    /// As [`Nic::handle_silence`] for peers that are [`Silence::Gone`]. It looks at each queue
    /// pair, so a driver with many peers collects those that have gone.
    pub fn handle_gone(&mut self, now: Time, mem: &mut dyn Memory, peers: &[IpAddr]) {
        let peers: BTreeSet<IpAddr> = peers.iter().map(IpAddr::to_canonical).collect();
        for &peer in &peers {
            self.card.silent.note(peer, Silence::Gone);
        }
        self.card.counters.peers_gone += peers.len() as u64;
        let Nic { qps, card, kernels, .. } = self;
        for qp in qps.iter_mut() {
            let waits = qp.transport.is_reliable()
                && matches!(qp.state, State::Rts | State::Sqd)
                && peers.contains(&qp.path.dst.to_canonical())
                && qp.waits_for_peer();
            if waits {
                let psn = qp.tx.una;
                let env = &mut Env { now, mem, card, kernels };
                qp.fail_front_for(env, Status::RetryExceeded, Cause::CardGone, (None, psn));
            }
        }
    }
}
