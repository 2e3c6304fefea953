//! Any programs of work requests that change each other, on the card and on an interpreter.

use std::net::{IpAddr, Ipv4Addr};

use remora_nic::queue::{Completion, RingInit};
use remora_nic::wire::Transport;
use remora_nic::{
    Access, Config, Counters, Memory, MemoryFault, MrInit, Nic, PageTable, QpFlags, QpInit, Queue,
    Time, TransmitBatch,
};

use crate::interpreter::{self, Interpreter, Ring};
use crate::seeds::Seed;

/// Bytes of memory: the rings, and then the data, in one region.
const SIZE: u64 = 4096;
const SEND_DEPTH: u32 = 8;
const RECV_DEPTH: u32 = 4;
const SLOT: u32 = 64;
/// Bytes of a queue pair's two rings.
const RINGS: u64 = (SLOT * (SEND_DEPTH + RECV_DEPTH)) as u64;
/// The flags of each queue pair.
const QUEUES: [QpFlags; 4] =
    [QpFlags::empty(), QpFlags::MANAGED_SEND, QpFlags::MANAGED_SEND, QpFlags::all()];

struct Bytes(Vec<u8>);

impl Bytes {
    fn word(&mut self, addr: u64) -> &mut [u8; 8] {
        assert!(addr.is_multiple_of(8), "an atomic at {addr:#x}");
        self.0[addr as usize..][..8].first_chunk_mut().expect("8 bytes")
    }
}

impl Memory for Bytes {
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        dst.copy_from_slice(&self.0[addr as usize..][..dst.len()]);
        Ok(())
    }

    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
        self.0[addr as usize..][..src.len()].copy_from_slice(src);
        Ok(())
    }

    fn compare_swap(&mut self, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault> {
        let word = self.word(addr);
        let before = u64::from_le_bytes(*word);
        if before == compare {
            *word = swap.to_le_bytes();
        }
        Ok(before)
    }

    fn fetch_add(&mut self, addr: u64, add: u64) -> Result<u64, MemoryFault> {
        let word = self.word(addr);
        let before = u64::from_le_bytes(*word);
        *word = before.wrapping_add(add).to_le_bytes();
        Ok(before)
    }
}

/// The card and the interpreter side by side.
struct Both {
    nic: Nic,
    memory: Bytes,
    batch: TransmitBatch,
    model: Interpreter,
}

/// The input is a list of steps of ten bytes. A step posts an element with keys, queues and
/// addresses that are mostly valid, enables a managed queue as its owner, rewrites memory, or
/// polls.
///
/// # Panics
/// If the card's memory or completions differ from the interpreter's, or if a packet is sent.
pub fn chain(data: &[u8]) {
    chain_counters(data);
}

/// Runs [`chain`], and returns the card's counters.
pub fn chain_counters(data: &[u8]) -> Counters {
    let mut both = Both::new();
    let (steps, _) = data.as_chunks::<10>();
    steps.iter().take(64).for_each(|step| both.step(step));
    (0..4).for_each(|_| both.poll());
    both.end()
}

impl Both {
    fn new() -> Both {
        let mut nic = Nic::new(Config::new(IpAddr::V4(Ipv4Addr::LOCALHOST)), [5; 32]);
        let pd = nic.alloc_pd().expect("room");
        let (access, pages) = (Access::all(), PageTable::contiguous(12, 0, SIZE));
        let init = MrInit { iova: 0, len: SIZE, access, pages };
        let key = nic.reg_mr(pd, init).expect("room");
        let queues = QUEUES.iter().enumerate().map(|(i, &flags)| {
            let base = i as u64 * RINGS;
            let sq = RingInit { addr: base, depth: SEND_DEPTH, stride: SLOT };
            let rq = RingInit { addr: base + sq.len() as u64, depth: RECV_DEPTH, stride: SLOT };
            let cq = nic.create_cq(2048).expect("room");
            let init = QpInit {
                pd,
                transport: Transport::Rc,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                sq,
                rq,
                signal_all: false,
                flags,
                client: 0,
            };
            let qpn = nic.create_qp(init).expect("room");
            nic.loop_back(qpn, qpn, Access::all()).expect("it is fresh");
            let send = flags.contains(QpFlags::MANAGED_SEND);
            let recv = flags.contains(QpFlags::MANAGED_RECV);
            let send = Ring::new(sq.addr as usize, SEND_DEPTH, send);
            interpreter::Queue::new(qpn, cq, send, Ring::new(rq.addr as usize, RECV_DEPTH, recv))
        });
        let queues = queues.collect();
        let model = Interpreter::new(vec![0; SIZE as usize], queues, key);
        Both { nic, memory: Bytes(vec![0; SIZE as usize]), batch: TransmitBatch::new(), model }
    }

    fn step(&mut self, step: &[u8; 10]) {
        let [kind, which, ..] = *step;
        let q = usize::from(which & 3);
        let qpn = self.model.queues[q].qpn;
        match kind & 7 {
            0..=3 => {
                let raw = self.element(step);
                self.post(q, Queue::Send, &raw);
            }
            4 => {
                let raw = self.element(step);
                self.post(q, Queue::Recv, &raw);
            }
            5 => {
                let (recv, index) = (step[2] & 1 != 0, u32::from(step[3]));
                let ring =
                    if recv { &self.model.queues[q].recv } else { &self.model.queues[q].send };
                // The owner's doorbell of a plain queue covers only elements that it has posted;
                // see `post`.
                if ring.managed {
                    let rung = match recv {
                        true => self.nic.handle_recv_doorbell(qpn, index),
                        false => self.nic.handle_send_doorbell(qpn, index),
                    };
                    let enabled = self.model.enable_by_owner(q, recv, index);
                    assert_eq!(
                        rung.is_ok(),
                        enabled,
                        "the card and the interpreter disagree on an enable up to {index}"
                    );
                }
            }
            6 => {
                let at = usize::from(u16::from_le_bytes([step[2], step[3]])) % (SIZE as usize - 8);
                self.memory.0[at..at + 6].copy_from_slice(&step[4..]);
                self.model.memory[at..at + 6].copy_from_slice(&step[4..]);
            }
            _ => self.poll(),
        }
    }

    /// The element that a step's ten bytes stand for.
    fn element(&self, step: &[u8; 10]) -> [u8; SLOT as usize] {
        let [kind, which, opcode, to, to_high, from, from_high, x, y, z] = *step;
        let mut raw = [0; SLOT as usize];
        // Most addresses are those of words.
        let address = |low: u8, high: u8| {
            let any = u64::from(u16::from_le_bytes([low, high]));
            if high & 0x80 == 0 { (any % SIZE) & !7 } else { any % SIZE }
        };
        let opcode = u16::from(opcode % 34);
        let key = if which & 0x40 == 0 { self.model.key } else { u32::from(z) };
        let named = &self.model.queues[usize::from(to & 3)];
        let (key, remote) = match opcode {
            17 => (if to & 0x40 == 0 { named.cq } else { 7 }, u64::from(x)),
            18 | 19 => (if to & 0x40 == 0 { named.qpn } else { 7 }, u64::from(x)),
            _ => (key, address(to, to_high)),
        };
        let inline = kind & 0x40 != 0;
        let flags = u16::from(kind & 0x80 == 0) | u16::from(inline) << 3;
        let entries = if which & 0x10 == 0 { 1 } else { which >> 7 << 1 };
        let len = if kind & 0x20 == 0 { 8 } else { u32::from(y) * 20 };
        let operand = if inline { u64::from(y & 31) << 32 } else { u64::from(x) };
        let lkey = if which & 0x20 == 0 { self.model.key } else { u32::from(z) };
        raw[..2].copy_from_slice(&opcode.to_le_bytes());
        raw[2] = z;
        raw[8..10].copy_from_slice(&flags.to_le_bytes());
        raw[11] = entries;
        raw[12..16].copy_from_slice(&key.to_le_bytes());
        raw[16..24].copy_from_slice(&remote.to_le_bytes());
        raw[24..32].copy_from_slice(&operand.to_le_bytes());
        raw[32] = z;
        raw[40..48].copy_from_slice(&address(from, from_high).to_le_bytes());
        raw[48..52].copy_from_slice(&len.to_le_bytes());
        raw[52..56].copy_from_slice(&lkey.to_le_bytes());
        raw[56] = y;
        raw
    }

    fn post(&mut self, q: usize, queue: Queue, raw: &[u8]) {
        let qpn = self.model.queues[q].qpn;
        let posted = self.nic.post_element(&mut self.memory, qpn, queue, raw);
        let recv = queue == Queue::Recv;
        assert_eq!(posted.is_ok(), self.model.post(q, recv, raw), "{queue:?} of {q}: {posted:?}");
    }

    /// Polls the card and the interpreter, and compares them.
    fn poll(&mut self) {
        self.batch.clear();
        self.nic.poll_transmit(Time(1), &mut self.memory, &mut self.batch, 64);
        assert_eq!(self.batch.len(), 0, "the card must send no packet");
        self.model.poll();
        for (q, queue) in self.model.queues.iter_mut().enumerate() {
            let mut out = [Completion::default(); 64];
            let mut expected = queue.entries.drain(..);
            while let Ok(n @ 1..) = self.nic.poll_cq(queue.cq, &mut out) {
                for entry in &out[..n] {
                    // The kind of a failed completion has no meaning.
                    let good = entry.status == remora_nic::queue::Status::Success;
                    let recv = entry.kind.is_receive();
                    let (wr_id, status, of_recv) = expected.next().expect("one more completion");
                    assert_eq!((entry.wr_id, entry.status), (wr_id, status), "queue {q}");
                    assert!(!good || recv == of_recv, "queue {q}: {entry:?}");
                }
            }
            assert_eq!(expected.next(), None, "queue {q}: the card has not completed a request");
        }
        let differs = self.memory.0.iter().zip(&self.model.memory).position(|(a, b)| a != b);
        assert_eq!(differs, None, "the memories differ at this byte");
        while self.nic.poll_event().is_some() {}
        while let Some(incident) = self.nic.poll_incident() {
            assert!(!incident.to_string().is_empty());
        }
    }

    /// Destroys all objects, and returns the card's counters.
    fn end(mut self) -> Counters {
        for queue in &self.model.queues {
            self.nic.destroy_qp(queue.qpn).expect("it exists");
            self.nic.destroy_cq(queue.cq).expect("nothing uses it");
        }
        self.nic.dereg_mr(self.model.key).expect("it exists");
        let left = self.nic.in_use();
        assert_eq!((left.qps, left.mrs, left.cqs, left.lists, left.outstanding), (0, 0, 0, 0, 0));
        *self.nic.counters()
    }
}

/// One program for each op-code, and the constructs of RedN.
pub fn chains() -> Vec<Seed> {
    let poll = [7, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let data = [0, 0x0C]; // 0x0C00: behind the rings
    let mut seeds: Vec<Seed> = (0..34)
        .map(|opcode| {
            let [low, high] = data;
            let recv = [4, 0, 0, 0, 0, low, high, 0, 0, 9];
            let element = [0, 0, opcode, low, high, low + 64, high, 1, 2, 3];
            let without = [0, 0x10, opcode, low, high, 0, 0, 3, 2, 4];
            let steps = [recv, element, without, element, poll];
            Seed { name: format!("opcode-{opcode}"), data: steps.concat() }
        })
        .collect();
    // Requests past the end of memory, at an address off a word, or with a wrong key: remote, then
    // local.
    let wrong = [
        ("past-the-end", [0x40, 0, 4, 0xF8, 0x0F, 0, 0, 0, 20, 1]),
        ("off-a-word", [0, 0x10, 8, 0x04, 0x8C, 0, 0, 1, 0, 2]),
        ("remote-key", [0, 0x50, 8, 0, 0x0C, 0, 0, 1, 0, 3]),
        ("local-key", [0, 0x20, 4, 0, 0x0C, 0, 0x0D, 0, 0, 4]),
        ("local-past-the-end", [0x20, 0, 4, 0, 0, 0xF8, 0x0F, 0, 5, 5]),
        ("no-completion-queue", [0, 0, 17, 0x40, 0, 0, 0, 1, 0, 6]),
    ];
    seeds.extend(
        wrong.map(|(name, step)| Seed { name: name.into(), data: [step, step, poll].concat() }),
    );
    seeds.extend(programs(poll, data));
    seeds
}

/// Programs whose elements change other elements.
fn programs(poll: [u8; 10], data: [u8; 2]) -> [Seed; 3] {
    // Queue 1 counts for ever: an ADD to the data, an ADD to its own ENABLE, an ENABLE of itself.
    let own = (RINGS + 3 * u64::from(SLOT) + 16).to_le_bytes();
    let recycled = [
        [0, 0x11, 25, data[0], data[1], 0, 0, 1, 0, 1],
        [0, 0x11, 25, own[0], own[1], 0, 0, 8, 0, 2],
        [0, 0x11, 16, 0, 0, 0, 0, 0, 0, 3],
        [0, 0x11, 18, 1, 0, 0, 0, 4, 0, 4],
        [5, 1, 0, 4, 0, 0, 0, 0, 0, 0],
        poll,
        poll,
    ];
    // Its ENABLE has index 8 at first, since the four slots behind it run too.
    let noops = [[0, 0x11, 16, 0, 0, 0, 0, 0, 0, 5]; 4];
    let recycled = [&recycled[..4], &noops[..], &recycled[4..]].concat();
    // Queue 0 changes a NOOP of queue 1 into a WRITE, waits for that, and lets queue 1 run.
    let word = RINGS.to_le_bytes();
    let decided = [
        [0, 1, 16, data[0], data[1], 8, data[1], 0, 0, 0],
        [0, 0x10, 7, word[0], word[1], 0, 0, 4, 16, 0],
        [0, 0, 17, 0, 0, 0, 0, 1, 0, 0],
        [0, 0, 18, 1, 0, 0, 0, 1, 0, 0],
        [0, 0, 17, 1, 0, 0, 0, 1, 0, 0],
        poll,
    ];
    // A message for a managed receive queue, which scatters it into another queue's ring.
    let send = [
        [4, 3, 0, 0, 0, word[0], word[1], 0, 0, 0],
        [0, 3, 1, 0, 0, data[0], data[1], 0, 0, 0],
        [5, 3, 0, 1, 0, 0, 0, 0, 0, 0],
        poll,
        [0, 0, 19, 3, 0, 0, 0, 1, 0, 0],
        poll,
    ];
    let seed = |name: &str, steps: &[[u8; 10]]| Seed { name: name.into(), data: steps.concat() };
    [seed("recycled", &recycled), seed("if", &decided), seed("send", &send)]
}
