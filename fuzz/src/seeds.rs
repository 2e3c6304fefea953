//! The inputs that each corpus must hold.

use remora_nic::Psn;
use remora_nic::kernel::{HEADER_LEN, Header, Notify};
use remora_nic::queue::RemoteAddress;
use remora_nic::wire::opcode::{Follows, TABLE};
use remora_nic::wire::{
    Aeth, AtomicEth, Bth, Deth, Extensions, Feth, ICRC_LEN, Leth, MAX_HEADER, Operation, Packet,
    Reth, Sack, Xrceth,
};
use remora_offload::kernel::builtin::column::Column;
use remora_offload::kernel::builtin::{
    aggregate, consistency, filter, get, hyperloglog, opcode, shuffle, shuffle_send, traversal,
};

use crate::arena::OPEN;

/// A named input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seed {
    /// Its file's name.
    pub name: String,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// One packet for each op-code, with all headers that it needs, and with payload and pad where
/// they are allowed.
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
        leth: Some(Leth::default()),
        sack: Some(Sack { bitmap: 1, flags: Sack::ECHO, ..Sack::default() }),
    };
    let seed = |op: &remora_nic::wire::Op| {
        // The payload of an ATOMIC WRITE must have 8 bytes.
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

/// Packets of each op-code for the card: twice, with requests outstanding that they may answer;
/// and many times, more often than receives are posted or READs agreed on.
pub fn cards() -> Vec<Seed> {
    let packets = packets().into_iter().chain(refusals()).chain(rpcs());
    packets.flat_map(|seed| [answered(&seed), storm(&seed)]).chain(held()).collect()
}

/// Two messages of the lossy dialect whose packets come in any order: first the second message,
/// then the packets of the first, so that both end.
fn held() -> impl Iterator<Item = Seed> {
    let kinds = ["send", "rdma-write"];
    kinds.into_iter().map(|kind| {
        let part = |position: &str, offset: u8| {
            let name = format!("lossy-{kind}-{position}");
            let mut seed = packets().into_iter().find(|seed| seed.name == name).expect("it is one");
            // Behind it are the payload of eight bytes, pad included, and the ICRC.
            let leth = seed.data.len() - ICRC_LEN - 8 - Leth::LEN;
            seed.data[leth + 7] = offset;
            seed
        };
        let parts = [part("last", 0), part("middle", 1), part("middle", 0), part("first", 0)];
        let mut data = Vec::new();
        for queue_pair in LOSSY_QUEUE_PAIRS {
            parts.iter().for_each(|part| push_packet(&mut data, 7, queue_pair | 0x40, part));
            parts.iter().rev().for_each(|part| push_packet(&mut data, 7, queue_pair, part));
        }
        data.extend([3, 0, 0, 5, 0, 0]);
        Seed { name: format!("lossy-{kind}-held"), data }
    })
}

/// Acknowledges that refuse a request.
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

/// RPCs that carry their length: one with a header (which asks for no answer), one without.
fn rpcs() -> impl Iterator<Item = Seed> {
    let op = remora_nic::wire::Op::lookup(0x18, remora_nic::wire::Dialect::KERNELS);
    let op = op.expect("the table has it");
    [("rc-rpc-params-header", 0), ("rc-rpc-params-no-header", 0xFF)]
        .map(|(name, byte)| {
            let reth = Reth { addr: 7, rkey: 0, len: HEADER_LEN as u32 };
            let ext = Extensions { reth, ..Extensions::default() };
            let bth = Bth { opcode: op.code, ack_req: true, ..Bth::ours() };
            let mut headers = [0; MAX_HEADER];
            let len = Packet::emit_headers(&bth, op, &ext, &mut headers);
            let data = [&headers[..len], &[byte; HEADER_LEN], &[0; ICRC_LEN]].concat();
            Seed { name: name.into(), data }
        })
        .into_iter()
}

/// A call of each built-in kernel that succeeds as far as possible, and a call without a kernel.
pub fn calls() -> Vec<Seed> {
    [lookups(), streams()].concat()
}

/// The same call twice.
fn call(name: &str, op: u64, max_len: u32, params: &[u8], payload: &[u8]) -> Seed {
    let (notify, to) = (Notify::Immediate, RemoteAddress { addr: 0x1000, rkey: 5 });
    let params_len = params.len() as u16;
    let header = Header { notify, local: false, params_len, to, max_len, cookie: 3 };
    let call = [&header.to_bytes()[..], params, payload].concat();
    let [low, high] = (call.len() as u16).to_le_bytes();
    let step = [&[op as u8, 0, low, high][..], &call].concat();
    Seed { name: name.into(), data: [&step[..], &step].concat() }
}

/// Calls of the kernels that read data which requests have written.
fn lookups() -> Vec<Seed> {
    let get = |chain_max| get::Params { table: OPEN, key: 1, entry: 0, chain_max }.to_bytes();
    let list = traversal::Params::list(OPEN, 1, 8);
    let object = |len| consistency::Params { address: OPEN, len, readings: 2 }.to_bytes();
    let hidden = list.address + (1 << 20);
    vec![
        call("get-miss", opcode::GET, 64, &get(0), &[]),
        call("get-key-zero", opcode::GET, 64, &get::Params { key: 0, ..all(OPEN) }.to_bytes(), &[]),
        call("traversal", opcode::TRAVERSAL, 64, &list.to_bytes(), &[]),
        call(
            "traversal-not-equal",
            opcode::TRAVERSAL,
            64,
            &traversal::Params { predicate: traversal::Predicate::NotEqual, ..list }.to_bytes(),
            &[],
        ),
        call(
            "traversal-hidden",
            opcode::TRAVERSAL,
            64,
            &traversal::Params { address: hidden, ..list }.to_bytes(),
            &[],
        ),
        call("consistency", opcode::CONSISTENCY, 4096, &object(64), &[]),
        call("consistency-too-long", opcode::CONSISTENCY, 10, &object(64), &[]),
        call("consistency-many", opcode::CONSISTENCY, 8192, &object(0x1800), &[]),
    ]
}

/// Calls of the kernels that process their payload, and a call without a kernel.
fn streams() -> Vec<Seed> {
    let words = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let shuffle = |ask, bits| shuffle::Params { ask, bits, session: 1 }.to_bytes();
    let sketch = |ask, store| hyperloglog::Params { ask, precision: 4, store }.to_bytes();
    let value = Column::u64(0);
    let filter = filter::Params {
        row_len: 8,
        column: value,
        compare: filter::Compare::Less,
        operand: 5,
        count_only: false,
    };
    let group_by = Some(Column { offset: 0, width: 1, signed: true });
    let aggregate = aggregate::Params { row_len: 8, value, group_by, groups_max: 4 };
    let target = |qpn| shuffle_send::Target { qpn, to: RemoteAddress::default(), values: 600 };
    let send = |values| {
        let targets = vec![target(1), target(2)];
        shuffle_send::Params { address: OPEN, values, targets }.to_bytes()
    };
    let values = words(&[1, 2, 3, 9, 1 << 40]);
    let histogram = shuffle::Partition::histogram(OPEN, &[3, 3]);
    vec![
        call("histogram", opcode::SHUFFLE, 64, &shuffle(shuffle::Ask::Histogram, 1), &histogram),
        call("values", opcode::SHUFFLE, 64, &shuffle(shuffle::Ask::Values, 0), &values),
        call("sketch", opcode::HYPERLOGLOG, 64, &sketch(hyperloglog::Ask::Add, OPEN), &values),
        call("registers", opcode::HYPERLOGLOG, 64, &sketch(hyperloglog::Ask::Registers, 0), &[]),
        call("merge", opcode::HYPERLOGLOG, 64, &sketch(hyperloglog::Ask::Merge, 0), &[1; 24]),
        call("filter", opcode::FILTER, 64, &filter.to_bytes(), &values),
        call("filter-too-long", opcode::FILTER, 8, &filter.to_bytes(), &values),
        call("aggregate", opcode::AGGREGATE, 300, &aggregate.to_bytes(), &values),
        call("shuffle-send", opcode::SHUFFLE_SEND, 64, &send(500), &[]),
        call("no-kernel", 15, 64, &[], &[]),
    ]
}

fn all(table: u64) -> get::Params {
    get::Params { table, key: 0, entry: 0, chain_max: u32::MAX }
}

/// The queue pairs, as the steps' varying bytes name them.
const QUEUE_PAIRS: [u8; 6] = [0, 1, 2, 3, 0x20, 0x21];
const LOSSY_QUEUE_PAIRS: [u8; 2] = [0x22, 0x23];

/// The queue pairs that a packet is for: only those of the lossy dialect take its packets.
fn queue_pairs(seed: &Seed) -> &'static [u8] {
    if seed.name.starts_with("lossy") { &LOSSY_QUEUE_PAIRS } else { &QUEUE_PAIRS }
}

fn answered(seed: &Seed) -> Seed {
    let mut data = Vec::new();
    for &queue_pair in queue_pairs(seed) {
        // A READ, an atomic, a WRITE, an ATOMIC WRITE and a FLUSH are outstanding, and a window is
        // bound and invalidated. Then the packet arrives, twice.
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
    for &queue_pair in queue_pairs(seed) {
        for _ in 0..6 {
            push_packet(&mut data, 7, queue_pair, seed);
        }
        // As a duplicate, for the read-only region, unchanged, and for queue pair 1.
        push_packet(&mut data, 7, queue_pair | 0xC0, seed);
        push_packet(&mut data, 7, queue_pair | 8, seed);
        push_packet(&mut data, 8, queue_pair, seed);
        push_packet(&mut data, 9, queue_pair, seed);
        // Through the window, to the group, and to another group.
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

/// An element of each op-code on each queue pair, and one that is rewritten before it is fetched.
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
