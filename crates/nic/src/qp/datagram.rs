//! The receivers of the unreliable services: UC messages and UD datagrams.
//!
//! These services acknowledge nothing, so that they refuse nothing either: a packet that breaks a
//! rule is dropped and counted (InfiniBand volume 1, chapter 9, Transport Layer). Functions that
//! are named here without a path are those of soft-RoCE's `rxe_resp.c` and `rxe_recv.c`.

use super::Qp;
use super::refusal::Refusal;
use crate::chain::Mode;
use crate::env::Env;
use crate::incident::Outcome;
use crate::queue::{Completion, CompletionFlags, Status, WorkKind};
use crate::transmit::Datagram;
use crate::wire::ip::{self, Flow};
use crate::wire::opcode::Follows;
use crate::wire::{Operation, Packet, ROCE_PORT};

/// The hop limit in a receive buffer's GRH. A socket does not show the one that arrived.
const HOP_LIMIT: u8 = 64;

impl Qp {
    /// A packet on an unreliable connection.
    pub(crate) fn handle_unreliable(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        let gap = psn != self.rx.expected;
        self.rx.expected = psn.plus(1);
        // A PSN other than the expected one shows that packets were lost: the message in progress
        // is abandoned, and the receiver goes on from this PSN (`check_psn`). The beginning of a
        // message abandons an unfinished one, too.
        if gap || packet.op.position.begins() {
            self.abandon_message(env);
        }
        // Up to the next beginning, packets of an abandoned message have nothing to follow, and are
        // dropped; so is a message with a packet of a wrong length (`check_op_seq`,
        // `check_length`).
        if !self.follows(packet) || !self.has_legal_length(packet) {
            env.card.counters.drop_uc_sequence += 1;
            self.abandon_message(env);
            return;
        }
        let done = match packet.op.operation {
            Operation::Send => self.execute_send(env, packet),
            _ => self.execute_write(env, packet),
        };
        match done {
            Ok(_) => {
                let ends = packet.op.position.ends();
                self.rx.current = (!ends).then_some(packet.op.operation);
                env.card.counters.rx_bytes += packet.payload.len() as u64;
            }
            // What a reliable connection refuses drops the whole message here.
            Err(refusal) => {
                match refusal {
                    Refusal::NotReady => env.card.counters.drop_no_receive += 1,
                    Refusal::Nak(_, blame) => {
                        self.report_packet(env, Outcome::Dropped, packet, *blame);
                    }
                }
                self.abandon_message(env);
            }
        }
    }

    /// Abandons the message in progress. Its receive element is kept for the next message
    /// (`do_class_d1e_error`).
    fn abandon_message(&mut self, _env: &mut Env<'_>) {
        self.rx.current = None;
        if self.mode.contains(Mode::RECEIVING)
            && let Some(receive) = &mut self.cold.receive
        {
            receive.filled = 0;
        }
    }

    /// A datagram: a message of one packet, for any queue pair that it has the Q_Key of.
    pub(crate) fn handle_datagram(
        &mut self,
        env: &mut Env<'_>,
        packet: &Packet<'_>,
        outer: &Datagram<'_>,
    ) {
        // The Q_Key in the packet must be the queue pair's (`check_keys`).
        if packet.ext.deth.qkey != self.cold.qkey {
            env.card.counters.drop_qkey += 1;
            return;
        }
        // A datagram has one packet, at most the path MTU long (`check_length`).
        if packet.payload.len() > usize::from(self.mtu) {
            env.card.counters.drop_malformed += 1;
            return;
        }
        // A datagram without a receive element is dropped: nothing tells the sender to wait.
        let mut receive = match self.take_receive(env) {
            Ok(receive) => receive,
            Err(refusal) => {
                return self.report_drop(env, packet, refusal);
            }
        };
        let flow =
            Flow { src: outer.src, dst: outer.dst, src_port: outer.src_port, dst_port: ROCE_PORT };
        // The buffer begins with the route header, so that the receiver knows the sender's address.
        let id = outer.ip_id.unwrap_or(0);
        let grh = ip::grh(&flow, outer.tos, HOP_LIMIT, id, outer.bytes.len());
        for part in [&grh[..], packet.payload] {
            if let Err(refusal) = self.fill(env, &mut receive, part) {
                return self.report_drop(env, packet, refusal);
            }
        }
        let imm = packet.op.follows.contains(Follows::IMM);
        let with = |on, flag| if on { flag } else { CompletionFlags::empty() };
        env.card.counters.rx_bytes += packet.payload.len() as u64;
        self.finish_receive(
            env,
            &receive,
            Completion {
                status: Status::Success,
                kind: WorkKind::Recv,
                len: receive.filled,
                imm_or_key: packet.ext.imm_or_key,
                src_qp: packet.ext.deth.src_qp,
                flags: CompletionFlags::GRH
                    | with(imm, CompletionFlags::IMM)
                    | with(packet.bth.solicited, CompletionFlags::SOLICITED),
                ..Completion::default()
            },
        );
    }

    /// Counts a datagram that found no receive element, or one that cannot take it.
    #[cold]
    fn report_drop(&self, env: &mut Env<'_>, packet: &Packet<'_>, refusal: Refusal) {
        env.card.counters.drop_no_receive += 1;
        if let Refusal::Nak(_, blame) = refusal {
            self.report_packet(env, Outcome::Dropped, packet, *blame);
        }
    }
}
