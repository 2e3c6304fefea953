//! Datagrams on their way in: checked as packets of RoCE v2, and handed to the queue pair, the
//! communication manager or the multicast group that they name.
//!
//! The checks are those of InfiniBand annex A17 (RoCEv2), and of soft-RoCE before it looks at a
//! queue pair (Linux, `drivers/infiniband/sw/rxe/rxe_recv.c` and `rxe_icrc.c`). A packet that fails
//! one is dropped without an answer: nothing in it can be relied on, not even its sender. What a
//! queue pair checks then is in `qp/incoming.rs`.

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
    /// Takes datagrams that have arrived on the RoCE port, in their order of arrival.
    // As a call this costs 66 instructions a WRITE (`./ci.sh cost`).
    #[inline(always)]
    pub fn handle_packets<'a>(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        datagrams: impl IntoIterator<Item = Datagram<'a>, IntoIter: Clone>,
    ) {
        let datagrams = datagrams.into_iter();
        self.look_at_packets(mem, datagrams.clone());
        for datagram in datagrams {
            self.handle_packet(now, mem, &datagram, Integrity::Checked);
        }
    }

    /// As [`Nic::handle_packets`], for packets that have not left this machine's memory, and whose
    /// senders have made no ICRC: its four bytes are there, and not looked at.
    pub fn handle_packets_from_memory<'a>(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        datagrams: impl IntoIterator<Item = Datagram<'a>, IntoIter: Clone>,
    ) {
        let datagrams = datagrams.into_iter();
        self.look_at_packets(mem, datagrams.clone());
        for datagram in datagrams {
            self.handle_packet(now, mem, &datagram, Integrity::Given);
        }
    }

    fn handle_packet(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        datagram: &Datagram<'_>,
        integrity: Integrity,
    ) {
        if self.card.unsettled.is_some() {
            self.settle(now, mem);
        }
        let Some(bth) = self.judge_packet(datagram, integrity) else { return };
        self.route_packet(now, mem, bth, datagram);
    }

    /// Hands a packet to what it names.
    #[inline(always)]
    pub(super) fn route_packet(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        bth: Bth,
        datagram: &Datagram<'_>,
    ) {
        let counters = &mut self.card.counters;
        // Queue pair 1 is the communication manager's (InfiniBand volume 1, chapter 12).
        if bth.dest_qp == CM_QPN {
            return management::receive(&mut self.cm, counters, now, bth, datagram);
        }
        // This number stands for all queue pairs of a multicast group.
        if bth.dest_qp == MULTICAST_QPN {
            return self.handle_multicast(now, mem, bth, datagram);
        }
        // A packet for a queue pair that does not exist is dropped (`hdr_check`).
        let Some(qp) = self.qps.get_mut(bth.dest_qp) else {
            counters.drop_unknown_qp += 1;
            return;
        };
        // Which op-codes exist depends on the dialect that the queue pair agreed on. An unknown one
        // is dropped here; on a reliable connection the requester is told as well, if the packet is
        // the expected one.
        let Some(op) = Op::lookup(bth.opcode, qp.dialect) else {
            counters.drop_opcode += 1;
            let mut env = Env { now, mem, card: &mut self.card, kernels: &mut self.kernels };
            return qp.handle_incoming(&mut env, Incoming::Unknown(&bth), datagram);
        };
        // The packet must hold the headers that its op-code calls for (`rxe_rcv`).
        let Ok(packet) = Packet::parse(bth, op, datagram.bytes) else {
            counters.drop_malformed += 1;
            return;
        };
        let mut env = Env { now, mem, card: &mut self.card, kernels: &mut self.kernels };
        qp.handle_incoming(&mut env, Incoming::of(&packet), datagram);
    }

    /// The base header of a datagram, if it is an undamaged packet of RoCE v2 in the version and
    /// the partition that the card knows. Otherwise the reason is counted.
    #[inline(always)]
    fn judge_packet(&mut self, datagram: &Datagram<'_>, integrity: Integrity) -> Option<Bth> {
        let counters = &mut self.card.counters;
        counters.rx_packets += 1;
        // A card of this machine sends from the port that only it can hold (`Config::neighbours`).
        if datagram.src_port != ROCE_PORT && self.card.config.is_here(datagram.src) {
            counters.drop_source_port += 1;
            return None;
        }
        // A packet is at least a BTH and an ICRC long (`rxe_rcv`).
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
        // A wrong ICRC means that the packet was damaged on its way. The drop looks like a loss,
        // which the sender repairs (`rxe_icrc_check`).
        if integrity == Integrity::Checked
            && !self.icrc.check(&flow, datagram.ip_id, datagram.bytes)
        {
            counters.drop_icrc += 1;
            return None;
        }
        // Version 0 of the transport header is the only one (`hdr_check`).
        if bth.version != 0 {
            counters.drop_version += 1;
            return None;
        }
        // RoCE v2 uses the default partition. The bit of full or limited membership is not compared
        // (`check_keys`).
        if bth.pkey & DEFAULT_PARTITION != DEFAULT_PARTITION {
            counters.drop_pkey += 1;
            return None;
        }
        Some(bth)
    }
}

/// How it is known that a packet is undamaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Integrity {
    /// By its ICRC.
    Checked,
    /// It has not left the memory of this machine.
    Given,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::memory::MemoryFault;

    /// No packet of these tests reaches memory.
    struct Nowhere;

    impl Memory for Nowhere {
        fn read(&mut self, addr: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
            Err(MemoryFault { addr })
        }
        fn write(&mut self, addr: u64, _: &[u8]) -> Result<(), MemoryFault> {
            Err(MemoryFault { addr })
        }
        fn compare_swap(&mut self, addr: u64, _: u64, _: u64) -> Result<u64, MemoryFault> {
            Err(MemoryFault { addr })
        }
        fn fetch_add(&mut self, addr: u64, _: u64) -> Result<u64, MemoryFault> {
            Err(MemoryFault { addr })
        }
    }

    #[test]
    fn a_card_of_this_machine_sends_from_its_port() {
        let own = "192.0.2.1".parse().unwrap();
        let neighbours = vec![own, "2001:db8::1".parse().unwrap()];
        let mut nic = Nic::new(Config { neighbours, ..Config::new(own) }, [1; 32]);
        let mut dropped_at_once = |src: &str, src_port| {
            let src = src.parse().unwrap();
            let bytes = &[0; 64];
            let datagram = Datagram { src, src_port, dst: own, ip_id: None, tos: 0, bytes };
            let before = nic.counters().drop_source_port;
            nic.handle_packets(Time(0), &mut Nowhere, [datagram]);
            nic.counters().drop_source_port > before
        };
        for near in ["127.0.0.94", "::1", "192.0.2.1", "2001:db8::1"] {
            assert!(dropped_at_once(near, 50_000), "{near}");
            assert!(!dropped_at_once(near, ROCE_PORT), "{near}");
        }
        // A card of another machine sends from any port (RoCE v2).
        assert!(!dropped_at_once("192.0.2.2", 50_000));
    }

    #[test]
    fn packets_from_memory_need_no_icrc_and_are_judged_as_all_others() {
        let own = "192.0.2.1".parse().unwrap();
        let mut nic = Nic::new(Config::new(own), [1; 32]);
        let mut bytes = [0; 64];
        let mut handle = |bytes: &[u8], in_memory| {
            let (src, src_port) = ("192.0.2.2".parse().unwrap(), ROCE_PORT);
            let datagram = Datagram { src, src_port, dst: own, ip_id: None, tos: 0, bytes };
            match in_memory {
                true => nic.handle_packets_from_memory(Time(0), &mut Nowhere, [datagram]),
                false => nic.handle_packets(Time(0), &mut Nowhere, [datagram]),
            }
            let c = nic.counters();
            (c.drop_icrc, c.drop_pkey, c.drop_unknown_qp, c.drop_malformed)
        };
        assert_eq!(handle(&bytes, false), (1, 0, 0, 0));
        assert_eq!(handle(&bytes, true), (1, 1, 0, 0), "of no partition");
        bytes[2..4].fill(0xff);
        bytes[7] = 9;
        assert_eq!(handle(&bytes, true), (1, 1, 1, 0), "for a queue pair that does not exist");
        assert_eq!(handle(&bytes[..15], true), (1, 1, 1, 1), "no room for an ICRC");
    }
}
