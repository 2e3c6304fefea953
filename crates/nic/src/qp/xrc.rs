//! XRC: a connection whose requests name the shared receive queue that they are for.
//!
//! The sender's half only asks and the receiver's only answers. A request's queue says whose memory
//! is meant and which queue is told: protection domain and completion queue are the shared receive
//! queue's (InfiniBand specification, annex A14).

use super::Qp;
use crate::env::Env;
use crate::handles::Xrcd;
use crate::incident::{Cause, Outcome};
use crate::wire::{Nak, Packet};

impl Qp {
    /// A request on an XRC connection: for the receiver's half.
    pub(super) fn handle_xrc_request(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        if self.cold.xrcd.is_none() {
            env.card.counters.drop_transport += 1;
            return;
        }
        // A request out of turn changes nothing, so that it need not name a queue.
        if packet.bth.psn != self.rx.expected || self.turn_to_queue(env, packet) {
            self.handle_request(env, packet);
        }
    }

    /// An answer on an XRC connection: for the sender's half.
    pub(super) fn handle_xrc_response(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        if self.cold.xrcd.is_some() {
            env.card.counters.drop_transport += 1;
            return;
        }
        self.handle_response(env, packet);
    }

    /// Works for the queue that the expected request names, from here on. If there is no such
    /// queue in the domain, the connection breaks.
    fn turn_to_queue(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) -> bool {
        let (card, srqn) = (&mut *env.card, packet.ext.xrceth.srqn);
        let handle = card.xrc_srqs.get(srqn).copied();
        let found = handle.and_then(|handle| card.srqs.get(handle));
        let queue = found.and_then(|srq| Some((srq.pd, srq.xrc.filter(|x| self.is_in(x.xrcd))?)));
        // A message keeps to the queue that it began with.
        let strays = !packet.op.position.begins() && handle != Some(self.srq);
        match (handle, queue) {
            (Some(handle), Some((pd, xrc))) if !strays => {
                (self.srq, self.pd, self.recv_cq) = (handle, pd, xrc.cq);
                true
            }
            // Counted where all requests are.
            _ if self.rx.breaking => true,
            _ => {
                card.counters.refused_xrc_srq += 1;
                let (nak, op) = (Nak::InvalidRequest, Some(packet.op));
                let cause = Cause::UnknownSrq { srqn };
                self.report(env, Outcome::Refused(nak), (op, Some(packet.bth.psn)), cause);
                self.break_connection(env, nak);
                false
            }
        }
    }

    fn is_in(&self, xrcd: Xrcd) -> bool {
        self.cold.xrcd == Some(xrcd)
    }
}
