//! What the driver knows of peers that do not answer.

use core::net::IpAddr;

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
        self.card.silent.has_asked()
    }

    /// The address of a peer to which packets are sent again. A driver that can find out why the
    /// peer does not answer says so by [`Nic::handle_silence`]; a driver need not ask.
    pub fn poll_silent(&mut self) -> Option<IpAddr> {
        self.card.silent.next()
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
        self.card.silent.note(peer, silence);
        if silence != Silence::Gone {
            return;
        }
        let peer = peer.to_canonical();
        self.card.counters.peers_gone += 1;
        let Nic { qps, card, kernels, .. } = self;
        for qp in qps.iter_mut() {
            let waits = qp.transport.is_reliable()
                && matches!(qp.state, State::Rts | State::Sqd)
                && qp.path.dst.to_canonical() == peer
                && qp.waits_for_peer();
            if waits {
                let psn = qp.tx.una;
                let env = &mut Env { now, mem, card, kernels };
                qp.fail_front_for(env, Status::RetryExceeded, Cause::CardGone, (None, psn));
            }
        }
    }
}
