//! What a corpus must at least hold.

use remora_nic::Psn;
use remora_nic::wire::opcode::{Follows, TABLE};
use remora_nic::wire::{
    Aeth, AtomicEth, Bth, Deth, Extensions, Feth, ICRC_LEN, MAX_HEADER, Operation, Packet, Reth,
    Xrceth,
};

/// A named input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seed {
    /// Its file's name.
    pub name: String,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// One packet an op-code, with every header it calls for, and payload and pad where it may.
pub fn packets() -> Vec<Seed> {
    let ext = Extensions {
        xrceth: Xrceth { srqn: 0x0012_3456 },
        deth: Deth { qkey: 0x8001_0000, src_qp: 1 },
        feth: Feth { placement: Feth::GLOBAL | Feth::PERSISTENT, selectivity: Feth::RANGE },
        reth: Reth { addr: 0x1000_0000_0040, rkey: 0x1234, len: 5 },
        atomic: AtomicEth { addr: 0x1000_0000_0040, rkey: 0x1234, swap_add: 1, compare: 2 },
        aeth: Aeth { syndrome: 0x1F, msn: 7 },
        atomic_ack: 3,
        imm_or_key: 0xCAFE,
    };
    let seed = |op: &remora_nic::wire::Op| {
        // The one whose payload must be of 8 bytes.
        let word = op.operation == Operation::AtomicWrite;
        let ext = Extensions { reth: Reth { len: if word { 8 } else { 5 }, ..ext.reth }, ..ext };
        let payload: &[u8] =
            if op.follows.contains(Follows::PAYLOAD) { b"remora\0\0" } else { b"" };
        let bth = Bth {
            opcode: op.code,
            migreq: true,
            pad: if payload.is_empty() || word { 0 } else { 3 },
            pkey: 0xFFFF,
            dest_qp: 0x11,
            ack_req: true,
            psn: Psn::new(0x00FF_FFFF),
            ..Bth::default()
        };
        let mut headers = [0; MAX_HEADER];
        let len = Packet::emit_headers(&bth, op, &ext, &mut headers);
        Seed {
            name: op.name.to_lowercase().replace(' ', "-"),
            data: [&headers[..len], payload, &[0; ICRC_LEN]].concat(),
        }
    };
    TABLE.iter().map(seed).collect()
}

/// A packet of each op-code into the card: twice, with work outstanding that it may answer; and
/// many times, more than anyone has posted receives or agreed to READs for.
pub fn cards() -> Vec<Seed> {
    let packets = packets().into_iter().chain(refusals());
    packets.flat_map(|seed| [answered(&seed), storm(&seed)]).collect()
}

/// Acknowledges that refuse.
fn refusals() -> impl Iterator<Item = Seed> {
    let template = packets().into_iter().find(|seed| seed.name == "rc-acknowledge");
    let template = template.expect("the table has it");
    [0x21, 0x60, 0x61, 0x62, 0x63, 0x7F].into_iter().map(move |syndrome| {
        let mut seed = template.clone();
        seed.name = format!("rc-acknowledge-{syndrome:02x}");
        seed.data[12] = syndrome;
        seed
    })
}

/// The queue pairs, as steps name them.
const QUEUE_PAIRS: [u8; 6] = [0, 1, 2, 3, 0x20, 0x21];

fn answered(seed: &Seed) -> Seed {
    let mut data = Vec::new();
    for queue_pair in QUEUE_PAIRS {
        // A READ, an atomic, a WRITE, an ATOMIC WRITE, a FLUSH are outstanding, a window is bound
        // and invalidated; then the packet comes, twice.
        for kind in [2, 4, 0, 8, 9, 10, 11] {
            data.extend([kind << 4 & 0x80 | 2, queue_pair | (kind & 7 ^ 2) << 2, 0]);
        }
        data.extend([3, 0, 0]);
        push_packet(&mut data, 7, queue_pair, seed);
        push_packet(&mut data, 7, queue_pair, seed);
        data.extend([3, 0, 0, 5, 0, 0]);
    }
    Seed { data, ..seed.clone() }
}

fn storm(seed: &Seed) -> Seed {
    let mut data = Vec::new();
    for queue_pair in QUEUE_PAIRS {
        for _ in 0..6 {
            push_packet(&mut data, 7, queue_pair, seed);
        }
        // As a duplicate, to the region that may only be read, as it is, and to queue pair 1.
        push_packet(&mut data, 7, queue_pair | 0xC0, seed);
        push_packet(&mut data, 7, queue_pair | 8, seed);
        push_packet(&mut data, 8, queue_pair, seed);
        push_packet(&mut data, 9, queue_pair, seed);
        // Through the window; to the group, and to no group.
        push_packet(&mut data, 0x87, queue_pair, seed);
        push_packet(&mut data, 10, queue_pair, seed);
    }
    data.extend([3, 0, 0, 5, 0, 0]);
    Seed { name: format!("{}-storm", seed.name), data }
}

fn push_packet(data: &mut Vec<u8>, step: u8, vary: u8, seed: &Seed) {
    let packet = &seed.data[..seed.data.len() - ICRC_LEN];
    data.extend([step, vary, packet.len() as u8]);
    data.extend_from_slice(packet);
}

/// An element of each op-code on each queue pair, and one rewritten before it is fetched.
pub fn elements() -> Vec<Seed> {
    let seed = |opcode: u8| {
        let mut element = [0; 64];
        element[0] = opcode;
        element[11] = 1;
        element[16] = 8;
        element[48] = 8;
        element[52] = 1;
        let mut data = Vec::new();
        for queue_pair in QUEUE_PAIRS {
            data.extend([4, queue_pair, element.len() as u8]);
            data.extend_from_slice(&element);
            data.extend([3, queue_pair, 1, opcode.wrapping_add(1)]);
            data.extend([0, 0, 0, 2, 0, 0]);
        }
        Seed { name: format!("opcode-{opcode}"), data }
    };
    (0..14).map(seed).collect()
}
