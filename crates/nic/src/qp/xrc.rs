//! XRC: a connection whose requests name the shared receive queue that they are for.
//!
//! An XRC queue pair is either a sender, which only makes requests, or a target, which only answers
//! them. A target works in the protection domain of the shared receive queue that the request
//! names, and completes into that queue's completion queue. The rules are those of InfiniBand annex
//! A14 (XRC); the rest of the transport is that of a reliable connection
//! ([`super::responder`], [`super::completer`]).

use super::Qp;
use crate::chain::Mode;
use crate::env::Env;
use crate::handles::Xrcd;
use crate::incident::{Cause, Outcome};
use crate::wire::{Nak, Packet};

impl Qp {
    /// A request on an XRC connection: for the target.
    pub(super) fn handle_xrc_request(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        // Only a target, which has an XRC domain, takes requests.
        if self.cold.xrcd.is_none() {
            env.card.counters.drop_transport += 1;
            return;
        }
        // A duplicate, or a request ahead of the expected PSN, uses no queue, so that the one it
        // names is not looked up.
        if packet.bth.psn != self.rx.expected || self.turn_to_queue(env, packet) {
            self.handle_request(env, packet);
        }
    }

    /// An answer on an XRC connection: for the sender.
    pub(super) fn handle_xrc_response(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        // Only a sender has requests that can be answered.
        if self.cold.xrcd.is_some() {
            env.card.counters.drop_transport += 1;
            return;
        }
        self.handle_response(env, packet);
    }

    /// Turns the target to the shared receive queue that the expected request names. If the queue
    /// does not exist, or is not in the target's XRC domain, the connection ends.
    fn turn_to_queue(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) -> bool {
        let (card, srqn) = (&mut *env.card, packet.ext.xrceth.srqn);
        let handle = card.xrc_srqs.get(srqn).copied();
        let found = handle.and_then(|handle| card.srqs.get(handle));
        let queue = found.and_then(|srq| Some((srq.pd, srq.xrc.filter(|x| self.is_in(x.xrcd))?)));
        // Every packet of a message names the queue that its first packet names. So does one that
        // begins another within it: the element that the message has taken is that queue's.
        let inside = self.rx.current.is_some() || self.mode.contains(Mode::RECEIVING);
        let strays = (inside || !packet.op.position.begins()) && handle != Some(self.srq);
        match (handle, queue) {
            (Some(handle), Some((pd, xrc))) if !strays => {
                (self.srq, self.pd, self.recv_cq) = (handle, pd, xrc.cq);
                true
            }
            // A connection that is ending drops requests in `handle_request`, which counts them.
            _ if self.rx.breaking => true,
            // A queue that the peer may not name is an invalid request.
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
