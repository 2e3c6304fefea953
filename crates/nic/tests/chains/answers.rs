//! Answers of kernels that a peer does not acknowledge while it goes on calling: they take room, of
//! which there is an end. The peer is no card: it makes its own packets.

use std::net::{IpAddr, Ipv4Addr};

use remora_nic::kernel::{CallStatus, Header, Notify};
use remora_nic::nic::CallError;
use remora_nic::qp::{Mtu, QpAttr, State};
use remora_nic::wire::{
    Aeth, Bth, Dialect, Extensions, ICRC_LEN, MAX_HEADER, Op, Packet, ROCE_PORT, Reth, Syndrome,
};
use remora_nic::{Access, Datagram, Path, Psn, TransmitBatch};

use crate::rig::{PLAIN, Qp, Rig};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
const RPC: u8 = 0x18;
const ACKNOWLEDGE: u8 = 0x11;
/// No kernel has it, so that the card itself answers.
const OPCODE: u64 = 7;
/// Messages of kernels that the card has room for.
const SENDS: usize = 300;
/// Packets that a queue pair may have outstanding, and the messages of kernels that it may always
/// have.
const WINDOW: u16 = 4;
const ALWAYS: usize = 16;
/// More calls than there is room for.
const CALLS: usize = 1000;

/// A peer at the other end of one of the card's queue pairs.
struct Peer {
    qp: Qp,
    /// The PSN of its next call.
    next: Psn,
}

/// What the card has sent.
#[derive(Default)]
struct Sent {
    /// The PSNs of answers, for the peer to acknowledge, and what they say.
    answers: Vec<(Psn, CallStatus)>,
    /// Calls that were refused: receiver not ready.
    refused: usize,
}

fn rig() -> Rig {
    Rig::with(|config| (config.max_kernel_sends, config.window_packets) = (SENDS, WINDOW))
}

impl Peer {
    fn new(rig: &mut Rig) -> Peer {
        let qp = rig.fresh(PLAIN, 8);
        let init = QpAttr {
            state: Some(State::Init),
            access: Some(Access::all()),
            dialect: Some(Dialect::KERNELS),
            ..QpAttr::default()
        };
        let rtr = QpAttr {
            state: Some(State::Rtr),
            path: Some(Path::new(PEER, qp.qpn)),
            path_mtu: Some(Mtu::B1024),
            dest_qp: Some(99),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(1),
            ..QpAttr::default()
        };
        // An acknowledge is waited for without limit: the peer's silence does not end the queue
        // pair.
        let rts = QpAttr {
            state: Some(State::Rts),
            sq_psn: Some(Psn::new(0)),
            max_rd_atomic: Some(1),
            timeout: Some(0),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            ..QpAttr::default()
        };
        for attr in [init, rtr, rts] {
            rig.nic.modify_qp(rig.now, &mut rig.ram, qp.qpn, &attr).unwrap();
        }
        Peer { qp, next: Psn::new(0) }
    }

    fn packet(&self, rig: &mut Rig, opcode: u8, psn: Psn, ext: &Extensions, payload: &[u8]) {
        let op = Op::lookup(opcode, Dialect::KERNELS).unwrap();
        let bth = Bth { dest_qp: self.qp.qpn, psn, ack_req: true, ..Bth::ours() };
        let mut header = [0; MAX_HEADER];
        let len = Packet::emit_headers(&bth, op, ext, &mut header);
        let bytes = [&header[..len], payload, &[0; ICRC_LEN]].concat();
        let dst = rig.nic.config().address;
        let (src, src_port) = (PEER, ROCE_PORT);
        let datagram = Datagram { src, src_port, dst, ip_id: None, tos: 0, bytes: &bytes };
        rig.nic.handle_packets_from_memory(rig.now, &mut rig.ram, [datagram]);
    }

    /// Calls, and calls again with the same packet what was refused before. Returns what the card
    /// sends.
    fn call(&mut self, rig: &mut Rig) -> Sent {
        let payload = header().to_bytes();
        let reth = Reth { addr: OPCODE, rkey: 0, len: payload.len() as u32 };
        let ext = Extensions { reth, ..Extensions::default() };
        self.packet(rig, RPC, self.next, &ext, &payload);
        let sent = taken(rig);
        if sent.refused == 0 {
            self.next = self.next.plus(1);
        }
        sent
    }

    /// Acknowledges all answers up to one.
    fn acknowledge(&self, rig: &mut Rig, psn: Psn) {
        let syndrome = Syndrome::Ack { credits: Syndrome::UNLIMITED }.byte();
        let ext = Extensions { aeth: Aeth { syndrome, msn: 0 }, ..Extensions::default() };
        self.packet(rig, ACKNOWLEDGE, psn, &ext, &[]);
    }
}

fn header() -> Header {
    Header { notify: Notify::Immediate, cookie: 3, ..Header::default() }
}

/// Takes what the card sends.
fn taken(rig: &mut Rig) -> Sent {
    let (mut batch, mut sent) = (TransmitBatch::new(), Sent::default());
    while rig.nic.poll_transmit(rig.now, &mut rig.ram, &mut batch, 64) {}
    for packet in batch.packets() {
        let bytes = [packet.header(), &[0; ICRC_LEN]].concat();
        let bth = Packet::bth(&bytes).unwrap();
        let op = Op::lookup(bth.opcode, Dialect::KERNELS).unwrap();
        let ext = Packet::parse(bth, op, &bytes).unwrap().ext;
        if bth.opcode == ACKNOWLEDGE {
            let refused = matches!(Syndrome::parse(ext.aeth.syndrome), Syndrome::Rnr { .. });
            sent.refused += usize::from(refused);
        } else {
            sent.answers.push((bth.psn, CallStatus::from_immediate(ext.imm_or_key).0));
        }
    }
    sent
}

/// Peers that acknowledge nothing fill the room that kernels have, and no more. All others are
/// answered at once meanwhile, and they themselves when they acknowledge.
#[test]
fn answers_that_are_not_acknowledged_have_a_limit() {
    let mut rig = rig();
    let mut silent: Vec<_> = (0..12).map(|_| Peer::new(&mut rig)).collect();
    let (mut refused, mut answers) = (0, Vec::new());
    for peer in &mut silent {
        let mut to_it = Vec::new();
        for _ in 0..CALLS {
            let sent = peer.call(&mut rig);
            refused += sent.refused;
            to_it.extend(sent.answers);
            let kept = rig.nic.in_use().kernel_sends;
            assert!(kept <= SENDS + 12 * ALWAYS, "{kept} answers wait for an acknowledge");
        }
        answers.push(to_it);
    }
    assert!(refused > 0 && rig.counter("kernel_busy") == refused as u64);

    let mut honest = Peer::new(&mut rig);
    for _ in 0..CALLS {
        let sent = honest.call(&mut rig);
        let [(psn, CallStatus::NO_KERNEL)] = sent.answers[..] else {
            panic!("{} answers, {} refusals", sent.answers.len(), sent.refused)
        };
        honest.acknowledge(&mut rig, psn);
    }

    for (peer, to_it) in silent.iter_mut().zip(answers) {
        let (mut last, mut came) = (to_it.last().map(|answer| answer.0), to_it.len() as u32);
        while let Some(psn) = last.take() {
            peer.acknowledge(&mut rig, psn);
            let sent = taken(&mut rig);
            came += sent.answers.len() as u32;
            last = sent.answers.last().map(|answer| answer.0);
        }
        assert_eq!(Psn::new(came), peer.next, "an answer for each call that was taken");
        assert_eq!(peer.call(&mut rig).answers.len(), 1, "and for the next");
    }
}

/// What the host itself calls for a peer is answered to that peer.
#[test]
fn calls_by_the_host_have_the_same_limit() {
    let mut rig = rig();
    let peer = Peer::new(&mut rig);
    let called = (0..CALLS).map(|_| {
        let call = header().to_bytes();
        let called = rig.nic.call_kernel(rig.now, &mut rig.ram, peer.qp.qpn, OPCODE, &call);
        taken(&mut rig);
        assert!(rig.nic.in_use().kernel_sends <= SENDS);
        called
    });
    assert_eq!(called.last(), Some(Err(CallError::Busy)));
}
