//! Which half of a queue pair a packet from outside is for: the responder or the completer.
//!
//! The checks here are those that soft-RoCE's `rxe_recv.c` makes before a queue pair's halves see a
//! packet (Linux, `drivers/infiniband/sw/rxe/`): `check_type_state` and `check_addr`. Whatever
//! fails one is dropped without an answer, as if the network had lost it. What a request then does
//! is in [`super::responder`], what an answer does in [`super::completer`].

use super::{Qp, State};
use crate::chain::Mode;
use crate::env::Env;
use crate::event::Event;
use crate::incident::{Cause, Outcome};
use crate::transmit::{Datagram, Ecn};
use crate::wire::{Bth, Dialect, Nak, Operation, Packet, Transport};

/// A packet from outside, classified by what a queue pair does with it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incoming<'p> {
    /// A request, or a datagram.
    Request(&'p Packet<'p>),
    /// A request that also acknowledges requests of this queue pair
    /// ([`crate::wire::Op::is_acknowledging`]).
    RequestWithAcknowledge(&'p Packet<'p>),
    /// An acknowledge, READ response or atomic acknowledge.
    Response(&'p Packet<'p>),
    /// A packet of the lossy dialect.
    Lossy(&'p Packet<'p>),
    /// A congestion notification.
    CongestionNotification,
    /// A packet with an op-code that the queue pair does not know.
    Unknown(&'p Bth),
}

impl<'p> Incoming<'p> {
    /// Classifies a packet with a known op-code.
    #[inline]
    pub(crate) fn of(packet: &'p Packet<'p>) -> Incoming<'p> {
        match packet.op {
            op if op.operation == Operation::Cnp => Incoming::CongestionNotification,
            op if op.dialect.contains(Dialect::LOSSY) => Incoming::Lossy(packet),
            op if op.is_response() => Incoming::Response(packet),
            op if op.is_acknowledging() => Incoming::RequestWithAcknowledge(packet),
            _ => Incoming::Request(packet),
        }
    }

    /// Is it a response to a READ?
    fn is_read_response(&self) -> bool {
        matches!(self, Incoming::Response(packet) if packet.op.operation == Operation::ReadResponse)
    }

    /// Is it a packet of this service? Congestion notifications belong to every service.
    #[inline]
    fn is_of(&self, transport: Transport) -> bool {
        match self {
            Incoming::Request(packet)
            | Incoming::RequestWithAcknowledge(packet)
            | Incoming::Lossy(packet)
            | Incoming::Response(packet) => packet.op.transport == transport,
            Incoming::CongestionNotification | Incoming::Unknown(_) => true,
        }
    }
}

impl Qp {
    /// Takes a packet that names this queue pair.
    pub(crate) fn handle_incoming(
        &mut self,
        env: &mut Env<'_>,
        incoming: Incoming<'_>,
        outer: &Datagram<'_>,
    ) {
        if let Incoming::Unknown(bth) = incoming {
            return self.handle_unknown(env, bth, outer);
        }
        // The op-code's service must be the queue pair's (`check_type_state`). The peer of a
        // loop-back queue pair is on the same card, so that packets are never for it.
        if !incoming.is_of(self.transport) || self.mode.contains(Mode::LOOP_BACK) {
            env.card.counters.drop_transport += 1;
            return;
        }
        // Before RTR, and in ERROR, a queue pair receives nothing (`check_type_state`).
        if !matches!(self.state, State::Rtr | State::Rts | State::Sqd | State::Sqe) {
            env.card.counters.drop_qp_state += 1;
            return;
        }
        // A datagram may come from any address; its Q_Key is checked instead. The service knows no
        // answers.
        if self.transport == Transport::Ud {
            match incoming {
                Incoming::Request(packet) => self.handle_datagram(env, packet, outer),
                _ => env.card.counters.drop_transport += 1,
            }
            return;
        }
        // A connection takes packets from its peer's address only (`check_addr`).
        if outer.src != self.path.dst {
            env.card.counters.drop_wrong_source += 1;
            return;
        }
        if self.state == State::Rtr && !self.cold.peer_told {
            self.cold.peer_told = true;
            env.card.events.push_back(Event::CommunicationEstablished(self.qpn));
        }
        if let Incoming::Lossy(packet) = incoming {
            return self.handle_lossy(env, packet, outer);
        }
        if Ecn::from_tos(outer.tos) == Ecn::Congested {
            self.note_congestion(env);
            if incoming.is_read_response() {
                self.note_marked_answer(env.now);
            }
        }
        match (incoming, self.transport) {
            (Incoming::CongestionNotification, _) => self.handle_cnp(env),
            (Incoming::Request(packet), Transport::Uc) => self.handle_unreliable(env, packet),
            (Incoming::Request(packet), Transport::Xrc) => self.handle_xrc_request(env, packet),
            (Incoming::Response(packet), Transport::Xrc) => self.handle_xrc_response(env, packet),
            (Incoming::Request(packet), _) => self.handle_request(env, packet),
            (Incoming::RequestWithAcknowledge(packet), _) => self.handle_both(env, packet),
            (Incoming::Response(packet), _) => self.handle_response(env, packet),
            // Taken further up in this function.
            (Incoming::Unknown(_) | Incoming::Lossy(_), _) => {}
        }
    }

    /// An op-code that this queue pair does not know is an invalid request if the packet has the
    /// expected PSN. Otherwise it is dropped: only the expected packet can be refused.
    fn handle_unknown(&mut self, env: &mut Env<'_>, bth: &Bth, outer: &Datagram<'_>) {
        // As for known op-codes: from the peer's address only, and never for loop-back.
        if outer.src != self.path.dst || self.mode.contains(Mode::LOOP_BACK) {
            env.card.counters.drop_wrong_source += 1;
            return;
        }
        // Only the responder of a reliable service, in a state in which it receives, can refuse a
        // packet, and the op-code's top three bits must be those of its service.
        let listens = matches!(self.state, State::Rtr | State::Rts | State::Sqd);
        let answers = self.transport == Transport::Rc || self.cold.xrcd.is_some();
        // A connection of the lossy dialect takes an old connection's packets for what they are.
        let answers = answers && !self.is_lossy();
        let asks = answers && bth.opcode >> 5 == self.transport.code();
        // After a refusal nothing more is refused.
        let refuses = listens && asks && !self.rx.breaking;
        if refuses && bth.psn == self.rx.expected {
            env.card.counters.refused_invalid_request += 1;
            let outcome = Outcome::Refused(Nak::InvalidRequest);
            let cause = Cause::UnknownOpcode(bth.opcode);
            self.report(env, outcome, (None, Some(bth.psn)), cause);
            self.break_connection(env, Nak::InvalidRequest);
        }
    }
}
