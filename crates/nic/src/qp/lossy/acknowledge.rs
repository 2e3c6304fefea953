//! The acknowledges of the lossy dialect: what has arrived, and when.

use super::arrivals::{AHEAD, Last};
use crate::env::Env;
use crate::qp::Qp;
use crate::qp::acknowledge::{ACKNOWLEDGE, Owed};
use crate::transmit::TransmitBatch;
use crate::wire::MAX_HEADER;
use crate::wire::opcode::Follows;
use crate::wire::{Aeth, Bth, Extensions, Op, Operation, Packet, Position, Sack, Transport};

impl Qp {
    /// Sends the acknowledge or NAK that is owed.
    pub(crate) fn send_lossy_acknowledge(&mut self, env: &mut Env<'_>, batch: &mut TransmitBatch) {
        let (syndrome, psn) = match self.rx.reply {
            Owed::Nothing => return,
            // A refusal waits until the peer has the answers to the requests before.
            _ if self.rx.breaking && self.owes_lossy_answers() => return,
            Owed::Acknowledge => (ACKNOWLEDGE, self.rx.expected.minus(1)),
            Owed::Negative(syndrome) => (syndrome, self.rx.expected),
        };
        self.note_acknowledge();
        let expected = self.rx.expected;
        let arrivals = &mut self.lossy_mut().arrivals;
        let Last { psn: last, sent, path, at, copy, any } = arrivals.last;
        // The bitmap ends with the packet that arrived last, so that each is told of many times.
        let ahead = Some(last.distance_from(expected)).filter(|ahead| *ahead < AHEAD);
        let from = ahead.unwrap_or(0).saturating_sub(63);
        let held = env.now.ns_since(at) / Sack::HELD_UNIT;
        let echo_flag = if any { Sack::ECHO } else { 0 };
        let copy_flag = if copy { Sack::COPY } else { 0 };
        let sack = Sack {
            bitmap: arrivals.arrived.window(from),
            received: arrivals.received,
            marked: arrivals.marked,
            echo: sent,
            held: held.min(u16::MAX.into()) as u16,
            path,
            flags: echo_flag | copy_flag,
        };
        arrivals.last.copy = false;
        let aeth = Aeth { syndrome, msn: expected.plus(from).value() };
        let ext = Extensions { aeth, sack: Some(sack), ..Extensions::default() };
        let op = Op::of(Transport::Rc, Operation::Acknowledge, Position::Only, Follows::LETH);
        let bth = Bth { dest_qp: self.dest_qp, psn, ..Bth::ours() };
        let ecn = env.card.config.ecn;
        let header = |out: &mut [u8; MAX_HEADER]| Packet::emit_headers(&bth, op, &ext, out);
        // A copy comes if an acknowledge was lost, so that another path may be better. A NAK is
        // seldom and leaves alone, whatever its path. (The other acknowledges leave without a copy
        // of the path: this is on the way of each message.)
        if copy || syndrome != ACKNOWLEDGE {
            batch.push_last(self.path_numbered(self.lossy().paths.back(path)), ecn, header);
        } else {
            batch.push_last(self.path, ecn, header);
        }
        env.card.counters.tx_packets += 1;
        if syndrome == ACKNOWLEDGE {
            env.card.counters.tx_acks += 1;
        } else {
            env.card.counters.tx_naks += 1;
        }
        if core::mem::take(&mut self.rx.breaking) {
            self.fail(env);
        }
    }

    /// Must an acknowledge leave at once? While packets are missing, the requester waits for it.
    pub(crate) fn acknowledges_at_once(&self) -> bool {
        self.cold.lossy.as_ref().is_some_and(|lossy| !lossy.arrivals.arrived.is_empty())
    }
}
