//! Datagrams on their way in: judged as packets of RoCE v2, and given to what they are for.

use super::Nic;
use crate::cm::mad::CM_QPN;
use crate::env::Env;
use crate::management;
use crate::memory::Memory;
use crate::qp::Incoming;
use crate::time::Time;
use crate::transmit::Datagram;
use crate::wire::ip::Flow;
use crate::wire::multicast::MULTICAST_QPN;
use crate::wire::{Bth, Op, Packet, ROCE_PORT};

/// The default partition, without the membership bit.
const DEFAULT_PARTITION: u16 = 0x7FFF;

/// Datagrams.
impl Nic {
    /// Datagrams have arrived.
    pub fn handle_packets<'a>(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        datagrams: impl IntoIterator<Item = Datagram<'a>>,
    ) {
        for datagram in datagrams {
            self.handle_packet(now, mem, &datagram);
        }
    }

    fn handle_packet(&mut self, now: Time, mem: &mut dyn Memory, datagram: &Datagram<'_>) {
        if self.card.unsettled.is_some() {
            self.settle(now, mem);
        }
        let Some(bth) = self.judge_packet(datagram) else { return };
        let counters = &mut self.card.counters;
        if bth.dest_qp == CM_QPN {
            return management::receive(&mut self.cm, counters, now, bth, datagram);
        }
        if bth.dest_qp == MULTICAST_QPN {
            return self.handle_multicast(now, mem, bth, datagram);
        }
        let Some(qp) = self.qps.get_mut(bth.dest_qp) else {
            counters.drop_unknown_qp += 1;
            return;
        };
        let Some(op) = Op::lookup(bth.opcode, qp.dialect) else {
            counters.drop_opcode += 1;
            // On a reliable connection the requester is told, if the packet is the expected one.
            let mut env = Env { now, mem, card: &mut self.card, kernels: &mut self.kernels };
            return qp.handle_incoming(&mut env, Incoming::Unknown(&bth), datagram);
        };
        let Ok(packet) = Packet::parse(bth, op, datagram.bytes) else {
            counters.drop_malformed += 1;
            return;
        };
        let mut env = Env { now, mem, card: &mut self.card, kernels: &mut self.kernels };
        qp.handle_incoming(&mut env, Incoming::of(&packet), datagram);
    }

    /// The base header of a datagram that is a packet of RoCE v2, as it was sent, of the version
    /// and the partition that are spoken here. What is not is counted.
    #[inline(always)]
    fn judge_packet(&mut self, datagram: &Datagram<'_>) -> Option<Bth> {
        let counters = &mut self.card.counters;
        counters.rx_packets += 1;
        let Ok(bth) = Packet::bth(datagram.bytes) else {
            counters.drop_malformed += 1;
            return None;
        };
        let flow = Flow {
            src: datagram.src,
            dst: datagram.dst,
            src_port: datagram.src_port,
            dst_port: ROCE_PORT,
        };
        if !self.icrc.check(&flow, datagram.ip_id, datagram.bytes) {
            counters.drop_icrc += 1;
            return None;
        }
        if bth.version != 0 {
            counters.drop_version += 1;
            return None;
        }
        if bth.pkey & DEFAULT_PARTITION != DEFAULT_PARTITION {
            counters.drop_pkey += 1;
            return None;
        }
        Some(bth)
    }
}
