//! Congestion notification packets (CNPs), those of RoCE v2 (InfiniBand annex A17): when a receiver
//! sends one, and what a sender does about it.
//!
//! A receiver sends them whatever its peer's policy is.

use core::time::Duration;

use super::Control;
use crate::env::Env;
use crate::qp::{Qp, State};
use crate::transmit::TransmitBatch;
use crate::wire::opcode::Follows;
use crate::wire::{Bth, Extensions, Op, Operation, Packet, Position, Transport};

impl Qp {
    /// Notes that a packet arrived marked: its sender is notified, at most once every
    /// [`Tuning::notify_ns`](crate::Tuning::notify_ns).
    pub(crate) fn note_congestion(&mut self, env: &mut Env<'_>) {
        env.card.counters.rx_ecn_marked += 1;
        // Further marks within the interval tell the sender nothing new.
        if self.state != State::Error && env.now >= self.cold.next_cnp {
            self.cold.next_cnp = env.now + Duration::from_nanos(env.card.config.tuning.notify_ns);
            self.rx.cnp_owed = true;
            self.schedule(env.card);
        }
    }

    /// Sends the congestion notification that is owed.
    #[inline(never)]
    pub(crate) fn send_cnp(&mut self, env: &mut Env<'_>, batch: &mut TransmitBatch) {
        self.rx.cnp_owed = false;
        let op = Op::of(Transport::Rc, Operation::Cnp, Position::Only, Follows::empty());
        let bth = Bth { becn: true, dest_qp: self.dest_qp, ..Bth::ours() };
        batch.push_owned(self.path, &[0; 16], |out| {
            Packet::emit_headers(&bth, op, &Extensions::default(), out)
        });
        env.card.counters.tx_packets += 1;
        env.card.counters.tx_cnps += 1;
    }

    /// A congestion notification has come. It needs no place in the order of PSNs, and is never
    /// answered.
    pub(crate) fn handle_cnp(&mut self, env: &mut Env<'_>) {
        env.card.counters.rx_cnps += 1;
        let high = self.tx.high;
        let window = &mut self.tx.window;
        match self.cold.control.as_deref_mut() {
            Some(Control::Dctcp(dctcp)) => dctcp.notified(window, high),
            Some(Control::Dcqcn(dcqcn)) => dcqcn.notified(env.now),
            // Delays say by how much.
            Some(Control::Swift(_)) => {}
            None => window.shrink(high),
        }
    }
}
