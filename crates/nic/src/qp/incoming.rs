//! What comes in for a queue pair, and the half of it that is concerned.

use super::{Qp, State};
use crate::chain::Mode;
use crate::env::Env;
use crate::event::Event;
use crate::incident::{Cause, Outcome};
use crate::transmit::{Datagram, Ecn};
use crate::wire::{Bth, Nak, Operation, Packet, Transport};

/// A packet from outside, by what it is to a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incoming<'p> {
    /// A request, or a datagram.
    Request(&'p Packet<'p>),
    /// A request that takes along an acknowledge of ours ([`crate::wire::Op::is_acknowledging`]).
    RequestWithAcknowledge(&'p Packet<'p>),
    /// An acknowledge, READ response or atomic acknowledge.
    Response(&'p Packet<'p>),
    /// A congestion notification.
    CongestionNotification,
    /// It has an op-code that the queue pair does not know.
    Unknown(&'p Bth),
}

impl<'p> Incoming<'p> {
    /// What a packet with a known op-code is.
    #[inline]
    pub(crate) fn of(packet: &'p Packet<'p>) -> Incoming<'p> {
        match packet.op {
            op if op.operation == Operation::Cnp => Incoming::CongestionNotification,
            op if op.is_response() => Incoming::Response(packet),
            op if op.is_acknowledging() => Incoming::RequestWithAcknowledge(packet),
            _ => Incoming::Request(packet),
        }
    }

    /// Is it a packet of this service? Congestion notifications are of any.
    #[inline]
    fn is_of(&self, transport: Transport) -> bool {
        match self {
            Incoming::Request(packet)
            | Incoming::RequestWithAcknowledge(packet)
            | Incoming::Response(packet) => packet.op.transport == transport,
            Incoming::CongestionNotification | Incoming::Unknown(_) => true,
        }
    }
}

impl Qp {
    /// Something has come in for this queue pair.
    pub(crate) fn handle_incoming(
        &mut self,
        env: &mut Env<'_>,
        incoming: Incoming<'_>,
        outer: &Datagram<'_>,
    ) {
        if let Incoming::Unknown(bth) = incoming {
            return self.handle_unknown(env, bth, outer);
        }
        if !incoming.is_of(self.transport) || self.mode.contains(Mode::LOOP_BACK) {
            env.card.counters.drop_transport += 1;
            return;
        }
        if !matches!(self.state, State::Rtr | State::Rts | State::Sqd | State::Sqe) {
            env.card.counters.drop_qp_state += 1;
            return;
        }
        if self.transport == Transport::Ud {
            match incoming {
                Incoming::Request(packet) => self.handle_datagram(env, packet, outer),
                _ => env.card.counters.drop_transport += 1,
            }
            return;
        }
        if outer.src != self.path.dst {
            env.card.counters.drop_wrong_source += 1;
            return;
        }
        if self.state == State::Rtr && !self.cold.peer_told {
            self.cold.peer_told = true;
            env.card.events.push_back(Event::CommunicationEstablished(self.qpn));
        }
        if Ecn::from_tos(outer.tos) == Ecn::Congested {
            self.note_congestion(env);
        }
        match (incoming, self.transport) {
            (Incoming::CongestionNotification, _) => self.handle_cnp(env),
            (Incoming::Request(packet), Transport::Uc) => self.handle_unreliable(env, packet),
            (Incoming::Request(packet), Transport::Xrc) => self.handle_xrc_request(env, packet),
            (Incoming::Response(packet), Transport::Xrc) => self.handle_xrc_response(env, packet),
            (Incoming::Request(packet), _) => self.handle_request(env, packet),
            (Incoming::RequestWithAcknowledge(packet), _) => self.handle_both(env, packet),
            (Incoming::Response(packet), _) => self.handle_response(env, packet),
            (Incoming::Unknown(_), _) => {}
        }
    }

    /// A packet with an op-code that this queue pair does not know: an invalid request, if it
    /// stands where the next request is expected.
    fn handle_unknown(&mut self, env: &mut Env<'_>, bth: &Bth, outer: &Datagram<'_>) {
        if outer.src != self.path.dst || self.mode.contains(Mode::LOOP_BACK) {
            env.card.counters.drop_wrong_source += 1;
            return;
        }
        let listens = matches!(self.state, State::Rtr | State::Rts | State::Sqd);
        let answers = self.transport == Transport::Rc || self.cold.xrcd.is_some();
        let asks = answers && bth.opcode >> 5 == self.transport.code();
        if listens && asks && bth.psn == self.rx.expected {
            env.card.counters.refused_invalid_request += 1;
            let outcome = Outcome::Refused(Nak::InvalidRequest);
            let cause = Cause::UnknownOpcode(bth.opcode);
            self.report(env, outcome, (None, Some(bth.psn)), cause);
            self.break_connection(env, Nak::InvalidRequest);
        }
    }
}
