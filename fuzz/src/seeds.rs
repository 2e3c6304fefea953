//! What a corpus must at least hold.

use remora_nic::Psn;
use remora_nic::wire::opcode::{Follows, TABLE};
use remora_nic::wire::{
    Aeth, AtomicEth, Bth, Deth, Extensions, ICRC_LEN, MAX_HEADER, Packet, Reth,
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
        deth: Deth { qkey: 0x8001_0000, src_qp: 1 },
        reth: Reth { addr: 0x1000_0000_0040, rkey: 0x1234, len: 5 },
        atomic: AtomicEth { addr: 0x1000_0000_0040, rkey: 0x1234, swap_add: 1, compare: 2 },
        aeth: Aeth { syndrome: 0x1F, msn: 7 },
        atomic_ack: 3,
        imm_or_key: 0xCAFE,
    };
    let seed = |op: &remora_nic::wire::Op| {
        let payload: &[u8] =
            if op.follows.contains(Follows::PAYLOAD) { b"remora\0\0" } else { b"" };
        let bth = Bth {
            opcode: op.code,
            migreq: true,
            pad: if payload.is_empty() { 0 } else { 3 },
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
